"""Where the command ``gcfed`` spends its time: the stack of its main thread, read every 5 ms.

    python -m benchmarks.where run --rounds 1 --model cnn        any words of the command

Two tables: the functions of gcfed with all that they call, and what is done below the innermost of
them, by package; what an import takes is put down to the package that is imported.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType

EVERY = 0.005
LINES = 25


class Stacks:
    """What the main thread was seen to do, in seconds."""

    def __init__(self) -> None:
        self.within: Counter[str] = Counter()
        self.below: Counter[str] = Counter()
        self._main, self._over = threading.main_thread().ident, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        before = time.perf_counter()
        while not self._over.wait(EVERY):
            now = time.perf_counter()
            frame = sys._current_frames().get(self._main)
            if frame is not None:
                self._note(list(_modules(frame)), now - before)
            before = now

    def _note(self, stack: list[tuple[str, str]], seconds: float) -> None:
        """``stack`` has modules and functions, the innermost first."""
        own = [i for i, (module, _) in enumerate(stack) if module.startswith("gcfed")]
        for name in {f"{stack[i][0]}.{stack[i][1]}" for i in own}:
            self.within[name] += seconds
        beneath = stack[: own[0]] if own else stack
        self.below[_what(beneath)] += seconds


def _modules(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    while frame is not None:
        function = frame.f_code.co_qualname.split(".<locals>")[0]
        yield frame.f_globals.get("__name__", "?"), function
        frame = frame.f_back


def _what(beneath: list[tuple[str, str]]) -> str:
    """The package at work, by two names at most; or the outermost that is being imported."""
    for (module, _), (_, above) in zip(reversed(beneath[:-1]), reversed(beneath), strict=False):
        if above == "_call_with_frames_removed" and not module.startswith("importlib"):
            return f"import {_package(module)}"
    return _package(beneath[0][0]) if beneath else "gcfed itself, and C++ that it calls"


def _package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _table(title: str, seconds: Counter[str]) -> None:
    print(f"\n{title}", file=sys.stderr)
    for name, took in seconds.most_common(LINES):
        print(f"{took:8.2f} s  {name}", file=sys.stderr)


def main() -> None:
    stacks = Stacks()
    try:
        from gcfed.cli import main as command

        command()
    finally:
        stacks.stop()
        _table("functions of gcfed, with all that they call", stacks.within)
        _table("below the innermost of them", stacks.below)


if __name__ == "__main__":
    main()
