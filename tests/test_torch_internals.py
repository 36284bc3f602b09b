"""What is private or experimental in torch stands in three modules."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import gcfed
from gcfed.core import torch_internals
from gcfed.core.torch_internals import fills_new_memory, gives_view, has_hooks, is_operation

ROOT = Path(gcfed.__file__).parent
PRIVATE = re.compile(
    r"torch(\.\w+)*\._[a-z]"  # torch._ops, torch.nn.modules._functions
    r"|torch\.\w+\.experimental|experimental\.proxy_tensor"
    r"|torch\.optim\.(sgd|adamw?)\b"  # the functions behind the classes
    r"|fill_uninitialized_memory|\._schema|\._\w+_hooks\b"
    r"|__class__ *="
)


def test_no_other_module_reaches_for_it():
    found = {}
    for path in ROOT.rglob("*.py"):
        if path.name not in ("torch_internals.py", "torch_compiler.py", "compiled_code.py"):
            lines = path.read_text(encoding="utf-8").splitlines()
            if reaching := [line.strip() for line in lines if PRIVATE.search(line)]:
                found[str(path.relative_to(ROOT))] = reaching
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "from torch._ops import OpOverload",
        "torch._C._functorch.is_batchedtensor(x)",
        "from torch.fx.experimental.proxy_tensor import make_fx",
        "from torch.optim.sgd import sgd",
        "node.target._schema.returns",
        "module.__class__ = Other",
        "module._forward_hooks",
    ],
)
def test_the_search_finds_what_it_is_for(line):
    assert PRIVATE.search(line)


def test_the_versions_it_was_tried_with():
    assert tuple(sorted(torch_internals.TRIED)) == torch_internals.TRIED
    assert all(re.fullmatch(r"2\.\d+", version) for version in torch_internals.TRIED)


def test_operations_and_views():
    aten = torch.ops.aten
    assert is_operation(aten.add.Tensor) and not is_operation(torch.add)
    assert gives_view(aten.t.default) and not gives_view(aten.add.Tensor)


def test_what_an_operation_writes_into():
    aten = torch.ops.aten
    written = torch_internals.arguments_written
    assert written(aten.add_.Tensor, (1, 2), {}) == [1]
    assert written(aten.clamp.out, (1, 2), {"out": 3}) == [3]
    assert written(aten.add.Tensor, (1, 2), {}) == written(lambda x: x, (1,), {}) == []


def test_new_memory():
    before = fills_new_memory()
    torch_internals.set_fills_new_memory(not before)
    assert fills_new_memory() is not before
    torch_internals.set_fills_new_memory(before)


def test_hooks():
    module = nn.Linear(2, 2)
    assert not has_hooks(module)
    handle = module.register_forward_pre_hook(lambda *_: None)
    assert has_hooks(module)
    handle.remove()
    assert not has_hooks(module)
