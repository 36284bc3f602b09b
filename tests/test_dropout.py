"""Keyed dropout: one mask for every engine, device and traced graph."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from gcfed import Algorithm
from gcfed.core import keys
from gcfed.core.dropout import KeyedDropout, key_dropout
from gcfed.core.model import DROPOUT, Model
from gcfed.errors import InputError
from gcfed.models import MODELS


class Head(nn.Module):
    """The shape of VGG11's classifier, small."""

    head = "classifier"

    def __init__(self):
        super().__init__()
        self.classifier = nn.Sequential(
            nn.Linear(12, 16),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(16, 16),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(16, 5),
        )

    def forward(self, x):
        return self.classifier(x)


@pytest.fixture(scope="module")
def model(exact):
    torch.manual_seed(0)
    return Model(Head())


@pytest.fixture(scope="module")
def clients(exact):
    """x and key of three clients."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 12, dtype=torch.float64, generator=generator)
    return x, torch.stack([keys.key(0, client) for client in range(3)])


def trained(model):
    """Logits in training, as a function of weights, batch and key."""
    return lambda params, x, key: model(params, x, buffers={}, train=True, key=key)[0].logits


def masks(p, key, shape):
    layer = KeyedDropout(p)
    return functional_call(layer, {"key": key}, (torch.ones(shape, dtype=torch.float64),)) != 0


def by_hand(model, x, key):
    """The definition: a uniform number for each unit, from the key of its layer."""
    stream = keys.fold(key, DROPOUT)
    for i, (layer, p) in enumerate(((0, 0.5), (3, 0.3))):
        x = torch.relu(linear(model, layer, x))
        x = x * (keys.uniform(keys.fold(stream, i), x.shape) >= p) / (1 - p)
    return linear(model, 6, x)


def linear(model, layer, x):
    weight, bias = (model.params[f"classifier.{layer}.{n}"] for n in ("weight", "bias"))
    return x @ weight.T + bias


def test_masks_are_uniform_numbers_of_the_layers_key(model, clients):
    for x, key in zip(*clients, strict=True):
        torch.testing.assert_close(
            trained(model)(model.params, x, key), by_hand(model, x, key), atol=1e-12, rtol=0
        )


def test_vmap_drops_what_a_loop_drops(model, clients):
    x, each = clients
    together = vmap(trained(model), in_dims=(None, 0, 0))(model.params, x, each)
    loop = [trained(model)(model.params, *client) for client in zip(x, each, strict=True)]
    torch.testing.assert_close(together, torch.stack(loop), atol=1e-12, rtol=0)
    many = vmap(lambda key: masks(0.5, key, (4, 16)))(each)
    for client, key in enumerate(each):
        assert torch.equal(many[client], masks(0.5, key, (4, 16)))


def test_gradients_pass_where_units_were_kept(model, clients):
    def gradient(x, key):
        return grad(lambda p: trained(model)(p, x, key).square().sum())(model.params)

    x, each = clients
    together = vmap(gradient)(x, each)
    for client in range(len(x)):
        weights = {n: p.clone().requires_grad_() for n, p in model.params.items()}
        trained(model)(weights, x[client], each[client]).square().sum().backward()
        for name, weight in weights.items():
            torch.testing.assert_close(together[name][client], weight.grad, atol=1e-10, rtol=0)
    second = keys.fold(keys.fold(each[0], DROPOUT), 1)
    dropped = ~masks(0.3, second, (4, 16)).any(0)
    assert (together["classifier.6.weight"][0][:, dropped] == 0).all()


def test_a_traced_graph_follows_its_key(model, clients):
    x, each = clients
    step = vmap(trained(model), in_dims=(None, 0, 0))
    traced = make_fx(step)(model.params, x, each)
    for other in (each, each.flip(0), torch.stack([keys.key(9, c) for c in range(3)])):
        assert torch.equal(traced(model.params, x, other), step(model.params, x, other))
    drawn = [n for n in traced.graph.nodes if "bernoulli" in str(n.target) or "rand" in str(n)]
    assert not drawn


def test_padding_changes_no_examples_mask():
    key = keys.key(4)
    whole = masks(0.5, key, (9, 3, 5))
    for n in (1, 4):
        assert torch.equal(masks(0.5, key, (n, 3, 5)), whole[:n])


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_unit_is_dropped_with_probability_p_and_scaled(p):
    layer, x = KeyedDropout(p), torch.ones(200, 250, dtype=torch.float64)
    out = functional_call(layer, {"key": keys.key(1)}, (x,))
    kept = out != 0
    assert abs(kept.double().mean() - (1 - p)) <= 4 * math.sqrt(p * (1 - p) / x.numel())
    if p < 1:
        torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    assert torch.equal(layer.eval()(x), x)


def test_layers_calls_and_keys_drop_differently():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Dropout(0.5), nn.Dropout(0.5)

        def forward(self, x):
            return torch.stack([self.first(x), self.first(x), self.second(x)])

    model, x = Model(Twice()), torch.ones(8, 40)
    zero, again, one = (
        model({}, x, buffers={}, train=True, key=keys.key(seed))[0].logits for seed in (0, 0, 1)
    )
    assert torch.equal(zero, again)
    for other in (one, zero.roll(1, 0)):
        agreement = (zero == other).double().mean((1, 2))
        assert ((agreement > 0.3) & (agreement < 0.7)).all()


def test_every_engine_drops_the_same(run, on_every_engine):
    """Three rounds of ragged clients: a mask that differs anywhere would show."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), Head())
    loop = on_every_engine(Algorithm(), module=module)
    module[2].classifier[2].p = module[2].classifier[5].p = 0.0
    kept = run(Algorithm(), module=module, engine="sequential")
    assert (loop.losses - kept.losses).abs().max() > 1e-3


def test_vggs_two_dropouts_are_keyed():
    with torch.device("meta"):
        module = MODELS["vgg11"]((3, 32, 32), 10)
    key_dropout(module)
    layers = {n: m.p for n, m in module.named_modules() if isinstance(m, KeyedDropout)}
    assert layers == {"classifier.2": 0.5, "classifier.5": 0.5}
    assert not [m for m in module.modules() if isinstance(m, nn.Dropout)]


def test_the_global_generator_is_left_alone(model, clients):
    x, each = clients
    with keys.untouched():
        trained(model)(model.params, x[0], each[0])
    with pytest.raises(InputError, match="needs a key"):
        model(model.params, x[0], buffers={}, train=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_devices_draw_the_same_masks(p):
    key, x = keys.key(2), torch.ones(500, 4096)
    here, there = (
        functional_call(KeyedDropout(p), {"key": key.to(d)}, (x.to(d),)).cpu()
        for d in ("cpu", "cuda")
    )
    assert torch.equal(here, there)
