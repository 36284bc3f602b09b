"""What several models share."""

from torch import nn

from gcfed.errors import InputError


def he_normal(module: nn.Module) -> None:
    """Draw Kaiming-normal weights (fan-in) and set all biases to zero."""
    for parameter in module.parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")
        else:
            nn.init.zeros_(parameter)


def image_shape(model: str, shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """(channels, rows, columns) of an image whose sides are large enough for a model's pooling."""
    if len(shape) != 3 or min(shape) < 1 or min(shape[1:]) < smallest:
        raise InputError(
            f"{model} reads images (channels, rows, columns) of at least {smallest}x{smallest} "
            f"pixels; not {shape}"
        )
    return shape[0], shape[1], shape[2]


def check_classes(model: str, num_classes: int) -> int:
    """The number of classes, which a model has at least one of."""
    if num_classes < 1:
        raise InputError(f"{model} tells apart at least 1 class; not {num_classes}")
    return num_classes
