"""What gcfed uses of torch that is private or experimental, here and in `compiled_code` alone.

A new version of torch may change any of it without notice; a test holds that no other module of
gcfed reaches for such things.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule
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

from gcfed.core.compiled_code import CompiledStep

TRIED = ("2.11", "2.13")
"""The versions of torch with which all of this was seen to work: a GPU's, then a CPU's."""

IS_TRIED = torch.__version__.startswith(tuple(f"{version}." for version in TRIED))


def be_deterministic(always: bool, *, warn_only: bool) -> None:
    """`torch.use_deterministic_algorithms`, which imports torch's compiler only to tell it so.

    Where that is not there yet, it is told when it is first needed.
    """
    if INDUCTOR_SETTINGS in sys.modules:
        torch.use_deterministic_algorithms(always, warn_only=warn_only)
    else:
        torch._C._set_deterministic_algorithms(always, warn_only=warn_only)


INDUCTOR_SETTINGS = "torch._inductor.config"


def compiler_settings() -> str:
    """What somebody set of torch's compiler, which is nothing where it was not imported."""
    if INDUCTOR_SETTINGS not in sys.modules:
        return ""
    config = cast(Any, import_module(INDUCTOR_SETTINGS))
    usual = {name: entry.default for name, entry in config._config.items()}
    now = config.get_config_copy()
    usual["deterministic"] = now.get("deterministic")  # torch's own setting, asked for elsewhere
    return "".join(f"{k}={v!r} " for k, v in now.items() if v != usual[k])


def _tell_compiler() -> None:
    """What `be_deterministic` could not tell torch's compiler."""
    from torch._inductor import config

    if hasattr(config, "deterministic"):  # not before torch 2.10
        config.deterministic = torch.are_deterministic_algorithms_enabled()


def grad(fn: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """`torch.func.grad`, of a function of one tree, without the import of torch's compiler.

    Torch imports it to switch off what nobody can have switched on before.
    """

    def gradient(tree: Any) -> Any:
        if "torch._dynamo" not in sys.modules and IS_TRIED:
            with suppress(NotANumberError):  # of which torch says what is wrong
                return _grad(fn, tree, has_aux)
        return torch.func.grad(fn, has_aux=has_aux)(tree)

    return gradient


class NotANumberError(Exception):
    """What a gradient was asked for of is not one number, or has no other value beside it."""


def _grad(fn: Callable[..., Any], tree: Any, has_aux: bool) -> Any:
    transforms = cast(Any, eager_transforms)
    no_hooks = torch.autograd.graph.disable_saved_tensors_hooks("torch.func.grad has no such hooks")
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
    """What is equal for tensors in the same memory alone, also once that was freed."""
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


@contextmanager
def unknown_number(usual: int) -> Iterator[int]:
    """Inside, new tensors have no memory; the number given stands for any size of an axis.

    A compiler takes it that the size is often ``usual``.
    """
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    shapes, source = ShapeEnv(), ConstantSource("number")
    symbol = shapes.create_symbol(usual, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    number = shapes.create_symintnode(symbol, hint=usual, source=source)
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    mode.cache_enabled = False  # what is found in it costs more than it saves
    with mode:
        yield cast(int, number)


@cache
def start_compiler() -> None:
    """Start the processes of torch's compiler, once, so that they are there when it needs them."""
    from torch._inductor import async_compile

    start = getattr(async_compile, "maybe_warm_pool", None)
    if start is not None:
        start()


def without_processes() -> AbstractContextManager[object]:
    """Inside, torch's compiler works in this process alone.

    It would otherwise start processes even where it finds everything compiled, and wait at exit
    until they have imported torch.
    """
    from torch._inductor import config

    return cast(AbstractContextManager[object], config.patch(compile_threads=1))


def make_core_fx(fn: Callable[..., object]) -> Callable[..., GraphModule]:
    """`make_fx`, with large operations taken apart as torch's compiler wants them."""
    from torch._inductor import lowering  # noqa: F401 (pooling is taken apart by its help)
    from torch._inductor.decomposition import select_decomp_table

    return make_fx(fn, decomposition_table=select_decomp_table())


UNTIMED = {"dynamic_scale_rblock": False}
"""What torch's compiler is told, so that time decides nothing that changes numbers.

It would try long sums in two orders and take the faster, each time anew.  Where torch is
deterministic, as in `arithmetic`, nothing else that it times changes the order of a sum.
"""


def compile_for_one_number(trace: GraphModule) -> Callable[..., Any]:
    """Torch's compiler, for a trace on tensors as large as they will be."""
    _tell_compiler()
    compiled: Callable[..., Any] = torch.compile(trace, dynamic=False, options=dict(UNTIMED))
    return compiled


def compile_for_any_number(trace: GraphModule, examples: Sequence[Tensor]) -> Callable[..., Any]:
    """Torch's compiler, for a trace by `make_core_fx` on tensors of an `unknown_number`."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    _tell_compiler()
    mode = next(x.fake_mode for x in examples if isinstance(x, FakeTensor))
    with tracing(TracingContext(mode)), torch.no_grad(), config.patch(UNTIMED):
        if writes_last(trace.graph):
            with suppress(Exception):  # the usual way may do what the short one cannot
                return _compiled_at_once(trace, list(examples), mode)
            _check_any_number(mode)  # what is compiled is kept, and found without this check
        compiled = cast(Callable[..., Any], compile_fx(trace, list(examples)))
    _check_any_number(mode)
    return compiled


def _check_any_number(mode: FakeTensorMode) -> None:
    if mode.shape_env is None or mode.shape_env.replacements:
        raise RuntimeError("the step holds for one number of clients alone")


def writes_last(graph: Graph) -> bool:
    """Whether a trace gives nothing, and writes by copies into its arguments at its end alone."""
    *nodes, output = graph.nodes
    written = [n for n in nodes if is_operation(n.target) and writes(n.target)]
    return (
        not any(output.args)
        and nodes[len(nodes) - len(written) :] == written
        and all(n.target is torch.ops.aten.copy_.default for n in written)
        and all(n.args[0].op == "placeholder" for n in written)
    )


def _compiled_at_once(
    trace: GraphModule, examples: list[Tensor], mode: FakeTensorMode
) -> Callable[..., Any]:
    """Without AOTAutograd, which traces a step twice more and has nothing to change in it."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.custom_graph_pass import CustomGraphPass
    from torch._inductor.fx_passes.joint_graph import joint_graph_passes

    class Simplify(CustomGraphPass):
        """Does what comes after AOTAutograd, where nothing is found that was compiled before."""

        def __call__(self, graph: Graph) -> None:
            _check_any_number(mode)
            joint_graph_passes(cast(GraphModule, graph.owning_module))

        def uuid(self) -> str:
            return "joint_graph_passes"

    own = GraphModule(trace, copy.deepcopy(trace.graph))  # which is changed
    with config.patch(post_grad_custom_pre_pass=Simplify()):
        compiled = CompiledStep(compile_fx_inner(own, examples, is_inference=True))
    _check_any_number(mode)
    return compiled
