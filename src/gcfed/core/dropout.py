"""Dropout whose mask is a function of a key, so that engines and devices agree on it."""

from torch import Tensor, nn

from gcfed.core import keys
from gcfed.core.passes import replace_modules


class KeyedDropout(nn.Module):
    """`nn.Dropout`, but for ``key``: a buffer that ``functional_call`` replaces at each call.

    The batch axis comes first, so that padding at its end changes no example's mask.
    """

    key: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("key", keys.key(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        numbers = keys.uniform(self.key, x.shape)
        self.key = keys.fold(self.key, 1)  # a module called twice drops twice
        return dropped(x, numbers, self.p)


def dropped(x: Tensor, numbers: Tensor, p: float) -> Tensor:
    """``x`` with zeros where ``numbers`` are below ``p``; the rest is scaled to keep the mean."""
    scale = 1 / (1 - p) if p < 1 else 0.0
    return x * (numbers >= p) * scale


def key_dropout(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """A pass that replaces every `nn.Dropout`."""
    return replace_modules(module, _keyed)


def _keyed(name: str, module: nn.Module) -> nn.Module | None:
    return KeyedDropout(module.p) if isinstance(module, nn.Dropout) else None
