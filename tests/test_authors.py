"""The 13 methods as the authors of GC-Fed ran them, against their formulas in a plain loop.

The formulas are those of the authors' experiment code.  The setting tells each departure from the
default: batches are filled, the learning rate decays, the momentum is not 0.9, and gradients are
long enough to be clipped.
"""

import copy

import pytest
import torch
from plain_loop import Centralized, Control, Dynamic, Prox, Reference, effective_steps, mean
from running import tiny
from torch.nn import functional

from gcfed import MODELS, SGD, Config, Model, parse
from gcfed.algorithms import ALGORITHMS
from gcfed.algorithms.authors import AUTHORS
from gcfed.algorithms.spec import short, to_text
from gcfed.config.build import build
from gcfed.config.identity import digest, identity
from gcfed.paper.methods import METHODS
from gcfed.paper.protocol import paper_protocol

pytest_plugins = ["running"]

CHANGES = {
    "rounds": 4,
    "fill": "repeat",
    "lr_schedule": "exponential",
    "lr_decay": 0.9,
    "optimizer": SGD(lr=0.05, momentum=0.8, weight_decay=1e-3),
}


class AuthorsScaffold(Control):
    def way(self, steps, lr):
        return self.setup.optimizer.lr * effective_steps(steps, 0.9)


class AuthorsDyn(Dynamic):
    num_clipped = 0

    def weight(self, cohort):
        return 1 / cohort

    def correct(self, k, model):
        norm = sum((p.grad**2).sum() for p in model.parameters()).sqrt()
        self.num_clipped += int(norm > 10)
        for p in model.parameters():
            p.grad *= min(1, 10 / (norm + 1e-6))


class NotTrue(Reference):
    def penalty(self, k, model, x, y):
        others = functional.one_hot(y, 5) == 0
        student, teacher = (m(x)[others].view(-1, 4) for m in (model, self.received))
        q, p = student.softmax(1), teacher.detach().softmax(1)
        return (p * (p / q).log()).sum(1).mean()


class Varp(Reference):
    def __init__(self, net, setup):
        super().__init__(net, setup)
        self.y, self.surprises = self.zeros(), []

    def end(self, k, delta, steps, lr):
        old = self.memory.get(k, self.zeros())
        self.surprises.append([d - y for d, y in zip(delta, old, strict=True)])
        self.memory[k] = delta

    def server(self, deltas):
        e, share = mean(self.surprises), len(deltas) / self.setup.data.num_clients
        self.w = [p + y + x for p, y, x in zip(self.w, self.y, e, strict=True)]
        self.y = [y + share * x for y, x in zip(self.y, e, strict=True)]
        self.surprises = []


class Calibrated(Reference):
    """Counts of the filled batches; a class that a client lacks has a logit of minus infinity."""

    def loss(self, k, logits, y):
        part, size = self.setup.data.parts[k], self.setup.schedule.batch_size
        shown = [part[i % len(part)] for i in range(-(-len(part) // size) * size)]
        counts = self.setup.data.y[torch.stack(shown)].bincount(minlength=5)
        return functional.cross_entropy(logits - 0.1 * counts.double() ** -0.25, y)


class Decorrelated(Reference):
    def penalty(self, k, model, x, y):
        seen = []
        handle = model.fc2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        model(x)
        handle.remove()
        (f,) = seen
        n, d = f.shape
        z = (f - f.mean(0)) / (f.var(0) + 1e-8).sqrt()
        pairs = ~torch.eye(d, dtype=torch.bool)
        return 0.001 * ((z.T @ z)[pairs] ** 2).mean() / n


class Orthogonal(Reference):
    def backward(self, k, model, x, y):
        params = list(model.parameters())
        q, p = (m(x).div(3).softmax(1) for m in (model, self.received))
        divergence = (p.detach() * (p.detach() / q).log()).sum() / len(x)
        g = torch.autograd.grad(divergence, params)
        length = sum((each**2).sum() for each in g).sqrt() + 1e-12
        before = [w.detach().clone() for w in params]
        for w, w0, each in zip(params, self.w, g, strict=True):
            drift = (w.detach() - w0).abs()
            w.data += drift / (drift**2).sum(0).sqrt().clamp_min(1e-12) * each / length
        super().backward(k, model, x, y)
        for w, old in zip(params, before, strict=True):
            w.data = old


class LookAhead(Reference):
    def __init__(self, net, setup):
        super().__init__(net, setup)
        self.m = self.zeros()

    def anchor(self):
        return [w + 0.85 * m for w, m in zip(self.w, self.m, strict=True)]

    def penalty(self, k, model, x, y):
        return 0.001 * self.distance(model)

    def server(self, deltas):
        self.m = [0.85 * m + d for m, d in zip(self.m, mean(deltas), strict=True)]
        self.w = [w + step for w, step in zip(self.w, self.step(deltas), strict=True)]

    def step(self, deltas):
        return self.m


class LookAheadAlone(LookAhead):
    """In the first release of their code."""

    def step(self, deltas):
        return mean(deltas)


class AuthorsGC(Centralized):
    """One-axis tensors lose their overall mean."""

    def project(self, x):
        return super().project(x) if x.ndim > 1 else x - x.mean()


class AuthorsLocalGC(AuthorsGC):
    target = "no layer is called so"

    def server(self, deltas):
        Reference.server(self, deltas)


class AuthorsGlobalGC(AuthorsGC):
    target = ""  # which every name holds


REFERENCES = {
    "FedAvg": Reference,
    "FedProx": Prox,
    "SCAFFOLD": AuthorsScaffold,
    "FedDyn": AuthorsDyn,
    "FedNTD": NotTrue,
    "FedVARP": Varp,
    "FedLC": Calibrated,
    "FedDecorr": Decorrelated,
    "FedSOL": Orthogonal,
    "FedACG": LookAhead,
    "LocalGC": AuthorsLocalGC,
    "GlobalGC": AuthorsGlobalGC,
    "GC-Fed": AuthorsGC,
}


@pytest.fixture(scope="module")
def steep(net):
    """The net of the tests with a larger norm scale: some gradients are longer than 10."""
    module = copy.deepcopy(net)
    module.norm.weight.data *= 10
    return module


@pytest.mark.parametrize("method", METHODS)
def test_as_the_authors_ran_it(method, steep, run, make_setup, close):
    algorithm = parse(METHODS[method])
    reference = REFERENCES[method](steep, make_setup(algorithm, module=steep, **CHANGES))
    close(run(algorithm, module=steep, **CHANGES).server.params, reference.train())
    if method == "FedDyn":
        assert reference.num_clipped > 0


def test_fedacg_as_their_first_release_had_it(steep, run, make_setup, close):
    algorithm = parse("fedacg(beta=0.002, step='mean')")
    reference = LookAheadAlone(steep, make_setup(algorithm, module=steep, **CHANGES))
    close(run(algorithm, module=steep, **CHANGES).server.params, reference.train())


@pytest.mark.parametrize("method", ["FedProx", "FedLC", "FedNTD", "FedDecorr", "FedSOL"])
@pytest.mark.parametrize("gc", ["GlobalGC", "GC-Fed"])
def test_as_their_integration_test_composes_them(method, gc, steep, run, make_setup, close):
    """A method's loss, logits or perturbation, and then P where GC has it."""
    algorithm = parse(f"{METHODS[method]} + {METHODS[gc]}")
    both = type("Both", (REFERENCES[method], REFERENCES[gc]), {})
    changes = {**CHANGES, "rounds": 2, "module": steep}
    close(
        run(algorithm, **changes).server.params,
        both(steep, make_setup(algorithm, **changes)).train(),
    )


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "fedlc"])
def test_what_clients_do_otherwise_they_do_on_every_engine(name, steep, on_every_engine):
    on_every_engine(parse(f"{name}@authors"), module=steep, **{**CHANGES, "rounds": 2})


@pytest.mark.parametrize("name", [name for name, ran in AUTHORS.items() if ran.text != name])
def test_a_method_that_they_changed_is_not_the_default(name, steep, run):
    """So the setting above can tell the two apart."""
    ours, theirs = (
        run(parse(text), module=steep, **CHANGES).server.params["fc1.weight"]
        for text in (name, f"{name}@authors")
    )
    assert (ours - theirs).abs().max() > 1e-6


def test_the_thirteen_are_those_of_the_tables():
    assert [text.removesuffix("@authors") for text in METHODS.values()] == list(AUTHORS)
    assert len(METHODS) == len(REFERENCES) == 13
    for name, ran in AUTHORS.items():
        assert (ran.text == name) == (ran.difference == "the default")
        assert f"{name}@authors" in (ALGORITHMS[name].__doc__ or "") or ran.text == name


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("fedavg@authors", "fedavg"),
        ("feddyn @ authors", "feddyn(h_weight='1/S') + clip(norm=10)"),
        ("feddyn(alpha=0.01)@authors", "feddyn(alpha=0.01, h_weight='1/S') + clip(norm=10)"),
        ("fedlc@authors + gcfed@authors", "fedlc(counts='filled') + gcfed(min_ndim=1)"),
        ("gcfed(lam=0.5)@authors", "gcfed(lam=0.5, min_ndim=1)"),
    ],
)
def test_what_a_text_with_authors_stands_for(text, meant):
    assert parse(text) == parse(meant) == parse(to_text(parse(text)))
    assert short(text) == short(meant)


def test_a_run_by_either_text_is_one_run(tmp_path):
    """Its config has the parts written out, so nobody need know what authors meant."""
    both = [build(tiny(algorithm=text)) for text in ("fedlc@authors", "fedlc(counts='filled')")]
    assert {e.config.algorithm for e in both} == {"fedlc(tau=0.1, counts='filled')"}
    assert len({digest(identity(e)) for e in both}) == 1


def test_they_are_listed(gcfed):
    answer = gcfed("list", "authors")
    assert answer.code == 0
    assert "feddyn@authors     feddyn(h_weight='1/S') + clip(norm=10)  h moves by" in answer.out
    assert "fedavg@authors     fedavg                                  the default" in answer.out


@pytest.mark.parametrize(
    ("model", "shape", "classes", "target"),
    [
        ("mlp", (1, 28, 28), 62, "fc3"),
        ("cnn", (3, 32, 32), 10, "fc2"),
        ("vgg11", (3, 32, 32), 100, "classifier"),
        ("resnet18", (3, 64, 64), 200, "fc"),
    ],
)
def test_gcfed_finds_the_layers_that_they_named(model, shape, classes, target):
    """P on clients where a name lacks the target, and never on the last; on the server on all."""
    with torch.device("meta"):
        made = Model(MODELS[model](shape, classes))
    names = list(made.params)
    local, server = parse("gcfed@authors").centralized(made.params, made.roles)
    assert server == names
    assert local == [n for n in names if target not in n and n != names[-1]]
    for tenths in range(11):
        by_lam = parse(f"gcfed(lam={tenths / 10})@authors")
        local, _ = by_lam.centralized(made.params, made.roles)
        assert local == names[: int(tenths / 10 * len(names))]


def test_the_protocol_is_the_one_of_the_defaults_but_for_the_partition():
    """The defaults are the protocol too, so that nothing is said twice and otherwise."""
    cell = paper_protocol("cifar10", "cnn", cohort=5, clients=100, alpha=0.1)
    partition = "dirichlet(alpha=0.1, mode='capped')"
    config = Config(dataset="cifar10", clients=100, partition=partition)
    assert Config(**cell).schedule() == config.schedule()
    assert Config(**cell).local_optimizer() == config.local_optimizer()
    assert Config(**cell).partition == partition
    letters = paper_protocol("emnist(split='byclass')", "mlp", cohort=5, clients=1000, alpha=1)
    assert Config(**letters).partition == "dirichlet(alpha=1.0, mode='per_class')"


def test_a_run_by_their_protocol_can_start():
    cell = paper_protocol("fashion10k", "cnn", cohort=5, clients=100, alpha=0.1)
    config = Config(**cell, algorithm=METHODS["FedDyn"], rounds=1)
    assert build(config).config.algorithm.endswith("clip(norm=10)")
