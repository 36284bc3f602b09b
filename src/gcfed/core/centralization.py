"""Gradient centralization, for algorithms and for people with a training loop of their own.

In a client's loop, one line makes any optimiser centralize, and one undoes it:

>>> from torch import nn, optim
>>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
>>> optimizer = optim.SGD(model.parameters(), lr=0.1)
>>> handle = centralize_gradients(optimizer, model[0])  # Local GC, but for the head
>>> handle.remove()

On a server, one line centralizes the clients' mean update:

>>> update = {"weight": torch.tensor([[1.0, 2.0, 6.0]]), "bias": torch.tensor([5.0])}
>>> centralize_update(update)
{'weight': tensor([[-2., -1.,  3.]]), 'bias': tensor([5.])}
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gcfed.core.roles import Role, role_by_shape, roles_of
from gcfed.core.tree import Tree
from gcfed.errors import InputError
from gcfed.registry import a

Axis = Literal["output", "kernel", "position", "column", "input"]

AVERAGED: dict[Axis, slice] = {  # the axes of a convolution's [out, in, kw, kh] averaged away
    "output": slice(1, None),
    "kernel": slice(2, None),
    "position": slice(1, 2),
    "column": slice(2, 3),
    "input": slice(0, 1),
}


def centralize(
    x: Tensor, axis: Axis = "output", min_ndim: int = 2, role: Role | None = None
) -> Tensor:
    r"""Subtract means: :math:`Px` with :math:`P = I - ee^\top`, :math:`e = 1/\sqrt{m}`.

    ``role`` says what ``x`` is.  P is for the weights of linear, convolutional and recurrent layers
    in which an output has more than one input; other tensors pass through.  Without a role, two
    axes and more are taken for a weight ``[out, in, ...]``.

    ``axis`` says what has a mean of its own, in a convolution's weight ``[out, in, kw, kh]``:

    - ``"output"``: each output channel (Yong et al., 2020); means of shape ``[out, 1, 1, 1]``
    - ``"kernel"``: each kernel, which joins one input to one output; ``[out, in, 1, 1]``
    - ``"position"``: each position in the kernels of an output; ``[out, 1, kw, kh]``
    - ``"column"``: each column of a kernel; ``[out, in, 1, kh]``
    - ``"input"``: each incoming weight, over the outputs that share it; ``[1, in, kw, kh]``

    A weight stored in another orientation has the same means.  A linear layer's ``[out, in]`` has
    no kernel: its means are ``[out, 1]`` for every ``axis``, as in the ablation of the GC-Fed
    paper.  Tensors of fewer than ``min_ndim`` axes pass through; with ``min_ndim=1`` one-axis
    tensors (biases, norm scales) lose their overall mean.
    """
    role = role or role_by_shape(x.ndim)
    axes = averaged_axes(x.shape, axis, min_ndim, role)
    if not axes:
        return x
    if x.ndim == 1:
        return x - x.mean()
    if role.groups == 1:
        return x - x.mean(dim=axes, keepdim=True)
    parts = x.reshape(role.grouped(x.shape))
    return (parts - parts.mean(dim=axes, keepdim=True)).reshape(x.shape)


def _check_axis(axis: Axis) -> None:
    if axis not in AVERAGED:
        raise InputError(f"axis is one of {', '.join(AVERAGED)}; not {axis!r}")


def averaged_axes(shape: torch.Size, axis: Axis, min_ndim: int, role: Role) -> tuple[int, ...]:
    """The axes that P averages over, of the grouped shape; none where it leaves a tensor alone."""
    _check_axis(axis)
    ndim = len(shape)
    if ndim < max(min_ndim, 1):
        return ()
    if ndim == 1:
        return (0,) if shape[0] > 1 else ()
    if not role.is_weight or role.num_inputs(shape) < 2:
        return ()
    if axis == "output" or role.kind != "convolution" or ndim == 2:
        return role.input_axes(ndim)
    first = int(role.groups > 1)
    as_stored = (role.output_axis, 1 - role.output_axis, *range(2, ndim))
    return tuple(sorted(first + d for d in as_stored[AVERAGED[axis]]))


def goes_by_axes(shape: torch.Size, axis: Axis, min_ndim: int, role: Role) -> bool:
    """Whether P is what it was before there were roles, when it went by numbers of axes alone."""
    ndim = len(shape)
    before = range(ndim)[AVERAGED[axis if ndim > 2 else "output"] if ndim > 1 else slice(0, 1)]
    if ndim < max(min_ndim, 1):
        before = range(0)
    first = int(role.groups > 1)
    now = [d - first for d in averaged_axes(shape, axis, min_ndim, role)]
    return now == list(before) and not (role.groups > 1 and axis == "input")


def centralized_names(
    params: Mapping[str, Tensor],
    roles: Mapping[str, Role],
    axis: Axis = "output",
    min_ndim: int = 2,
) -> list[str]:
    """The parameters that P changes."""
    return [
        name
        for name, w in params.items()
        if averaged_axes(w.shape, axis, min_ndim, roles.get(name) or role_by_shape(w.ndim))
    ]


def frozen_names(
    params: Mapping[str, Tensor], roles: Mapping[str, Role], axis: Axis = "output"
) -> list[str]:
    """The weights of which P leaves nothing, since each of their means is of a single number."""
    frozen = []
    for name in centralized_names(params, roles, axis):
        shape = params[name].shape
        role = roles.get(name) or role_by_shape(len(shape))
        grouped = role.grouped(shape)
        if math.prod(grouped[d] for d in averaged_axes(shape, axis, 2, role)) == 1:
            frozen.append(name)
    return frozen


def centralize_update(
    update: Mapping[str, Tensor],
    axis: Axis = "output",
    min_ndim: int = 2,
    roles: Mapping[str, Role] | None = None,
) -> Tree:
    """Global GC: the mean of the clients' updates (new weights minus old), centralized.

    ``roles`` are what `roles_of` says of the module; a name that it lacks goes by its axes.
    """
    if not isinstance(update, Mapping):
        raise InputError(f"an update is tensors by name; not {type(update).__name__}")
    known = roles or {}
    for name, x in update.items():
        if not isinstance(x, Tensor):
            raise InputError(
                f"an update is tensors by name, and {name} is {a(type(x).__name__)}: "
                "torch.as_tensor makes a tensor of it"
            )
        if x.layout is not torch.strided:
            raise InputError(f"{name} is a sparse tensor: give what its .to_dense() gives")
        whole = not (x.is_floating_point() or x.is_complex())
        if whole and averaged_axes(
            x.shape, axis, min_ndim, known.get(name) or role_by_shape(x.ndim)
        ):
            raise InputError(
                f"{name} holds whole numbers, which nothing trains: leave buffers out of an update"
            )
    return {name: centralize(x, axis, min_ndim, known.get(name)) for name, x in update.items()}


def centralize_gradients(
    optimizer: Optimizer,
    params: nn.Module | Iterable[nn.Module | Tensor] | None = None,
    axis: Axis = "output",
    min_ndim: int = 2,
) -> RemovableHandle:
    """Local GC: from now on ``optimizer`` centralizes the gradients of ``params`` before each step.

    ``params`` is a module or several, whose layers say what each parameter is; or parameters alone,
    which go by their axes; all of the optimiser's by default.  Weight decay, momentum and adaptive
    moments come after.  Where a step is given a closure, as LBFGS is, it is what each call of the
    closure leaves that is centralized.  ``.remove()`` on the result undoes it.
    """
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            f"centralize_gradients takes a torch.optim optimizer first, then modules or "
            f"parameters; not {type(optimizer).__name__}"
        )
    if isinstance(params, str):
        raise InputError(f"name modules as objects, such as model.{params}; not by a text")
    _check_axis(axis)
    held = {p for group in optimizer.param_groups for p in group["params"]}
    chosen = {} if params is None else _with_roles(params)
    trained = {p for p in chosen if p.requires_grad or p in held}  # others may be, later
    if params is not None and not trained:
        raise InputError(
            "there is nothing to centralize: the modules or parameters given hold no parameter "
            "that is trained (a generator such as model.parameters() can be read only once)"
        )
    if chosen:
        _refuse_nothing(chosen, axis, min_ndim)
    if strangers := len(trained - held):
        raise InputError(
            f"{strangers} of the {len(trained)} parameters to centralize are not among those that "
            "the optimizer steps: pass it parameters of the module it was made for"
        )

    def project() -> None:
        every = (p for group in optimizer.param_groups for p in group["params"])
        with torch.no_grad():
            for p in every:  # groups may have been added
                if p.grad is not None and (params is None or p in chosen):
                    if p.grad.is_sparse and _is_centralized(p, axis, min_ndim, chosen.get(p)):
                        raise InputError(
                            "a gradient to centralize is sparse, as an embedding's is: give "
                            "centralize_gradients the module, by which it knows embeddings"
                        )
                    p.grad.copy_(centralize(p.grad, axis, min_ndim, chosen.get(p)))

    def before_step(_: Optimizer, args: Any, kwargs: Any) -> Any:
        stepped, closure, *rest = args if args[1:] else (*args, kwargs.get("closure"))
        if closure is None:
            return project()

        def centralized() -> Any:
            loss = closure()
            project()
            return loss

        return (stepped, centralized, *rest), {k: v for k, v in kwargs.items() if k != "closure"}

    return optimizer.register_step_pre_hook(before_step)


def _refuse_nothing(chosen: Mapping[Tensor, Role | None], axis: Axis, min_ndim: int) -> None:
    """Refuse parameters none of which P changes."""
    if any(_is_centralized(p, axis, min_ndim, role) for p, role in chosen.items()):
        return
    kinds = " and ".join(sorted({role.kind for role in chosen.values() if role is not None}))
    raise InputError(
        f"there is nothing to centralize: what is given is {kinds or 'biases'}, and none of it "
        "the weight of a layer with several inputs; parameter_roles of a module says otherwise"
    )


def _is_centralized(p: Tensor, axis: Axis, min_ndim: int, role: Role | None) -> bool:
    """Whether P changes a parameter, as far as is known of one that has no shape yet."""
    if is_lazy(p):
        return True
    return bool(averaged_axes(p.shape, axis, min_ndim, role or role_by_shape(p.ndim)))


def _with_roles(params: nn.Module | Iterable[nn.Module | Tensor]) -> dict[Tensor, Role | None]:
    """Parameters, each with its role where a module says it, the first if several do."""
    if not isinstance(params, nn.Module | Iterable):
        raise InputError(
            f"what to centralize is a module or several; not {a(type(params).__name__)}"
        )
    found: dict[Tensor, Role | None] = {}
    for item in [params] if isinstance(params, nn.Module) else params:
        if isinstance(item, nn.Module):
            roles = roles_of(item)
            for name, p in item.named_parameters():
                found.setdefault(p, roles[name])
        elif isinstance(item, Tensor):
            found.setdefault(item, None)
        else:
            raise InputError(
                f"what to centralize is modules or parameters; not {a(type(item).__name__)}: of "
                "named ones give the parameters, as in model.parameters(), or their module"
            )
    return found
