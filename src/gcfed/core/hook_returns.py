"""What hooks must return: how a value is told from what belongs in its place."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.types import Upload
from gcfed.registry import a


class Several(NamedTuple):
    """A tuple of the type ``kind`` belongs here, with these parts by name."""

    kind: type[tuple[Any, ...]]
    parts: dict[str, Any]


class Number(NamedTuple):
    """A number of Python's belongs here, or a real one as a tensor without axes."""

    device: torch.device


ANY_STATE = object()
"""A dict of trees belongs here, whatever their names and shapes."""

BELONGS: Mapping[str, Callable[..., Any]] = {
    "init_server": lambda params: ANY_STATE,
    "init_client": lambda params: ANY_STATE,
    "init_row": lambda params: ANY_STATE,
    "broadcast": lambda params, state: Several(tuple, {"anchor": params, "message": ANY_STATE}),
    "begin": lambda anchor, ctx: anchor,
    "logits": lambda logits, ctx: logits,
    "penalty": lambda params, out, batch, ctx: Number(out.logits.device),
    "perturb": lambda params, loss, batch, ctx: params,
    "gradient": lambda grads, params, ctx: params,
    "upload": lambda delta, ctx: _upload(delta, ctx.memory),
    "send": lambda delta, message, ctx: _sent(delta, message),
    "receive": lambda upload, row, ctx: Several(
        tuple, {"upload": _upload(upload.delta, ANY_STATE), "row": row}
    ),
    "aggregate": lambda uploads, weights, ctx: Several(
        tuple, {"delta": tree.take(uploads.delta, 0), "message": ANY_STATE}
    ),
    "release": lambda delta, message, ctx: _sent(delta, message),
    "update": lambda delta, ctx: Several(tuple, {"step": delta, "state": ctx.state}),
}
"""What each hook must return, given its arguments: its names, shapes, dtypes and devices."""

MADE_BY = {"memory": "init_client", "row": "init_row", "state": "init_server"}
"""The hook that first makes each kept state: later hooks must return the same form of it."""


def _upload(delta: Any, memory: Any) -> Several:
    return Several(Upload, {"delta": delta, "message": ANY_STATE, "memory": memory})


def _sent(delta: Any, message: Any) -> Several:
    return Several(tuple, {"delta": delta, "message": message})


def problem(value: Any, wanted: Any, path: str = "") -> str | None:
    """How a value differs from what belongs in its place, or None."""
    match wanted:
        case Several(kind, inner):
            if not isinstance(value, kind) or len(value) != len(inner):
                names = ", ".join(inner)
                what = f"an Upload({names})" if kind is Upload else f"a tuple ({names})"
                return _other(value, what, path)
            given = dict(zip(inner, value, strict=True))
            return _first(problem(given[n], w, _under(path, n)) for n, w in inner.items())
        case Tensor():
            return _tensor_problem(value, wanted, path)
        case dict():
            if not isinstance(value, dict):
                return _other(value, "a dict", path)
            return _names_problem(value, wanted, path) or _first(
                problem(value[name], w, _under(path, name)) for name, w in wanted.items()
            )
        case Number():
            return _number_problem(value, wanted.device)
    return _state_problem(value, path)


def _tensor_problem(value: Any, wanted: Tensor, path: str) -> str | None:
    if not isinstance(value, Tensor):
        return _other(value, "a tensor", path)
    what, belongs = path or "a tensor", f"belongs{_source(path)}"
    if value.shape != wanted.shape:
        return f"{what} of shape {list(value.shape)}, where {list(wanted.shape)} {belongs}"
    if value.dtype != wanted.dtype:
        return f"{what} of {value.dtype}, where {wanted.dtype} {belongs}"
    if value.device != wanted.device:
        return f"{what} on {value.device}, where {wanted.device} belongs"
    if value.layout != wanted.layout:
        return f"{what} of {value.layout}, where {wanted.layout} belongs"
    return None


def _names_problem(value: dict[Any, Any], wanted: dict[str, Any], path: str) -> str | None:
    lacks = [str(name) for name in wanted if name not in value]
    has = [str(name) for name in value if name not in wanted]
    if not lacks and not has:
        return None
    faults = [f"lacks {_listed(lacks)}"] if lacks else []
    faults += [f"has {_listed(has)}, which does not belong there"] if has else []
    return f"{path or 'a dict'} that {' and '.join(faults)}{_source(path)}"


def _source(path: str) -> str:
    maker = MADE_BY.get(path.partition("/")[0])
    return f"; {maker} says what belongs" if maker else ""


def _number_problem(value: Any, device: torch.device) -> str | None:
    if type(value) in (int, float):
        return None
    if not isinstance(value, Tensor):
        return _other(value, "a tensor of one number", "")
    if value.shape != () or not value.is_floating_point():
        given = f"a tensor of {value.dtype} and shape {list(value.shape)}"
        return f"{given}, where a single real number belongs"
    return _tensor_problem(value, torch.zeros((), dtype=value.dtype, device=device), "")


def _state_problem(value: Any, path: str) -> str | None:
    """Whether something is no dict of dicts of tensors, all of them by name."""
    for depth, inner in ((0, {"": value}), (1, value)):
        for name, x in inner.items():
            if not isinstance(x, dict) or not all(isinstance(key, str) for key in x):
                what = "a dict of dicts of tensors" if depth == 0 else "a dict of tensors"
                return _other(x, f"{what}, by name,", _under(path, name))
    wrong = ((f"{part}/{b}", x) for part, t in value.items() for b, x in t.items())
    return _first(
        _other(x, "a tensor", _under(path, name)) for name, x in wrong if not isinstance(x, Tensor)
    )


def _other(value: Any, wanted: str, path: str) -> str:
    kind = "None" if value is None else a(type(value).__name__)
    given = f"{kind} as {path}" if path else kind
    return f"{given}, where {wanted} belongs"


def _under(path: str, name: str) -> str:
    return f"{path}/{name}".strip("/")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _first(problems: Iterator[str | None]) -> str | None:
    return next((each for each in problems if each), None)
