"""Numbers fetched from a device while it goes on with other work."""

from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.engines.recorder import CudaRecorder, Recorder, Recording

T = TypeVar("T")
V = TypeVar("V")

THREADS = 4
"""The most threads that compute on the host beside its other work."""

HIGH = -1
"""The priority of streams of our own: those on which engines record come from another pool."""


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
    """Work on a GPU beside what its current stream does, and on the host beside what its thread
    does; without a GPU, all is done at once.

    What work here reads must be kept until the last result fetched from it has arrived.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._recorder: Recorder | None = None
        self._repeated: dict[Hashable, Recording[Any] | None] = {}
        if device is not None and device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=HIGH)  # type: ignore[no-untyped-call]
            # another: torch notes on the first when threads let go of what was fetched there
            own = torch.cuda.Stream(device, priority=HIGH)  # type: ignore[no-untyped-call]
            self._recorder = CudaRecorder(device, own)

    @property
    def is_beside(self) -> bool:
        """Whether work here leaves the host and the current stream alone."""
        return self._stream is not None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, work goes to this stream and waits for nothing: what it reads must be there.

        So the work of the current stream, such as the next rounds, goes on beside it.
        """
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def repeat(self, what: Hashable, fn: Callable[[V], T], argument: V) -> T:
        """``fn(argument)``, recorded when it is asked for a second time by the name ``what``.

        ``fn`` must depend on nothing but the numbers of its argument, and its result is good until
        the next call.  If it cannot be recorded, it is called as it is.
        """
        known, recording = what in self._repeated, self._repeated.get(what)
        if recording is None and self._recorder is not None:
            if known and self._has_room():
                recording = self._record(self._recorder, fn, argument)
            self._repeated[what] = recording
        return fn(argument) if recording is None else recording(argument)

    def _record(self, recorder: Recorder, fn: Callable[[V], T], argument: V) -> Recording[T] | None:
        with suppress(Exception), recorder.guard():
            return Recording(recorder, fn, argument)
        self._recorder = None  # to try takes long, and would again
        return None

    def _has_room(self) -> bool:
        """Whether half of the device's memory is free: a recording keeps what it needs of it."""
        assert self._stream is not None
        free, whole = torch.cuda.mem_get_info(self._stream.device)
        return 2 * free > whole

    def fetch(self, value: T) -> Fetched[T]:
        """Copy what was computed here to the host, after all work that is here already."""
        if self._stream is None:
            return Fetched(tree.map(lambda x: x.cpu(), value))
        return _fetched(value, self._stream)

    def begin(self, compute: Callable[[], T]) -> Callable[[], T]:
        """Compute on the host beside its other work; the result is a function that waits for it."""
        if not self.is_beside:
            value = compute()
            return lambda: value
        self._threads = self._threads or ThreadPoolExecutor(THREADS)
        return self._threads.submit(compute).result

    def rest(self) -> None:
        """Be one thread again, once all is computed: a process with more cannot be forked."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None


AT_ONCE = SideStream()
"""For numbers that are needed before anything else is done."""


def fetch(value: Tensor) -> Fetched[Tensor]:
    """Copy a tensor to the host, after all that its device was asked for."""
    if value.device.type != "cuda":
        return Fetched(value.cpu())
    return _fetched(value, torch.cuda.current_stream(value.device))


def _fetched(value: T, stream: torch.cuda.Stream) -> Fetched[T]:
    """Copy all tensors of a dtype at once into pinned memory of the host, without waiting."""
    leaves = tree.tensors(value)
    host: dict[int, Tensor] = {}
    for dtype in {x.dtype for x in leaves}:
        alike = [x for x in leaves if x.dtype == dtype]
        rows = [x.reshape(-1) for x in alike]
        together = rows[0] if len(rows) == 1 else torch.cat(rows)
        fetched = together.to("cpu", non_blocking=True)
        parts = torch.split(fetched, [x.numel() for x in alike])
        host |= {id(x): part.view(x.shape) for x, part in zip(alike, parts, strict=True)}
    return Fetched(tree.map(lambda x: host[id(x)], value), _recorded(stream))


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what this process asked for."""
    if device.type == "cuda":
        _recorded(torch.cuda.current_stream(device)).synchronize()


def _recorded(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event after all that a stream was given; to wait for it keeps no core busy."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event
