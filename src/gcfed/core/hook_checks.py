"""Hooks that are wrong, told by the hook, its class, its file and its line.

`with_checked_hooks` is for a trial step: it looks at all that hooks return.  `naming_hooks` is for
everything else that calls hooks, where it costs nothing and tells of those that raise.
"""

import copy
import inspect
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from gcfed.core import tree
from gcfed.core.algorithm import ARGUMENTS, Algorithm
from gcfed.core.chain import Chain, parts
from gcfed.core.hook_returns import BELONGS, problem
from gcfed.core.seeding import drawn_since, states, torch_drew_since
from gcfed.core.tree import Tree
from gcfed.core.types import Batch, ClientContext, Output, ServerContext
from gcfed.errors import READS_A_NUMBER, DivergedError, InputError, place

DEVICE_ERROR = getattr(torch, "AcceleratorError", torch.OutOfMemoryError)  # since torch 2.8

NOT_THE_HOOKS = (InputError, DivergedError, torch.OutOfMemoryError, DEVICE_ERROR)
"""Errors that go on as they are: they speak for themselves, or are the device's."""


def with_checked_hooks(algorithm: Algorithm) -> Algorithm:
    """The same algorithm, which raises an `InputError` when one of its hooks is wrong.

    A hook is wrong if it raises, if it returns what does not belong or was not meant, or if it
    draws from torch's global generator.  ``check`` does nothing, since it has been called before.
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
    before, given = states(), dict(zip(ARGUMENTS[name], arguments, strict=True))
    paths = [path for path, _ in tree.leaves(given)]
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
            f"{named(part, name)} draws from numpy's or Python's global generator, so no run can "
            "be repeated: use gcfed.core.keys, with ctx.key where the hook has a ctx",
            stacklevel=2,
        )
    if strange := set(paths).symmetric_difference(path for path, _ in tree.leaves(given)):
        raise InputError(
            f"{named(part, name)} changes the dicts it is given: {min(strange)[1:]} comes or goes; "
            "return new ones"
        )
    if other := problem(returned, BELONGS[name](*arguments)):
        raise InputError(f"{named(part, name)} returns {other}")
    if slip := _slip(part, name, returned, *arguments):
        raise InputError(f"{named(part, name)} returns {slip}")
    return returned


def _slip(part: Algorithm, name: str, returned: Any, *arguments: Any) -> str | None:
    """A common mistake in what a hook returns, though its form is right; None if there is none."""
    if name == "penalty" and _lost_its_gradient(part, returned, *arguments):
        return (
            "a number that has no gradient, so it changes nothing: do without .item(), float(), "
            ".detach() and no_grad, and make it of params or out"
        )
    if name == "update" and _are_weights(part, returned[0], *arguments):
        return (
            "new weights, where the step that leads to them belongs, which is added to the "
            "weights: leave out ctx.params"
        )
    return None


def _are_weights(part: Algorithm, step: Tree, delta: Tree, ctx: ServerContext) -> bool:
    """Whether an update is the new weights: near the old ones, and these if nothing was learnt."""
    if not tree.norm(tree.sub(step, ctx.params)) < 0.5 * tree.norm(ctx.params):
        return False
    resting, _ = part.update(tree.zeros(delta), ctx)
    return all(torch.equal(resting[name], w) for name, w in ctx.params.items())


def _lost_its_gradient(
    part: Algorithm, value: Any, params: Tree, out: Output, batch: Batch, ctx: ClientContext
) -> bool:
    """Whether a penalty adds to the loss, but nothing to its gradient.

    A number of Python's that is the same at other weights and outputs is taken as meant; and so is
    a tensor where features are inputs, which no weight changes.
    """
    if isinstance(value, Tensor) and value.requires_grad:
        return False
    try:
        if isinstance(value, Tensor) and value != 0:
            return out.features is None or out.features.requires_grad
        other = part.penalty(tree.map(_moved, params), tree.map(_moved, out), batch, ctx)
        return bool(other != value)
    except Exception:  # as where the values of several clients, mapped over, cannot be compared
        return False


def _moved(x: Tensor) -> Tensor:
    """Other numbers than these, by which no gradient leads anywhere."""
    return 1.5 * x.detach() + 0.1


def _draws(part: Algorithm, name: str) -> InputError:
    return InputError(
        f"{named(part, name)} draws from torch's global generator, so no engine could repeat it: "
        "use gcfed.core.keys, with ctx.key where the hook has a ctx"
    )


def _raised(part: Algorithm, name: str, error: Exception) -> InputError:
    """The error's own words, and the last line of the hook's file that led to it."""
    code = _code(part, name)
    lines = traceback.extract_tb(error.__traceback__)
    own = [x.lineno for x in lines if code is not None and x.filename == code.co_filename]
    said = _in_words(error)
    what = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return InputError(f"{named(part, name, own[-1] if own else None)} raises {what}")


def _in_words(error: Exception) -> str:
    """What an error says, without torch's own advice, and with what else there is of a name."""
    said = " ".join(str(error).split())
    said = said if len(said) <= 300 else f"{said[:300]}..."
    if "vmap" in said and (".item()" in said or "data-dependent" in said):
        return f"{READS_A_NUMBER}, which vmap over clients cannot: use torch.where, clamp, exp, ..."
    if "escaped from inside a function" in said:
        return (
            "it reads a tensor that an earlier call kept: what lasts is the server's state, a "
            "client's memory or a row"
        )
    if "does not require grad" in said:
        return f"{said}; take a gradient by torch.func.grad(loss)(params)"
    if isinstance(error, AttributeError) and isinstance(error.obj, ClientContext | ServerContext):
        names = [field.name for field in fields(error.obj)]
        near = get_close_matches(str(error.name), names, n=1)
        said += f"; did you mean {near[0]!r}?" if near else "."
        said += f" There are {', '.join(sorted(names))}"
    return said


def named(part: Algorithm, name: str, line: int | None = None) -> str:
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
