"""What is tried before the first round, so that a mistake is one sentence and no traceback."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from gcfed import Config, InputError, Model, Setup, fit
from gcfed.config.build import build
from gcfed.core.mixing import note_mixing
from gcfed.core.types import Examples

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32")

SETTINGS = {"clients": 4, "cohort": 2, "rounds": 2, "epochs": 1, "batch_size": 8, "lr": 0.1}
SETTINGS |= {"partition": "iid", "algorithm": "fedavg", "progress": False}


@pytest.fixture
def data():
    torch.manual_seed(0)
    return torch.randn(60, 6), torch.arange(60) % 3


def each_alone(logits, y):
    return functional.cross_entropy(logits, y, reduction="none")


def mixing(module, x, loss=each_alone):
    """What is found to look across a batch of these three examples."""
    return note_mixing(Model(module), Examples(x, torch.tensor([0, 1, 2])), loss).cross_batch


class Counted(nn.Module):
    """Keeps a mean and a count of what it saw, in buffers that it does not write but replaces."""

    def __init__(self, **buffers):
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.tensor(0))
        self.changed = buffers

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.count = self.count + 1
            for name, value in self.changed.items():
                setattr(self, name, value)
        return self.fc(x - self.mean)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_buffers_that_forward_replaces_are_carried(engine, data):
    trained = fit(Counted(), data, engine=engine, buffers="average", **SETTINGS).module
    assert trained.count == 4  # two steps in each of two rounds, as a plain loop counts them
    assert trained.mean.abs().max() > 0


def test_a_trial_needs_no_operators(monkeypatch):
    """They would be compiled for three examples, which takes seconds."""
    monkeypatch.setattr(Setup, "test_task", property(lambda setup: 1 / 0))
    build(Config(algorithm="fedavg", model="mlp", dataset="fashion10k"))


def test_replaced_buffers_are_those_of_a_plain_loop(data):
    plain, model = Counted(), Model(Counted())
    buffers = model.buffers
    for x in data[0].split(20):
        plain(x)
        _, buffers = model(model.params, x, buffers=buffers, train=True)
    assert buffers["count"] == 3
    torch.testing.assert_close(buffers["mean"], plain.mean)
    _, same = model(model.params, data[0], buffers=buffers, train=False)
    assert same is buffers and model.buffers["count"] == 0


@pytest.mark.parametrize("value", [torch.zeros(7), torch.tensor(0.5), None])
def test_a_buffer_that_becomes_another_kind_is_refused(value, data):
    with pytest.raises(InputError, match=r"forward replaces the buffer count, torch.int64 of"):
        fit(Counted(count=value), data, **SETTINGS)


class Mixing(nn.Module):
    """A batch norm by hand."""

    def __init__(self):
        super().__init__()
        self.fc1, self.drop, self.fc2 = nn.Linear(6, 5), nn.Dropout(0.3), nn.Linear(5, 3)

    def forward(self, x):
        h = self.drop(self.fc1(x))
        return self.fc2((h - h.mean(0)) / (h.std(0, unbiased=False) + 1e-3))


def test_a_batch_norm_by_hand_is_not_padded(data):
    settings = SETTINGS | {"batch_size": 10, "fill": "none"}
    for engine in ("sequential", "auto"):
        fit(Mixing(), data, engine=engine, **settings)
    with pytest.raises(InputError, match=r"vectorized engine cannot train the model \(Mixing\)"):
        fit(Mixing(), data, engine="vectorized", **settings)
    fit(Mixing(), data, engine="vectorized", **settings | {"fill": "repeat"})  # nothing is padded


def test_only_what_looks_across_a_batch_is_taken_for_it(data):
    plain = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.LayerNorm(5), nn.Linear(5, 3))
    assert mixing(plain, data[0][:3]) == []
    assert mixing(Mixing(), data[0][:3]) == ["the model (Mixing)"]
    normed = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))
    assert mixing(normed, data[0][:3]) == ["0 (BatchNorm1d)"]


class Tracking(Mixing):
    """Keeps a mean of its inputs, and uses it in evaluation alone."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
            return self.fc2(self.fc1(x))
        return self.fc2(self.fc1(x - self.mean))


class Mixup(Mixing):
    def forward(self, x):
        h = self.fc1(x)
        return self.fc2(0.7 * h + 0.3 * h[torch.randperm(len(h))])


class Gated(Mixing):
    """Looks across a batch through a gate that is closed at first."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        h = self.fc1(x)
        return self.fc2(h + self.gate * h.mean(0))


class Rescaled(Mixing):
    """Drops numbers, and makes up for it by how many were dropped in the whole batch."""

    def forward(self, x):
        h = self.fc1(x)
        kept = (torch.rand_like(h) > 0.5).to(h)
        return self.fc2(h * kept * kept.numel() / kept.sum())


class Last(nn.Module):
    """A recurrent network with dropout; the first axis of its sequences is the batch, or time."""

    def __init__(self, batch_first):
        super().__init__()
        self.rnn = nn.GRU(2, 4, num_layers=2, dropout=0.5, batch_first=batch_first)
        self.fc, self.batch_first = nn.Linear(4, 3), batch_first

    def forward(self, x):
        steps = x.unflatten(1, (3, 2))
        if self.batch_first:
            return self.fc(self.rnn(steps)[0][:, -1])
        return self.fc(self.rnn(steps.transpose(0, 1))[0][-1])


@pytest.mark.parametrize("make", [Tracking, Mixup, Gated, Rescaled])
def test_what_padding_would_change_is_found(make, data):
    model = make()
    assert mixing(model, data[0][:3]) == [f"the model ({type(model).__name__})"]


def test_a_batch_norm_is_found_where_the_first_examples_are_alike(data):
    same = data[0][:1].expand(3, 6)
    assert mixing(Mixing(), same) == ["the model (Mixing)"]


class Masked(Mixing):
    """A batch norm by hand, and a class that is never given."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        out = super().forward(x)
        return torch.cat([out[:, :2], torch.full_like(out[:, :1], self.value)], 1)


@pytest.mark.parametrize("value", [-1e4, -1e9, -torch.inf])
def test_a_masked_class_hides_no_mixing(value, data):
    assert mixing(Masked(value), data[0][:3])


def test_texts_that_alternate_hide_no_mixing():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.last = nn.Embedding(9, 5), nn.Linear(5, 3)

        def forward(self, x):
            h = self.words(x).mean(1)
            return self.last(h - h.mean(0))

    texts = torch.tensor([[1, 2], [3, 4], [1, 2]])
    assert mixing(Centred(), texts)


def attentive():
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 6)), layer, nn.Flatten(), nn.Linear(6, 3))


@pytest.mark.parametrize("make", [lambda: Last(True), lambda: Last(False), attentive])
def test_what_keeps_examples_apart_is_not_taken_for_mixing(make, data):
    assert mixing(make(), data[0][:3]) == []


class GradientOfBatch(torch.autograd.Function):
    """The identity; its gradient depends on how many examples there are."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * len(gradient)


class Backward(Mixing):
    def forward(self, x):
        return self.fc2(GradientOfBatch.apply(torch.tanh(self.fc1(x))))


def words(**settings):
    return nn.Sequential(nn.Embedding(9, 5, **settings), nn.Flatten(), nn.Linear(10, 3))


TEXTS = torch.tensor([[1, 2], [3, 4], [5, 6]])


def test_a_backward_pass_that_looks_across_a_batch_is_found(data):
    found = mixing(Backward(), data[0][:3])
    assert found == ["the backward pass of the model (Backward)"]
    by_count = mixing(words(scale_grad_by_freq=True), TEXTS)
    assert by_count == ["the backward pass of the model (Sequential)"]
    assert mixing(words(padding_idx=1), TEXTS) == []


WEIGHTS = torch.tensor([0.2, 1.0, 3.0])


def of_weighted_mean(logits, y):
    return WEIGHTS[y] * each_alone(logits, y) / WEIGHTS[y].mean()


def with_spread(logits, y):
    return each_alone(logits, y) + logits.std(0).mean()


@pytest.mark.parametrize("loss", [of_weighted_mean, with_spread])
def test_a_loss_that_looks_across_a_batch_is_not_padded(loss, data):
    plain = nn.Linear(6, 3)
    assert mixing(plain, data[0][:3], loss) == ["the loss"]
    assert mixing(plain, data[0][:3], lambda logits, y: WEIGHTS[y] * each_alone(logits, y)) == []
    settings = SETTINGS | {"batch_size": 10, "fill": "none", "loss": loss}
    with pytest.raises(InputError, match="vectorized engine cannot train the loss: ragged"):
        fit(plain, data, engine="vectorized", **settings)
    trained = [fit(plain, data, engine=e, **settings).module for e in ("sequential", "workers")]
    torch.testing.assert_close(*(m.weight for m in trained))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5])
def test_a_loss_too_large_for_other_examples_is_not_taken_for_mixing(scale, data):
    def poisson(logits, y):
        return functional.poisson_nll_loss(logits[:, 0], y.float(), reduction="none")

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    assert mixing(plain, scale * data[0][:3], poisson) == []


class Telling(Mixing):
    """Notes how precisely products are computed."""

    precise = ()

    def forward(self, x):
        Telling.precise += (not torch.backends.cudnn.allow_tf32,)
        return self.fc2(torch.tanh(self.fc1(x)))


def test_batches_are_compared_in_strict_arithmetic(data):
    assert torch.backends.cudnn.allow_tf32
    assert mixing(Telling(), data[0][:3]) == []
    assert Telling.precise and all(Telling.precise)
    assert torch.backends.cudnn.allow_tf32


def normed():
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def divided(*sizes):
    torch.manual_seed(0)
    return [(torch.randn(n, 6), torch.arange(n) % 3) for n in sizes]


@pytest.mark.slow
def test_batch_norm_and_a_single_example_are_refused_by_client():
    test = divided(9)[0]
    settings = {k: v for k, v in SETTINGS.items() if k not in ("clients", "partition")}
    with pytest.raises(
        InputError, match=r"client 2 holds 9 .*batches of 8.*1 \(BatchNorm1d\) cannot"
    ):
        fit(normed(), divided(10, 8, 9), test, fill="none", **settings)
    with pytest.raises(InputError, match=r"client 1 holds 1 example: 1 \(BatchNorm1d\) cannot"):
        fit(normed(), divided(10, 1, 9), test, **settings)
    fit(normed(), divided(10, 8, 9), test, **settings)
    fit(normed(), divided(10, 8, 9), test, fill="none", steps=1, **settings | {"epochs": None})
    pixels = [(x[:, None, :, None].repeat(1, 1, 1, 6), y) for x, y in divided(8, 9)]
    convolved = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
    fit(convolved, pixels, pixels[0], fill="none", **settings)  # it has many pixels to count


class Odd(nn.Module):
    """Two layers, and in training something else than in evaluation."""

    def __init__(self, in_training):
        super().__init__()
        self.fc1, self.fc2, self.in_training = nn.Linear(6, 4), nn.Linear(4, 3), in_training

    def forward(self, x):
        out = self.fc2(torch.tanh(self.fc1(x)))
        return self.in_training(out) if self.training else out


def fail(out):
    raise RuntimeError("no such thing\nin detail")


class Stops(torch.autograd.Function):
    """What can be computed and has no gradient."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("there is no way back")


@pytest.mark.parametrize(
    ("in_training", "words"),
    [
        (fail, r"in evaluation and not in training: RuntimeError: no such thing \(test_trial.py"),
        (lambda out: "logits", "the model returns a str, where logits belong"),
        (lambda out: out.mean(0, keepdim=True), r"outputs of shape \[1, 3\] for 2 examples"),
        (Stops.apply, "cannot take a training step: RuntimeError: there is no way back"),
    ],
    ids=["raises", "type", "shape", "backward"],
)
def test_a_mistake_in_training_mode_is_one_sentence(in_training, words, data):
    with pytest.raises(InputError, match=words):
        fit(Odd(in_training), data, engine="workers", **SETTINGS)


def outputs_cut_off(logits, y):
    return each_alone(logits.detach(), y)


def wrong_classes(logits, y):
    return (logits.argmax(1) != y).float()


def counted(logits, y):
    return (logits.argmax(1) != y).long()


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "workers"])
@pytest.mark.parametrize(
    ("in_training", "loss", "words"),
    [
        (torch.no_grad()(lambda out: out + 0), outputs_cut_off, "no gradient leads from the loss"),
        (torch.detach, each_alone, "no gradient leads from the loss to a weight"),
        (torch.clone, outputs_cut_off, "no gradient leads from the loss to a weight"),
        (torch.clone, wrong_classes, "no gradient leads .*: the model or the loss has .* argmax"),
        (torch.clone, counted, "the loss gives whole numbers, and those have no gradient"),
    ],
    ids=["no_grad", "model", "loss", "argmax", "whole"],
)
def test_where_nothing_could_be_learnt_that_is_said(engine, in_training, loss, words, data):
    """Gradients are zeros then, where a loop of one's own would stop."""
    with pytest.raises(InputError, match=words):
        fit(Odd(in_training), data, engine=engine, loss=loss, **SETTINGS)


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "workers"])
def test_a_gradient_that_is_there_in_training_alone_is_enough(engine, data):
    class Saving(Odd):
        def forward(self, x):
            with torch.set_grad_enabled(self.training):
                return super().forward(x)

    module = Saving(torch.clone)
    trained = fit(module, data, engine=engine, **SETTINGS).module
    assert not torch.equal(trained.fc1.weight, module.fc1.weight)


class Reading(Mixing):
    """Computes by means that torch.func cannot follow."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x):
        return self.fc2(self.compute(self, self.fc1(x)))


def by_packing(module, hidden):
    lengths = torch.ones(len(hidden), dtype=torch.int64)
    return pack_padded_sequence(hidden[:, None], lengths, batch_first=True).data


def by_numpy(module, hidden):
    return hidden + torch.from_numpy(hidden.detach().numpy().copy())


def by_autograd(module, hidden):
    point = hidden.detach().requires_grad_()
    with torch.enable_grad():
        return hidden + torch.autograd.grad(point.square().sum(), point)[0]


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (by_packing, "has memory to read, as .numpy.. and pack_padded_sequence do"),
        (by_numpy, "has memory to read, as .numpy.. and pack_padded_sequence do"),
        (by_autograd, "by torch.func.grad or torch.func.vjp"),
    ],
)
def test_what_torch_func_cannot_follow_is_told_in_plain_words(compute, words, data):
    with pytest.raises(InputError, match=words):
        fit(Reading(compute), data, **SETTINGS)


def test_a_tensor_that_is_kept_for_the_next_step_is_to_be_a_buffer(data):
    class Keeping(Mixing):
        kept = 0.0

        def forward(self, x):
            self.kept = self.kept + torch.tanh(self.fc1(x)).mean(0)
            return self.fc2(torch.tanh(self.fc1(x)) + self.kept)

    with pytest.raises(InputError, match=r"forward sets is: register it as a buffer"):  # noqa: SIM117
        with pytest.warns(UserWarning, match="and register a tensor that forward sets as a buffer"):
            fit(Keeping(), data, engine="vectorized", **SETTINGS)


def test_a_loss_that_stretches_labels_over_outputs_is_refused(data):
    x = data[0]
    with pytest.raises(InputError, match="were broadcast against each other"):
        fit(nn.Linear(6, 1), (x, x.sum(1)), loss=lambda out, y: (out - y).square(), **SETTINGS)


class Tokens(nn.Module):
    """Has a mistake in its second layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.fc = nn.Embedding(7, 4), nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(self.embed(x).mean(1))


@pytest.mark.parametrize("word", [7, -1])
@pytest.mark.parametrize("engine", ["sequential", "workers"])
def test_a_word_that_the_model_does_not_know_is_told_with_its_example(word, engine):
    """It stands far behind the few examples that are tried first."""
    x = torch.arange(240).view(60, 4) % 7
    x[41, 2] = word
    told = rf"cannot read (train|test) example \d+, whose numbers are from .*{word}.*: IndexError"
    with pytest.raises(InputError, match=told):
        fit(
            nn.Sequential(nn.Embedding(7, 5), nn.Flatten(), nn.Linear(20, 3)),
            (x, torch.arange(60) % 3),
            engine=engine,
            **SETTINGS,
        )


def test_a_pixel_whose_label_has_no_logit_is_refused():
    x, y = torch.randn(60, 1, 4, 4), torch.zeros(60, 4, 4, dtype=torch.int64)
    y[30, 0, 0] = 255
    with pytest.raises(
        InputError, match=r"3 logits at each place.* label 255.* not to count is -100"
    ):
        fit(nn.Conv2d(1, 3, 1), (x, y), **SETTINGS)
    y[30, 0, 0] = -100
    fit(nn.Conv2d(1, 3, 1), (x, y), **SETTINGS)


def test_classes_written_as_a_single_1_are_told_apart_from_several_labels(data):
    x, y = data
    with pytest.raises(InputError, match=r"give y\.argmax"):
        fit(nn.Linear(6, 3), (x, functional.one_hot(y)), loss="cross_entropy", **SETTINGS)
    several = functional.one_hot(y) | functional.one_hot(y.roll(1), 3)
    with pytest.raises(InputError, match="if each is 0 or 1, loss='bce' reads them"):
        fit(nn.Linear(6, 3), (x, several), loss="cross_entropy", **SETTINGS)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_weights_of_recurrent_layers_stay_where_they_are(kind, monkeypatch):
    """On a GPU torch would put them into one block, also those of which it takes a gradient."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.fc = kind(3, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.fc(self.rnn(x)[0][:, -1])

    module = Recurrent()
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", lambda _: pytest.fail("moved"))
    model = Model(module)
    setup_x = torch.randn(5, 2, 3)

    def loss(params):
        return model(params, setup_x, buffers={}, train=True)[0].logits.square().mean()

    assert all(g.abs().sum() > 0 for g in torch.func.grad(loss)(model.params).values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_of_half_precision_are_to_be_made_floats(dtype, data):
    with pytest.raises(InputError, match=r"are float32 and the weights .*float16: give module.flo"):
        fit(nn.Linear(6, 3).to(dtype), data, **SETTINGS)
    fit(nn.Linear(6, 3).to(dtype).float(), data, precision="bf16", **SETTINGS)  # as advised


def test_another_dtype_is_advised_only_where_it_helps(data):
    x, y = torch.arange(300).reshape(60, 5) % 7, data[1]
    with pytest.raises(InputError, match=r"cannot be multiplied \(3x4 and 5x3\)$"):
        fit(Tokens(), (x, y), **SETTINGS)
    with pytest.raises(
        InputError, match=r"int64: features are floats.* x.to\(torch.float32\) of a"
    ):
        fit(nn.Linear(5, 3), (x, y), **SETTINGS)


@pytest.mark.parametrize("metric", ["accuracy", "top5"])
@pytest.mark.parametrize("num_labels", [2, 3, 5])
def test_labels_that_are_no_class_are_not_judged_as_one(metric, num_labels):
    x, y = torch.randn(40, 6), (torch.rand(40, num_labels) > 0.5).float()
    with pytest.raises(InputError, match=f"metric {metric} .*where classes of shape"):
        fit(nn.Linear(6, num_labels), (x, y), loss="bce", metrics=[metric], **SETTINGS)


@pytest.mark.parametrize("metric", ["accuracy", "top5", "macro_f1"])
@pytest.mark.parametrize(
    "y",
    [torch.linspace(0, 1, 40), torch.arange(40) % 7, torch.arange(40.0) - 3],
    ids=["fractions", "whole", "negative"],
)
def test_numbers_are_not_judged_as_classes(metric, y):
    x = torch.randn(40, 6)
    with pytest.raises(InputError, match=f"metric {metric} reads labels that are 0 or 1, and the"):
        fit(nn.Linear(6, 1), (x, y), loss="mse", metrics=[metric], **SETTINGS)


def test_fractions_are_no_classes_of_several_logits():
    x, y = torch.randn(40, 6), torch.linspace(0, 2, 40)
    own = {"loss": lambda out, y: (out[:, 0] - y).square(), "metrics": ["accuracy"]}
    with pytest.raises(InputError, match="metric accuracy reads classes, and there is the label 0"):
        fit(nn.Linear(6, 3), (x, y), **own, **SETTINGS)


def test_a_classifier_of_one_logit(data):
    x, y = data[0], (data[0][:, 0] > 0).long()
    given = {**SETTINGS, "metrics": ["accuracy", "macro_f1"], "lr": 1.0}
    history = fit(nn.Linear(6, 1), (x, y), (x, y), loss="bce", **given)
    with torch.no_grad():
        right = ((history.module(x)[:, 0] > 0) == y).double().mean().item()
    assert history["test_accuracy"][-1] == pytest.approx(right)
    assert right > 0.7
    with pytest.raises(InputError, match="1 logits, and there are 2 classes: loss='bce' reads one"):
        fit(nn.Linear(6, 1), (x, y), **SETTINGS)
    with pytest.raises(InputError, match="3 classes: labels count from 0, and these are from 1 to"):
        fit(nn.Linear(6, 2), (x, y + 1), **SETTINGS)
    with pytest.raises(InputError, match=r"2 logits, and there are 4 classes$"):
        fit(nn.Linear(6, 2), (x, y * 3), **SETTINGS)


def test_bce_of_labels_between_0_and_1_is_judged_by_its_loss(data):
    y = (data[0][:, :2] > 0) * 0.8 + 0.1
    history = fit(nn.Linear(6, 2), (data[0], y), loss="bce", **SETTINGS)
    assert history.experiment.metric.name == "loss"


@pytest.mark.parametrize("labels", [lambda y: y * 7, lambda y: y - 1])
def test_bce_refuses_labels_that_are_not_between_0_and_1(labels):
    x, y = torch.randn(40, 6), (torch.rand(40, 2) > 0.5).float()
    with pytest.raises(InputError, match="bce reads labels from 0 to 1"):
        fit(nn.Linear(6, 2), (x, labels(y)), loss="bce", **SETTINGS)


def test_a_loss_that_draws_by_numpy_is_refused(data):
    def noisy(logits, y):
        return nn.functional.cross_entropy(logits, y, reduction="none") * (1 + np.random.rand())

    with pytest.raises(InputError, match="gives other values each time"):
        fit(nn.Linear(6, 3), data, loss=noisy, **SETTINGS)


def test_a_batch_that_does_not_fit_in_memory_is_refused(data):
    with pytest.raises(InputError, match="of memory"):
        fit(nn.Linear(6, 3), data, **{**SETTINGS, "batch_size": 10**10})


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_is_refused_in_plain_words(reentrant, data):
    body, last = nn.Linear(6, 5), nn.Linear(5, 3)

    class Saving(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.last = body, last

        def forward(self, x):
            return self.last(checkpoint(self.body, x, use_reentrant=reentrant))

    with pytest.raises(InputError, match=r"by torch.func, .*checkpointing: switch it off"):
        fit(Saving(), data, **SETTINGS)
