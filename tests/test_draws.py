"""What models draw in training: a function of a key, the same wherever a step is run."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from gcfed import Algorithm, Model, start
from gcfed.algorithms import GCFed
from gcfed.core import draws, keys
from gcfed.core.keyed_run import KeyedRun
from gcfed.errors import InputError
from gcfed.simulation.evaluation import predict


def stochastic_depth(x, p):
    """As torchvision does it, but that the noise is used by its first name."""
    noise = torch.empty([x.shape[0], *(1 for _ in x.shape[1:])], dtype=x.dtype, device=x.device)
    noise.bernoulli_(1 - p)
    noise.div_(1 - p)
    return x * noise


def drop_path(x, p):
    """As timm does it."""
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    return x * x.new_empty(shape).bernoulli_(1 - p).div_(1 - p)


def permuted(x):
    return x + x[:, torch.randperm(x.shape[1])]


DRAWING = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout in place": lambda x: F.dropout(x * 1, 0.5, inplace=True),
    "torch.dropout": lambda x: torch.dropout(input=x, p=0.5, train=True),
    "dropout1d": lambda x: F.dropout1d(x, 0.5),
    "dropout2d": lambda x: F.dropout2d(x[..., None], 0.5)[..., 0],
    "dropout3d": lambda x: F.dropout3d(x[..., None, None], 0.5)[..., 0, 0],
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.5, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu in place": lambda x: F.rrelu(x * 1, training=True, inplace=True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.4),
    "stochastic depth": lambda x: stochastic_depth(x, 0.5),
    "drop path": lambda x: drop_path(x, 0.5),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "rand": lambda x: x + torch.rand(x.shape[0], 1, 1),
    "rand of a size": lambda x: x + torch.rand(size=(2, 4), dtype=x.dtype),
    "rand of one": lambda x: x + torch.rand(()),
    "rand with a generator": lambda x: x + torch.rand(2, 1, generator=torch.Generator()),
    "randn": lambda x: x + torch.randn(x.shape, dtype=x.dtype, device=x.device),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn_like": lambda x: x + torch.randn_like(x),
    "bernoulli": lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)),
    "Tensor.bernoulli": lambda x: x * torch.full_like(x, 0.5).bernoulli(),
    "uniform_": lambda x: x + torch.empty_like(x).uniform_(-1, to=2),
    "exponential_": lambda x: x + torch.empty_like(x).exponential_(2.0),
    "normal of a size": lambda x: x + torch.normal(1.0, 2.0, x.shape),
    "normal of tensors": lambda x: x + torch.normal(torch.zeros_like(x), 0.5),
    "a distribution": lambda x: Normal(x, 1.0, validate_args=False).rsample(),
    "randint": lambda x: x * torch.randint(4, x.shape),
    "randint from low": lambda x: x * torch.randint(1, 4, size=(x.shape[0], 1, 1)),
    "randperm": permuted,
}


class Around(nn.Module):
    """A function between two layers."""

    def __init__(self, function):
        super().__init__()
        self.first, self.function, self.last = nn.Linear(4, 4), function, nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.function(self.first(x)))


class Attended(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.4, batch_first=True)
        self.options = options

    def forward(self, x):
        return self.attention(x, x, x, **self.options)[0]


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.rnn = kind(4, 4, 3, dropout=0.5, **options)

    def forward(self, x):
        if self.rnn.batch_first:
            return self.rnn(x)[0]
        return self.rnn(x.transpose(0, 1))[0].transpose(0, 1)


MODULES = {
    **{name: lambda function=function: Around(function) for name, function in DRAWING.items()},
    **{
        kind.__name__: lambda kind=kind: nn.Sequential(nn.Linear(4, 4), kind())
        for kind in (nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)
    },
    "MultiheadAttention": Attended,
    "its weights": lambda: Attended(need_weights=False),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "LSTM both ways": lambda: Recurrent(nn.LSTM, bidirectional=True, batch_first=True),
    "GRU": lambda: Recurrent(nn.GRU),
    "RNN": lambda: Recurrent(nn.RNN, batch_first=True, nonlinearity="relu"),
}


QUICK = ("dropout", "dropout2d", "alpha_dropout", "stochastic depth", "MultiheadAttention")


@pytest.fixture(
    params=[n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODULES]
)
def drawing(request):
    """A model, and the gradient of a function of what it makes of a client's examples."""
    torch.manual_seed(0)
    model = Model(MODULES[request.param]())

    def gradient(params, x, key):
        def loss(params):
            out, _ = model(params, x, buffers=model.buffers, train=True, key=key)
            return out.logits[:5].square().sum()

        return grad(loss)(params)

    x = torch.randn(2, 5, 2, 4, generator=torch.Generator().manual_seed(1))
    each = keys.of_clients(0, 0, [3, 8])
    return SimpleNamespace(model=model, gradient=gradient, x=x, keys=each)


def test_a_key_says_all_that_is_drawn(drawing, close):
    """The same alone, mapped over clients, padded, and in a trace made with another key."""
    params, gradient, x, each = drawing.model.params, drawing.gradient, drawing.x, drawing.keys
    with keys.untouched():
        alone = [gradient(params, *one) for one in zip(x, each, strict=True)]
        other = gradient(params, x[0], each[1])
        padded = gradient(params, torch.cat([x[0], x[0, :2]]), each[0])
        cohort = {name: w.expand(2, *w.shape) for name, w in params.items()}
        mapped = vmap(gradient)(cohort, x, each)
        traced = make_fx(gradient)(params, x[1], each[1])
    close(padded, alone[0])
    close([{n: w[k] for n, w in mapped.items()} for k in range(2)], alone)
    close(traced(params, x[0], each[0]), alone[0])
    assert any((alone[0][name] - other[name]).abs().max() > 1e-3 for name in params)


class Everything(nn.Module):
    """Several kinds of randomness, one after another."""

    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv2d(1, 4, 3, padding=1), nn.Dropout2d(0.2)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, 0.2, batch_first=True)
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        x = self.drop(torch.relu(self.conv(x)))
        if self.training:
            x = stochastic_depth(x, 0.2)
        x = self.encoder(x.flatten(2).transpose(1, 2))
        return self.fc(F.dropout(x[:, ::4].flatten(1), 0.2, self.training))


def test_every_engine_draws_the_same(on_every_engine):
    on_every_engine(GCFed(), module=Everything(), rounds=1, steps=2)


def test_without_a_key_nothing_is_drawn():
    model = Model(Around(lambda x: F.dropout(x, 0.5)))
    with keys.untouched(), pytest.raises(InputError, match="needs a key"):
        model(model.params, torch.randn(2, 4, generator=torch.Generator()), buffers={}, train=True)


def test_evaluation_and_a_chance_of_zero_draw_nothing():
    model = Model(Around(lambda x: F.dropout(x, 0.0)))
    assert model(model.params, torch.ones(2, 4), buffers={}, train=True)[0].logits.shape == (2, 3)
    module = Around(F.relu)
    module.function = nn.RReLU()
    model, x = Model(module), torch.ones(2, 4)
    evaluated = model(model.params, x, buffers={}, train=False)[0].logits
    assert torch.equal(evaluated, module.eval()(x))


def test_a_model_that_draws_in_evaluation_is_judged_twice_the_same(make_setup):
    drop, plain = (
        nn.Sequential(nn.Flatten(), nn.Linear(16, 4), Around(function))
        for function in (lambda x: F.dropout(x, 0.5, training=True), lambda x: x)
    )
    plain.load_state_dict(drop.state_dict())
    dropping, still = (make_setup(Algorithm(), module=module) for module in (drop, plain))
    assert dropping.own_draws == ()
    assert dropping.client_task.draws_in_evaluation and not still.client_task.draws_in_evaluation
    with keys.untouched():
        one, again, without = (
            predict(setup, start(setup).server, setup.data.x).logits
            for setup in (dropping, dropping, still)
        )
    assert torch.equal(one, again) and not torch.equal(one, without)


class Constant(draws.KeyedNumbers):
    """Every number is the same."""

    def __init__(self, number):
        self.number = number

    def uniform(self, shape):
        return torch.full(tuple(shape), self.number)


MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "of truth values": {"attn_mask": torch.tensor([[True, False, True], [False, False, False]])},
    "of numbers": {"attn_mask": torch.tensor([[0.5, -1.0, 0.0], [0.0, 2.0, -torch.inf]]).double()},
    "scaled": {"scale": 0.3},
    "grouped": {"enable_gqa": True},
}


@pytest.mark.parametrize("options", MASKS.values(), ids=list(MASKS))
def test_attention_is_torchs_where_all_is_kept(options, close):
    generator = torch.Generator().manual_seed(0)
    heads = 2 if "enable_gqa" in options else 4
    query, key, value = (
        torch.randn(2, n, length, 6, generator=generator, requires_grad=True)
        for n, length in ((4, 2), (heads, 3), (heads, 3))
    )
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    found = draws.attention(Constant(0.9), query, key, value, dropout_p=0.5, **options)
    close(found, 2 * expected)
    gradients = [
        torch.autograd.grad(x.square().sum(), (query, key, value)) for x in (found, expected)
    ]
    close(gradients[0], tuple(4 * g for g in gradients[1]))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("packed", [False, True])
def test_recurrent_layers_are_torchs_where_all_is_kept(kind, packed, close):
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    if packed:
        x = nn.utils.rnn.pack_padded_sequence(x, [5, 3, 2], batch_first=True)
    rnn = kind(4, 6, 3, dropout=1e-12, bidirectional=True, batch_first=True)
    with KeyedRun(keys.key(0)):
        found = rnn(x)
    rnn.dropout = 0.0
    close(found, rnn(x))


def test_recurrent_layers_drop_what_is_between_them(close):
    x = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    rnn, state = nn.GRU(4, 4, 2), torch.zeros(2, 2, 4)
    weights = list(rnn.parameters())
    zeros = torch.zeros(5, 2, 4)
    found = draws.recurrent(
        torch.gru, Constant(0.0), x, state, weights, True, 2, 0.5, True, False, False
    )
    second = torch.gru(zeros, state[1:], weights[4:], True, 1, 0.0, True, False, False)
    close(found[0], second[0])


def test_what_is_drawn_has_its_distribution():
    x = torch.randn(400, 500, generator=torch.Generator().manual_seed(0))
    with KeyedRun(keys.key(0)):
        selu = F.alpha_dropout(F.selu(x), 0.3, True)
        slopes = -F.rrelu(-torch.ones(400, 500), 0.2, 0.4, training=True)
        heads = torch.bernoulli(torch.full((400, 500), 0.3))
        numbers = torch.normal(1.0, 2.0, (400, 500))
        waits = torch.empty(400, 500).exponential_(2.0)
        dice = torch.randint(1, 7, (400, 500))
        order = torch.randperm(50)
        assert not torch.equal(torch.rand(3), torch.rand(3))
    assert selu.mean().abs() < 0.02 and (selu.std() - 1).abs() < 0.02
    assert slopes.min() >= 0.2 and slopes.max() < 0.4 and (slopes.mean() - 0.3).abs() < 0.001
    assert heads.unique().tolist() == [0, 1] and (heads.mean() - 0.3).abs() < 0.01
    assert (numbers.mean() - 1).abs() < 0.02 and (numbers.std() - 2).abs() < 0.02
    assert waits.min() >= 0 and (waits.mean() - 0.5).abs() < 0.01
    assert dice.dtype == torch.int64 and dice.unique().tolist() == [1, 2, 3, 4, 5, 6]
    assert order.dtype == torch.int64 and sorted(order.tolist()) == list(range(50))
    assert order.tolist() != list(range(50))


def test_integers_stay_within_their_bounds_however_large():
    with KeyedRun(keys.key(0)):
        many = torch.randint(2**20, (2**21,))
        large = torch.randint(2**24 + 1, 2**24 + 3, (1000,))
    assert many.min() >= 0 and many.max() < 2**20
    assert set(large.tolist()) == {2**24 + 1, 2**24 + 2}


def test_dropout_of_channels_drops_whole_channels():
    with KeyedRun(keys.key(0)):
        x = F.dropout2d(torch.ones(20, 30, 3, 3), 0.5)
    kept = x.flatten(2)
    assert torch.equal(kept.amin(-1), kept.amax(-1)) and x.unique().tolist() == [0, 2]
