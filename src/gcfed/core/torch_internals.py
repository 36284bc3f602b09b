"""What gcfed uses of torch that is private or experimental.

A new version of torch may change any of it without notice; a test holds that no other module of
gcfed reaches for such things, but for `torch_compiler` and `compiled_code`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx as make_fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.sgd import sgd as sgd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import (
    tree_flatten as tree_flatten,
    tree_leaves as tree_leaves,
    tree_map_only as tree_map_only,
    tree_unflatten,
)

TRIED = ("2.11", "2.13")
"""The versions of torch with which all of this was seen to work: a GPU's, then a CPU's."""

IS_TRIED = torch.__version__.startswith(tuple(f"{version}." for version in TRIED))


def grad(fn: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """`torch.func.grad`, of a function of one tree, without the import of torch's compiler.

    Torch imports it only to switch off something that cannot be on before the import.
    """

    def gradient(tree: Any) -> Any:
        if "torch._dynamo" not in sys.modules and IS_TRIED:
            with suppress(NotANumberError):  # torch.func.grad then says what is wrong
                return _grad(fn, tree, has_aux)
        return torch.func.grad(fn, has_aux=has_aux)(tree)

    return gradient


NO_HOOKS = "torch.func.grad doesn't support saved tensor hooks"
"""What is said of gradient checkpointing, in words of torch's that `errors` knows."""


class NotANumberError(Exception):
    """A function gave no single number to differentiate, or no pair where ``has_aux`` is true."""


def _grad(fn: Callable[..., Any], tree: Any, has_aux: bool) -> Any:
    transforms = cast(Any, eager_transforms)
    no_hooks = torch.autograd.graph.disable_saved_tensors_hooks(NO_HOOKS)
    with no_hooks, transforms.grad_increment_nesting() as level, torch.enable_grad():
        inputs = transforms._wrap_all_tensors(tree, level)
        inputs = transforms._create_differentiable(inputs, level)
        given = fn(inputs) if has_aux else (fn(inputs), None)
        if not isinstance(given, tuple) or len(given) != 2:
            raise NotANumberError
        value, aux = given
        if not isinstance(value, Tensor) or value.dim():
            raise NotANumberError
        leaves, shape = tree_flatten(inputs)
        grads: Sequence[Tensor | None] = [None] * len(leaves)
        if value.requires_grad:
            grads = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True)
        known = [
            torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)
        ]
        made = tree_unflatten(known, shape)
        return transforms._undo_create_differentiable((made, aux) if has_aux else made, level)


class Listener(TorchDispatchMode):
    """A mode whose ``__torch_dispatch__`` may be called without the import of torch's compiler."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def load_transforms() -> None:
    """Load what torch.func needs, which it else loads when first used.

    Torch 2.6 fails to while the default device is "meta", and cannot be used from then on.
    """
    import_module("torch._dynamo")


def copy_all(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Write tensors over others; where a device can, all of one dtype at once."""
    alike: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for a, b in zip(to, source, strict=True):
        places, values = alike.setdefault(a.dtype, ([], []))
        places.append(a)
        values.append(b)
    for places, values in alike.values():
        torch._foreach_copy_(places, values)


def differences(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    """One tensor less the other, of all at once where a device can."""
    return list(torch._foreach_sub(a, b))


def lengths(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The norm of each, summed in a dtype, of all at once where a device can."""
    return list(torch._foreach_norm(tensors, dtype=dtype))


@cache
def onednn_linear() -> Any:
    """oneDNN's ``x w^T + b``, of matrices in any layout and a contiguous bias; None without it."""
    return getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)


def memory_of(x: Tensor) -> StorageWeakRef:
    """A key that is equal only for tensors in the same memory, even after it was freed."""
    return StorageWeakRef(x.untyped_storage())  # type: ignore[no-untyped-call]


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """How often each tensor was written into."""
    return [x._version for x in tensors]


UNSAID_VIEWS = (
    torch.ops.aten.unsafe_split.Tensor,
    torch.ops.aten.unsafe_split_with_sizes.default,
    torch.ops.aten._unsafe_view.default,
)
"""Operations that give views and do not say so."""


def is_operation(target: object) -> bool:
    """Whether what a node of a trace calls is one of torch's own operations."""
    return isinstance(target, torch._ops.OpOverload)


def gives_view(target: Any) -> bool:
    """Whether an operation's first result lies in the memory of one of its arguments."""
    returns = target._schema.returns
    return target in UNSAID_VIEWS or (bool(returns) and returns[0].alias_info is not None)


def fills_new_memory() -> bool:
    """Whether torch, where it is deterministic, fills new memory before anything is written."""
    return bool(_deterministic().fill_uninitialized_memory)


def set_fills_new_memory(fill: bool) -> None:
    _deterministic().fill_uninitialized_memory = fill


def _deterministic() -> Any:
    return cast(Any, torch.utils.deterministic)  # a module whose type hides its attribute


UNSAID_WRITES = (
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten.cudnn_batch_norm.default,
    torch.ops.aten.miopen_batch_norm.default,
)
"""Operations that write into arguments, which are running statistics, and do not say so."""


def writes(target: Any) -> bool:
    """Whether an operation writes into its arguments."""
    return bool(target._schema.is_mutable) or target in UNSAID_WRITES


def arguments_written(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """What an operation is given and says that it writes into."""
    schema = getattr(target, "_schema", None)  # operations that take functions have none
    if schema is None or not schema.is_mutable:
        return []
    given = {spec.name: value for spec, value in zip(schema.arguments, args, strict=False)}
    given |= kwargs
    return [
        given[spec.name]
        for spec in schema.arguments
        if spec.alias_info is not None and spec.alias_info.is_write and spec.name in given
    ]


def is_pure(target: Any) -> bool:
    """Whether an operation writes into none of its arguments and draws no random numbers."""
    return not writes(target) and torch.Tag.nondeterministic_seeded not in target.tags


def has_hooks(module: nn.Module) -> bool:
    """Whether something is called before or after a module's forward or backward pass."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return any(hooks)


def pre_hooks(module: nn.Module) -> list[Any]:
    """What is called before a module's forward pass."""
    return list(module._forward_pre_hooks.values())


def has_full_backward_hooks(module: nn.Module) -> bool:
    """Whether something is called beside a module's backward pass by an old `autograd.Function`."""
    full = module._is_full_backward_hook is not False
    return bool(module._backward_pre_hooks) or (full and bool(module._backward_hooks))


def has_gradient_hooks(weight: Tensor) -> bool:
    """Whether something is called when autograd comes to the gradient of a weight."""
    return bool(weight._backward_hooks) or bool(weight._post_accumulate_grad_hooks)


def without_memory() -> AbstractContextManager[object]:
    """Inside, new tensors have shapes and no memory, and operations give such tensors."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def without_loops() -> Iterator[None]:
    """Inside, vmap refuses operations that it has no rule for, which it else does one by one."""
    functorch = cast(Any, torch._C)._functorch
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    finally:
        functorch._set_vmap_fallback_enabled(before)
