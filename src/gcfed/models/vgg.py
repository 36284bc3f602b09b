"""VGG11, with the layers, names and initial weights of torchvision's."""

import torch
from torch import Tensor, nn

from gcfed.core.model import MODELS
from gcfed.models.layers import check_classes, image_shape

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))  # a max-pool ends each
POOLED = 7  # the side of what the classifier reads, whatever the image's


class AveragePool(nn.Module):
    """`nn.AdaptiveAvgPool2d`, without its backward pass, which on CUDA may add in any order."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        columns = self._pool_last_axis(x)
        return self._pool_last_axis(columns.transpose(2, 3)).transpose(2, 3)

    def _pool_last_axis(self, x: Tensor) -> Tensor:
        """Average over windows i that reach from floor(i w / side) to ceil((i + 1) w / side)."""
        width = x.shape[-1]
        i = torch.arange(self.side, device=x.device)[:, None]
        first, end = i * width // self.side, ((i + 1) * width + self.side - 1) // self.side
        j = torch.arange(width, device=x.device)
        inside = (first <= j) & (j < end)
        # a product and a sum, not a matrix product: that would round to TF32 where it is allowed
        return (x.unsqueeze(-2) * inside).sum(-1) / (end - first).squeeze(-1)


class VGG11(nn.Module):
    """Eight 3x3 convolutions in ``features``, three linear layers in ``classifier``, the head."""

    head = "classifier"
    feature_reader = "classifier.6"

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*_features(channels))
        self.avgpool = AveragePool(POOLED)
        self.classifier = nn.Sequential(
            nn.Linear(STAGES[-1][-1] * POOLED**2, 4096),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(4096, num_classes),
        )
        self._initialize()

    def _initialize(self) -> None:
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
            elif isinstance(layer, nn.Linear) and name != self.feature_reader:
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits


def _features(channels: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for stage in STAGES:
        for width in stage:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return layers


@MODELS.register("vgg11")
def vgg11(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """VGG11 with two dropouts of 0.5, as torchvision's: eight convolutions, three linear layers.

    Simonyan and Zisserman (2015), configuration A.  Torchvision's initial weights, but for the last
    layer: replaced to fit the number of classes, and so at PyTorch's default.
    """
    channels, _, _ = image_shape("vgg11", shape, smallest=2 ** len(STAGES))
    return VGG11(channels, check_classes("vgg11", num_classes))
