"""torchvision and timm, also beside a torch for CPUs, for which torchvision is not built."""

import importlib
import importlib.util
from types import ModuleType

import pytest
import torch

DECLARED: list[torch.library.Library] = []


def vision(name: str) -> ModuleType:
    """A module of torchvision or timm; where they are not installed, the test is skipped.

    What torchvision compiled does not load beside another build of torch.  It is then imported
    without: it only describes two operators, which are declared here and which no test calls.
    """
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed: make vision does it in a folder of its own")
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        DECLARED.append(library)  # an operator is there as long as its library
    return importlib.import_module(name)
