"""The one abstraction: an algorithm is FedAvg plus the hooks by which it departs from it.

Hooks are pure: state comes in as an argument and goes out as a result, so any of them may run under
``vmap``.
"""

import inspect
import sys
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from gcfed.core import tree
from gcfed.core.roles import Role
from gcfed.core.tree import State, Tree
from gcfed.core.types import Batch, ClientContext, Objective, Output, ServerContext, Upload
from gcfed.errors import InputError, place, unknown
from gcfed.registry import Registry
from gcfed.values import Range, check_range, check_ranges, checked, type_hints

Need = Literal[
    "class labels",
    "server_lr = 1",
    "SGD",
    "uniform weights",
    "the plain mean of uploads",
    "buffers that stay local",
]


@dataclass(frozen=True)
class Algorithm:
    r"""FedAvg: the mean of what the clients learnt; every hook is the identity.

    .. math:: w \leftarrow w + \sum_k p_k \delta_k

    McMahan et al. (2017), Algorithm 1, https://arxiv.org/abs/1602.05629
    Departures: uniform weights :math:`p_k` by default; by number of examples on request.

    A subclass overrides hooks, which stand in the order in which a round calls them.  ``claims``
    names what it cannot share with another part of a chain, ``needs`` what its equations take for
    granted of a setup, ``ranges`` the numbers that its hyper-parameters may be.  ``steps_last`` is
    true of an algorithm whose step must be the one taken: no part after it may have an ``update``.
    """

    claims: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[Need]] = frozenset()
    steps_last: ClassVar[bool] = False
    ranges: ClassVar[Mapping[str, Range]] = {}

    def __post_init__(self) -> None:
        hints = type_hints(type(self))
        for name in (field.name for field in fields(self) if field.init):
            where = f"{type(self).__name__}({name}=...)"
            value = checked(where, getattr(self, name), hints.get(name, Any))
            if name in self.ranges:
                check_range(where, value, self.ranges[name])
            object.__setattr__(self, name, value)

    def __init_subclass__(cls) -> None:
        check_ranges(cls.__name__, cls.ranges)
        _check_range_names(cls)
        cls.claims = frozenset(_words(cls, "claims"))
        cls.needs = frozenset(_words(cls, "needs"))
        frame = sys._getframe(1)  # of the class statement
        where = place(frame.f_code.co_filename, frame.f_lineno)
        for name in ARGUMENTS:
            if other := _other_than(name, getattr(cls, name)):
                raise InputError(f"{name} of {cls.__name__} ({where}) {other}")
        for name in vars(cls).keys() - ARGUMENTS.keys():
            if callable(vars(cls)[name]) and (near := get_close_matches(name, ARGUMENTS, 1, 0.85)):
                said = f"{cls.__name__}.{name} is no hook of an algorithm"
                warnings.warn(f"{said}; did you mean {near[0]}?", stacklevel=2)
        if cls.aggregate is not Algorithm.aggregate:  # only one part can replace the mean
            cls.claims = cls.claims | {"aggregate"}

    def __add__(self, other: "Algorithm") -> "Algorithm":
        from gcfed.core.chain import chain  # which is made of algorithms

        return chain(self, other)

    def __radd__(self, other: "Algorithm") -> "Algorithm":
        from gcfed.core.chain import chain

        return chain(other, self)

    @property
    def upload_norm(self) -> float | None:
        """The norm that all a client sends together never exceeds; None without such a bound."""
        return None

    def check(self, params: Tree, roles: Mapping[str, Role]) -> None:
        """Refuse a model, or warn of it, before a run."""

    def init_server(self, params: Tree) -> State:
        """What the server keeps."""
        return {}

    def init_client(self, params: Tree) -> State:
        """What a client remembers before its first round, given the weights it then receives."""
        return {}

    def init_row(self, params: Tree) -> State:
        """What the server holds of a client before it is first heard from."""
        return {}

    def broadcast(self, params: Tree, state: State) -> tuple[Tree, State]:
        """Server to clients: the weights to start from, and a message."""
        return params, {}

    def begin(self, anchor: Tree, ctx: ClientContext) -> Tree:
        """Where a client starts; its delta still counts from the anchor."""
        return anchor

    def logits(self, logits: Tensor, ctx: ClientContext) -> Tensor:
        """What the loss reads in place of the model's logits."""
        return logits

    def penalty(self, params: Tree, out: Output, batch: Batch, ctx: ClientContext) -> Tensor:
        """What is added to the mean loss of a batch."""
        return out.logits.new_zeros(())

    def perturb(self, params: Tree, loss: Objective, batch: Batch, ctx: ClientContext) -> Tree:
        """Where the gradient is taken; the step still starts from ``params``."""
        return params

    def gradient(self, grads: Tree, params: Tree, ctx: ClientContext) -> Tree:
        """What the optimiser receives, before weight decay and momentum."""
        return grads

    def upload(self, delta: Tree, ctx: ClientContext) -> Upload:
        """Client to server, after its last step."""
        return Upload(delta, {}, ctx.memory)

    def send(self, delta: Tree, message: State, ctx: ClientContext) -> tuple[Tree, State]:
        """What leaves the client: in a chain it is given the messages of all parts."""
        return delta, message

    def receive(self, upload: Upload, row: State, ctx: ServerContext) -> tuple[Upload, State]:
        """Server, client by client: what is averaged of it, and what is held of it."""
        return upload, row

    def aggregate(self, uploads: Upload, weights: Tensor, ctx: ServerContext) -> tuple[Tree, State]:
        """The cohort's uploads, stacked on a leading client axis, as one."""
        return tree.mean(uploads.delta, weights), tree.mean(uploads.message, weights)

    def release(self, delta: Tree, message: State, ctx: ServerContext) -> tuple[Tree, State]:
        """What any ``update`` learns of the means: it is given the messages of all parts."""
        return delta, message

    def update(self, delta: Tree, ctx: ServerContext) -> tuple[Tree, State]:
        """What is added to the global weights, and what the server keeps."""
        return delta, ctx.state


ARGUMENTS = {
    name: list(inspect.signature(hook).parameters)[1:]
    for name, hook in vars(Algorithm).items()
    if inspect.isfunction(hook) and not name.startswith("_")
}
"""The hooks in the order in which a round calls them, with the names of what each is given."""


ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm", Algorithm)
"""Algorithms by name, so that a config file or a command line can say which."""

register = ALGORITHMS.register
register("fedavg")(Algorithm)


def _other_than(name: str, hook: Any) -> str | None:
    """How what stands in the place of a hook is none; a hook is given its arguments by place."""
    if not callable(hook):
        return f"is a hook, hence a function; not {hook!r:.200}"
    try:
        taken = [n for n in inspect.signature(hook).parameters if n in ARGUMENTS[name]]
    except (TypeError, ValueError):  # of a function that is not written in Python
        return None
    if taken != [n for n in ARGUMENTS[name] if n in taken]:
        return f"is given {', '.join(ARGUMENTS[name])} in this order; not {', '.join(taken)}"
    return None


def _words(cls: type[Algorithm], name: Literal["claims", "needs"]) -> list[Any]:
    """The words of a class variable: several, and of needs such as there are."""
    words = getattr(cls, name)
    if not isinstance(words, Set | tuple | list) or not all(isinstance(w, str) for w in words):
        example = 'frozenset({"server step"})' if name == "claims" else 'frozenset({"SGD"})'
        said = f"{cls.__name__}: {name} is a set of words, as in {example}"
        raise InputError(f"{said}; not {words!r:.200}")
    if name == "needs":
        for word in words:
            if word not in get_args(Need):
                raise unknown(f"need of {cls.__name__}", word, get_args(Need))
    return list(words)


def _check_range_names(cls: type[Algorithm]) -> None:
    """Refuse a range of what is no hyper-parameter."""
    declared = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
    named = declared - inspect.get_annotations(Algorithm).keys()
    for name in cls.ranges:
        if name not in named:
            raise unknown(f"hyper-parameter in the ranges of {cls.__name__}", name, named)
