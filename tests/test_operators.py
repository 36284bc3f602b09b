"""Operators with a client axis against torch's own layers, run by Triton's interpreter on a CPU.

The interpreter multiplies float32 as it is, so that results agree nearly to float32's precision; on
a card operands are rounded (`tests/test_gpu.py`).
"""

import cProfile
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import fx, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils._pytree import tree_map_only

pytest.importorskip("triton")

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from gcfed import ALGORITHMS, Model, parse, start
from gcfed.core import keys, tree
from gcfed.core.torch_internals import make_fx, without_memory
from gcfed.engines.any_number import PRIME, AnyNumber
from gcfed.engines.lineup import Lineup, advance, axes, is_shared, over_clients
from gcfed.kernels import fused
from gcfed.kernels.fitting import fits, with_operators
from gcfed.kernels.fused import FusedConv2d, FusedGroupNorm, FusedLinear
from gcfed.kernels.fusing import fuse_layers
from gcfed.kernels.launching import noted_launches
from gcfed.kernels.operands import halves
from gcfed.kernels.tile_sizes import convolve_tile, weights_tile
from gcfed.models import MODELS
from gcfed.simulation.round import prepare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for CPUs"),
]


@pytest.fixture(autouse=True)
def single():
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float64)


@pytest.fixture(autouse=True)
def bfloat16_as_on_a_card(monkeypatch):
    """The interpreter keeps bfloat16 as integers of its bits, multiplies these, and cuts off."""
    plain, cut_off = InterpreterBuilder.create_dot, interpreter._convert_float

    def numbers(operand):
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self, a, b, *rest):
        return plain(self, numbers(a), numbers(b), *rest)

    def convert(x, source, to, mode):
        if (source, to) == (tl.float32, tl.bfloat16):
            return torch.from_numpy(x).bfloat16().view(torch.int16).numpy()
        return cut_off(x, source, to, mode)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(interpreter, "_convert_float", convert)


def agree(plain, operator, shape, clients=2, after=lambda y: y):
    """Both layers' outputs and gradients, for clients each with weights of its own."""
    weights = {n: torch.randn(clients, *p.shape) for n, p in plain.named_parameters()}
    x = torch.randn(clients, *shape)

    def results(layer, then):
        def score(p, x):
            y = then(functional_call(layer, p, (x,)))
            return (y * torch.sin(y)).sum(), y

        return vmap(grad(score, argnums=(0, 1), has_aux=True))(weights, x)

    found, expected = results(operator, lambda y: y), results(plain, after)
    for (path, a), (_, b) in zip(tree.leaves(found), tree.leaves(expected), strict=True):
        assert (a - b).norm() <= 2e-5 * b.norm(), path


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "stride", "padding", "side", "bias"),
    [
        (3, 32, 5, 1, 2, 8, True),
        (8, 20, 3, 1, 1, 6, False),
        (8, 16, 3, 2, 1, 6, True),
        (4, 16, 1, 2, 0, 6, False),
        (5, 70, 3, 2, 1, 7, True),
        (6, 10, 3, 1, 0, 5, True),
        (2, 3, 1, 1, 0, 4, True),
        (64, 64, 3, 1, 1, 5, True),
        (64, 128, 3, 2, 1, 6, False),
        (128, 64, 3, 2, 1, 5, False),
        (64, 64, 1, 2, 0, 6, False),
        (64, 6, 5, 1, 2, 5, True),
        (128, 64, 3, 1, 2, 4, True),
    ],
)
def test_convolutions(inputs, outputs, size, stride, padding, side, bias):
    plain = nn.Conv2d(inputs, outputs, size, stride=stride, padding=padding, bias=bias)
    agree(plain, FusedConv2d(plain), (2, inputs, side, side))


@pytest.mark.parametrize(
    ("inputs", "outputs", "size", "stride", "padding", "side"),
    [(8, 20, 3, 1, 1, 6), (5, 70, 3, 2, 1, 7), (64, 6, 5, 1, 2, 5), (64, 64, 1, 2, 0, 6)],
)
def test_convolutions_in_bfloat16(inputs, outputs, size, stride, padding, side):
    """The gradient of images reads weights as they are, where in float32 they are turned."""
    plain = nn.Conv2d(inputs, outputs, size, stride=stride, padding=padding, bias=False)
    x, w = (
        torch.randn(shape).bfloat16() for shape in ((2, inputs, side, side), plain.weight.shape)
    )

    def gradients(layer, x):
        def score(w, x):
            y = functional_call(layer, {"weight": w}, (x,)).float()
            return (y * torch.linspace(-1, 2, y.numel()).reshape(y.shape)).sum()

        return grad(score, argnums=(0, 1))(w.float(), x)

    pairs = zip(gradients(FusedConv2d(plain), x), gradients(plain, x.float()), strict=True)
    for found, expected in pairs:
        assert (found - expected).norm() <= 5e-3 * expected.norm()


@pytest.mark.parametrize(
    ("inputs", "side", "stride"),
    [(6, 8, 1), (6, 9, 1), (6, 12, 2), (6, 10, 2), (64, 9, 1), (64, 8, 2)],
)
@pytest.mark.parametrize("pool", [False, True])
def test_convolutions_with_what_follows(inputs, side, stride, pool):
    """A side of 9 or 10 leaves an odd row, which no pool reads."""
    plain = nn.Conv2d(inputs, 10, 3, stride=stride, padding=1)

    def after(y):
        return functional.max_pool2d(functional.relu(y), 2) if pool else functional.relu(y)

    agree(plain, FusedConv2d(plain, relu=True, pool=pool), (2, inputs, side, side), after=after)


@pytest.mark.parametrize(
    ("inputs", "padding", "pool", "numbers"),
    [
        (3, 1, True, 2 * 8 * 8 * 16),
        (21, 1, True, 2 * 10 * 10 * 24),
        (64, 1, False, 2 * 10 * 10 * 64),
    ],
)
def test_convolutions_of_images_too_large_to_count(inputs, padding, pool, numbers, monkeypatch):
    plain = nn.Conv2d(inputs, 6, 3, padding=padding)
    layer = FusedConv2d(plain, relu=True, pool=pool)

    def after(y):
        return functional.max_pool2d(y.relu(), 2) if pool else y.relu()

    for largest, by_kernels in ((numbers + 1, True), (numbers, False)):
        monkeypatch.setattr(fused, "LARGEST", largest)
        with noted_launches() as notes:
            layer(torch.randn(2, inputs, 8, 8))
        assert bool(notes) == by_kernels
        agree(plain, layer, (2, inputs, 8, 8), after=after)


@pytest.mark.parametrize(("inputs", "outputs", "rows"), [(70, 10, 5), (600, 33, 3), (1, 4, 70)])
def test_linear_layers(inputs, outputs, rows):
    plain = nn.Linear(inputs, outputs)
    agree(plain, FusedLinear(plain), (rows, inputs))


def test_a_linear_layer_of_several_axes_without_bias():
    plain = nn.Linear(9, 5, bias=False)
    agree(plain, FusedLinear(plain), (2, 3, 9))


@pytest.mark.parametrize(
    ("groups", "shape"), [(4, (3, 8, 5, 4)), (1, (2, 16, 3, 3)), (6, (2, 12, 2, 9)), (4, (3, 8, 6))]
)
@pytest.mark.parametrize("relu", [False, True])
def test_group_norms(groups, shape, relu):
    plain = nn.GroupNorm(groups, shape[1])
    after = functional.relu if relu else lambda y: y
    agree(plain, FusedGroupNorm(plain, relu=relu), shape, clients=3, after=after)


@pytest.mark.parametrize("side", [4, 40])
@pytest.mark.parametrize("relu", [False, True])
def test_group_norms_with_a_residual(relu, side):
    """An image of 40 x 40 is read in parts."""
    plain = nn.GroupNorm(8, 32)
    weights = {n: torch.randn(3, *p.shape) for n, p in plain.named_parameters()}
    x, residual = torch.randn(2, 3, 2, 32, side, side)

    def results(layer):
        def score(p, x, residual):
            y = functional_call(layer, p, (x, residual))
            return (y * torch.sin(y)).sum(), y

        return vmap(grad(score, argnums=(0, 1, 2), has_aux=True))(weights, x, residual)

    class Apart(nn.GroupNorm):
        def forward(self, x, residual):
            y = super().forward(x) + residual
            return functional.relu(y) if relu else y

    found, expected = results(FusedGroupNorm(plain, relu=relu)), results(Apart(8, 32))
    for (path, a), (_, b) in zip(tree.leaves(found), tree.leaves(expected), strict=True):
        assert (a - b).norm() <= 2e-5 * b.norm(), path


def test_weights_that_all_clients_share_are_not_copied():
    plain = nn.Conv2d(3, 8, 3, padding=1)
    layer, x = FusedConv2d(plain), torch.randn(4, 2, 3, 6, 6)
    torch.testing.assert_close(vmap(layer)(x), vmap(plain)(x), rtol=1e-4, atol=1e-5)


def test_nothing_that_is_not_a_number_is_lost():
    plain = nn.Conv2d(1, 4, 1)
    x = torch.ones(2, 1, 4, 4)
    x[1, 0, 2, 2] = torch.nan
    y = FusedConv2d(plain, relu=True, pool=True)(x)
    assert y[1, :, 1, 1].isnan().all() and not y[0].isnan().any()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("strange", [torch.nan, torch.inf])
def test_what_is_not_finite_reaches_the_weights(strange):
    plain = nn.Linear(40, 3, bias=False)
    x = torch.ones(2, 40)
    x[1, 7] = strange
    dw = grad(lambda p: functional_call(FusedLinear(plain), p, (x,)).sum())(
        dict(plain.named_parameters())
    )["weight"]
    assert not dw[:, 7].isfinite().any() and dw[:, :7].isfinite().all()


@pytest.mark.filterwarnings("default")  # Inductor's own
def test_two_halves_keep_sixteen_bits_compiled_or_not():
    x = torch.randn(4000) * torch.logspace(-20, 20, 4000)
    for split in (halves, torch.compile(halves)):
        high, rest = split(x)
        assert torch.equal(high, x.bfloat16())
        assert (high.double() + rest.double() - x).abs().le(2**-17 * x.abs()).all()
    assert halves(x.bfloat16())[1] is None
    for found, half in zip(vmap(halves, 1, 1)(x.view(40, 100)), halves(x), strict=True):
        assert torch.equal(found.flatten(), half)


def test_a_clients_bits_do_not_depend_on_who_trains_beside_it():
    plain = nn.Conv2d(3, 8, 5, padding=2)
    layer = FusedConv2d(plain, relu=True, pool=True)
    weights = {n: torch.randn(5, *p.shape) for n, p in plain.named_parameters()}
    x = torch.randn(5, 3, 3, 8, 8)
    found = vmap(grad(lambda p, x: functional_call(layer, p, (x,)).sum()))
    together, alone = found(weights, x), found(tree.take(weights, slice(2, 3)), x[2:3])
    for name in weights:
        assert torch.equal(together[name][2], alone[name][0])


def test_tiles_go_by_one_clients_shapes():
    for tile in (convolve_tile(3200, 800, 64, True, 2), convolve_tile(51200, 576, 64, False, 2)):
        assert all(n & (n - 1) == 0 for n in tile[:3])
    for halves_of_each, programs in ((1, 64), (2, 128)):  # so that one client keeps a card busy
        inputs, *_, pixels = weights_tile(12800, 800, 64, halves_of_each)
        assert -(-12800 // pixels) * -(-800 // inputs) >= programs


def test_the_pass_says_what_it_replaced():
    shapes = {"cnn": (3, 8, 8), "vgg11": (3, 32, 32), "resnet18": (3, 8, 8)}
    for name, layers in (("cnn", 4), ("vgg11", 11), ("resnet18", 41)):
        with torch.device("meta"):
            module = MODELS.parse(name)(shapes[name], 10)
        module, replaced = fuse_layers(module)
        assert len(replaced) == layers
        convolutions = [m for m in module.modules() if isinstance(m, FusedConv2d)]
        assert not [m for m in module.modules() if type(m) is nn.Conv2d]
        assert all(m.relu for m in convolutions) == (name != "resnet18")
        assert sum(m.pool for m in convolutions) == {"cnn": 2, "vgg11": 5, "resnet18": 0}[name]
        sums = [
            node for node in module.graph.nodes if len(node.args) == 2 and node.op == "call_module"
        ]
        assert len(sums) == {"cnn": 0, "vgg11": 0, "resnet18": 8}[name]


class Branching(nn.Module):
    """What no symbolic trace can follow."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 64, 10)

    def forward(self, x):
        if x.mean() > 1000:
            x = -x
        return self.fc(functional.relu(self.conv(x)).flatten(1))


class Repeating(nn.Module):
    """A convolution that is called twice, and one whose output two read."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.unused = nn.Linear(2, 2)
        self.fc = nn.Linear(4 * 64, 10)

    def forward(self, x):
        x = torch.relu(self.one(torch.relu(self.one(x))))
        y = self.two(x)
        return self.fc((torch.relu(y) + y).flatten(1))


class Plain(Repeating):
    def __init__(self):
        super().__init__()
        del self.unused


@pytest.mark.parametrize("kind", [Branching, Repeating, Plain])
def test_any_module_keeps_its_meaning(kind):
    model = Model(kind())
    twin = model.rewritten(fuse_layers)
    x = torch.randn(2, 3, 8, 8)
    for train in (True, False):
        (found, _), (expected, _) = (
            m(model.params, x, buffers={}, train=train) for m in (twin, model)
        )
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.features, expected.features, rtol=1e-4, atol=1e-5)
    assert twin.uncast == {f"{n}.{p}" for n in twin.replaced for p in ("weight", "bias")}


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()
        self.fc = nn.Linear(4 * 64, 10)

    def forward(self, x):
        return self.fc(self.act(self.conv(x)).flatten(1))


class Noisy(Base):
    """Draws what no input has a part in."""

    def forward(self, x):
        return super().forward(x) + (torch.randn(10) if self.training else 0)


class Frozen(Base):
    def forward(self, x):
        with torch.no_grad():
            x = self.act(self.conv(x))
        return self.fc(x.flatten(1))


class Counting(Base):
    """Writes into buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.ones(3))

    def forward(self, x):
        if self.training:
            self.count += 1
            self.mean.mul_(0.5).add_(x.mean((0, 2, 3)))
        return super().forward(x)


class Hooked(Base):
    def __init__(self):
        super().__init__()
        self.act.register_forward_hook(lambda module, args, out: 2 * out)


class Unused(Base):
    """Holds what it never calls, or only in training."""

    def __init__(self):
        super().__init__()
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm2d(3)

    def forward(self, x):
        return super().forward(self.norm(x) if self.training else x)


class Sums(Base):
    """Group norms in sums of all kinds."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(2, 4) for _ in range(7))
        self.shift = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x):
        first, second, third, fourth, fifth, sixth, last = self.norms
        x = self.conv(x)
        y = self.act(first(x) + x)
        y = second(y) + third(self.act(y))
        z = 2 * y
        y += fourth(z)
        z = fifth(y)
        z += y
        z = torch.add(sixth(z), self.shift) + y
        z = last(z)
        return self.fc((z + z + 2 + z.shape[1]).flatten(1))


class Read(Base):
    """Layers whose weights are read beside them, and what follows them."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.GroupNorm(2, 4), nn.GroupNorm(2, 4)

    def forward(self, x):
        x = functional.relu(self.conv(x)) + self.conv.weight.mean()
        x = (self.norm(x) + x) * self.norm.weight[:, None, None]
        return self.fc(self.act(functional.relu(self.last(x)) + self.last.bias.sum()).flatten(1))


class Asking(Base):
    """Asks in many ways what it was given, and does something else with what is no tensor."""

    def forward(self, x):
        x = self.conv(x)
        tensors = isinstance(x, torch.Tensor), torch.is_tensor(x), not isinstance(x.shape, int)
        x = sum(tensors) * getattr(x, "logits", self.act(x))
        return self.fc(x.flatten(1))


class Knowing(Base):
    """Looks at what tensors have, which a trace shows."""

    def forward(self, x):
        x = self.conv(x).to(x.dtype).type(torch.float32)
        return self.fc(self.act(x).reshape(x.shape[0], x.shape[1:].numel()))


class Overwriting(Base):
    """Writes into what a norm has read, before the norm's sum is made."""

    def __init__(self):
        super().__init__()
        self.norm, self.over = nn.GroupNorm(2, 4), nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.conv(x)
        y = self.norm(x)
        y = y + self.over(x)
        return self.fc(self.act(y).flatten(1))


@pytest.mark.parametrize("features", [None, "act", "conv"])
@pytest.mark.parametrize(
    "kind", [Base, Noisy, Frozen, Counting, Hooked, Unused, Sums, Read, Asking, Knowing]
)
def test_what_a_trace_does_not_show_is_done(kind, features):
    model = Model(kind(), features=features)
    twin = model.rewritten(partial(fuse_layers, watched=model.watched))
    x, key = torch.randn(2, 3, 8, 8), keys.key(3)

    def run(each, params, train):
        out, buffers = each(params, x, buffers=model.buffers, train=train, key=key)
        return out.logits.square().sum(), (out, buffers)

    for train in (True, False):
        found, expected = (
            grad(partial(run, each, train=train), has_aux=True)(model.params)
            for each in (twin, model)
        )
        for (path, a), (_, b) in zip(tree.leaves(found), tree.leaves(expected), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=str(path))


@pytest.mark.parametrize(("kind", "traced"), [(Base, True), (Knowing, True), (Asking, False)])
def test_a_module_that_asks_what_it_is_given_is_not_traced(kind, traced):
    module, replaced = fuse_layers(kind())
    assert isinstance(module, fx.GraphModule) == traced
    assert replaced == ["conv", "fc"]


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.dtype is torch.float32,
        lambda x: x.dtype in {torch.float32},
        lambda x: x.grad_fn is None,
        lambda x: x.device.type in {"cpu"},
        lambda x: x.shape[0] in {2},
        lambda x: "float" in str(x.dtype),
        lambda x: type(x) is torch.Tensor,
        lambda x: not callable(x),
        lambda x: "tensor" in f"{x}",
        lambda x: tree_map_only(torch.Tensor, lambda _: True, x) is True,
    ],
)
def test_a_module_that_asks_as_no_trace_shows_is_not_traced(ask):
    class Asks(Base):
        def forward(self, x):
            return super().forward(2 * x if ask(x) else x)

    module, replaced = fuse_layers(Asks())
    assert not isinstance(module, fx.GraphModule) and replaced == ["conv", "fc"]


def test_a_program_whose_time_is_measured_is_traced_as_ever():
    measured = cProfile.Profile()
    with measured:
        module, _ = fuse_layers(Base())
        is_on = sys.getprofile()
    assert isinstance(module, fx.GraphModule)
    assert is_on is measured or sys.version_info >= (3, 12)  # which has another way to listen


@torch.no_grad()
def test_a_norm_does_not_wait_for_what_writes_into_its_input():
    module, x = Overwriting().eval(), torch.randn(2, 3, 8, 8)
    expected = module(x)
    fused, _ = fuse_layers(module)
    torch.testing.assert_close(fused(x), expected, rtol=1e-4, atol=1e-5)


def test_group_norms_of_numbers_far_from_zero():
    norm = nn.GroupNorm(2, 8)
    x = 100 + 0.1 * torch.randn(2, 8, 6, 6)
    exact = functional.group_norm(x.double(), 2).float()
    assert (FusedGroupNorm(norm, relu=False)(x) - exact).abs().max() < 1e-2


def test_only_plain_layers_fit():
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    assert fits(nn.Conv2d(2, 4, 3, padding=1)) and fits(nn.Linear(2, 2))
    for layer in (
        hooked,
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, dilation=2),
        nn.Conv2d(2, 4, 7),
        nn.Conv2d(2, 4, 3, stride=3),
        nn.Conv2d(2, 4, (1, 3)),
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
        nn.GroupNorm(2, 4, affine=False),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
    ):
        assert not fits(layer)


def test_on_a_cpu_layers_stay_as_they_are(lineup):
    task = lineup("fedavg").task
    assert with_operators(replace(task, compute=torch.bfloat16)).model is task.model


@pytest.fixture
def lineup(make_setup):
    """A step of three clients of the small network, in float32."""

    def make(text):
        setup = make_setup(parse(text), cohort_size=3)
        return single_lineup(setup)

    return make


def single_lineup(setup):
    model, data = setup.model, setup.data
    model.params = tree.map(lambda w: w.float(), model.params)
    x = data.x.float() if data.x.is_floating_point() else data.x
    setup = replace(setup, model=model, data=replace(data, x=x))
    return Lineup.of([prepare(setup, *start(setup), 0, [3, 7, 8])])


CHAINS = ["fedlc(tau=0.1) + scaffold + gcfed", "fedprox(mu=0.1) + fedsam + localgc"]


@pytest.mark.parametrize("text", [*ALGORITHMS, *CHAINS])
def test_every_algorithm_steps_as_on_the_plain_path(text, lineup):
    line = lineup(text if text != "clip" else "clip(norm=1)")
    at, batch = line.begin(), next(line.batches())
    found, expected = (
        over_clients(partial(advance, replace(line.task, model=model)), line.cohort, at, batch)
        for model in (line.task.model.rewritten(fuse_layers), line.task.model)
    )
    for name, before in at.params.items():
        moved, should = found.params[name] - before, expected.params[name] - before
        assert (moved - should).norm() <= 1e-3 * should.norm() + 1e-7


@pytest.mark.parametrize("text", ["gcfed", "scaffold"])
def test_one_trace_serves_any_number_of_clients(text, lineup):
    line = lineup(text)
    task = replace(line.task, model=line.task.model.rewritten(fuse_layers))
    at, batch, mapped = line.begin(), next(line.batches()), axes(line.cohort)
    one = tree.map(lambda x, axis: x[0] if axis is None else x, line.cohort, mapped)
    traced = []

    def step(at, batch, one):
        traced.append(len(batch.y))
        found = vmap(partial(advance, task), (0, 0, mapped))(at, batch, one)
        tree.map(lambda to, x: to.copy_(x), at, found)

    own = [True for _ in tree.leaves((at, batch))]
    run = AnyNumber(
        step, (at, batch, one), own + [not is_shared(x) for _, x in tree.leaves(line.cohort)]
    ).compiled(None)
    assert traced == [PRIME]
    for few in (slice(3), slice(1), slice(2)):
        mine, theirs = (tree.map(torch.clone, tree.take(at, few)) for _ in range(2))
        client = tree.take(line.cohort, few)
        some = tree.map(lambda x, axis: x[0] if axis is None else x, client, mapped)
        run(*(x for _, x in tree.leaves((mine, tree.take(batch, few), some))))
        step(theirs, tree.take(batch, few), some)
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn", (3, 32, 32)), ("vgg11", (3, 32, 32)), ("resnet18", (3, 16, 16))]
)
def test_no_operator_copies_what_it_is_given(name, shape):
    """What is not laid out as kernels read it is so laid out by the step, which is compiled."""
    with without_memory():
        module, _ = fuse_layers(MODELS.parse(name)(shape, 10))
        weights = {n: torch.empty(PRIME, *p.shape) for n, p in module.named_parameters()}
        x, y = torch.empty(PRIME, 4, *shape), torch.zeros(PRIME, 4, dtype=torch.long)

        def loss(p, x, y):
            return functional.cross_entropy(functional_call(module, p, (x,)), y)

        trace = make_fx(vmap(grad(loss), randomness="different"))(weights, x, y)
    calls = [node for node in trace.graph.nodes if "gcfed." in str(node.target)]
    assert calls
    for node in calls:
        for arg in node.args:
            if isinstance(arg, torch.fx.Node):
                assert arg.meta["val"].is_contiguous(), (node.target, arg)
