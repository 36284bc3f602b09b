"""Models that write where they should read, or read what they are not given, are refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from gcfed import Dataset, Examples, InputError, fit
from gcfed.config.side_effects import _Touched

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32")

SETTINGS = {"clients": 4, "cohort": 2, "rounds": 1, "steps": 1, "batch_size": 5, "lr": 0.1}
SETTINGS |= {"partition": "iid", "algorithm": "fedavg", "progress": False, "engine": "sequential"}


@pytest.fixture
def data(float32):
    torch.manual_seed(0)
    return torch.randn(20, 6), torch.arange(20) % 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


class ScalesInputs(Net):
    def __init__(self, in_training):
        super().__init__()
        self.in_training = in_training

    def forward(self, x):
        with torch.no_grad():
            return super().forward(x.mul_(2) if self.training == self.in_training else 2 * x)


@pytest.mark.parametrize("in_training", [True, False])
def test_examples_are_not_written_into(in_training, data):
    x, y = (part.clone() for part in data)
    with pytest.raises(InputError, match="writes into the examples that it is given"):
        fit(ScalesInputs(in_training), (x, y), **SETTINGS)
    assert torch.equal(x, data[0])


def transformed(data, transform):
    examples = Examples(*data)
    return Dataset(train=examples, test=examples, num_classes=3, transform=transform)


def test_a_first_layer_in_place_is_named(data):
    first = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3))
    with pytest.raises(InputError, match=r"^the model writes into the examples .* \(inplace=False"):
        fit(first, data, **SETTINGS)
    with pytest.raises(InputError, match=r"written into that the model was given, as nn\.ReLU\("):
        fit(first, transformed(data, lambda x, key: x / 2), **SETTINGS)
    fit(nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)), data, **SETTINGS)


def test_a_transform_leaves_examples_as_they_are(data):
    with pytest.raises(
        InputError, match=r"^the data's transform, or the model, writes into the ex"
    ):
        fit(Net(), transformed(data, lambda x, key: x.div_(2)), **SETTINGS)


class Bounded(Net):
    def forward(self, x):
        self.fc1.weight.data.clamp_(-1, 1)  # none of the initial weights is so large
        return super().forward(x)


def test_weights_are_not_written_into(data):
    module = Bounded()
    before = module.fc1.weight.clone()
    with pytest.raises(InputError, match=r"writes into the parameter fc1\.weight"):
        fit(module, data, **SETTINGS)
    assert torch.equal(module.fc1.weight, before)
    words = nn.Sequential(nn.Embedding(9, 4, max_norm=1.0), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(InputError, match=r"parameter 0\.weight, as clamp_ and nn\.Embedding"):
        fit(words, (torch.randint(9, (20, 2)), data[1]), **SETTINGS)


class Masked(Net):
    """Half of its weights stay zero, from the first time that it is run."""

    def forward(self, x):
        self.fc1.weight.data.mul_(torch.ones(4, 6).tril())
        return super().forward(x)


class Replaced(Net):
    def forward(self, x):
        self.fc1.weight.data = self.fc1.weight.data.clamp(-1, 1)
        return super().forward(x)


@pytest.mark.parametrize("kind", [Masked, Replaced])
def test_weights_are_not_written_into_so_that_the_second_time_shows_nothing(kind, data):
    with pytest.raises(InputError, match=r"writes into the parameter fc1\.weight"):
        fit(kind(), data, **SETTINGS)


class Watching(Net):
    """Keeps the largest of its weights that it was run with, as an attribute of its class."""

    largest = 0.0

    def forward(self, x):
        Watching.largest = max(Watching.largest, self.fc1.weight.abs().max().item())
        return super().forward(x)


def test_it_is_tried_with_its_own_weights_alone(data):
    module = Watching()
    largest = module.fc1.weight.abs().max().item()
    fit(module, data, **SETTINGS)
    assert largest <= Watching.largest < 1.5 * largest


class Counting(Net):
    def __init__(self, in_training):
        super().__init__()
        self.register_buffer("count", torch.tensor(0))
        self.in_training = in_training

    def forward(self, x):
        if self.training == self.in_training:
            self.count.add_(1)
        return super().forward(x)


def test_buffers_are_written_into_in_training_alone(data):
    fit(Counting(True), data, **SETTINGS)
    with pytest.raises(InputError, match="writes into the buffer count when the model is judged"):
        fit(Counting(False), data, **SETTINGS)


class Listed(Net):
    def __init__(self):
        super().__init__()
        self.weights = [self.fc1.weight, self.fc1.bias]

    def forward(self, x):
        return self.fc2(torch.tanh(functional.linear(x, *self.weights)))


class Enclosed(Net):
    def __init__(self):
        super().__init__()
        self.first = lambda x: self.fc1(x)

    def forward(self, x):
        return self.fc2(torch.tanh(self.first(x)))


class ListedInTraining(Listed):
    def forward(self, x):
        return super().forward(x) if self.training else Net.forward(self, x)


class AmongOthers(Net):
    def __init__(self):
        super().__init__()
        self.steps = [lambda x: self.fc1(x), torch.tanh]

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return self.fc2(x)


class EnclosedWeight(Net):
    def __init__(self):
        super().__init__()
        weight = self.fc1.weight
        self.first = lambda x: functional.linear(x, weight)

    def forward(self, x):
        return self.fc2(torch.tanh(self.first(x)))


class AsDefault(Net):
    def __init__(self):
        super().__init__()
        self.first = lambda x, layer=self.fc1: layer(x)

    forward = EnclosedWeight.forward


class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.fc2.register_forward_hook(lambda module, args, out: out + self.fc1.weight[:3, 0])


class Elsewhere(Enclosed):
    """Fails as on a GPU, to which nothing is moved that a function holds."""

    def forward(self, x):
        super().forward(x)
        raise RuntimeError("Expected all tensors to be on the same device")


KINDS = [Listed, Enclosed, ListedInTraining, AmongOthers, EnclosedWeight, AsDefault, Hooked]
KINDS += [Elsewhere]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_read_where_they_are_registered(kind, data):
    module = kind()
    before = {name: w.clone() for name, w in module.named_parameters()}
    with pytest.raises(InputError, match=r"reads its parameter fc1\.weight by a list or a func"):
        fit(module, data, **SETTINGS)
    for name, weight in module.named_parameters():
        assert torch.equal(weight, before[name])


class Usual(Net):
    """Functions and lists that hold modules, and read no weights that would be trained."""

    def __init__(self):
        super().__init__()
        self.slope, self.layers = 0.1, [self.fc1, self.fc2]
        self.act = lambda x: functional.leaky_relu(x, self.slope)
        self.second = self._second
        self.none = nn.Parameter(torch.empty(0))

    def _second(self, x):
        return self.fc2(x)

    def forward(self, x):
        return self.second(self.act(self.layers[0](x)))


def test_other_functions_and_lists_are_no_mistake(data):
    fit(Usual(), data, **SETTINGS)


class Extracting(nn.Module):
    """What reads the examples first is not its own, and would not be trained by any loop."""

    def __init__(self):
        super().__init__()
        extractor = nn.Sequential(nn.Linear(6, 4))
        self.last, self.features = nn.Linear(4, 3), lambda x: extractor(x)

    def forward(self, x):
        return self.last(self.features(x))


class Unfinished(Net):
    """A function of its own asks for a name that nothing was given."""

    def __init__(self):
        super().__init__()
        self.never = lambda: unknown
        if not self.training:
            unknown = 1


@pytest.mark.parametrize("kind", [Extracting, Unfinished])
def test_a_function_may_hold_what_is_not_trained(kind, data):
    fit(kind(), data, **SETTINGS)


class Neighbours(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("graph", torch.eye(4).to_sparse())

    def forward(self, x):
        return self.fc2(torch.sparse.mm(self.graph, self.fc1(x).mT).mT)


def test_a_sparse_buffer_is_refused_in_words(data):
    with pytest.raises(InputError, match="cannot take a training step"):
        fit(Neighbours(), data, **SETTINGS)


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "supports_higher_order_operators"),
    reason="this torch lets nobody listen to such operations",
)
@pytest.mark.filterwarnings("ignore")  # that it is not compiled
def test_operations_that_torch_compiles_by_itself_are_done_as_ever():
    query = torch.randn(2, 1, 128, 16)
    weight = torch.ones(())
    with torch.no_grad(), _Touched([("weight", weight)]) as touched:
        found = flex_attention(weight * query, query, query)
    expected = functional.scaled_dot_product_attention(query, query, query)
    torch.testing.assert_close(found, expected)
    assert list(touched.read) == ["weight"] and not touched.written
