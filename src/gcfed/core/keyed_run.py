"""Runs of a model in which torch's functions draw by a key."""

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gcfed.core.draws import KEYED, KeyedNumbers

WRITTEN_IN_PYTHON = frozenset(
    {
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        F.rrelu,
        F.gumbel_softmax,
        F.multi_head_attention_forward,
    }
)
"""Functions of torch that call others which draw."""


class KeyedRun(TorchFunctionMode):
    """Inside, what torch's functions draw is a function of a key and of the draws before it.

    So it is the same in every engine: under ``vmap``, in a trace and in another process.
    """

    def __init__(self, key: Tensor | None) -> None:
        super().__init__()
        self._draws = KeyedNumbers(key)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in KEYED and kwargs.get("out") is None:
            first = (kwargs.pop("input"),) if "input" in kwargs else ()
            return KEYED[func](self._draws, *first, *args, **kwargs)
        if func in WRITTEN_IN_PYTHON:
            with self:  # torch leaves a mode while it asks it, and the draws are further inside
                return _unasked(func)(*args, **kwargs)
        return func(*args, **kwargs)


@cache
def _unasked(function: FunctionType) -> Callable[..., Any]:
    """The function without its check for a mode that replaces it, which would recurse for ever."""
    asks = [name for name in function.__globals__ if name.startswith("has_torch_function")]
    scope = {**function.__globals__, **{name: lambda *_: False for name in asks}}
    code, closure = function.__code__, function.__closure__
    twin = FunctionType(code, scope, function.__name__, function.__defaults__, closure)
    twin.__kwdefaults__ = function.__kwdefaults__
    return cast(Callable[..., Any], twin)
