"""Dropout whose mask is a function of a key, so that engines and devices agree on it."""

from torch import Tensor, nn

from gcfed.core import keys
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


def swap(module: nn.Module) -> None:
    """Replace, in place, every `nn.Dropout` that ``module`` contains."""
    keyed: dict[nn.Module, KeyedDropout] = {}
    for path, child in list(module.named_modules(remove_duplicate=False)):
        if isinstance(child, GLOBAL_RANDOMNESS):
            raise InputError(
                f"{path} ({type(child).__name__}) draws from torch's global generator, "
                "so no engine could repeat it: use nn.Dropout"
            )
        if isinstance(child, nn.Dropout):
            module.set_submodule(path, keyed.setdefault(child, KeyedDropout(child.p)))
