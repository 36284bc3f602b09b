"""The paper's models: layers, names, initial weights, costs, and exchange with torchvision."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from gcfed.algorithms import MOON, FedDecorr
from gcfed.core import keys
from gcfed.core.model import Model
from gcfed.errors import InputError
from gcfed.models import MODELS, count, load_torchvision
from gcfed.models.exchange import STATISTICS
from gcfed.models.vgg import AveragePool

pytest_plugins = ["running"]

TORCHVISION = json.loads((Path(__file__).parent / "torchvision_shapes.json").read_text())
IMAGE = (3, 32, 32)


def meta(name, shape=IMAGE, num_classes=10, **hyper):
    """A model that has shapes and no values: VGG11 alone would take half a gigabyte."""
    with torch.device("meta"):
        return MODELS[name](shape, num_classes, **hyper)


def fake_weights(name):
    """A state dict such as torchvision saves."""
    return {n: torch.full(shape, 0.5) for n, shape in TORCHVISION[name].items()}


# ---------------------------------------------------------------- shapes, names, declarations


def test_the_registry_knows_and_describes_them():
    assert list(MODELS) == ["cnn", "mlp", "resnet18", "vgg11"]
    assert all(MODELS.describe(name).endswith(".") for name in MODELS)
    assert MODELS.parse("mlp(hidden=(20, 10))")((1, 5, 5), 3).fc2.weight.shape == (10, 20)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 37, 46), (3, 64, 64)])
def test_logits_of_any_image_large_enough(name, shape):
    assert meta(name, shape, 7)(torch.empty(2, *shape, device="meta")).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "head", "reader", "num_features"),
    [
        ("mlp", "fc3", "fc3", 256),
        ("cnn", "fc2", "fc1", 4096),
        ("resnet18", "fc", "fc", 512),
        ("vgg11", "classifier", "classifier.6", 4096),
    ],
)
def test_heads_and_features_are_declared(name, head, reader, num_features):
    module = meta(name)
    assert (module.head, module.feature_reader) == (head, reader)
    assert module.get_submodule(reader).in_features == num_features
    under_head = {n for n, _ in module.named_parameters() if n.startswith(head + ".")}
    assert Model(module).head == under_head and len(under_head) in (2, 6)


def test_any_other_module_is_tapped_by_its_name():
    module, x = MODELS["cnn"]((1, 8, 8), 3), torch.rand(2, 1, 8, 8)
    inner = nn.MaxPool2d(2)(torch.relu(module.conv1(x)))
    for name, expected in ((None, None), ("conv2", inner), ("conv1", x)):
        model = Model(module, features=name)
        out, _ = model(model.params, x, buffers={}, train=False)
        assert (
            out.features.shape == (2, 256) if name is None else torch.equal(out.features, expected)
        )
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))
    assert (
        Model(plain)({**Model(plain).params}, x, buffers={}, train=False)[0].features.shape[1] == 5
    )
    with pytest.raises(InputError, match=r"no module is named 'conv3'; there are .*conv1, conv2"):
        Model(module, features="conv3")


@pytest.mark.parametrize("algorithm", [FedDecorr, MOON])
def test_who_reads_features_says_which_under_departures(algorithm):
    departures = " ".join(algorithm.__doc__.partition("Departures:")[2].split())
    assert "in the CNN the input of fc1" in departures and "last layer" in departures


def test_layers_go_by_the_papers_names():
    names = ["conv1", "conv2", "fc1", "fc2"]
    assert [n for n, _ in meta("cnn").named_children()] == names
    widths = [(n, m.in_features, m.out_features) for n, m in emnist_mlp().named_children()]
    assert widths == [("fc1", 784, 512), ("fc2", 512, 256), ("fc3", 256, 62)]
    assert [n for n, _ in meta("mlp", hidden=()).named_children()] == ["fc1"]


def emnist_mlp():
    return meta("mlp", (1, 28, 28), 62)


def test_forward_passes_by_hand(float32):
    relu, pool = torch.relu, nn.MaxPool2d(2)
    x = torch.rand(2, 1, 9, 8)
    cnn, mlp = MODELS["cnn"]((1, 9, 8), 3), MODELS["mlp"]((1, 9, 8), 3, hidden=(6,))
    inner = pool(relu(cnn.conv2(pool(relu(cnn.conv1(x)))))).flatten(1)
    assert inner.shape == (2, 64 * 2 * 2)
    assert torch.equal(cnn(x), cnn.fc2(relu(cnn.fc1(inner))))
    assert torch.equal(mlp(x), mlp.fc2(relu(mlp.fc1(x.flatten(1)))))


@pytest.mark.parametrize(
    ("name", "shape", "num_classes"),
    [
        ("cnn", (3, 3, 32), 10),
        ("cnn", (3, 32), 10),
        ("cnn", (0, 32, 32), 10),
        ("cnn", IMAGE, 0),
        ("vgg11", (3, 31, 32), 10),
        ("vgg11", IMAGE, 0),
        ("resnet18", (784,), 10),
        ("resnet18", IMAGE, -1),
        ("mlp", IMAGE, 0),
        ("mlp", (1, 0), 10),
    ],
)
def test_impossible_shapes_are_refused(name, shape, num_classes):
    with pytest.raises(InputError, match=name):
        MODELS[name](shape, num_classes)


# ---------------------------------------------------------------- initial weights


def assert_normal(weight, std):
    """Mean and standard deviation, each within five of its own standard errors."""
    n = weight.numel()
    assert abs(weight.mean()) < 5 * std / math.sqrt(n)
    assert abs(weight.std() / std - 1) < 5 / math.sqrt(2 * n)


def assert_default(layer):
    """PyTorch's default: uniform within 1/sqrt(fan-in), biases too."""
    fan_in = layer.weight[0].numel()
    bound = 1 / math.sqrt(fan_in)
    assert layer.weight.abs().max() <= bound
    assert abs(layer.weight.std() * math.sqrt(3) / bound - 1) < 0.05
    if layer.bias is not None:
        assert 0 < layer.bias.abs().max() <= bound


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_small_models_start_kaiming_normal_by_fan_in(name, float32):
    torch.manual_seed(0)
    for layer in MODELS[name](IMAGE, 10).children():
        assert_normal(layer.weight, math.sqrt(2 / layer.weight[0].numel()))
        assert not layer.bias.any()


def fan_out_std(convolution):
    return math.sqrt(2 / (convolution.out_channels * math.prod(convolution.kernel_size)))


def test_resnet_starts_as_torchvisions(float32):
    torch.manual_seed(0)
    module = MODELS["resnet18"](IMAGE, 100)
    assert_default(module.conv1)
    assert_default(module.fc)
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d) and name != "conv1":
            assert_normal(layer.weight, fan_out_std(layer))
        if isinstance(layer, nn.GroupNorm):
            assert layer.num_groups == 32 and (layer.weight == 1).all() and not layer.bias.any()


def test_vgg_starts_as_torchvisions(vgg11):
    _, initial = vgg11
    module = meta("vgg11")
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d):
            assert_normal(initial[f"{name}.weight"], fan_out_std(layer))
        elif isinstance(layer, nn.Linear) and name != "classifier.6":
            assert_normal(initial[f"{name}.weight"][:256], 0.01)
        if isinstance(layer, (nn.Conv2d, nn.Linear)) and name != "classifier.6":
            assert not initial[f"{name}.bias"].any()
    last = nn.Linear(4096, 10)
    last.load_state_dict({n: initial[f"classifier.6.{n}"] for n in ("weight", "bias")})
    assert_default(last)


@pytest.mark.parametrize("name", ["cnn", "mlp", "resnet18"])
def test_initial_weights_follow_torchs_generator(name):
    def draw(seed):
        torch.manual_seed(seed)
        return torch.cat([p.detach().flatten() for p in MODELS[name](IMAGE, 5).parameters()])

    assert torch.equal(draw(0), draw(0)) and not torch.equal(draw(0), draw(1))


# ---------------------------------------------------------------- torchvision


@pytest.mark.parametrize(
    ("name", "num_classes", "differ"),
    [
        ("vgg11", 1000, set()),
        ("vgg11", 100, {"classifier.6.weight", "classifier.6.bias"}),
        ("resnet18", 1000, {"conv1.weight"}),
        ("resnet18", 100, {"conv1.weight", "fc.weight", "fc.bias"}),
    ],
)
def test_names_and_shapes_are_torchvisions(name, num_classes, differ):
    ours = {n: list(v.shape) for n, v in meta(name, num_classes=num_classes).state_dict().items()}
    theirs = {n: v for n, v in TORCHVISION[name].items() if n.rpartition(".")[2] not in STATISTICS}
    assert list(ours) == list(theirs)
    assert {n for n in ours if ours[n] != theirs[n]} == differ


def test_weights_load_from_torchvision_and_go_back(float32):
    module = MODELS["resnet18"](IMAGE, 10)
    before = {n: v.clone() for n, v in module.state_dict().items()}
    report = load_torchvision(module, fake_weights("resnet18"))
    assert report.skipped == ("conv1.weight", "fc.weight", "fc.bias")
    assert {*report.loaded, *report.skipped} == set(before)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]) if name in report.skipped else (value == 0.5).all()
    theirs = {n: torch.Size(v) for n, v in TORCHVISION["resnet18"].items()}
    back = {n: v for n, v in module.state_dict().items() if theirs.get(n) == v.shape}
    assert tuple(back) == report.loaded
    other = MODELS["resnet18"](IMAGE, 10)
    assert load_torchvision(other, module.state_dict()).skipped == ()
    assert all(torch.equal(v, other.state_dict()[n]) for n, v in module.state_dict().items())


def test_what_only_one_side_has_is_named(float32):
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    report = load_torchvision(module, {"0.weight": torch.ones(3, 2), "9.bias": torch.ones(1)})
    assert report == (("0.weight",), ("0.bias", "1.weight", "1.bias", "9.bias"))


def test_a_state_dict_of_which_nothing_fits_is_refused():
    with pytest.raises(InputError, match="fits CNN"):
        load_torchvision(meta("cnn"), fake_weights("resnet18"))


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (2, 2), (7, 7), (1, 2), (3, 5), (6, 8), (14, 9)]
)
def test_pooling_equals_the_adaptive_one(rows, columns):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, rows, columns, dtype=torch.float64, generator=generator)
    weights = torch.randn(2, 3, 7, 7, dtype=torch.float64, generator=generator)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = AveragePool(7)(ours), nn.AdaptiveAvgPool2d(7)(theirs)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(out, expected, atol=1e-15, rtol=1e-15)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-14, rtol=1e-14)
    if rows == columns and rows in (1, 7):
        assert torch.equal(out, expected)


# ---------------------------------------------------------------- costs


def test_costs_by_hand():
    macs = 784 * 512 + 512 * 256 + 256 * 62
    assert count(emnist_mlp(), (1, 28, 28)) == (macs + 512 + 256 + 62, 6, 2 * macs)
    convs, linears = 25 * 3 * 32 + 25 * 32 * 64, 4096 * 512 + 512 * 10
    macs = 32**2 * 25 * 3 * 32 + 16**2 * 25 * 32 * 64 + linears
    assert count(meta("cnn"), IMAGE) == (convs + linears + 32 + 64 + 512 + 10, 8, 2 * macs)


@pytest.mark.parametrize(
    ("name", "parameters", "tensors", "millions"),
    [("resnet18", 11_681_832, 62, 11.7), ("vgg11", 132_863_336, 22, 132.8)],
)
def test_large_models_have_the_papers_parameters(name, parameters, tensors, millions):
    cost = count(meta(name, num_classes=1000), IMAGE)
    assert cost[:2] == (parameters, tensors)
    assert abs(cost.parameters / 1e6 - millions) < 0.1


def test_costs_are_listed(gcfed):
    """Parameters and millions of operations of a forward pass, on an image of CIFAR-10."""
    rows = {line.split()[0]: line.split() for line in gcfed("list", "models").out.splitlines()}
    for name in MODELS:
        cost = count(meta(name), IMAGE)
        assert rows[name][1:3] == [f"{cost.parameters:,}", f"{cost.flops / 1e6:,.1f}"]
    stem, first = 9 * 3 * 64 * 32**2, 4 * 9 * 64 * 64 * 32**2
    halving = 9 * 64 * 128 * 16**2 + 3 * 9 * 128 * 128 * 16**2 + 64 * 128 * 16**2
    macs = stem + first + 3 * halving + 512 * 10  # each layer has half the side and twice the width
    assert rows["resnet18"][1:3] == ["11,173,962", f"{2 * macs / 1e6:,.1f}"]


def test_counting_leaves_the_module_as_it_was(float32):
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    module[1].eval()
    before = {n: v.clone() for n, v in module.state_dict().items()}
    state = torch.get_rng_state()
    assert count(module, (4,)) == (4 * 8 + 8 + 16 + 8 * 2 + 2, 6, 2 * (4 * 8 + 8 * 2))
    assert [m.training for m in module.modules()] == [True, True, False, True, True]
    assert all(torch.equal(v, before[n]) for n, v in module.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


# ---------------------------------------------------------------- as the engines run them


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn", (3, 8, 8)), ("mlp", (1, 5, 5)), ("resnet18", (3, 8, 8))]
)
def test_gradients_of_many_clients_at_once(name, shape):
    torch.manual_seed(0)
    module = MODELS[name](shape, 4).double()
    params = {n: p.detach() for n, p in module.named_parameters()}
    x, y = torch.rand(2, 3, *shape, dtype=torch.float64), torch.tensor([[0, 1, 2], [3, 0, 1]])

    def loss(params, x, y):
        return cross_entropy(functional_call(module, params, (x,)), y)

    together = vmap(grad(loss), in_dims=(None, 0, 0))(params, x, y)
    for client in range(2):
        module.zero_grad()
        cross_entropy(module(x[client]), y[client]).backward()
        for n, p in module.named_parameters():
            torch.testing.assert_close(together[n][client], p.grad, atol=1e-11, rtol=1e-9)


@pytest.fixture(scope="module")
def vgg11(exact):
    """The one VGG11 that has values, and a copy-free look at them."""
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    module = MODELS["vgg11"](IMAGE, 10)
    torch.set_default_dtype(torch.float64)
    return module, dict(module.state_dict())


def test_vgg_takes_any_engine(vgg11):
    """Evaluation mode here; its dropout is test_dropout's."""
    module, params = vgg11
    module.eval()
    x = torch.rand(2, 1, 3, 64, 64, dtype=torch.float32)
    with torch.no_grad():
        loop = torch.stack([module(v) for v in x])
        together = vmap(lambda v: functional_call(module, params, (v,)))(x)
        by_hand = nn.AdaptiveAvgPool2d(7)(module.features(x[0])).flatten(1)
        expected = module.classifier(by_hand)
    torch.testing.assert_close(together, loop, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(loop[0], expected, atol=1e-6, rtol=1e-5)


def test_no_model_draws_from_the_global_generator():
    for name in MODELS:
        Model(meta(name))  # refuses modules that would
    model, x = Model(MODELS["cnn"]((1, 8, 8), 3)), torch.rand(2, 1, 8, 8)
    with keys.untouched():
        model(model.params, x, buffers={}, train=True, key=keys.key(0))
