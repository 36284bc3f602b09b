"""The command that says what algorithms cost."""

from typing import Annotated

import typer

from gcfed.cli.completion import names_of
from gcfed.cli.options import DataDir, Plugins
from gcfed.cli.reports import FormatOption, OutOption, TableReport
from gcfed.errors import InputError

COUNTED = "What is counted"


def costs(
    algorithms: Annotated[
        list[str] | None,
        typer.Argument(metavar="ALGORITHMS...", hidden=True, autocompletion=names_of("algorithms")),
    ] = None,
    model: Annotated[
        str, typer.Option(autocompletion=names_of("models"), rich_help_panel=COUNTED)
    ] = "vgg11",
    dataset: Annotated[
        str | None,
        typer.Option(
            help="What the model is to read, in place of --shape and --classes.",
            autocompletion=names_of("datasets"),
            rich_help_panel=COUNTED,
        ),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(
            help="Of one example.", show_default="3x32x32, CIFAR's", rich_help_panel=COUNTED
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(
            help="How many there are.", show_default="100, CIFAR-100's", rich_help_panel=COUNTED
        ),
    ] = None,
    clients: Annotated[int, typer.Option(rich_help_panel=COUNTED)] = 1000,
    cohort: Annotated[int, typer.Option(help="Clients of a round.", rich_help_panel=COUNTED)] = 5,
    form: FormatOption = None,
    out: OutOption = None,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Count what algorithms cost: bytes sent, bytes kept, passes through the model.

    ALGORITHMS are names such as gcfed, or chains such as 'fedprox + gcfed'; without any, all that
    are registered.  It is counted from what their hooks declare and return: nothing is trained.

    Examples:

        gcfed costs --model vgg11 --clients 1000
        gcfed costs fedavg scaffold 'scaffold + gcfed' --model cnn --classes 10 --out costs.tex
    """
    report = TableReport(form, out)
    sides = None if shape is None else _sides(shape)

    from gcfed.results.cost_table import costs as count

    found = count(
        algorithms or (),
        model=model,
        dataset=dataset,
        shape=sides,
        num_classes=classes,
        clients=clients,
        cohort=cohort,
        data_dir=data_dir,
    )
    report.show(found)
    report.write(found)


def _sides(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(side) for side in text.split("x"))
    except ValueError:
        raise InputError(f"--shape is one such as 3x32x32; not {text!r}") from None
