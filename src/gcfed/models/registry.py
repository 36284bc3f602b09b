"""The registry of models, apart from them so that each can import it."""

from collections.abc import Callable

from torch import nn

from gcfed.registry import Registry

MODELS: Registry[Callable[..., nn.Module]] = Registry("model")
"""Functions of (shape of an example, number of classes) and hyper-parameters that make a module."""
