"""Which algorithm is taken where none is asked for."""

from typing import NamedTuple

from gcfed.core.losses import Loss, is_of_numbers
from gcfed.core.model import Model
from gcfed.core.roles import head_is_all
from gcfed.data import Dataset


class Suited(NamedTuple):
    """An algorithm as text, and why it is this one."""

    algorithm: str
    reason: str


def suited(model: Model, dataset: Dataset, loss: Loss) -> Suited:
    """GC-Fed, or FedAvg where that does not suit the model, the labels or the loss."""
    if head_is_all(model.roles):
        return Suited(
            "fedavg", "the model trains nothing before its head, and GC would hold that back"
        )
    if not dataset.has_classes:
        return Suited("fedavg", "the labels are no classes, and GC-Fed is made for classification")
    if is_of_numbers(loss):
        return Suited("fedavg", "the loss is of numbers, and GC-Fed is made for classification")
    return Suited("gcfed", "the model has layers before its head, and the labels are classes")
