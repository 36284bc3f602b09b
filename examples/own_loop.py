"""GC-Fed in a loop of one's own: two lines, `centralize_gradients` and `centralize_update`."""

import copy

import torch
from torch import nn, optim
from torch.nn.functional import cross_entropy

from gcfed import centralize_gradients, centralize_update

torch.manual_seed(0)
centre = torch.randn(4, 16)  # a prototype for each of four classes


def examples(classes, count=200):
    y = torch.tensor(classes)[torch.randint(len(classes), (count,))]
    return centre[y] + torch.randn(count, 16), y


clients = [examples(pair) for pair in ([0, 1], [1, 2], [2, 3], [3, 0])]  # two classes each
test_x, test_y = examples([0, 1, 2, 3], 1000)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

for number in range(10):
    before = copy.deepcopy(model.state_dict())
    deltas = []
    for k in torch.randperm(len(clients))[:2].tolist():  # partial participation
        local = copy.deepcopy(model)
        optimizer = optim.SGD(local.parameters(), lr=0.05, momentum=0.9)
        centralize_gradients(optimizer, local[0])  # Local GC, but for the head
        x, y = clients[k]
        for rows in torch.randperm(len(y)).split(50):
            optimizer.zero_grad()
            cross_entropy(local(x[rows]), y[rows]).backward()
            optimizer.step()
        deltas.append({name: w - before[name] for name, w in local.state_dict().items()})
    mean = {name: torch.stack([d[name] for d in deltas]).mean(0) for name in before}
    step = centralize_update(mean)  # Global GC
    model.load_state_dict({name: before[name] + step[name] for name in before})
    accuracy = (model(test_x).argmax(1) == test_y).double().mean().item()
    print(f"round {number}: {100 * accuracy:.1f} %")
