"""What a model forgets: how far each class is below the best it ever was."""

from collections.abc import Sequence

from gcfed.simulation.lines import Record

FORGETTING, OF_CLASS = "clients.forgetting", "clients.class."
"""What is read out of the accuracies of classes, which the probe ``clients`` measures."""


def with_forgetting(probes: Sequence[Record]) -> list[Record]:
    """The rows of probes; those with accuracies of classes also say what was forgotten.

    That is the best accuracy of a class in any measurement before, less the present one, as a mean
    over classes; it is negative where more was learnt than forgotten.  The first measurement has
    none.
    """
    best: dict[str, float] = {}
    rows: list[Record] = []
    for row in probes:
        now = {k: v for k, v in row.items() if k.startswith(OF_CLASS) and v is not None}
        gone = [best[name] - value for name, value in now.items() if name in best]
        found = {FORGETTING: sum(gone) / len(gone)} if gone else {}
        rows.append({**row, **found})
        best |= {name: max(value, best.get(name, value)) for name, value in now.items()}
    return rows
