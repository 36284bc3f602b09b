"""Gradient centralization in a training loop of one's own: one line, and one to undo it."""

import copy

import pytest
import torch
from torch import nn, optim

from gcfed import InputError, centralize, centralize_gradients, centralize_update

OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "foreach": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=True),
    "fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw foreach": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=True),
    "adamw fused": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
}


def convolutional():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    )


class Encoder(nn.Module):
    """A transformer: attention, norms, an embedding of tokens, and a head."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.embedding = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


def seeded(make):
    torch.manual_seed(0)
    return make()


def images():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 6, 2, 4, 4, generator=generator)


def sentences():
    return torch.randint(0, 11, (5, 6, 7), generator=torch.Generator().manual_seed(1))


def project(grad):
    """P = I - ee^T, formed: on each output's weights, those of biases and norms left alone."""
    if grad.ndim < 2:
        return grad
    rows = grad.flatten(1)
    m = rows.shape[1]
    p = torch.eye(m) - torch.ones(m, m) / m
    return (rows @ p).reshape(grad.shape)


def train(model, optimizer, batches, by_hand=()):
    """A plain loop; the gradients of some parameters are projected by hand."""
    for x in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(6) % 3).backward()
        for p in by_hand:
            if p.grad is not None:
                p.grad = project(p.grad)
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("make", "data"), [(convolutional, images), (Encoder, sentences)])
def test_an_optimizer_that_centralizes_is_a_loop_that_does(name, make, data, close):
    model, reference = seeded(make), seeded(make)
    optimizer = OPTIMIZERS[name](model.parameters())
    centralize_gradients(optimizer)
    with_line = train(model, optimizer, data())
    by_hand = train(
        reference, OPTIMIZERS[name](reference.parameters()), data(), list(reference.parameters())
    )
    close(with_line, by_hand)
    plain = seeded(make)
    without = train(plain, OPTIMIZERS[name](plain.parameters()), data())
    assert any((with_line[k] - without[k]).abs().max() > 1e-4 for k in without)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_only_the_chosen_layers(name, close):
    """The encoder of a transformer, and neither its embedding nor its head."""
    model, reference = seeded(Encoder), seeded(Encoder)
    optimizer = OPTIMIZERS[name](model.parameters())
    centralize_gradients(optimizer, model.encoder.parameters())
    by_hand = list(reference.encoder.parameters())
    close(
        train(model, optimizer, sentences()),
        train(reference, OPTIMIZERS[name](reference.parameters()), sentences(), by_hand),
    )
    everything = seeded(Encoder)
    other = OPTIMIZERS[name](everything.parameters())
    centralize_gradients(other)
    gap = train(everything, other, sentences())["head.weight"] - model.head.weight
    assert gap.abs().max() > 1e-6


def test_it_can_be_undone(close):
    model, reference = seeded(convolutional), seeded(convolutional)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    handle = centralize_gradients(optimizer)
    train(model, optimizer, images()[:2])
    handle.remove()
    after = train(model, optimizer, images()[2:])
    plain = OPTIMIZERS["sgd"](reference.parameters())
    train(reference, plain, images()[:2], list(reference.parameters()))
    close(after, train(reference, plain, images()[2:]))


def test_groups_frozen_parameters_and_schedules(close):
    def make():
        model = seeded(convolutional)
        model[0].bias.requires_grad_(False)
        groups = [{"params": model[0].parameters()}, {"params": model[4].parameters(), "lr": 0.01}]
        optimizer = optim.SGD(groups, lr=0.1, momentum=0.5)
        return model, optimizer, optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    outcomes = []
    for by_hand in (False, True):
        model, optimizer, scheduler = make()
        if not by_hand:
            centralize_gradients(optimizer)
        for x in images():
            train(model, optimizer, [x], list(model.parameters()) if by_hand else ())
            scheduler.step()
        outcomes.append(copy.deepcopy(model.state_dict()))
    close(*outcomes)


def test_what_the_optimizer_does_not_step_is_refused():
    model, other = seeded(convolutional), seeded(convolutional)
    optimizer = OPTIMIZERS["sgd"](model[4].parameters())
    with pytest.raises(InputError, match=r"4 of the 6 parameters .* not among those"):
        centralize_gradients(optimizer, model.parameters())
    with pytest.raises(InputError, match="2 of the 2 parameters"):
        centralize_gradients(optimizer, other[4].parameters())  # equal values, other tensors


@pytest.mark.parametrize("axis", ["output", "kernel", "position", "column", "input"])
@pytest.mark.parametrize("min_ndim", [1, 2])
def test_axis_and_min_ndim_reach_the_gradients(axis, min_ndim, close):
    model = seeded(convolutional)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    before = copy.deepcopy(model)
    centralize_gradients(optimizer, axis=axis, min_ndim=min_ndim)
    train(model, optimizer, images()[:1])
    nn.functional.cross_entropy(before(images()[0]), torch.arange(6) % 3).backward()
    for new, old in zip(model.parameters(), before.parameters(), strict=True):
        close(new.detach(), (old - centralize(old.grad, axis, min_ndim)).detach())


def test_an_aggregated_update_is_projected_tensor_by_tensor(close):
    torch.manual_seed(0)
    update = {n: torch.randn(p.shape) for n, p in convolutional().named_parameters()}
    kept = copy.deepcopy(update)
    close(centralize_update(update), {name: project(x) for name, x in update.items()})
    close(update, kept, tolerance=0)  # which was not changed
    close(
        centralize_update(update, axis="kernel", min_ndim=1),
        {name: centralize(x, "kernel", 1) for name, x in update.items()},
    )
    close(centralize_update(centralize_update(update)), centralize_update(update))


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize(
    "make", [lambda p: optim.SGD(p, lr=0.1, momentum=0.9), lambda p: optim.LBFGS(p, lr=0.1)]
)
def test_what_a_closure_leaves_is_centralized(make, by_name):
    model = seeded(convolutional)
    first, before = model[0].weight, model[0].weight.detach().clone()
    optimizer = make(model.parameters())
    handle = centralize_gradients(optimizer, model[0])

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images()[0]), torch.arange(6) % 3)
        loss.backward()
        return loss

    def step():
        return optimizer.step(closure=closure) if by_name else optimizer.step(closure)

    losses = [step().item() for _ in range(3)]
    moved = (first - before).flatten(1)
    assert losses[2] < losses[0] and moved.norm() > 1e-3
    assert moved.mean(1).abs().max() < 1e-12
    handle.remove()
    step()
    assert (first - before).flatten(1).mean(1).abs().max() > 1e-6


def test_layers_and_groups_that_are_trained_later_are_centralized():
    model = seeded(convolutional)
    model[0].requires_grad_(False)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    centralize_gradients(optimizer, model)
    model[0].requires_grad_(True)
    every = optim.SGD([model[1].weight], lr=0.1)
    centralize_gradients(every)
    every.add_param_group({"params": [model[4].weight]})
    nn.functional.cross_entropy(model(images()[0]), torch.arange(6) % 3).backward()
    before = model[0].weight.detach().clone(), model[4].weight.detach().clone()
    optimizer.step()
    every.step()
    for old, layer in zip(before, (model[0], model[4]), strict=True):
        moved = (layer.weight - old).flatten(1)
        assert moved.norm() > 1e-3 and moved.mean(1).abs().max() < 1e-12


def test_a_layer_that_is_thawed_and_added_later_is_centralized():
    """As torch's documentation of ``add_param_group`` has it, of a model that is fine-tuned."""
    model = seeded(convolutional)
    model[0].requires_grad_(False)
    optimizer = optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    centralize_gradients(optimizer, model)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters()})
    nn.functional.cross_entropy(model(images()[0]), torch.arange(6) % 3).backward()
    before = model[0].weight.detach().clone()
    optimizer.step()
    moved = (model[0].weight - before).flatten(1)
    assert moved.norm() > 1e-3 and moved.mean(1).abs().max() < 1e-12


class Scaled(optim.SGD):
    def step(self, closure, scale):
        closure()
        for p in self.param_groups[0]["params"]:
            p.grad *= scale
        super().step()


def test_a_step_may_take_more_than_a_closure():
    layer = nn.Linear(3, 2)
    optimizer = Scaled(layer.parameters(), lr=1.0)
    centralize_gradients(optimizer)
    before = layer.weight.detach().clone()
    optimizer.step(lambda: layer(torch.eye(3)).square().sum().backward(), 2)
    moved = layer.weight - before
    assert moved.norm() > 1e-3 and moved.mean(1).abs().max() < 1e-12


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_of_tied_weights_the_first_module_says_what_they_are(order):
    words, head = nn.Embedding(5, 3), nn.Linear(3, 5)
    head.weight = words.weight
    body = nn.Linear(2, 3)
    optimizer = optim.SGD([*body.parameters(), *head.parameters()], lr=1.0)
    centralize_gradients(optimizer, [words, body, head][order])
    head.weight.grad = torch.arange(15.0).reshape(5, 3).to(head.weight)
    optimizer.step()
    is_centred = head.weight.grad.mean(1).abs().max() < 1e-12
    assert is_centred == (order != slice(None))  # of an embedding nothing is


def parametrized():
    layer = nn.Linear(3, 2)
    return nn.utils.parametrizations.weight_norm(layer)


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (parametrized, "bias and other"),
        (lambda: nn.LayerNorm(3), "norm"),
        (lambda: nn.Embedding(3, 2), "embedding"),
        (lambda: nn.Linear(1, 4), "bias and linear"),
    ],
)
def test_a_hook_that_would_do_nothing_is_refused(make, kinds):
    module = make()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(InputError, match=f"nothing to centralize: what is given is {kinds}, and n"):
        centralize_gradients(optimizer, module)


def test_parameters_alone_may_be_nothing_to_centralize():
    layer = nn.Linear(3, 2)
    optimizer = optim.SGD(layer.parameters(), lr=0.1)
    with pytest.raises(InputError, match="what is given is biases, and none of it the weight"):
        centralize_gradients(optimizer, [layer.bias])
    centralize_gradients(optimizer, [layer.bias], min_ndim=1)


def test_a_weight_of_a_parametrization_is_centralized_if_its_module_says_so():
    layer = parametrized()
    layer.parameter_roles = {"parametrizations.weight.original1": "linear"}
    optimizer = optim.SGD(layer.parameters(), lr=0.1)
    centralize_gradients(optimizer, layer)
    layer(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    assert layer.parametrizations.weight.original1.grad.mean(1).abs().max() < 1e-12


def test_a_layer_that_has_no_shape_yet_is_centralized_when_it_has():
    layer = nn.LazyLinear(2)
    optimizer = optim.SGD(layer.parameters(), lr=0.1)
    centralize_gradients(optimizer, layer)
    layer(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()
    assert layer.weight.grad.mean(1).abs().max() < 1e-12


def test_sparse_tensors_are_refused():
    words = nn.Embedding(5, 3, sparse=True)
    optimizer = optim.SGD(words.parameters(), lr=0.1)
    centralize_gradients(optimizer)
    words(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(
        InputError, match=r"a gradient to centralize is sparse, .*: give .* the mod"
    ):
        optimizer.step()
    with pytest.raises(InputError, match=r"w is a sparse tensor: .*\.to_dense"):
        centralize_update({"w": torch.ones(2, 3).to_sparse()})


def test_what_is_neither_a_module_nor_a_tensor_is_refused():
    model = nn.Sequential(nn.Linear(3, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for named in (dict(model.named_parameters()), model.named_parameters(), model.state_dict()):
        with pytest.raises(
            InputError, match=r"modules or parameters; not a (str|tuple): .* or their"
        ):
            centralize_gradients(optimizer, named)
    with pytest.raises(InputError, match="what to centralize is a module or several; not a bool"):
        centralize_gradients(optimizer, True)
    with pytest.raises(InputError, match=r"axis is one of output, .*; not 'row'"):
        centralize_gradients(optimizer, model, axis="row")
    with pytest.raises(InputError, match=r"tensors by name, and w is a ndarray: .*as_tensor"):
        centralize_update({"w": torch.ones(2, 3).numpy()})
    with pytest.raises(InputError, match=r"w holds whole numbers, .*: leave buffers out"):
        centralize_update({"w": torch.ones(2, 3).long()})
    assert centralize_update({"n": torch.tensor(3)}) == {"n": torch.tensor(3)}
