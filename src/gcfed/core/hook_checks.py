"""Hooks that are wrong, told by the hook, its class, its file and its line.

`with_checked_hooks` is for a trial step: it looks at all that hooks return.  `naming_hooks` is for
everything else that calls hooks, where it costs nothing and tells of those that raise.
"""

import copy
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.algorithm import Algorithm
from gcfed.core.chain import Chain, parts
from gcfed.core.seeding import drawn_since, states, torch_drew_since
from gcfed.core.tree import Tree
from gcfed.core.types import ClientContext, ServerContext, Upload
from gcfed.errors import READS_A_NUMBER, DivergedError, InputError, place
from gcfed.registry import a

DEVICE_ERROR = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)  # since torch 2.8

NOT_THE_HOOKS = (InputError, DivergedError, torch.OutOfMemoryError, DEVICE_ERROR)
"""Errors that go on as they are: they speak for themselves, or are the device's."""


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


def with_checked_hooks(algorithm: Algorithm) -> Algorithm:
    """The same algorithm, which raises an `InputError` when one of its hooks is wrong.

    A hook is wrong if it raises, if it returns what does not belong, or if it draws from torch's
    global generator.  ``check`` does nothing, since it has been called before.
    """
    if isinstance(algorithm, Chain):
        return Chain(tuple(with_checked_hooks(part) for part in algorithm.links))
    twin = copy.copy(algorithm)
    for name in BELONGS:
        object.__setattr__(twin, name, partial(_call, algorithm, name))
    object.__setattr__(twin, "check", lambda params, roles: None)
    return twin


@contextmanager
def naming_hooks(algorithm: Algorithm) -> Iterator[None]:
    """Inside, an error that a hook raises becomes an `InputError` that names the hook."""
    try:
        yield
    except NOT_THE_HOOKS:
        raise
    except Exception as error:
        if (found := _hook_that_raised(algorithm, error)) is None:
            raise
        raise _raised(*found, error) from error


def _call(part: Algorithm, name: str, *arguments: Any) -> Any:
    """What a hook returns, if nothing is wrong with it."""
    before = states()
    try:
        returned = getattr(part, name)(*arguments)
    except NOT_THE_HOOKS:
        raise
    except Exception as error:
        if "random operation" in str(error):  # what torch says of any inside of vmap
            raise _draws(part, name) from error
        raise _raised(part, name, error) from error
    if torch_drew_since(before[2:]):
        raise _draws(part, name)
    if drawn_since(before):  # maybe by another thread, so it is no error
        warnings.warn(
            f"{_named(part, name)} draws from numpy's or Python's global generator, so no run can "
            "be repeated: use gcfed.core.keys, with ctx.key where the hook has a ctx",
            stacklevel=2,
        )
    if problem := _problem(returned, BELONGS[name](*arguments)):
        raise InputError(f"{_named(part, name)} returns {problem}")
    if name == "penalty" and _lost_its_gradient(part, returned, *arguments):
        raise InputError(
            f"{_named(part, name)} returns a number that changes with the weights and has no "
            "gradient, so it changes nothing: do without .item(), float(), .detach() and no_grad"
        )
    return returned


def _lost_its_gradient(part: Algorithm, value: Any, params: Tree, *others: Any) -> bool:
    """Whether a penalty is another at other weights, but no gradient leads from it to them."""
    if isinstance(value, Tensor) and value.requires_grad:
        return False
    try:
        return bool(part.penalty(tree.map(lambda p: 1.5 * p + 0.1, params), *others) != value)
    except Exception:  # as where the values of several clients, mapped over, cannot be compared
        return False


def _draws(part: Algorithm, name: str) -> InputError:
    return InputError(
        f"{_named(part, name)} draws from torch's global generator, so no engine could repeat it: "
        "use gcfed.core.keys, with ctx.key where the hook has a ctx"
    )


def _raised(part: Algorithm, name: str, error: Exception) -> InputError:
    """The error's own words, and the last line of the hook's file that led to it."""
    code = _code(part, name)
    lines = traceback.extract_tb(error.__traceback__)
    own = [x.lineno for x in lines if code is not None and x.filename == code.co_filename]
    said = _in_words(error)
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return InputError(f"{_named(part, name, own[-1] if own else None)} raises {what}")


def _in_words(error: Exception) -> str:
    """What an error says, without torch's own advice, and with what else there is of a name."""
    said = " ".join(str(error).split())
    said = said if len(said) <= 300 else f"{said[:300]}..."
    if "vmap" in said and (".item()" in said or "data-dependent" in said):
        return f"{READS_A_NUMBER}, which vmap over clients cannot: use torch.where, clamp, exp, ..."
    if isinstance(error, AttributeError) and isinstance(error.obj, ClientContext | ServerContext):
        names = [field.name for field in fields(error.obj)]
        near = get_close_matches(str(error.name), names, n=1)
        said += f"; did you mean {near[0]!r}?" if near else "."
        said += f" There are {', '.join(sorted(names))}"
    return said


def _named(part: Algorithm, name: str, line: int | None = None) -> str:
    """A hook by its name, class, file and line; by default the line in which it begins."""
    code, owner = _code(part, name), type(part).__name__
    if code is None:
        return f"{name} of {owner}"
    return f"{name} of {owner} ({place(code.co_filename, line or code.co_firstlineno)})"


def _code(part: Algorithm, name: str) -> CodeType | None:
    """The code of a hook, if it was written in Python."""
    code = getattr(inspect.unwrap(getattr(part, name)), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _hook_that_raised(algorithm: Algorithm, error: Exception) -> tuple[Algorithm, str] | None:
    """The first hook on the way to an error, unless it called the model, which then failed."""
    names = (*BELONGS, "check")
    hooks = {_code(part, name): (part, name) for part in parts(algorithm) for name in names}
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "gcfed.core.client":
            found = None
        else:
            found = found or hooks.get(frame.f_code)
    return found


def _upload(delta: Any, memory: Any) -> Several:
    return Several(Upload, {"delta": delta, "message": ANY_STATE, "memory": memory})


def _sent(delta: Any, message: Any) -> Several:
    return Several(tuple, {"delta": delta, "message": message})


def _problem(value: Any, wanted: Any, path: str = "") -> str | None:
    """How a value differs from what belongs in its place, or None."""
    match wanted:
        case Several(kind, inner):
            if not isinstance(value, kind) or len(value) != len(inner):
                names = ", ".join(inner)
                what = f"an Upload({names})" if kind is Upload else f"a tuple ({names})"
                return _other(value, what, path)
            given = dict(zip(inner, value, strict=True))
            return _first(_problem(given[n], w, _under(path, n)) for n, w in inner.items())
        case Tensor():
            return _tensor_problem(value, wanted, path)
        case dict():
            if not isinstance(value, dict):
                return _other(value, "a dict", path)
            return _names_problem(value, wanted, path) or _first(
                _problem(value[name], w, _under(path, name)) for name, w in wanted.items()
            )
        case Number():
            return _number_problem(value, wanted.device)
    return _state_problem(value, path)


def _tensor_problem(value: Any, wanted: Tensor, path: str) -> str | None:
    if not isinstance(value, Tensor):
        return _other(value, "a tensor", path)
    what = path or "a tensor"
    if value.shape != wanted.shape:
        return f"{what} of shape {list(value.shape)}, where {list(wanted.shape)} belongs"
    if value.dtype != wanted.dtype:
        return f"{what} of {value.dtype}, where {wanted.dtype} belongs"
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
    maker = MADE_BY.get(path.partition("/")[0])
    source = f"; {maker} says what belongs" if maker else ""
    return f"{path or 'a dict'} that {' and '.join(faults)}{source}"


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
    return next((problem for problem in problems if problem), None)
