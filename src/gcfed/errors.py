"""What goes wrong through no fault of the code; the command line shows it without a traceback."""

import os
import sys
import traceback
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class InputError(ValueError):
    """Something asked for makes no sense; the message says what, where and what to do."""


DIVERGED_ADVICE = (
    "a smaller lr or server_lr often helps; on_nonfinite = 'drop' leaves such updates out"
)
"""What to try when a run diverges."""


class DivergedError(ArithmeticError):
    """A run whose numbers are no longer finite, with the round in which that showed.

    ``round`` counts from 0, as records do, and the message from 1, as people do.
    """

    def __init__(self, round: int, reason: str) -> None:
        super().__init__(f"round {round + 1}: {reason}; {DIVERGED_ADVICE}")
        self.round = round
        self.reason = reason


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """An error that names what was not found, the nearest there is, and all there are."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else "."
    quoted = [repr(n) if "," in n else n for n in names]
    return InputError(f"unknown {kind}: {name!r}{guess} There are {', '.join(quoted) or 'none'}")


READS_A_NUMBER = "numbers are read out of tensors, as .item() or an if does"

IN_PLAIN_WORDS = {
    "data-dependent control flow": READS_A_NUMBER,
    "support saved tensor hooks": "gradients are taken by torch.func, which does not know gradient "
    "checkpointing: switch it off",
    "must override the setup_context": "gradients are taken by torch.func, for which an "
    "autograd.Function needs a setup_context; one is gradient checkpointing: switch it off",
    "would mutate a captured Tensor": "something is written into that the model was given, as "
    "nn.ReLU(inplace=True) does with examples where it is the first layer: write into a copy, and "
    "register a tensor that it keeps as a buffer",
    "data pointer of Tensor that doesn't have storage": "gradients are taken by torch.func, inside "
    "which no tensor has memory to read, as .numpy() and pack_padded_sequence do: stay with "
    "operations of torch on whole tensors",
    "being transformed by a functorch transform": "gradients are taken by torch.func, inside which "
    "torch.autograd has none: take those that forward needs by torch.func.grad or torch.func.vjp",
    "batched == nullptr": "a tensor is kept from one step for the next, as an attribute that "
    "forward sets is: register it as a buffer",
}
"""What torch says at length and of itself, by a phrase that occurs in it."""


def reason(error: BaseException) -> str:
    """What went wrong in code that is not gcfed's, and in which line of which file."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, SyntaxError):
        return f"{error.msg} (line {error.lineno})"
    said = str(error).strip().split("\n")[0][:300]
    said = next((plain for phrase, plain in IN_PLAIN_WORDS.items() if phrase in said), said)
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if not (lines := traceback.extract_tb(error.__traceback__)):
        return what
    last = next((line for line in reversed(lines) if not _is_below(line.filename)), lines[-1])
    return f"{what} ({place(last.filename, last.lineno)})"


def _is_below(file: str) -> bool:
    """Whether a file is gcfed's, torch's or Python's own: where an error shows that others made."""
    path, stdlib = Path(file), Path(os.__file__).parent
    if path.is_relative_to(Path(__file__).parent) or file.startswith("<frozen "):
        return True
    if path.is_relative_to(stdlib) and not {"site-packages", "dist-packages"} & {*path.parts}:
        return True
    torch = sys.modules.get("torch")
    return torch is not None and path.is_relative_to(Path(str(torch.__file__)).parent)


def place(file: str, line: int | None) -> str:
    """A line of a file, in words."""
    return f"{Path(file).name}, line {line}"


def made(what: str, make: Callable[[], T]) -> T:
    """What ``make``, which may be anybody's code, gives; how it failed is said of ``what``."""
    try:
        return make()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what} cannot be made: {reason(error)}") from error
