"""The paper's small convolutional network."""

from torch import Tensor, nn
from torch.nn import functional

from gcfed.core.model import MODELS
from gcfed.models.layers import check_classes, he_normal, image_shape


class CNN(nn.Module):
    """conv1, pool, conv2, pool, fc1, fc2, with ReLU after all but the last."""

    head = "fc2"
    feature_reader = "fc1"  # what the convolutions give: the paper's features for FedDecorr

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        channels, rows, columns = shape
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * (rows // 4) * (columns // 4), 512)
        self.fc2 = nn.Linear(512, num_classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


@MODELS.register("cnn")
def cnn(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two 5x5 convolutions (32, 64), each pooled, and two linear layers: the paper's for CIFAR.

    Kaiming-normal weights (fan-in) and biases of zero, as in the paper's experiments.
    """
    return CNN(image_shape("cnn", shape, smallest=4), check_classes("cnn", num_classes))
