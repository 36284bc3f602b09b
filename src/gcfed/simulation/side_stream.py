"""Numbers fetched from a device while it goes on with other work."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

from gcfed.core import tree

T = TypeVar("T")

HIGH = -1
"""The priority of streams of our own: those that a capture uses come from another pool."""


Milestone = torch.cuda.Event
"""A place in what a GPU was asked to do."""


class Fetched(Generic[T]):
    """Tensors on their way to the host's memory."""

    def __init__(self, value: T, arrival: torch.cuda.Event | None = None) -> None:
        self._value, self._arrival = value, arrival

    def wait(self) -> T:
        """The tensors, once they are there."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._value


class SideStream:
    """Work on a GPU beside what its current stream does; anywhere else, all is done at once.

    Who puts work here keeps what it reads until the last that it fetches has arrived.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device is not None and device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=HIGH)  # type: ignore[no-untyped-call]

    @property
    def is_beside(self) -> bool:
        """Whether work here leaves the host and the current stream alone."""
        return self._stream is not None

    def mark(self) -> Milestone | None:
        """Where the current stream has come to, for `entered`."""
        if self._stream is None:
            return None
        return _recorded(torch.cuda.current_stream(self._stream.device))

    @contextmanager
    def entered(self, mark: Milestone | None = None) -> Iterator[None]:
        """Inside, work is put here; it begins when all that came before the mark, or now, is done.

        So what was asked for after the mark, a round of training say, goes on beside it.
        """
        if self._stream is None:
            yield
            return
        self._stream.wait_event(mark or _recorded(torch.cuda.current_stream(self._stream.device)))
        with torch.cuda.stream(self._stream):
            yield

    def fetch(self, value: T) -> Fetched[T]:
        """Copy what was computed here to the host, after all work that is here already."""
        if self._stream is None:
            return Fetched(tree.map(lambda x: x.cpu(), value))
        return _fetched(value, self._stream)


AT_ONCE = SideStream()
"""For numbers that are needed before anything else is done."""


def fetch(value: Tensor) -> Fetched[Tensor]:
    """Copy a tensor to the host, after all that its device was asked for."""
    if value.device.type != "cuda":
        return Fetched(value.cpu())
    return _fetched(value, torch.cuda.current_stream(value.device))


def _fetched(value: T, stream: torch.cuda.Stream) -> Fetched[T]:
    # torch takes memory that is pinned for such copies, so they do not wait
    host = tree.map(lambda x: x.to("cpu", non_blocking=True), value)
    return Fetched(host, _recorded(stream))


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what this process asked for."""
    if device.type == "cuda":
        _recorded(torch.cuda.current_stream(device)).synchronize()


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """What has come when all that a stream was given is done; to wait for it takes no core."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
