"""Models that write where they should read, or read what they are not given, are refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from gcfed import InputError, fit

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


@pytest.mark.parametrize("kind", [Listed, Enclosed])
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

    def _second(self, x):
        return self.fc2(x)

    def forward(self, x):
        return self.second(self.act(self.layers[0](x)))


def test_other_functions_and_lists_are_no_mistake(data):
    fit(Usual(), data, **SETTINGS)
