"""Products by oneDNN: the numbers of torch's own, where they may take their place and there alone.

Most tests have oneDNN chosen, whoever made the CPU, and for the smallest of matrices too.
"""

import copy

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from gcfed import FederatedData, Workers, parse, start
from gcfed.algorithms import GCFed
from gcfed.core.torch_internals import onednn_linear
from gcfed.engines.workers import _brief
from gcfed.kernels import onednn
from gcfed.kernels.onednn import is_faster, multiply_by_onednn, pays
from gcfed.kernels.simplifying import simplify
from gcfed.runs.provenance import environment
from gcfed.simulation.round import prepare

needs_onednn = pytest.mark.skipif(onednn_linear() is None, reason="torch is without oneDNN")
NAME = "mkldnn._linear_pointwise.default"


@pytest.fixture
def chosen(monkeypatch):
    """OneDNN does all products."""
    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    monkeypatch.setattr(onednn, "FEWEST", 1)
    monkeypatch.setattr(onednn, "SHORTEST", 1)


def rewritten(fn, *arguments):
    module = make_fx(fn)(*arguments)
    multiply_by_onednn(module.graph)
    simplify(module.graph)
    module.recompile()
    return module


def called(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def single(*shape):
    return torch.randn(*shape, dtype=torch.float32)


LAYOUTS = {
    "plain": lambda n, m: single(n, m),
    "turned": lambda n, m: single(m, n).t(),
    "rows apart": lambda n, m: single(2 * n, m)[::2],
    "columns apart": lambda n, m: single(n, 3 * m)[:, ::3],
    "one row": lambda n, m: single(1, m).expand(n, m),
    "one column": lambda n, m: single(n, 1).expand(n, m),
    "one number": lambda n, m: single(1, 1).expand(n, m),
    "further on": lambda n, m: single(n * m + 3)[3:].view(n, m),
}
SHAPES = [(5, 7, 3), (1, 7, 3), (5, 1, 3), (5, 7, 1), (1, 1, 1), (50, 784, 512), (33, 129, 65)]


@needs_onednn
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("left", LAYOUTS)
def test_a_product_is_the_product_in_whatever_layout(left, right, chosen):
    for rows, inner, columns in SHAPES:
        x, w = LAYOUTS[left](rows, inner), LAYOUTS[right](inner, columns)
        module = rewritten(torch.mm, x, w)
        assert called(module) == ["aten.t.default", NAME]
        found = module(x, w)
        assert found.dtype == torch.float32 and found.is_contiguous()
        x, w = x.double(), w.double()
        assert ((found - x @ w).abs() <= 3e-5 * (x.abs() @ w.abs())).all()


@needs_onednn
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layer_is_one_product_with_its_bias(shape, chosen):
    rows, inner, columns = shape
    terms = single(rows, inner), single(columns, inner), single(columns)
    module = rewritten(functional.linear, *terms)
    assert called(module) == [NAME]
    expected = functional.linear(*(term.double() for term in terms)).float()
    torch.testing.assert_close(module(*terms), expected, atol=1e-6 * inner, rtol=1e-5)


@needs_onednn
@pytest.mark.parametrize(
    "bias",
    [single(1).expand(3), single(6)[::2], single(1, 3), single(5, 3), single(1)],
    ids=["one number", "apart", "a matrix of one row", "a matrix", "one"],
)
def test_a_bias_that_is_no_row_in_memory_stays_with_torch(bias, chosen):
    x, w = single(5, 7), single(7, 3)
    module = rewritten(torch.addmm, bias, x, w)
    assert called(module) == ["aten.addmm.default"]
    assert torch.equal(module(bias, x, w), torch.addmm(bias, x, w))


@needs_onednn
def test_a_sum_with_weights_stays_with_torch(chosen):
    terms = single(3), single(5, 7), single(7, 3)
    module = rewritten(lambda b, x, w: torch.addmm(b, x, w, beta=2, alpha=3), *terms)
    assert called(module) == ["aten.addmm.default"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_stay_with_torch(dtype, chosen):
    x, w = (single(*shape).to(dtype) for shape in ((5, 7), (7, 3)))
    module = rewritten(torch.mm, x, w)
    assert called(module) == ["aten.mm.default"]


@pytest.mark.parametrize("shape", [(0, 7, 3), (5, 0, 3), (5, 7, 0)])
def test_what_is_empty_stays_with_torch(shape, chosen):
    rows, inner, columns = shape
    x, w = single(rows, inner), single(inner, columns)
    module = rewritten(torch.mm, x, w)
    assert called(module) == ["aten.mm.default"] and module(x, w).shape == (rows, columns)


@pytest.mark.parametrize(
    ("sides", "large"),
    [
        ((50, 784, 512), True),  # the layers of the MLP
        ((512, 50, 784), True),
        ((50, 256, 10), False),
        ((10, 12544, 128), True),  # those of pfl's network
        ((10, 128, 10), False),
        ((2000, 128, 10), True),
        ((128, 128, 128), True),
        ((128, 128, 127), False),
        ((1, 4096, 4096), False),
        ((4096, 4096, 3), False),
    ],
)
def test_which_products_are_large_enough(sides, large, monkeypatch):
    monkeypatch.setattr(onednn, "is_faster", lambda: True)
    assert pays(*sides, torch.float32) is large
    assert not pays(*sides, torch.float64)
    monkeypatch.setattr(onednn, "is_faster", lambda: False)
    assert not pays(*sides, torch.float32)


MACHINES = {
    "another vendor": ("cpu_vendor", lambda: "GenuineIntel"),
    "no AVX-512": ("torch.backends.cpu.get_cpu_capability", lambda: "AVX2"),
    "no MKL": ("torch.backends.mkl.is_available", lambda: False),
    "no oneDNN": ("onednn_linear", lambda: None),
}


@pytest.mark.parametrize("lacking", [None, *MACHINES])
def test_it_is_chosen_by_the_machine(lacking, monkeypatch):
    everything = {
        "cpu_vendor": lambda: "AuthenticAMD",
        "torch.backends.cpu.get_cpu_capability": lambda: "AVX512",
        "torch.backends.mkl.is_available": lambda: True,
        "onednn_linear": lambda: "the operation",
    }
    if lacking is not None:
        everything |= [MACHINES[lacking]]
    for name, value in everything.items():
        monkeypatch.setattr(f"gcfed.kernels.onednn.{name}", value)
    assert is_faster.__wrapped__() is (lacking is None)


# in runs


@pytest.fixture
def small(net, data):
    """The module and the data in float32."""
    examples = FederatedData(data.x.float(), data.y, data.parts, data.num_classes)
    return {"module": copy.deepcopy(net).float(), "data": examples}


def traced(setup):
    """The operations of a worker's step."""
    with setup.arithmetic():
        _, gradients = _brief([prepare(setup, *start(setup), 0, [3, 7])])
    return called(gradients._run)


@needs_onednn
def test_all_products_of_a_step_are_replaced(make_setup, small, chosen):
    found = traced(make_setup(GCFed(), engine="workers", **small))
    assert found.count(NAME) == 6 and not {"aten.mm.default", "aten.addmm.default"} & {*found}
    double = traced(make_setup(GCFed(), engine="workers"))
    assert NAME not in double and double.count("aten.mm.default") == 4


@needs_onednn
@pytest.mark.parametrize("name", ["gcfed", "fedsam", "moon", "scaffold"])
def test_workers_agree_with_sequential(name, run, small, close, chosen):
    with Workers(processes=2) as workers:
        one, all_ = (run(parse(name), engine=e, **small) for e in ("sequential", workers))
    close(one.server.params, all_.server.params, 1e-5)


@needs_onednn
def test_layers_that_are_not_trained(run, small, close, chosen):
    small["module"].fc1.requires_grad_(False)
    with Workers(processes=2) as workers:
        one, all_ = (run(GCFed(), engine=engine, **small) for engine in ("sequential", workers))
    close(one.server.params, all_.server.params, 1e-5)


@needs_onednn
def test_any_number_of_processes_gives_the_same_bits(run, small, chosen):
    found = []
    for count in (1, 2, 2, 3):
        with Workers(processes=count) as workers:
            found.append(run(GCFed(), engine=workers, **small).server.params)
    for other in found[1:]:
        assert all(torch.equal(other[n], w) for n, w in found[0].items())


@pytest.mark.parametrize("engine", ["sequential", "workers"])
def test_evaluations_are_those_of_the_plain_model(engine, make_setup, small, chosen):
    """Its own code may take gradients, or look at its layers: nothing in it is exchanged."""
    setup = make_setup(GCFed(), engine=engine, **small)
    assert setup.test_task is setup.client_task


@pytest.mark.parametrize(
    ("engine", "faster", "said"),
    [
        ("workers", True, "by oneDNN"),
        ("workers", False, "by torch"),
        ("sequential", True, "by torch"),
        ("vectorized", True, "by torch"),
    ],
)
def test_an_engine_says_who_multiplies(engine, faster, said, make_setup, monkeypatch):
    monkeypatch.setattr("gcfed.engines.workers.is_faster", lambda: faster)
    assert environment(make_setup(GCFed(), engine=engine))["products"] == said
