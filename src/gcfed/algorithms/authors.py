"""The 13 methods of the GC-Fed paper's tables, each as its authors' experiment code ran it.

``feddyn@authors`` in the text of an algorithm stands for what is here under ``feddyn``; ``feddyn``
alone is the method at its defaults, which follow its own paper.
"""

from collections.abc import Mapping
from typing import NamedTuple


class AsRan(NamedTuple):
    """A method as the authors ran it: its text, and how that differs from the default."""

    text: str
    difference: str = "the default"


_ONE_AXIS = "biases and norm scales are centralized too"

AUTHORS: Mapping[str, AsRan] = {
    "fedavg": AsRan("fedavg"),
    "fedprox": AsRan("fedprox"),
    "scaffold": AsRan(
        "scaffold(rho=0.9, undecayed=True)",
        "steps are counted with momentum 0.9, whatever the optimiser's, and divided by the "
        "learning rate before its decay",
    ),
    "feddyn": AsRan(
        "feddyn(h_weight='1/S') + clip(norm=10)",
        "h moves by 1/S of the mean delta, not S/N; gradients are clipped at a norm of 10",
    ),
    "fedntd": AsRan("fedntd"),
    "fedvarp": AsRan("fedvarp"),
    "fedlc": AsRan("fedlc(counts='filled')", "examples repeated to fill batches are counted too"),
    "feddecorr": AsRan("feddecorr"),
    "fedsol": AsRan("fedsol"),
    "fedacg": AsRan("fedacg(beta=0.002)", "no 1/2 in the penalty, at their beta of 0.001"),
    "localgc": AsRan("localgc(min_ndim=1)", _ONE_AXIS),
    "globalgc": AsRan("globalgc(min_ndim=1)", _ONE_AXIS),
    "gcfed": AsRan("gcfed(min_ndim=1)", _ONE_AXIS),
}
"""By name; the first part of each text is the method itself."""


def rows() -> list[tuple[str, str, str]]:
    """A row for each: how to ask for it, what it stands for, how it differs from the default."""
    return [(f"{name}@authors", as_ran.text, as_ran.difference) for name, as_ran in AUTHORS.items()]
