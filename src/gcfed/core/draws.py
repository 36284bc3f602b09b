"""Torch's functions that draw random numbers, with numbers that are a function of a key.

A function here takes the place of one of torch's.  It has the same arguments after the first, which
is where the numbers come from.  The batch axis comes first, so that padding at its end changes no
example's numbers.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gcfed.core import keys
from gcfed.core.dropout import dropped
from gcfed.errors import InputError

SELU_FLOOR = 1.7580993408473766  # what SELU tends to far below zero, and alpha dropout sets


class KeyedNumbers:
    """Random numbers by a key and the count of draws so far."""

    def __init__(self, key: Tensor | None) -> None:
        self._key, self._count = key, 0

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Numbers on [0, 1)."""
        return keys.uniform(self._next(), tuple(shape))

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal numbers."""
        return keys.normal(self._next(), tuple(shape))

    def empty(self, *size: Any, **options: Any) -> Tensor:
        """Memory to draw into; under ``vmap`` each client has its own, as it has its own key."""
        if self._key is None or options.keys() - {"size", "dtype", "device"}:
            return torch.empty(*size, **options)
        options["dtype"] = options.get("dtype") or torch.get_default_dtype()
        options["device"] = options.get("device") or torch.get_default_device()
        return self._key.new_empty(*size, **options)

    def _next(self) -> Tensor:
        if self._key is None:
            raise InputError("a model that draws random numbers needs a key to train")
        self._count += 1
        return keys.fold(self._key, self._count)


def dropout(draws: KeyedNumbers, x: Tensor, p: float, train: bool) -> Tensor:
    return dropped(x, draws.uniform(x.shape), p) if train and p else x


def feature_dropout(draws: KeyedNumbers, x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout of whole channels."""
    return dropped(x, draws.uniform(_channels(x)), p) if train and p else x


def alpha_dropout(draws: KeyedNumbers, x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout that keeps the mean and the variance of what SELU returns."""
    return _alpha_dropped(x, draws.uniform(x.shape), p) if train and p else x


def feature_alpha_dropout(draws: KeyedNumbers, x: Tensor, p: float, train: bool) -> Tensor:
    """Alpha dropout of whole channels."""
    return _alpha_dropped(x, draws.uniform(_channels(x)), p) if train and p else x


def rrelu(
    draws: KeyedNumbers,
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> Tensor:
    """A leaky ReLU whose slopes are random in training."""
    if not training:
        return F.leaky_relu(x, (lower + upper) / 2)
    slope = lower + (upper - lower) * draws.uniform(x.shape)
    return torch.where(x >= 0, x, x * slope.to(x.dtype))


def attention(
    draws: KeyedNumbers,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention; with dropout as it is defined, since no kernel takes a mask."""
    if not dropout_p:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    nothing = (scores == -math.inf).all(-1, keepdim=True)  # to attend to: zeros, as torch has it
    weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    return dropout(draws, weights, dropout_p, True) @ value


def recurrent(
    function: Callable[..., Any], draws: KeyedNumbers, *arguments: Any
) -> tuple[Tensor, ...]:
    """An LSTM, a GRU or an RNN, layer by layer if there is dropout between the layers."""
    packed = not isinstance(arguments[3], bool)
    x, *lengths = arguments[: 1 + packed]
    state, weights, biases, layers, p, train, both, *batch_first = arguments[1 + packed :]
    if not (train and p and layers > 1):
        return tuple(function(*arguments))
    states = state if isinstance(state, tuple | list) else (state,)
    each, ends = len(weights) // layers, []
    for i in range(layers):
        if i:
            x = _between_layers(draws, x, p, time_first=not packed and not any(batch_first))
        rows = slice(i * (1 + both), (i + 1) * (1 + both))
        own = tuple(s[rows] for s in states)
        given = own if isinstance(state, tuple | list) else own[0]
        mine = weights[i * each : (i + 1) * each]
        x, *end = function(x, *lengths, given, mine, biases, 1, 0.0, train, both, *batch_first)
        ends.append(end)
    return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))


def bernoulli(draws: KeyedNumbers, x: Tensor, p: float | None = None, **options: Any) -> Tensor:
    """Ones where a number is below ``p``, or below its place in ``x``."""
    return (draws.uniform(x.shape) < (x if p is None else p)).to(x.dtype)


def bernoulli_(draws: KeyedNumbers, x: Tensor, p: Any = 0.5, **options: Any) -> Tensor:
    return x.copy_(draws.uniform(x.shape) < p)


def uniform_(
    draws: KeyedNumbers, x: Tensor, low: float = 0, high: float = 1, **options: Any
) -> Tensor:
    low, high = options.get("from", low), options.get("to", high)  # as torch calls them
    return x.copy_(low + (high - low) * draws.uniform(x.shape))


def normal_(
    draws: KeyedNumbers, x: Tensor, mean: float = 0, std: float = 1, **options: Any
) -> Tensor:
    return x.copy_(mean + std * draws.normal(x.shape))


def exponential_(draws: KeyedNumbers, x: Tensor, lambd: float = 1, **options: Any) -> Tensor:
    return x.copy_(-torch.log1p(-draws.uniform(x.shape)) / lambd)


def normal(
    draws: KeyedNumbers, mean: Any, std: Any = 1.0, size: Sequence[int] | None = None, **rest: Any
) -> Any:
    if size is not None:
        return normal_(draws, draws.empty(size, **_options(rest)), mean, std)
    like = mean + std  # at least one of them is a tensor
    return mean + std * draws.normal(like.shape).to(like.dtype)


def randint(draws: KeyedNumbers, *arguments: Any, **rest: Any) -> Tensor:
    """Integers from ``low``, which is 0 by default, to below ``high``."""
    names = ("high", "size") if len(arguments) + len(rest.keys() & {"high", "size"}) == 2 else ()
    given = {**dict(zip(names or ("low", "high", "size"), arguments, strict=False)), **rest}
    low, high, size = given.get("low", 0), given["high"], given["size"]
    steps = (draws.uniform(size).double() * (high - low)).floor()  # float32 may reach the end
    numbers = low + steps.to(torch.int64)
    return draws.empty(size, **{"dtype": torch.int64, **_options(rest)}).copy_(numbers)


def randperm(draws: KeyedNumbers, n: int, **rest: Any) -> Tensor:
    order = draws.uniform((n,)).argsort(stable=True)
    return draws.empty(n, **{"dtype": torch.int64, **_options(rest)}).copy_(order)


def _fresh(fill: Callable[..., Tensor], draws: KeyedNumbers, *size: Any, **rest: Any) -> Tensor:
    """A new tensor that is filled at once."""
    given = {"size": rest["size"]} if "size" in rest else {}
    return fill(draws, draws.empty(*size, **given, **_options(rest)))


def _alike(fill: Callable[..., Tensor], draws: KeyedNumbers, x: Tensor, **rest: Any) -> Tensor:
    """A new tensor with the shape of another that is filled at once."""
    options = {"dtype": x.dtype, "device": x.device, **_options(rest)}
    return fill(draws, draws.empty(x.shape, **options))


def _in_place(
    function: Callable[..., Tensor], draws: KeyedNumbers, x: Tensor, *rest: Any
) -> Tensor:
    return x.copy_(function(draws, x, *rest))


def _options(given: dict[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("dtype", "device") if given.get(name) is not None}


def _channels(x: Tensor) -> Sequence[int]:
    return (*x.shape[:2], *(1 for _ in x.shape[2:]))


def _alpha_dropped(x: Tensor, numbers: Tensor, p: float) -> Tensor:
    if p == 1:
        return x * 0.0
    scale = 1 / math.sqrt((SELU_FLOOR**2 * p + 1) * (1 - p))
    kept = (numbers >= p).to(x.dtype)
    return x * kept * scale + (kept - 1 + p) * (SELU_FLOOR * scale)


def _between_layers(draws: KeyedNumbers, x: Tensor, p: float, *, time_first: bool) -> Tensor:
    if not time_first:
        return dropout(draws, x, p, True)
    return dropout(draws, x.transpose(0, 1), p, True).transpose(0, 1)


KEYED: dict[Any, Callable[..., Any]] = {
    torch.empty: KeyedNumbers.empty,
    torch.dropout: dropout,
    torch.feature_dropout: feature_dropout,
    torch.alpha_dropout: alpha_dropout,
    torch.feature_alpha_dropout: feature_alpha_dropout,
    torch.rrelu: rrelu,
    torch.dropout_: partial(_in_place, dropout),
    torch.feature_dropout_: partial(_in_place, feature_dropout),
    torch.alpha_dropout_: partial(_in_place, alpha_dropout),
    torch.feature_alpha_dropout_: partial(_in_place, feature_alpha_dropout),
    torch.rrelu_: partial(_in_place, rrelu),
    F.scaled_dot_product_attention: attention,
    **{f: partial(recurrent, f) for f in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)},
    torch.bernoulli: bernoulli,
    Tensor.bernoulli: bernoulli,
    Tensor.bernoulli_: bernoulli_,
    Tensor.uniform_: uniform_,
    Tensor.normal_: normal_,
    Tensor.exponential_: exponential_,
    torch.normal: normal,
    torch.rand: partial(_fresh, uniform_),
    torch.randn: partial(_fresh, normal_),
    torch.rand_like: partial(_alike, uniform_),
    torch.randn_like: partial(_alike, normal_),
    torch.randint: randint,
    torch.randperm: randperm,
}
"""What takes the place of torch's functions; its numbers come from its first argument."""
