"""The head, found by tracing where the logits come from."""

import pytest
import torch
import torch.nn.functional as F
from running import tiny
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from gcfed import MODELS, Model, fit
from gcfed.config.build import build
from gcfed.core.heads import trace_head

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32")


class Net(nn.Module):
    """Layers and parameters of which ``forward`` makes something."""

    def __init__(self, forward, **layers):
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.compute = forward

    def forward(self, x):
        return self.compute(self, x)


def hidden(net, x):
    return torch.tanh(net.body(x))


def body():
    return nn.Linear(4, 6, bias=False)


SQUEEZE = nn.Sequential(
    *(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Conv2d(4, 3, 1)),
    *(nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
)
MODULES = {
    "registered first": (
        Net(lambda n, x: n.last(hidden(n, x)), last=nn.Linear(6, 3), body=body()),
        ["last.bias", "last.weight"],
    ),
    "two heads": (
        Net(
            lambda n, x: (n.head(hidden(n, x)) + n.head_dist(hidden(n, x))) / 2,
            body=body(),
            head=nn.Linear(6, 3),
            head_dist=nn.Linear(6, 3),
        ),
        ["head.bias", "head.weight", "head_dist.bias", "head_dist.weight"],
    ),
    "a convolution": (SQUEEZE, ["3.bias", "3.weight"]),
    "a weight norm": (
        Net(lambda n, x: n.last(hidden(n, x)), last=weight_norm(nn.Linear(6, 3)), body=body()),
        ["last.bias", *(f"last.parametrizations.weight.original{i}" for i in (0, 1))],
    ),
    "a tied embedding": (
        Net(
            lambda n, x: F.linear(n.body(n.words(x.long())[:, 0]), n.words.weight),
            words=nn.Embedding(9, 6),
            body=nn.Linear(6, 6),
        ),
        ["words.weight"],
    ),
    "cosines with a matrix of its own": (
        Net(
            lambda n, x: n.scale * F.linear(F.normalize(hidden(n, x)), F.normalize(n.classes)),
            body=body(),
            classes=nn.Parameter(torch.randn(3, 6)),
            scale=nn.Parameter(torch.ones(())),
        ),
        ["classes"],
    ),
    "a table that is added": (
        Net(
            lambda n, x: n.last(hidden(n, x)) + n.table,
            body=body(),
            last=nn.Linear(6, 3),
            table=nn.Parameter(torch.zeros(1, 3)),
        ),
        ["last.bias", "last.weight"],
    ),
    "classes that are mixed afterwards": (
        Net(
            lambda n, x: n.last(hidden(n, x)).softmax(1) @ n.confusion,
            body=body(),
            last=nn.Linear(6, 3),
            confusion=nn.Parameter(torch.eye(3)),
        ),
        ["last.bias", "last.weight"],
    ),
    "places that are mixed afterwards": (
        Net(
            lambda n, x: (n.places @ n.last(hidden(n, x.reshape(-1, 1, 4).expand(-1, 5, 4)))).mean(
                1
            ),
            body=body(),
            last=nn.Linear(6, 3),
            places=nn.Parameter(torch.eye(5)),
        ),
        ["last.bias", "last.weight"],
    ),
    "a bare layer": (nn.Linear(4, 3), ["bias", "weight"]),
    "an auxiliary layer in training alone": (
        Net(
            lambda n, x: n.aux(hidden(n, x)) if n.training else n.last(hidden(n, x)),
            last=nn.Linear(6, 3),
            body=body(),
            aux=nn.Linear(6, 3),
        ),
        ["last.bias", "last.weight"],
    ),
}


@pytest.mark.parametrize(("module", "head"), MODULES.values(), ids=MODULES)
def test_the_head_is_where_the_logits_come_from(module, head):
    x = torch.zeros(1, 1, 8, 8) if module is SQUEEZE else torch.zeros(1, 4)
    model = trace_head(Model(module), x)
    assert sorted(model.head) == head
    assert sorted(n for n, role in model.roles.items() if role.head) == head


def test_features_are_what_the_traced_head_reads():
    module, _ = MODULES["registered first"]
    model, x = Model(module), torch.randn(2, 4)
    traced = trace_head(model, x)
    out, _ = traced(traced.params, x, buffers={}, train=False)
    torch.testing.assert_close(out.features, hidden(module, x).detach())
    assert model.head == {"body.weight"}  # by the order of registration, and left as it is


def test_what_is_declared_or_cannot_be_traced_stays():
    module, _ = MODULES["registered first"]
    for model in (Model(module, head="body"), Model(module)):
        assert trace_head(model, torch.zeros(1, 99)).head == {"body.weight"}
    declared = Model(module, head="body")
    assert trace_head(declared, torch.zeros(1, 4)) is declared


@pytest.mark.parametrize(
    ("name", "layer"), [("mlp", "fc3"), ("cnn", "fc2"), ("vgg11", "classifier"), ("resnet18", "fc")]
)
def test_the_models_of_the_paper_declare_their_heads(name, layer):
    with torch.device("meta"):
        model = Model(MODELS[name]((3, 32, 32), 10))
    assert trace_head(model, torch.zeros(1, 3, 32, 32)) is model
    assert {n.split(".")[0] for n in model.head} == {layer}


def test_fit_and_build_trace_the_head(registries):
    module, head = MODULES["registered first"]
    data = (torch.randn(30, 4), torch.arange(30) % 3)
    settings = {"clients": 3, "cohort": 2, "rounds": 1, "engine": "sequential", "batch_size": 5}
    model = fit(module, data, **settings).experiment.setup.model
    assert sorted(model.head) == head

    @MODELS.register("backwards")
    def backwards(shape, num_classes):
        return nn.Sequential(
            nn.Flatten(),
            Net(
                lambda n, x: n.last(torch.relu(n.body(x))),
                last=nn.Linear(5, num_classes),
                body=nn.Linear(64, 5),
            ),
        )

    assert sorted(build(tiny(model="backwards")).setup.model.head) == [
        "1.last.bias",
        "1.last.weight",
    ]
