"""What each parameter of a module is: the weight of a layer, its bias, a norm, an embedding."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from gcfed.core import tree
from gcfed.errors import InputError, unknown

ParameterKind = Literal["linear", "convolution", "recurrent", "embedding", "bias", "norm", "other"]

WEIGHTS: frozenset[ParameterKind] = frozenset({"linear", "convolution", "recurrent"})
"""The kinds that map inputs to outputs, and that gradient centralization is for."""

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

LAYERS = (nn.Linear, nn.Bilinear, _ConvNd, nn.RNNBase, nn.RNNCellBase)
"""Layers with weights, which some keep elsewhere, as those with a weight norm do."""


@dataclass(frozen=True)
class Role:
    """What a parameter is in its layer.

    ``output_axis`` is the axis of a weight that counts outputs: 0 in ``[out, in]``, 1 in
    ``[in, out]``.  ``groups`` are those of a grouped convolution, which divide the first axis.
    ``head`` says whether the parameter belongs to the model's head.
    """

    kind: ParameterKind
    output_axis: int = 0
    groups: int = 1
    head: bool = False

    def __post_init__(self) -> None:
        if self.kind not in get_args(ParameterKind):
            raise unknown("kind of parameter", str(self.kind), get_args(ParameterKind))
        if self.output_axis < 0 or self.groups < 1:
            given = f"output_axis={self.output_axis}, groups={self.groups}"
            raise InputError(f"an output axis counts from 0 and groups from 1; not {given}")

    @property
    def is_weight(self) -> bool:
        """Whether the parameter maps inputs to outputs."""
        return self.kind in WEIGHTS

    def grouped(self, shape: torch.Size) -> torch.Size:
        """The shape with an axis for the groups before the others, if there are several."""
        if self.groups == 1:
            return shape
        return torch.Size((self.groups, shape[0] // self.groups, *shape[1:]))

    def input_axes(self, ndim: int) -> tuple[int, ...]:
        """The axes of a weight's grouped shape that an output sums over."""
        first = int(self.groups > 1)
        return tuple(d for d in range(first, first + ndim) if d != first + self.output_axis)

    def num_inputs(self, shape: torch.Size) -> int:
        """How many numbers of a weight belong to each output."""
        grouped = self.grouped(shape)
        return math.prod(grouped[d] for d in self.input_axes(len(shape)))


def role_by_shape(ndim: int) -> Role:
    """What a tensor is taken for if its layer is not known: ``[out, in, ...]``, or a bias."""
    return Role("bias" if ndim < 2 else "linear" if ndim == 2 else "convolution")


def head_is_all(roles: Mapping[str, Role]) -> bool:
    """Whether a model trains nothing before its head, as linear regression does.

    ``roles`` are those of its trained parameters.  Biases and norms do not count.
    """
    found = [role.head for role in roles.values() if role.kind not in ("bias", "norm")]
    return bool(found) and all(found)


def roles_of(module: nn.Module, head: Collection[str] = ()) -> dict[str, Role]:
    """The role of every parameter of ``module``, by name.

    The layer that owns a parameter says what it is, and for a tied one the layer that comes first.
    A parameter of a layer that is not known is ``"other"``.  A module, or any module within it, may
    say otherwise by an attribute ``parameter_roles``: kinds or `Role` by the names of parameters or
    layers, as that module knows them.  ``head`` names the parameters of the head.
    """
    modules = dict(module.named_modules())
    first = {parameter: name for name, parameter in module.named_parameters()}
    every = dict(module.named_parameters(remove_duplicate=False))
    declared = _declared(modules, every)
    roles: dict[str, Role] = {}
    for alias, parameter in every.items():
        name = first[parameter]
        path, _, leaf = name.rpartition(".")
        role = declared.get(parameter) or _role_in(modules[path], leaf, parameter)
        roles[alias] = replace(role, head=name in head)
    return roles


def layers_with_weights(module: nn.Module) -> list[str]:
    """The paths of layers that map inputs to outputs, whether their weights are trained or not."""
    owners = {name.rpartition(".")[0] for name, role in roles_of(module).items() if role.is_weight}
    return [n for n, m in module.named_modules() if n in owners or isinstance(m, LAYERS)]


def declared_head(module: nn.Module) -> list[str]:
    """The modules that an attribute ``head`` names."""
    match getattr(module, "head", None):
        case str(name):
            return [name]
        case tuple(names) | list(names):
            return list(names)
        case _:
            return []


def module_called_head(module: nn.Module) -> list[str]:
    """The module that is called ``head``, if there is one with weights."""
    head = getattr(module, "head", None)
    return ["head"] if isinstance(head, nn.Module) and any(True for _ in head.parameters()) else []


def _role_in(layer: nn.Module, leaf: str, parameter: Tensor) -> Role:
    """What a layer's own parameter called ``leaf`` is."""
    if isinstance(layer, NORMS):
        return Role("norm")
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return Role("embedding")
    role, is_weight = _weight_of(layer, leaf, parameter)
    if is_weight:
        return role
    return Role("bias" if role.is_weight and "bias" in leaf else "other")


def _weight_of(layer: nn.Module, leaf: str, parameter: Tensor) -> tuple[Role, bool]:
    """The role of a layer's weights, and whether ``leaf`` is one of them."""
    match layer:
        case nn.Linear() | nn.Bilinear():
            return Role("linear"), leaf == "weight"
        case _ConvTransposeNd():
            return Role("convolution", output_axis=1, groups=layer.groups), leaf == "weight"
        case _ConvNd():
            return Role("convolution", groups=layer.groups), leaf == "weight"
        case nn.RNNBase() | nn.RNNCellBase():
            return Role("recurrent"), leaf.startswith("weight_")
        case nn.MultiheadAttention():
            return Role("linear"), leaf.endswith("proj_weight")
        case _ if type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"):
            # Hugging Face's, of GPT-2: a linear layer whose weight is [in, out]
            return Role("linear", output_axis=1), leaf == "weight" and parameter.ndim == 2
        case _:
            return Role("other"), False


def _declared(modules: Mapping[str, nn.Module], every: Mapping[str, Tensor]) -> dict[Tensor, Role]:
    """The roles that modules declare; what an outer module declares goes before an inner one's."""
    roles: dict[Tensor, Role] = {}
    for path, module in modules.items():
        said = getattr(module, "parameter_roles", {})
        if not isinstance(said, Mapping):
            where = path or type(module).__name__
            raise InputError(
                f"parameter_roles of {where} is a dict such as {{'token': 'linear'}}; not {said!r}"
            )
        for name, what in said.items():
            role = what if isinstance(what, Role) else Role(what)
            for parameter in _concerned(f"{path}.{name}".strip("."), role, every):
                roles.setdefault(parameter, role)
    return roles


def _concerned(name: str, role: Role, every: Mapping[str, Tensor]) -> list[Tensor]:
    """The parameters that a declared role is for; a weight's, those that can be a weight."""
    found = {n: every[n] for n in sorted(tree.under([name], every.keys()))}
    fitting = [p for p in found.values() if not role.is_weight or _fits(role, p.shape)]
    if not fitting:
        shapes = ", ".join(f"{n} {list(p.shape)}" for n, p in found.items())
        raise InputError(
            f"parameter_roles: no weight of kind {role.kind} has the shape of {shapes}, with its "
            f"outputs on axis {role.output_axis} and {role.groups} groups"
        )
    return fitting


def _fits(role: Role, shape: torch.Size) -> bool:
    last = 1 if role.kind == "convolution" else len(shape) - 1
    return len(shape) > 1 and role.output_axis <= last and shape[0] % role.groups == 0


def ties_of(module: nn.Module) -> dict[str, str]:
    """The other names of tensors that several modules hold, each with the tensor's first name.

    A module that is registered under two names holds its tensors once.
    """
    first: dict[Tensor, str] = {}
    names: dict[str, str] = {}
    for path, part in module.named_modules():
        held = [
            *part.named_parameters(recurse=False, remove_duplicate=False),
            *part.named_buffers(recurse=False, remove_duplicate=False),
        ]
        for name, tensor in held:
            whole = f"{path}.{name}".strip(".")
            names[whole] = first.setdefault(tensor, whole)
    return {name: other for name, other in names.items() if name != other}


def tie_buffers(module: nn.Module, ties: Mapping[str, str]) -> None:
    """Have the buffers that ``ties`` has by two names be one tensor, the one of the first name."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    for other, first in ties.items():
        if other in buffers and first in buffers:  # a parameter may be the first
            path, _, name = other.rpartition(".")
            setattr(module.get_submodule(path), name, buffers[first])
