"""Which layers the operators can stand for, and where; asked before Triton is needed."""

from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import torch
from torch import nn

from gcfed.core.client import ClientTask
from gcfed.core.model import Model
from gcfed.core.torch_internals import has_hooks


def fits(layer: nn.Module) -> bool:
    """Whether a layer is one that an operator can do."""
    if has_hooks(layer):  # they would be lost
        return False
    if type(layer) is nn.Linear:
        return True
    if type(layer) is nn.GroupNorm:
        size = layer.num_channels // layer.num_groups
        return layer.affine and size & (size - 1) == 0  # kernels are made of powers of two
    return type(layer) is nn.Conv2d and _is_plain(layer)


def _is_plain(layer: nn.Conv2d) -> bool:
    sides = (layer.kernel_size, layer.stride, layer.padding)
    return (
        not isinstance(layer.padding, str)
        and all(len(set(pair)) == 1 for pair in sides)
        and layer.kernel_size[0] in (1, 3, 5)
        and layer.stride[0] in (1, 2)
        and int(layer.padding[0]) < layer.kernel_size[0]
        and layer.groups == 1
        and layer.dilation == (1, 1)
        and layer.padding_mode == "zeros"
    )


def fits_model(model: Model) -> bool:
    """Whether operators can do all convolutions of a model, which has some."""
    layers, weights = model.convolutions, model.params.values()
    single = all(w.dtype == torch.float32 for w in weights)
    return bool(layers) and all(map(fits, layers)) and single and has_triton()


def has_triton() -> bool:
    return find_spec("triton") is not None


def with_operators(task: ClientTask) -> ClientTask:
    """The task by operators, where these may do its layers; else as it is.

    They need Triton, a GPU and weights in float32, and they round what they multiply, to TF32 or
    to bfloat16: where products are to be of float32, layers stay as they are.
    """
    if not _may_stand_in(task):
        return task
    from gcfed.kernels.fusing import fuse_layers  # needs Triton

    watched = task.model.watched
    return replace(task, model=task.model.rewritten(partial(fuse_layers, watched=watched)))


def _may_stand_in(task: ClientTask) -> bool:
    weights = list(task.model.params.values())
    tf32 = task.compute is None and torch.get_float32_matmul_precision() != "highest"
    return (
        (tf32 or task.compute == torch.bfloat16)
        and weights[0].device.type == "cuda"
        and all(w.dtype == torch.float32 for w in weights)
        and has_triton()
    )
