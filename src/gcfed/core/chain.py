"""Several algorithms composed to one."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from gcfed.core.algorithm import Algorithm
from gcfed.core.roles import Role
from gcfed.core.tree import State, Tree
from gcfed.core.types import Batch, ClientContext, Objective, Output, ServerContext, Upload
from gcfed.errors import InputError


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


def acting_at(algorithm: Algorithm, *hooks: str) -> list[Algorithm]:
    """The parts that do something of their own at one of these hooks."""
    return [
        part
        for part in parts(algorithm)
        if any(getattr(type(part), hook) is not getattr(Algorithm, hook) for hook in hooks)
    ]


@dataclass(frozen=True)
class Chain(Algorithm):
    """Several algorithms as one.  Penalties add, one part may replace the mean, all else pipes.

    Each part sees only its own message, memory, row and state; ``send``, ``release`` and
    ``aggregate`` are given the messages of all, ``aggregate`` its own by the names it gave them.
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
                others = {k for k in uploads.message if not k.startswith(f"{i}/")}
                named = {k.removeprefix(f"{i}/"): v for k, v in uploads.message.items()}
                named_uploads = uploads._replace(message=named)
                delta, mean = p.aggregate(named_uploads, weights, _narrow_server(ctx, i))
                if lost := others - mean.keys():
                    raise InputError(
                        f"{type(p).__name__} replaces the mean and leaves out what other parts of "
                        f"the chain sent, {', '.join(sorted(lost))}: aggregate gives one message "
                        "of all in uploads.message, as tree.mean(uploads.message, weights) does"
                    )
                return delta, {k if k in others else f"{i}/{k}": v for k, v in mean.items()}
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
