"""The server's half of a round, on a GPU recorded and replayed: one launch in place of many."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.server import Arrived, Concluded, Server, ServerTask
from gcfed.core.torch_internals import copy_all, versions
from gcfed.engines.recorder import Recorder, Recording


class ServerHalf:
    """Concludes the rounds of a run, by a recording where there is a recorder and it can be.

    A hook that asks for the number of the round cannot be recorded, nor one that reads numbers out
    of tensors, that has tensors on the host, or that writes into what it is given.  And an engine
    must leave what clients send in the same place every time, as it does where all take the same
    number of steps.
    """

    def __init__(self, task: ServerTask, recorder: Recorder | None = None) -> None:
        self._task, self._recorder = task, recorder
        self._recorded: RecordedStep | None = None
        self._before: Sequence[Any] = ()

    def __call__(
        self, server: Server, t: int, arrived: Arrived, *, is_even: bool = False
    ) -> Concluded:
        """`ServerTask.conclude`; ``is_even`` if all clients took the same number of steps."""
        device, weights = arrived.key.device, self._task.weights(server, arrived.num_examples)
        key = self._task.key(t, device)
        if self._recorder is None or not is_even:
            return self._task.conclude(server, t, arrived, weights, key.clone())
        with self._recorder.guard():
            recorded = self._recording(self._recorder, server, arrived, weights, key)
            if recorded is not None:
                return recorded(server, weights, key)
        before = versions(tree.tensors((server, arrived)))
        concluded = self._task.conclude(server, t, arrived, weights, key.clone())
        if versions(tree.tensors((server, arrived))) != before:
            self._recorder = None  # to record a hook is to call it more than once
        return concluded

    def _recording(
        self, recorder: Recorder, server: Server, arrived: Arrived, *given: Tensor
    ) -> "RecordedStep | None":
        """The recording, made once two rounds in a row are alike; none any more once two differ."""
        before, self._before = self._before, _kind(server, arrived)
        if self._recorded is None and before == self._before:
            self._recorded = self._record(recorder, server, arrived, *given)
        elif before and before != self._before:
            self._recorder = self._recorded = None
        return self._recorded

    def _record(self, recorder: Recorder, *given: Any) -> "RecordedStep | None":
        """None where it has to be done as it is written, which takes longer."""
        before, recorded = versions(tree.tensors(given)), None
        with suppress(Exception):
            recorded = RecordedStep(self._task, recorder, *given)
        if versions(tree.tensors(given)) != before:
            raise RuntimeError("a hook that was not seen to write before did so while recorded")
        if recorded is None:
            self._recorder = None
        return recorded


class RecordedStep:
    """`ServerTask.conclude`, recorded.

    What clients sent is read where an engine leaves it, round after round.
    """

    def __init__(
        self,
        task: ServerTask,
        recorder: Recorder,
        server: Server,
        arrived: Arrived,
        weights: Tensor,
        key: Tensor,
    ) -> None:
        def step(server: Server, weights: Tensor, key: Tensor) -> Concluded:
            return task.conclude(server, UNKNOWN, arrived, weights, key)

        self._step = Recording(recorder, step, server, weights, key)

    def __call__(self, server: Server, weights: Tensor, key: Tensor) -> Concluded:
        made = self._step(server, weights, key)
        found = tree.tensors(made)
        own = [torch.empty_like(x) for x in found]  # the next round is made in the same place
        copy_all(own, found)
        return tree.unflatten(made, own)


def _kind(server: Server, arrived: Arrived) -> Sequence[Any]:
    """The places and shapes of what came, and the shapes of what the server has."""
    came = tree.leaves((arrived.delta, arrived.message, arrived.buffers))
    return [
        *((x.data_ptr(), x.shape, x.stride()) for _, x in came),
        *((path, x.shape) for path, x in tree.leaves(server)),
    ]


class _Unknown:
    """Stands for a round's number in a recording, which must not depend on it."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a recording does not know the number of its round")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __int__ = __index__ = __float__ = __hash__ = __str__ = __repr__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __neg__ = __abs__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __invert__ = __pos__ = _refuse
    __round__ = __trunc__ = __floor__ = __ceil__ = __divmod__ = __rdivmod__ = _refuse
    __format__ = __iter__ = __len__ = _refuse


UNKNOWN: Any = _Unknown()
