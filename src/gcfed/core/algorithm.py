"""The one abstraction: an algorithm is FedAvg plus the hooks by which it departs from it.

`chain` composes algorithms.  Hooks are pure: state comes in as an argument and goes out as a
result, so any of them may run under ``vmap``.
"""

import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, ClassVar, Literal

from torch import Tensor

from gcfed.core import tree
from gcfed.core.roles import Role
from gcfed.core.tree import State, Tree
from gcfed.core.types import Batch, ClientContext, Objective, Output, ServerContext, Upload
from gcfed.errors import InputError, place
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
        hooks = [n for n, v in vars(Algorithm).items() if callable(v) and not n.startswith("_")]
        for name in hooks:
            if not callable(hook := getattr(cls, name)):
                frame = sys._getframe(1)  # of the class statement
                where = place(frame.f_code.co_filename, frame.f_lineno)
                said = f"{name} of {cls.__name__} ({where}) is a hook, hence a function"
                raise InputError(f"{said}; not {hook!r:.200}")
        for name in vars(cls).keys() - set(hooks):
            if callable(vars(cls)[name]) and (near := get_close_matches(name, hooks, 1, 0.85)):
                said = f"{cls.__name__}.{name} is no hook of an algorithm"
                warnings.warn(f"{said}; did you mean {near[0]}?", stacklevel=2)
        if cls.aggregate is not Algorithm.aggregate:  # only one part can replace the mean
            cls.claims = cls.claims | {"aggregate"}

    def __add__(self, other: "Algorithm") -> "Algorithm":
        return chain(self, other)

    def __radd__(self, other: "Algorithm") -> "Algorithm":
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


def chain(*algorithms: Algorithm) -> Algorithm:
    """Compose algorithms left to right; ``chain()`` is FedAvg, and ``a + b`` is ``chain(a, b)``.

    Order matters: ``gcfed + fedadam`` projects the mean delta and lets Adam step along it;
    ``fedadam + gcfed`` projects Adam's step.  Chaining is associative and FedAvg its identity.
    """
    for part in algorithms:
        if not isinstance(part, Algorithm):
            raise InputError(
                f"algorithms are chained with algorithms; not with {part!r:.200}: "
                "gcfed.parse makes an algorithm of a text"
            )
    composed = tuple(p for a in algorithms for p in parts(a) if type(p) is not Algorithm)
    match composed:
        case ():
            return Algorithm()
        case (single,):
            return single
        case _:
            return Chain(composed)


def parts(algorithm: Algorithm) -> tuple[Algorithm, ...]:
    """The links of a chain; any other algorithm is its own single part."""
    return algorithm.links if isinstance(algorithm, Chain) else (algorithm,)


@dataclass(frozen=True)
class Chain(Algorithm):
    """Several algorithms as one.  Penalties add, one part may replace the mean, all else pipes.

    Each part sees only its own message, memory, row and state; ``send`` and ``release`` alone are
    given the messages of all.
    """

    links: tuple[Algorithm, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        claimants: defaultdict[str, list[str]] = defaultdict(list)
        for part in self.links:
            for claim in sorted(part.claims):
                claimants[claim].append(type(part).__name__)
        for claim, names in claimants.items():
            if len(names) > 1:
                raise InputError(f"{' and '.join(names)} cannot be chained: each sets the {claim}")
        for i, part in enumerate(self.links):
            later = [type(p) for p in self.links[i + 1 :] if type(p).update != Algorithm.update]
            if part.steps_last and later:
                name, others = type(part).__name__, " and ".join(p.__name__ for p in later)
                raise InputError(
                    f"{name} cannot stand before {others}, which may change the step that {name} "
                    f"counts on: put {name} last"
                )

    @property
    def upload_norm(self) -> float | None:
        return next((norm for p in self.links if (norm := p.upload_norm) is not None), None)

    def check(self, params: Tree, roles: Mapping[str, Role]) -> None:
        for p in self.links:
            p.check(params, roles)

    def init_server(self, params: Tree) -> State:
        return _join(p.init_server(params) for p in self.links)

    def init_client(self, params: Tree) -> State:
        return _join(p.init_client(params) for p in self.links)

    def init_row(self, params: Tree) -> State:
        return _join(p.init_row(params) for p in self.links)

    def broadcast(self, params: Tree, state: State) -> tuple[Tree, State]:
        messages: list[State] = []
        for i, p in enumerate(self.links):
            params, message = p.broadcast(params, _own(state, i))
            messages.append(message)
        return params, _join(messages)

    def begin(self, anchor: Tree, ctx: ClientContext) -> Tree:
        for i, p in enumerate(self.links):
            anchor = p.begin(anchor, _narrow(ctx, i))
        return anchor

    def logits(self, logits: Tensor, ctx: ClientContext) -> Tensor:
        for i, p in enumerate(self.links):
            logits = p.logits(logits, _narrow(ctx, i))
        return logits

    def penalty(self, params: Tree, out: Output, batch: Batch, ctx: ClientContext) -> Tensor:
        total = super().penalty(params, out, batch, ctx)
        for i, p in enumerate(self.links):
            total = total + p.penalty(params, out, batch, _narrow(ctx, i))
        return total

    def perturb(self, params: Tree, loss: Objective, batch: Batch, ctx: ClientContext) -> Tree:
        for i, p in enumerate(self.links):
            params = p.perturb(params, loss, batch, _narrow(ctx, i))
        return params

    def gradient(self, grads: Tree, params: Tree, ctx: ClientContext) -> Tree:
        for i, p in enumerate(self.links):
            grads = p.gradient(grads, params, _narrow(ctx, i))
        return grads

    def upload(self, delta: Tree, ctx: ClientContext) -> Upload:
        uploads: list[Upload] = []
        for i, p in enumerate(self.links):
            uploads.append(p.upload(delta, _narrow(ctx, i)))
            delta = uploads[-1].delta
        return Upload(delta, _join(u.message for u in uploads), _join(u.memory for u in uploads))

    def send(self, delta: Tree, message: State, ctx: ClientContext) -> tuple[Tree, State]:
        for i, p in enumerate(self.links):
            delta, message = p.send(delta, message, _narrow(ctx, i))
        return delta, message

    def receive(self, upload: Upload, row: State, ctx: ServerContext) -> tuple[Upload, State]:
        delta, messages, rows = upload.delta, list[State](), list[State]()
        for i, p in enumerate(self.links):
            mine = upload._replace(delta=delta, message=_own(upload.message, i))
            (delta, message, _), held = p.receive(mine, _own(row, i), _narrow_server(ctx, i))
            messages.append(message)
            rows.append(held)
        return upload._replace(delta=delta, message=_join(messages)), _join(rows)

    def aggregate(self, uploads: Upload, weights: Tensor, ctx: ServerContext) -> tuple[Tree, State]:
        for i, p in enumerate(self.links):
            if "aggregate" in p.claims:
                return p.aggregate(uploads, weights, _narrow_server(ctx, i))
        return super().aggregate(uploads, weights, ctx)

    def release(self, delta: Tree, message: State, ctx: ServerContext) -> tuple[Tree, State]:
        for i, p in enumerate(self.links):
            delta, message = p.release(delta, message, _narrow_server(ctx, i))
        return delta, message

    def update(self, delta: Tree, ctx: ServerContext) -> tuple[Tree, State]:
        states: list[State] = []
        for i, p in enumerate(self.links):
            delta, state = p.update(delta, _narrow_server(ctx, i))
            states.append(state)
        return delta, _join(states)


def _join(states: Iterable[State]) -> State:
    return {f"{i}/{key}": value for i, s in enumerate(states) for key, value in s.items()}


def _own(state: State, i: int) -> State:
    prefix = f"{i}/"
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _narrow(ctx: ClientContext, i: int) -> ClientContext:
    return replace(ctx, message=_own(ctx.message, i), memory=_own(ctx.memory, i))


def _narrow_server(ctx: ServerContext, i: int) -> ServerContext:
    return replace(ctx, message=_own(ctx.message, i), state=_own(ctx.state, i))


ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm", Algorithm)
"""Algorithms by name, so that a config file or a command line can say which."""

register = ALGORITHMS.register
register("fedavg")(Algorithm)
