"""A symbolic trace of a module, where it shows all that the module does.

The trace runs the module on stand-ins for its inputs.  A module that looks at what it was given, or
does what no input has a part in, would do something else with tensors.
"""

import dis
import sys
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.proxy import Attribute
from torch.overrides import TorchFunctionMode


def symbolic_trace(module: nn.Module) -> fx.Graph | None:
    """The calls of a module, layer by layer; None if a trace does not show all that it does."""
    tracer = _ByLayers()
    try:
        with _Unseen() as unseen, _Called() as called:
            graph = tracer.trace(module)
    except Exception:  # a module may do anything in its forward pass
        return None
    misled = tracer.doubted or called.asks_for_types or unseen.called
    return None if misled or not all(a.is_traced for a in tracer.attributes) else graph


class _ByLayers(fx.Tracer):
    """Looks into modules that have modules of their own, and into no others.

    ``doubted``: a module asked what its inputs are, which a symbolic trace would answer wrongly.
    ``attributes``: what modules read of their inputs, such as a shape or a dtype.
    """

    doubted = False

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[_Attribute] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(m.children())

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


TRACING = ("torch.fx.", "torch.nn.")
"""The parts of torch that ask for themselves; others, as its pytrees, may ask for a module."""


class _Doubting:
    """What is in the place of a tensor, and notes when a module looks at its class or its hash."""

    tracer: Any

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # as isinstance and torch.is_tensor read it
        self._doubt()
        return type(self)

    def __hash__(self) -> int:  # as sets and dicts read it
        self._doubt()
        return id(self)

    def __repr__(self) -> str:  # as text of it is made
        self._doubt()
        return "an input"

    def _doubt(self) -> None:
        asking = sys._getframe(2).f_globals.get("__name__", "")
        self.tracer.doubted |= not asking.startswith(TRACING)


class _Proxy(_Doubting, fx.Proxy):
    def __getattr__(self, name: str) -> Attribute:
        if not hasattr(Tensor, name):
            raise AttributeError(name)
        found = _Attribute(self, name)
        self.tracer.attributes.append(found)
        return found


class _Attribute(_Doubting, Attribute):
    called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.called = True
        return super().__call__(*args, **kwargs)

    @property
    def is_traced(self) -> bool:
        """Whether it went into an operation: else a module looked at it, as ``is`` does."""
        return self.called or (self._node is not None and bool(self._node.users))


class _Unseen(TorchFunctionMode):
    """Notes calls of torch that a symbolic trace does not see, since no input is among them.

    Random numbers, buffers that are written into, gradients that are switched off: in the trace
    they would be there once and for all, or not at all.
    """

    called = False

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        seen: list[bool] = []
        fx.node.map_aggregate((args, kwargs or {}), lambda v: seen.append(isinstance(v, fx.Proxy)))
        self.called |= not any(seen)
        return func(*args, **(kwargs or {}))


OWN = {*sys.stdlib_module_names, "torch", "gcfed"}
"""Packages whose functions, where a trace calls them, ask for types on behalf of the trace."""


class _Called:
    """Notes, inside, what functions are called but those of Python, torch and gcfed."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()

    def __enter__(self) -> "_Called":
        self._before: Any = sys.getprofile()
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if hasattr(self._before, "enable"):  # cProfile's, which is no function
            self._before.enable()
        else:
            sys.setprofile(self._before)

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in OWN:
            self._codes.add(frame.f_code)

    @property
    def asks_for_types(self) -> bool:
        """Whether one may ask for the type of an input, which nothing that stands for it hears."""
        return any(
            each.opname == "LOAD_GLOBAL" and each.argval in ("type", "callable")
            for code in self._codes
            for each in dis.get_instructions(code)
        )
