"""How a module is called on what a batch holds, and its logits found in what it returns."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gcfed.core.types import Inputs, Output
from gcfed.errors import InputError


def arguments(module: nn.Module, x: Inputs) -> tuple[tuple[Inputs, ...], dict[str, Tensor]]:
    """The arguments by place and by name with which ``module`` is called on ``x``.

    Several tensors are given by name to a module whose ``forward`` takes their names, as those of
    Hugging Face do, and as one dict to any other.
    """
    if isinstance(x, Tensor):
        return (x,), {}
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # it was not written in Python
        return (x,), {}
    try:
        signature.bind(**x)
        return (), x
    except TypeError as error:
        if signature.parameters.keys() & x.keys():
            have, takes = ", ".join(x), ", ".join(signature.parameters)
            raise InputError(
                f"the forward of {type(module).__name__} takes ({takes}), and the inputs are "
                f"{have}: {error}; name the columns that it is to read"
            ) from None
        return (x,), {}


def names_taken(module: nn.Module) -> tuple[str, ...]:
    """The names that the ``forward`` of ``module`` writes out among its arguments."""
    try:
        known = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):  # it was not written in Python
        return ()
    return tuple(p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def pad_token(module: nn.Module) -> int:
    """The token with which ``module`` wants texts filled up: its config says so, or else it is 0.

    An adapter of peft has the config of the model that it wraps.  Some name a token that they do
    not have, such as -1.
    """
    config = getattr(module, "config", None)
    token, words = (getattr(config, name, None) for name in ("pad_token_id", "vocab_size"))
    limit = words if isinstance(words, int) else math.inf
    return token if isinstance(token, int) and 0 <= token < limit else 0


def called(module: nn.Module, x: Inputs) -> Output:
    """What ``module`` says of ``x``."""
    by_place, by_name = arguments(module, x)
    return output(module(*by_place, **by_name))


def output(returned: Any) -> Output:
    """What a module returned, as an `Output`: its logits, or what holds them in a usual form."""
    match returned:
        case Output():
            return returned
        case Tensor():
            return Output(returned)
        case Mapping() if "logits" in returned:
            logits = returned["logits"]
        case tuple() | list() if returned and not hasattr(returned, "logits"):
            logits = returned[0]
        case _:
            logits = getattr(returned, "logits", None)
    if not isinstance(logits, Tensor):
        raise InputError(
            f"the model returns a {type(returned).__name__}, where logits belong: a tensor, "
            "something with logits in it by that name, or a tuple that begins with them"
        )
    return Output(logits)
