"""What gcfed asks of torch's compiler, which is imported when it is first needed and not before."""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule

from gcfed.core.compiled_code import CompiledStep
from gcfed.core.torch_internals import is_operation, make_fx, writes


def be_deterministic(always: bool, *, warn_only: bool) -> None:
    """`torch.use_deterministic_algorithms`, but it does not import torch's compiler to tell it.

    A compiler that is not imported yet is told when it is first needed.
    """
    if INDUCTOR_SETTINGS in sys.modules:
        torch.use_deterministic_algorithms(always, warn_only=warn_only)
    else:
        torch._C._set_deterministic_algorithms(always, warn_only=warn_only)


INDUCTOR_SETTINGS = "torch._inductor.config"


def compiler_settings() -> str:
    """The settings of torch's compiler that were changed; none where it is not imported."""
    if INDUCTOR_SETTINGS not in sys.modules:
        return ""
    config = cast(Any, import_module(INDUCTOR_SETTINGS))
    usual = {name: entry.default for name, entry in config._config.items()}
    now = config.get_config_copy()
    usual["deterministic"] = now.get("deterministic")  # torch's own setting, asked for elsewhere
    return "".join(f"{k}={v!r} " for k, v in now.items() if v != usual[k])


def _tell_compiler() -> None:
    """Tell torch's compiler what `be_deterministic` could not."""
    from torch._inductor import config

    if hasattr(config, "deterministic"):  # not before torch 2.10
        config.deterministic = torch.are_deterministic_algorithms_enabled()


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

    def run(*tensors: Tensor) -> Any:
        with _operators_by_name():  # it compiles when it is first called
            return compiled(*tensors)

    return run


def compile_for_any_number(trace: GraphModule, examples: Sequence[Tensor]) -> Callable[..., Any]:
    """Torch's compiler, for a trace by `make_core_fx` on tensors of an `unknown_number`."""
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    _tell_compiler()
    mode = next(x.fake_mode for x in examples if isinstance(x, FakeTensor))
    with (
        tracing(TracingContext(mode)),
        torch.no_grad(),
        config.patch(UNTIMED),
        _operators_by_name(),
    ):
        if writes_last(trace.graph):
            with suppress(Exception):  # the usual way may do what the short one cannot
                return _compiled_at_once(trace, list(examples), mode)
            _check_any_number(mode)  # what is compiled is kept, and found without this check
        compiled = cast(Callable[..., Any], compile_fx(trace, list(examples)))
    _check_any_number(mode)
    return compiled


@contextmanager
def _operators_by_name() -> Iterator[None]:
    """Inside, torch's compiler describes an operator of ours by its name.

    Torch 2.6 to 2.11 also write down, for a log that nobody reads, all that led to its arguments,
    anew for every use: each block of a ResNet more than doubles the text, which takes minutes.
    """
    from torch._inductor.exc import OperatorIssue

    issue: Any = OperatorIssue
    in_full = issue.__dict__["operator_str"]
    issue.operator_str = staticmethod(lambda target, args, kwargs: str(target))
    try:
        yield
    finally:
        issue.operator_str = in_full


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
        """Does what follows AOTAutograd, unless compiled code is found in torch's cache."""

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
