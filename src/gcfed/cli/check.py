"""The command that tries the laws of algorithms on one of yours."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.cli.completion import names_of
from gcfed.cli.options import DataDir, Plugins, changes_given, setting_option
from gcfed.config.plugins import load_plugin
from gcfed.errors import InputError, made

if TYPE_CHECKING:
    from gcfed.core.algorithm import Algorithm

ON = "What it is tried on"


def check(
    algorithm: Annotated[
        str,
        typer.Argument(metavar="ALGORITHM", hidden=True, autocompletion=names_of("algorithms")),
    ],
    model: Annotated[
        str | None,
        setting_option(ON, "A model by name.", "a small convolutional net", "models"),
    ] = None,
    dataset: Annotated[
        str | None,
        setting_option(ON, "39 of its examples.", "images of 3x3, of three classes", "datasets"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of clients, such as momentum=0; may be repeated.",
            rich_help_panel=ON,
        ),
    ] = None,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Try the laws that every algorithm obeys on one of yours.

    ALGORITHM is my.py:MyAlgorithm, or a text like 'fedlc + gcfed'.  Every law that it breaks is
    named in a sentence, and the exit code is then 1.  A hook that raises, or that returns what does
    not belong, is told first, with its file and line.

    The laws are tried on six clients with a few examples each.  Name a model and a data set that it
    reads if yours needs them, and the settings that it needs.

    Examples:

        gcfed check my.py:MyAlgorithm
        gcfed check 'my.py:MyAlgorithm(mu=0.1)' --set momentum=0
        gcfed check 'fedlc + gcfed' --model mlp --dataset synthetic
    """
    from gcfed.config.small_problem import small_problem
    from gcfed.core.chain import acting_at
    from gcfed.testing import laws

    tried = _algorithm(algorithm)
    folder = None if data_dir is None else str(data_dir)
    options = {"model": model, "dataset": dataset, "data_dir": folder}
    values = changes_given(options, set_ or [])
    found = laws.judge(tried, small_problem(values, laws.problem()) if values else None)
    for sentence in found.sentences:
        console.tell(f"- {sentence}")
    if not acting_at(tried, *laws.HOOKS):
        console.tell(
            f"it has no hooks of its own, so it is FedAvg; hooks are {_listed(laws.HOOKS)}"
        )
    unjudged = f", {len(found.unjudged)} cannot be judged" if found.unjudged else ""
    console.tell(f"{algorithm}: {len(found.held)} of {len(laws.LAWS)} laws hold{unjudged}")
    sys.exit(1 if found.sentences else 0)


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _algorithm(text: str) -> "Algorithm":
    from gcfed.algorithms.spec import parse
    from gcfed.core.algorithm import Algorithm
    from gcfed.registry import Registry

    path, colon, name = text.partition(".py:")
    path += ".py"
    if text.endswith(".py"):
        raise InputError(f"name the class in {text} too: {text}:MyAlgorithm")
    if not colon and ":" in text.partition("(")[0]:
        raise InputError(f"a class is named by its file, as in my.py:MyAlgorithm; not {text!r}")
    if not colon:
        return parse(text)
    module = load_plugin(path)
    classes = Registry[type[Algorithm]](f"algorithm in {path}", Algorithm)
    for n, c in vars(module).items():
        is_one = isinstance(c, type) and issubclass(c, Algorithm)
        if is_one and c.__module__ == module.__name__:
            classes.register(n)(c)
    bare = name.partition("(")[0].strip()
    if bare in vars(module) and bare not in classes:
        raise InputError(f"{bare} in {path} is no Algorithm: derive it from gcfed.Algorithm")
    algorithm: Algorithm = made(name, classes.parse(name))
    return algorithm
