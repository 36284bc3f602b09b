"""Gradient centralization, for algorithms and for people with a training loop of their own.

In a client's loop, one line makes any optimiser centralize, and one undoes it:

>>> from torch import nn, optim
>>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
>>> optimizer = optim.SGD(model.parameters(), lr=0.1)
>>> handle = centralize_gradients(optimizer, model[0].parameters())  # Local GC, but for the head
>>> handle.remove()

On a server, one line centralizes the clients' mean update:

>>> update = {"weight": torch.tensor([[1.0, 2.0, 6.0]]), "bias": torch.tensor([5.0])}
>>> centralize_update(update)
{'weight': tensor([[-2., -1.,  3.]]), 'bias': tensor([5.])}
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gcfed.core.tree import Tree
from gcfed.errors import InputError

Axis = Literal["output", "kernel", "position", "column", "input"]

AVERAGED: dict[Axis, slice] = {  # the axes of a convolution's [out, in, kw, kh] averaged away
    "output": slice(1, None),
    "kernel": slice(2, None),
    "position": slice(1, 2),
    "column": slice(2, 3),
    "input": slice(0, 1),
}


def centralize(x: Tensor, axis: Axis = "output", min_ndim: int = 2) -> Tensor:
    r"""Subtract means: :math:`Px` with :math:`P = I - ee^\top`, :math:`e = 1/\sqrt{m}`.

    ``axis`` says what has a mean of its own, in a convolution's weight ``[out, in, kw, kh]``:

    - ``"output"``: each output channel (Yong et al., 2020); means of shape ``[out, 1, 1, 1]``
    - ``"kernel"``: each kernel, which joins one input to one output; ``[out, in, 1, 1]``
    - ``"position"``: each position in the kernels of an output; ``[out, 1, kw, kh]``
    - ``"column"``: each column of a kernel; ``[out, in, 1, kh]``
    - ``"input"``: each incoming weight, over the outputs that share it; ``[1, in, kw, kh]``

    A linear layer's ``[out, in]`` has no kernel: its means are ``[out, 1]`` for every ``axis``, as
    in the ablation of the GC-Fed paper.  Tensors of fewer than ``min_ndim`` axes pass through;
    with ``min_ndim=1`` one-axis tensors (biases, norm scales) lose their overall mean.
    """
    if axis not in AVERAGED:
        raise InputError(f"axis is one of {', '.join(AVERAGED)}; not {axis!r}")
    if x.ndim < max(min_ndim, 1):
        return x
    if x.ndim == 1:
        return x - x.mean()
    averaged = AVERAGED[axis if x.ndim > 2 else "output"]
    return x - x.mean(dim=tuple(range(x.ndim)[averaged]), keepdim=True)


def centralize_update(
    update: Mapping[str, Tensor], axis: Axis = "output", min_ndim: int = 2
) -> Tree:
    """Global GC: the mean of the clients' updates (new weights minus old), centralized."""
    return {name: centralize(x, axis, min_ndim) for name, x in update.items()}


def centralize_gradients(
    optimizer: Optimizer,
    params: Iterable[Tensor] | None = None,
    axis: Axis = "output",
    min_ndim: int = 2,
) -> RemovableHandle:
    """Local GC: from now on ``optimizer`` centralizes the gradients of ``params`` before each step.

    ``params`` are those of the layers to centralize; all of the optimiser's by default.  Weight
    decay, momentum and adaptive moments come after.  ``.remove()`` on the result undoes it.
    """
    held = {p for group in optimizer.param_groups for p in group["params"]}
    chosen = list(held) if params is None else list(params)
    if strangers := sum(p not in held for p in chosen):
        raise InputError(
            f"{strangers} of the {len(chosen)} parameters to centralize are not among those that "
            "the optimizer steps: pass it parameters of the module it was made for"
        )

    def project(*_: Any) -> None:
        with torch.no_grad():
            for p in chosen:
                if p.grad is not None:
                    p.grad.copy_(centralize(p.grad, axis, min_ndim))

    return optimizer.register_step_pre_hook(project)
