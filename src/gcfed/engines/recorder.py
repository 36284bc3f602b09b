"""Steps recorded once and replayed: all that engines ask of CUDA, in one place."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule

from gcfed.caches import CompiledNote, keep_compiled_code, nothing_is_compiled
from gcfed.core import tree
from gcfed.core.torch_compiler import start_compiler, without_processes
from gcfed.core.torch_internals import copy_all
from gcfed.engines.kept_steps import KeptStep
from gcfed.engines.tracing import inductor
from gcfed.garbage import unsearched
from gcfed.kernels.precompiling import kernels_compiled

T = TypeVar("T")

Body = Callable[[], object]
"""A step over tensors of fixed place, which it changes."""

SideBySide = Callable[[Sequence[Body]], None]
"""Runs bodies that do not depend on each other, at the same time where that is possible."""


class Recorder(ABC):
    """What engines need of a device that can record a step and replay it."""

    @abstractmethod
    def guard(self) -> AbstractContextManager[object]:
        """Inside, this recorder's device is the one in use."""

    @abstractmethod
    def compile(self, trace: GraphModule, examples: Sequence[Tensor] | None) -> Callable[..., Any]:
        """Faster code of a trace; given tensors of an unknown size, code that serves any size."""

    def place(
        self, step: Callable[..., object], arguments: tuple[Any, ...], mapped: Sequence[bool]
    ) -> KeptStep | None:
        """Where a step is kept once it is compiled, if it is."""
        return None

    @abstractmethod
    def branches(self, count: int) -> SideBySide:
        """What runs so many bodies side by side, inside a body that is recorded."""

    @abstractmethod
    def capture(self, body: Body) -> Callable[[], None]:
        """Record ``body``; the result is a function that replays it.

        Recording runs ``body`` several times, so what it changes must be restored afterwards.
        """


class Recording(Generic[T]):
    """A recorded function of tensors: new arguments are copied over the first ones.

    All lie on one device: what the host computes is not recorded, and would keep its first value.
    """

    def __init__(self, recorder: Recorder, fn: Callable[..., T], *arguments: Any) -> None:
        given: tuple[Any, ...] = tree.map(torch.clone, arguments)
        self._places, made = tree.tensors(given), list[T]()

        def body() -> None:
            made[:] = [fn(*given)]

        self._made, self._replay = made, recorder.capture(body)
        if len({x.device for x in (*self._places, *tree.tensors(made[0]))}) > 1:
            raise ValueError("a recording holds what one device computes")

    def __call__(self, *arguments: Any) -> T:
        """What the function gives; it is good until the next time."""
        copy_all(self._places, tree.tensors(arguments))
        self._replay()
        return self._made[0]


@cache
def prepare_to_compile(device: torch.device) -> None:
    """Get ready to compile, once: set where code is kept; if none is yet, start the compiler."""
    _keep_compiled_code(device)
    if nothing_is_compiled():
        start_compiler()


def _keep_compiled_code(device: torch.device) -> None:
    keep_compiled_code(torch.__version__, torch.cuda.get_device_name(device))


class CudaRecorder(Recorder):
    """CUDA graphs, which share one pool of memory, and streams.

    A recorder whose graphs are replayed beside those of another needs a ``stream`` of its own:
    torch gives all products on one stream the same workspace, and has few streams to give.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self._device, self._own = device, stream

    def guard(self) -> AbstractContextManager[object]:
        _keep_compiled_code(self._device)
        return torch.cuda.device(self._device)

    def compile(self, trace: GraphModule, examples: Sequence[Tensor] | None) -> Callable[..., Any]:
        note, at_once = CompiledNote(trace.code), examples is not None
        known = at_once and note.is_there()
        if not known:
            start_compiler()
        with without_processes() if known else nullcontext(), kernels_compiled(trace):
            compiled = inductor(trace, examples)
        if at_once:  # else torch compiles it when it is first called
            note.write()
        return compiled

    def place(
        self, step: Callable[..., object], arguments: tuple[Any, ...], mapped: Sequence[bool]
    ) -> KeptStep | None:
        place = KeptStep.of(step, arguments, mapped)
        if place is not None and place.is_new:
            start_compiler()  # its processes take seconds to start, as long as a trace takes
        return place

    def branches(self, count: int) -> SideBySide:
        streams = [torch.cuda.Stream() for _ in range(count)]  # type: ignore[no-untyped-call]

        def side_by_side(bodies: Sequence[Body]) -> None:
            root, used = torch.cuda.current_stream(), streams[: len(bodies)]
            for body, stream in zip(bodies, used, strict=True):
                stream.wait_stream(root)
                with torch.cuda.stream(stream):
                    body()
            for stream in used:
                root.wait_stream(stream)

        return side_by_side

    def capture(self, body: Body) -> Callable[[], None]:
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # libraries choose and allocate at the first calls
                body()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # torch's own stream for captures is on the device of a process's first capture; and other
        # threads, which fetch numbers, may use CUDA meanwhile
        capturing = torch.cuda.graph(
            graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
        )
        current = torch.cuda.current_stream()
        try:
            with unsearched(), capturing:  # to free an old graph here would spoil it
                body()
        except BaseException:  # torch leaves its stream set, and its memory as being recorded to
            torch.cuda.set_stream(current)
            self.__dict__.pop("_pool", None)
            raise
        return graph.replay

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        return self._own or torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @cached_property
    def _pool(self) -> Any:
        return torch.cuda.graph_pool_handle()
