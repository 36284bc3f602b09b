"""The command that tries the laws of algorithms on one of yours."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gcfed.cli import console
from gcfed.cli.completion import names_of
from gcfed.cli.options import Plugins
from gcfed.config.plugins import load_plugin
from gcfed.errors import InputError, unknown

if TYPE_CHECKING:
    from gcfed.core.algorithm import Algorithm


def check(
    algorithm: Annotated[
        str,
        typer.Argument(metavar="ALGORITHM", hidden=True, autocompletion=names_of("algorithms")),
    ],
    plugin: Plugins = None,
) -> None:
    """Try the laws that every algorithm obeys on one of yours.

    ALGORITHM is my.py:MyAlgorithm, or a text like 'fedlc + gcfed'.  Every law that it breaks is
    named in a sentence, and the exit code is then 1.  A hook that raises, or that returns what does
    not belong, is told first, with its file and line.

    Example:

        gcfed check my.py:MyAlgorithm
    """
    from gcfed.testing import laws

    broken = laws.check(_algorithm(algorithm))
    for sentence in broken:
        console.tell(f"- {sentence}")
    held = len(laws.LAWS) - len(broken)
    console.tell(f"{algorithm}: {held} of {len(laws.LAWS)} laws hold")
    sys.exit(1 if broken else 0)


def _algorithm(text: str) -> "Algorithm":
    from gcfed.algorithms.spec import parse
    from gcfed.core.algorithm import Algorithm

    path, colon, name = text.rpartition(":")
    if text.endswith(".py"):
        raise InputError(f"name the class in {text} too: {text}:MyAlgorithm")
    if not colon or not path.endswith(".py"):
        return parse(text)
    module = load_plugin(path)
    classes = {
        n: c
        for n, c in vars(module).items()
        if isinstance(c, type) and issubclass(c, Algorithm) and c.__module__ == module.__name__
    }
    if name in vars(module) and name not in classes:
        raise InputError(f"{name} in {path} is no Algorithm: derive it from gcfed.Algorithm")
    if name not in classes:
        raise unknown(f"algorithm in {path}", name, classes)
    try:
        return classes[name]()
    except TypeError as error:
        raise InputError(f"{name} cannot be made without arguments: {error}") from None
