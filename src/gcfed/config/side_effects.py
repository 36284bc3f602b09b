"""What a model must not do beside giving outputs, found by watching it before a run."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from gcfed.core import tree
from gcfed.core.model import Model
from gcfed.core.server import Server
from gcfed.core.torch_internals import Listener, arguments_written, tree_leaves
from gcfed.core.tree import Tree
from gcfed.core.types import Inputs
from gcfed.errors import InputError
from gcfed.simulation.setup import Setup


@contextmanager
def side_effects_refused(setup: Setup, server: Server, x: Inputs) -> Iterator[None]:
    """Refuse a model that, run inside with a server's weights on ``x``, does more than it should.

    It may not write into what it is given, which other clients and rounds are given too: results
    would depend on who trains where, and on how often the model is judged.  Nor may it read weights
    in a way by which it is not given those of a run.
    """
    before = tree.map(torch.clone, (x, server.buffers))
    given, own = _Touched(server.params.items()), _Touched(_own_weights(setup.model))
    try:
        with given, own:
            yield
    except Exception as error:
        if own.read:  # what a function holds is left on the host, where a GPU cannot use it
            raise _reads_its_own(next(iter(own.read))) from error
        raise
    who = "the model" if setup.transform is None else "the data's transform, or the model,"
    _refuse_changes(who, before, (x, server.buffers))
    for name in given.written:
        raise InputError(
            f"forward writes into the parameter {name}, as clamp_ and nn.Embedding(max_norm=) do, "
            "which would change the server's weights whenever the model is run: bound a copy of "
            "it where it is used"
        )
    for name in own.read:
        raise _reads_its_own(name)


def _reads_its_own(name: str) -> InputError:
    return InputError(
        f"the model reads its parameter {name} by a list or a function that holds it, and so "
        "would never see it trained: read it as an attribute of its module, or put it into an "
        "nn.ParameterList; make a method of a function"
    )


def _refuse_changes(who: str, before: tuple[Inputs, Tree], after: tuple[Inputs, Tree]) -> None:
    (x, buffers), (x_after, buffers_after) = before, after
    if not all(map(_equal, tree.tensors(x), tree.tensors(x_after))):
        raise InputError(
            f"{who} writes into the examples that it is given, which other rounds read too: leave "
            "them as they are (inplace=False in a model's first layers)"
        )
    for name, buffer in buffers.items():
        if not _equal(buffer, buffers_after[name]):
            raise InputError(
                f"forward writes into the buffer {name} when the model is judged, which would "
                "depend on how often that is done: write into it where self.training is true"
            )


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two are the same; of sparse ones that is not asked, as no run takes them."""
    return one.layout is not torch.strided or torch.allclose(
        one, other, rtol=0, atol=0, equal_nan=True
    )


class _Touched(Listener):  # type: ignore[no-untyped-call]
    """Notes which of some tensors are read or written into inside, by their names, in order.

    What lies in the memory of a tensor, as its ``.data`` does, counts as that tensor.
    """

    supports_higher_order_operators = True  # as flex_attention is one

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether `torch.compile` does as if nobody listened, which else it refuses to."""
        return True

    def __init__(self, named: Iterable[tuple[str, Tensor]]) -> None:
        super().__init__()
        self.read: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self._given = [(name, x, _address(x)) for name, x in named]
        places = ((begin, begin + x.nbytes, name) for name, x, begin in self._given)
        self._places = sorted(place for place in places if place[0])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.read |= self._names(tree_leaves((args, kwargs)))
        self.written |= self._names(tree_leaves(arguments_written(func, args, kwargs)))
        return func(*args, **kwargs)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        moved = (name for name, x, begin in self._given if _address(x) != begin)  # by x.data = ...
        self.written |= dict.fromkeys(moved)

    def _names(self, values: Iterable[Any]) -> dict[str, None]:
        found = (self._name(x) for x in values if isinstance(x, Tensor))
        return {name: None for name in found if name is not None}

    def _name(self, x: Tensor) -> str | None:
        where = _address(x)
        before = bisect_right(self._places, where, key=lambda place: place[0])
        _, end, name = self._places[before - 1] if before else (0, 0, "")
        return name if where < end else None


def _address(x: Tensor) -> int:
    """Where the numbers of a tensor begin; 0 if it has none, or none in one piece."""
    try:
        return x.data_ptr()
    except RuntimeError:  # a sparse one, say
        return 0


def _own_weights(model: Model) -> Iterator[tuple[str, Tensor]]:
    """The weights of a model's modules themselves, in whose place runs are given others.

    A function is not copied with the module that holds it.  What a function holds is therefore of
    the module that the model was copied from.
    """
    modules = model.submodules()
    for name, module in modules:
        if not name:
            yield from _trained(module).items()
    for held in _held_by_functions(module for _, module in modules):
        if isinstance(held, nn.Module):
            yield from _named_as_in(model.original, held).items()
        elif isinstance(held, nn.Parameter):
            copies = _trained(model.original).items()
            yield from ((name, held) for name, copy in copies if _is_copy(held, copy))


def _trained(module: nn.Module) -> Tree:
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def _held_by_functions(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """What the functions of modules hold, in their closures and as defaults."""
    for function in tree_leaves([vars(module) for module in modules]):
        if isinstance(function, FunctionType):
            yield from tree_leaves([function.__defaults__, function.__kwdefaults__])
            for cell in function.__closure__ or ():
                with suppress(ValueError):  # a cell that nothing was put into
                    yield from tree_leaves(cell.cell_contents)


def _named_as_in(whole: nn.Module, held: nn.Module) -> Tree:
    """The weights of a module, by their names in another that has a copy of it; else none."""
    weights = _trained(held)
    for path, module in whole.named_modules():
        copies = _trained(module)
        alike = type(module) is type(held) and copies.keys() == weights.keys()
        if alike and all(_is_copy(weights[name], copies[name]) for name in weights):
            return {f"{path}.{name}".strip("."): weight for name, weight in weights.items()}
    return {}


def _is_copy(one: Tensor, other: Tensor) -> bool:
    alike = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return alike and torch.equal(one, other)
