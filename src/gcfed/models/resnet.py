"""ResNet18 for small images: torchvision's names, GroupNorm for BatchNorm, a 3x3 stem, no pool."""

from torch import Tensor, nn
from torch.nn import functional

from gcfed.core.model import MODELS
from gcfed.models.layers import check_classes, image_shape

WIDTHS = (64, 128, 256, 512)
GROUPS = 32


def _conv(inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, width)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where shapes differ.

    The norms go by torchvision's names, ``bn1`` and ``bn2``, so that weights can be exchanged.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.bn1 = _norm(outputs)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.bn2 = _norm(outputs)
        same = stride == 1 and inputs == outputs
        shortcut = [] if same else [_conv(inputs, outputs, 1, stride), _norm(outputs)]
        self.downsample = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet18(nn.Module):
    """A stem, eight blocks in four layers, the mean over pixels, and ``fc``, the head."""

    head = "fc"
    feature_reader = "fc"

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv1 = _conv(channels, WIDTHS[0], 3, 1)
        self.bn1 = _norm(WIDTHS[0])
        self.layer1 = _layer(WIDTHS[0], WIDTHS[0], stride=1)
        self.layer2 = _layer(WIDTHS[0], WIDTHS[1], stride=2)
        self.layer3 = _layer(WIDTHS[1], WIDTHS[2], stride=2)
        self.layer4 = _layer(WIDTHS[2], WIDTHS[3], stride=2)
        self.fc = nn.Linear(WIDTHS[3], num_classes)
        self._initialize()

    def _initialize(self) -> None:
        for layer in self.modules():
            # the stem was replaced, in the authors' code, after torchvision had drawn its weights
            if isinstance(layer, nn.Conv2d) and layer is not self.conv1:
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def _layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))


@MODELS.register("resnet18")
def resnet18(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """ResNet18 with GroupNorm (32 groups), a 3x3 stem of stride 1 and no max-pool.

    He et al. (2016), as the paper changes it for small images; 62 parameter tensors.  Torchvision's
    initial weights, but for the stem and the last layer: replaced, and so at PyTorch's default.
    """
    channels, _, _ = image_shape("resnet18", shape, smallest=1)
    return ResNet18(channels, check_classes("resnet18", num_classes))
