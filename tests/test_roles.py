"""What each parameter is, in every layer we know, and what gradient centralization does to it."""

import pickle

import pytest
import torch
from torch import nn, optim

from gcfed import Config, InputError, Model, Role, centralize, centralize_gradients, parse, roles_of
from gcfed.algorithms import GCFed, GlobalGC, LocalGC
from gcfed.algorithms.centralized import describe
from gcfed.config.build import build
from gcfed.config.identity import identity
from gcfed.core.centralization import (
    AVERAGED,
    centralize_update,
    centralized_names,
    goes_by_axes,
)
from gcfed.models import MODELS

pytest_plugins = ["running"]


class Conv1D(nn.Module):
    """As Hugging Face writes GPT-2's linear layers: the weight is [in, out]."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        return x @ self.weight + self.bias


def only(module, name="weight"):
    return roles_of(module)[name]


def by_hand(x, outputs):
    """Each output's numbers, named one by one, less their mean."""
    after = x.clone()
    for index in outputs:
        after[index] = x[index] - x[index].sum() / x[index].numel()
    return after


GROUPED = [(slice(2 * g, 2 * g + 2), o) for g in range(3) for o in range(4)]
LAYERS = {
    "linear": (lambda: nn.Linear(5, 3), "weight", "linear", range(3)),
    "bilinear": (lambda: nn.Bilinear(2, 4, 3), "weight", "linear", range(3)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 5), "weight", "convolution", range(3)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 5), "weight", "convolution", range(3)),
    "grouped": (lambda: nn.Conv2d(6, 12, 3, groups=3), "weight", "convolution", range(12)),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, groups=6), "weight", "convolution", range(6)),
    "transposed": (
        lambda: nn.ConvTranspose2d(6, 4, 3),
        *("weight", "convolution"),
        [(slice(None), o) for o in range(4)],
    ),
    "transposed groups": (
        lambda: nn.ConvTranspose2d(6, 12, 3, groups=3),
        *("weight", "convolution", GROUPED),
    ),
    "Hugging Face": (
        lambda: Conv1D(4, 3),
        *("weight", "linear"),
        [(slice(None), o) for o in range(4)],
    ),
    "lstm": (lambda: nn.LSTM(5, 3), "weight_ih_l0", "recurrent", range(12)),
    "projected lstm": (
        lambda: nn.LSTM(5, 3, proj_size=2),
        *("weight_hr_l0", "recurrent", range(2)),
    ),
    "gru cell": (lambda: nn.GRUCell(5, 3), "weight_hh", "recurrent", range(9)),
    "attention": (
        lambda: nn.MultiheadAttention(4, 2),
        *("in_proj_weight", "linear", range(12)),
    ),
    "attention of other widths": (
        lambda: nn.MultiheadAttention(4, 2, kdim=3),
        *("k_proj_weight", "linear", range(4)),
    ),
    "attention's output": (
        lambda: nn.MultiheadAttention(4, 2),
        *("out_proj.weight", "linear", range(4)),
    ),
}


@pytest.mark.parametrize("case", LAYERS)
def test_p_in_the_orientation_of_the_layer(case):
    make, name, kind, outputs = LAYERS[case]
    module = make()
    weight, role = dict(module.named_parameters())[name].detach(), only(module, name)
    assert role.kind == kind
    torch.manual_seed(0)
    x = torch.randn(weight.shape)
    expected = by_hand(x, outputs)
    torch.testing.assert_close(centralize(x, role=role), expected, atol=1e-12, rtol=0)
    assert (expected - x).abs().max() > 0.01
    biases = [n for n in dict(module.named_parameters()) if "bias" in n]
    assert biases and all(only(module, n).kind == "bias" for n in biases)
    stacked = torch.stack([x, 2 * x])
    mapped = torch.func.vmap(lambda one: centralize(one, role=role))(stacked)
    torch.testing.assert_close(mapped[1], 2 * expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("axis", AVERAGED)
def test_an_axis_means_the_same_in_a_transposed_convolution(axis):
    x, role = torch.randn(6, 4, 3, 2), only(nn.ConvTranspose2d(6, 4, (3, 2)))
    straight = centralize(x.transpose(0, 1), axis)
    torch.testing.assert_close(centralize(x, axis, role=role), straight.transpose(0, 1))
    grouped = only(nn.ConvTranspose2d(6, 8, (3, 2), groups=2))
    halves = [centralize(half, axis, role=role) for half in x.split(3)]
    torch.testing.assert_close(centralize(x, axis, role=grouped), torch.cat(halves))


@pytest.mark.parametrize("axis", AVERAGED)
def test_a_linear_layer_has_no_kernel(axis):
    x, role = torch.randn(3, 2, 4), only(nn.Bilinear(2, 4, 3))
    torch.testing.assert_close(centralize(x, axis, role=role), by_hand(x, range(3)))


class Particular(nn.Module):
    """What transformers and their kin hold that gradient centralization is not for."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 17, 4))
        self.narrow = nn.Linear(1, 4)
        self.scale = nn.Parameter(torch.ones(4, 1, 1))
        self.temperature = nn.Parameter(torch.ones(2, 1, 1))
        self.norm = nn.LayerNorm([17, 4])
        self.mixed = nn.Conv2d(4, 4, 1, groups=4)
        self.down, self.up = nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False)
        self.fc = nn.Linear(17 * 4, 5)

    def forward(self, x):
        pixels = x.flatten(1)
        tokens = self.embed((pixels > 0).long()) + self.narrow(pixels[:, :, None])
        tokens = torch.cat([self.token.expand(len(x), 1, 4), tokens], 1) + self.positions
        tokens = tokens + self.up(self.down(tokens)) * self.temperature.mean()
        mixed = self.mixed(tokens.transpose(1, 2)[..., None] * self.scale).squeeze(3)
        return self.fc(self.norm(mixed.transpose(1, 2)).flatten(1))


LEFT_ALONE = {
    **{"embed.weight": "embedding", "token": "other", "positions": "other", "scale": "other"},
    **{
        "temperature": "other",
        "norm.weight": "norm",
        "norm.bias": "norm",
        "narrow.weight": "linear",
    },
    **{"mixed.weight": "convolution", "up.weight": "linear", "narrow.bias": "bias"},
}


def test_what_has_no_mean_to_lose_keeps_it_and_moves(on_every_engine, data):
    torch.manual_seed(0)
    module = Particular()
    model = Model(module)
    assert {n: model.roles[n].kind for n in LEFT_ALONE} == LEFT_ALONE
    assert centralized_names(model.params, model.roles) == ["down.weight", "fc.weight"]
    after = on_every_engine(GCFed(), module=module, rounds=2).server.params
    for name, before in model.params.items():
        assert (after[name] - before).abs().max() > 1e-6, name
    mean = (after["down.weight"] - model.params["down.weight"]).mean()
    assert mean.abs() < 1e-4  # weight decay alone moves it
    assert (after["narrow.weight"] - model.params["narrow.weight"]).mean().abs() > 1e-4


PAPER = {"mlp": (1, 28, 28), "cnn": (3, 32, 32), "vgg11": (3, 32, 32), "resnet18": (3, 32, 32)}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_models_are_centralized_as_ever(name):
    """Every tensor of two axes and more, over all axes but the first."""
    with torch.device("meta"):
        model = Model(MODELS[name](PAPER[name], 10))
    weights = [n for n, w in model.params.items() if w.ndim > 1]
    assert centralized_names(model.params, model.roles) == weights
    assert all(model.roles[n].output_axis == 0 and model.roles[n].groups == 1 for n in weights)
    everything = centralized_names(model.params, model.roles, min_ndim=1)
    assert everything == list(model.params)
    assert {n for n, role in model.roles.items() if role.head} == model.head


class Tied(nn.Module):
    def __init__(self, first):
        super().__init__()
        layers = {"embed": nn.Embedding(7, 4), "decode": nn.Linear(4, 7)}
        for name in (first, *(layers.keys() - {first})):
            self.add_module(name, layers[name])
        self.decode.weight = self.embed.weight


def test_a_tied_weight_has_the_role_of_the_layer_that_comes_first():
    one, other = Model(Tied("embed")), Model(Tied("decode"))
    assert one.roles["embed.weight"] == Role("embedding", head=True)
    assert other.roles["decode.weight"] == Role("linear", head=True)
    both = roles_of(Tied("embed"))
    assert both["embed.weight"] == both["decode.weight"] == Role("embedding")


class Adapter(nn.Module):
    """LoRA of bare parameters, which says itself what they are."""

    parameter_roles = {"a": "linear", "b": "linear"}  # noqa: RUF012 (as a user writes it)

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(2, 5)), nn.Parameter(torch.zeros(5, 2))


def test_a_module_says_what_its_parameters_are():
    module = nn.ModuleDict({"lora": Adapter(), "fc": nn.Linear(5, 3)})
    assert roles_of(module)["lora.a"] == Role("linear")
    module.parameter_roles = {"lora.b": Role("linear", output_axis=1), "fc": "other"}
    roles = roles_of(module)  # what the outer module says comes first
    assert roles["lora.b"].output_axis == 1 and roles["lora.a"].output_axis == 0
    assert roles["fc.weight"].kind == roles["fc.bias"].kind == "other"
    module.parameter_roles = {"fc": "linear"}
    assert roles_of(module)["fc.bias"].kind == "bias"  # which has one axis, and is no weight


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"fc9": "linear"}, "under 'fc9'"),
        ({"weight": "lineer"}, "did you mean 'linear'"),
        ({"bias": "linear"}, r"no weight of kind linear has the shape of bias \[3\]"),
        ({"weight": Role("linear", output_axis=2)}, "outputs on axis 2"),
        ({"weight": Role("linear", groups=2)}, "2 groups"),
        (["weight"], "a dict such as"),
    ],
)
def test_roles_that_cannot_be_are_refused(said, complaint):
    module = nn.Linear(5, 3)
    module.parameter_roles = said
    with pytest.raises(InputError, match=complaint):
        Model(module)


def test_a_role_counts_from_nought():
    with pytest.raises(InputError, match="counts from 0"):
        Role("linear", output_axis=-1)
    assert pickle.loads(pickle.dumps(Role("norm"))) == Role("norm")


def test_declared_roles_reach_training(run):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 5))
    told = pickle.loads(pickle.dumps(module))
    told.parameter_roles = {"1.weight": "other"}
    start, rounds = Model(module).params["1.weight"], {"rounds": 1}
    steps = [
        run(GCFed(), module=m, **rounds).server.params["1.weight"] - start for m in (module, told)
    ]
    centred, free = (step.mean(1).abs().max() for step in steps)
    assert centred < 1e-4 < free


def test_what_an_axis_would_freeze_is_named(make_setup):
    layers = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(16, 5)
    pointwise = nn.Sequential(*layers)
    with pytest.warns(UserWarning, match=r"freezes 1\.weight: by axis='kernel'"):
        make_setup(GCFed(axis="kernel"), module=pointwise)
    with pytest.warns(UserWarning, match=r"freezes 0\.weight: by axis='position'"):
        make_setup(LocalGC(axis="position"), module=pointwise)
    make_setup(GlobalGC(axis="kernel", spared=("1",)), module=pointwise)
    make_setup(GCFed(), module=pointwise)


def test_a_model_without_weights_to_centralize_is_pointed_out(make_setup):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(16, 5))

        def forward(self, x):
            return x.flatten(1) @ self.w

    for algorithm in (LocalGC(), GlobalGC(), GCFed()):
        with pytest.warns(UserWarning, match="finds no weight to centralize"):
            make_setup(algorithm, module=Plain())


def test_describe_says_what_happens_to_each_parameter(net):
    table = Model(net).describe()
    assert [p.name for p in table.parameters] == [n for n, _ in net.named_parameters()]
    rows = {line.split()[0]: line.split()[1:] for line in repr(table).splitlines()[1:]}
    assert rows["conv.weight"] == ["4x1x3x3", "convolution", "0", "9", "no", "yes", "yes"]
    assert rows["norm.weight"] == ["4", "norm", "-", "-", "no", "no", "no"]
    assert rows["fc2.weight"] == ["5x12", "linear", "0", "12", "yes", "no", "yes"]
    assert "<td>fc2.weight</td><td>5x12</td>" in table._repr_html_()
    assert describe(Model(net), GCFed()) == table
    shown = {
        p.name: p for p in describe(Model(net), parse("fedprox + localgc(lam=0.5)")).parameters
    }
    assert [n for n, p in shown.items() if p.local] == ["conv.weight"]
    assert not any(p.server for p in shown.values())
    everywhere = describe(Model(net), GCFed(min_ndim=1, spared=("fc2",))).parameters
    assert [p.name for p in everywhere if not p.server] == ["fc2.weight", "fc2.bias"]


def test_runs_that_roles_change_are_other_runs():
    def numerics(algorithm, shape):
        dataset = f"synthetic(train=40, test=10, shape={shape})"
        settings = {"model": "mlp", "clients": 9, "batch_size": 4, "device": "cpu"}
        config = Config(algorithm=algorithm, dataset=dataset, **settings)
        return identity(build(config)).get("numerics")

    changed, same = (1,), (1, 8, 8)  # mlp's first layer has one input per output, or 64
    assert numerics("gcfed", changed) == {"algorithm gcfed": 2}
    both = numerics("fedprox + localgc + globalgc", changed)
    assert both == {"algorithm localgc": 2, "algorithm globalgc": 2}
    assert numerics("gcfed", same) is numerics("fedprox", changed) is None


@pytest.mark.parametrize("min_ndim", [1, 2, 3])
@pytest.mark.parametrize("axis", AVERAGED)
@pytest.mark.parametrize("case", LAYERS)
def test_what_went_by_axes_before_is_known(case, axis, min_ndim):
    make, name, _, _ = LAYERS[case]
    role = only(make(), name)
    x = torch.randn(dict(make().named_parameters())[name].shape)
    by_roles, by_axes = (centralize(x, axis, min_ndim, known) for known in (role, None))
    assert goes_by_axes(x.shape, axis, min_ndim, role) == torch.allclose(by_roles, by_axes)
    assert not goes_by_axes(torch.Size((4, 1)), axis, 2, Role("linear"))
    assert not goes_by_axes(torch.Size((4, 5)), axis, 1, Role("embedding"))


@pytest.mark.filterwarnings("always:.*freezes")
def test_inspect_lists_the_parameters(gcfed):
    lines = gcfed("inspect", "mlp(hidden=(4,))", "--algorithm", "gcfed(lam=0.5)").out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["fc1.weight"] == ["4x784", "linear", "0", "784", "no", "yes", "yes"]
    assert rows["fc2.weight"] == ["10x4", "linear", "0", "4", "yes", "no", "yes"]
    assert lines[-1].endswith("of 4 parameters, Local GC centralizes 1 and Global GC 2")
    frozen = gcfed("inspect", "cnn", "--algorithm", "localgc(axis='position')")
    assert frozen.code == 0 and "freezes conv1.weight" in frozen.err
    assert gcfed("inspect", "cnnn").code == gcfed("inspect", "cnn", "--dataset", "cifar").code == 2


def test_inspect_makes_a_model_that_cannot_be_made_without_values(gcfed, registries):
    @MODELS.register("computing")
    def computing(shape, num_classes):
        assert torch.ones(1).item() == 1
        return nn.Sequential(nn.Flatten(), nn.Linear(784, num_classes))

    assert "1.weight   10x784" in gcfed("inspect", "computing", "--algorithm=fedavg").out


def test_a_loop_of_ones_own_knows_the_roles_of_a_module():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 4), Conv1D(3, 4), nn.Linear(3, 2))
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    handle = centralize_gradients(optimizer, model)
    tokens = torch.tensor([0, 1, 2, 1])

    def gradients():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), torch.tensor([0, 1, 0, 1])).backward()
        return [p.grad.clone() for p in model.parameters()]

    raw = dict(zip(dict(model.named_parameters()), gradients(), strict=True))
    optimizer.step()
    after = {n: p.grad for n, p in model.named_parameters()}
    assert torch.equal(after["0.weight"], raw["0.weight"])
    torch.testing.assert_close(after["1.weight"], raw["1.weight"] - raw["1.weight"].mean(0))
    torch.testing.assert_close(after, centralize_update(raw, roles=roles_of(model)))
    handle.remove()
    centralize_gradients(optimizer, [model[0], model[1]])
    raw = gradients()
    optimizer.step()
    after = [p.grad for p in model.parameters()]
    torch.testing.assert_close(after[1], raw[1] - raw[1].mean(0))
    assert all(torch.equal(after[i], raw[i]) for i in (0, 2, 3, 4))


def test_parameters_that_are_not_trained_need_no_optimizer():
    model = nn.Sequential(nn.Linear(4, 3).requires_grad_(False), nn.Linear(3, 2))
    optimizer = optim.SGD(model[1].parameters(), lr=1.0)
    centralize_gradients(optimizer, model)
    for nothing in ([], model[0], (p for p in ())):
        with pytest.raises(InputError, match="nothing to centralize"):
            centralize_gradients(optimizer, nothing)
