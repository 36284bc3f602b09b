"""Dropout whose mask is a function of a key, so that engines and devices agree on it."""

from torch import Tensor, nn

from gcfed.core import keys
from gcfed.core.passes import replace_modules
from gcfed.errors import InputError

GLOBAL_RANDOMNESS = (
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)


class KeyedDropout(nn.Module):
    """`nn.Dropout`, but for ``key``: a buffer that ``functional_call`` replaces at each call.

    The batch axis comes first, so that padding at its end changes no example's mask.
    """

    key: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.scale = 1 / (1 - p) if p < 1 else 0.0
        self.register_buffer("key", keys.key(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        kept = keys.uniform(self.key, x.shape) >= self.p
        self.key = keys.fold(self.key, 1)  # a module called twice drops twice
        return x * kept * self.scale


def key_dropout(module: nn.Module) -> tuple[nn.Module, list[str]]:
    """A pass that replaces every `nn.Dropout`, and refuses what draws from global generators."""
    return replace_modules(module, _keyed)


def _keyed(name: str, module: nn.Module) -> nn.Module | None:
    if isinstance(module, GLOBAL_RANDOMNESS):
        raise InputError(
            f"{name} ({type(module).__name__}) draws from torch's global generator, "
            "so no engine could repeat it: use nn.Dropout"
        )
    return KeyedDropout(module.p) if isinstance(module, nn.Dropout) else None
