"""What goes wrong through no fault of the code; the command line shows it without a traceback."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Something asked for makes no sense; the message says what, where and what to do."""


class DivergedError(ArithmeticError):
    """A run whose numbers are no longer finite, with the round in which that showed."""

    def __init__(self, round: int, reason: str) -> None:
        super().__init__(f"round {round}: {reason}")
        self.round = round
        self.reason = reason


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error that names what was not found, the nearest there is, and all there are."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else "."
    quoted = [repr(n) if "," in n else n for n in names]
    return InputError(f"unknown {kind}: {name!r}{guess} There are {', '.join(quoted) or 'none'}")
