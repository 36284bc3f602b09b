"""Train examples set aside for tuning."""

import numpy as np
import pytest
import torch
from running import tiny

from gcfed import Dataset, Examples, InputError
from gcfed.config.build import build
from gcfed.data import split_validation

pytest_plugins = ["running"]


def dataset(sizes, **fields):
    y = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    x = torch.arange(len(y)).double()[:, None]  # each example is its own number
    examples = Examples(x, y)
    return Dataset(train=examples, test=Examples(-x - 1, y), num_classes=len(sizes), **fields)


def split(data, share, seed=0):
    return split_validation(data, share, np.random.default_rng(seed))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_every_class_gives_its_share_and_no_example_is_lost(share):
    data = dataset([100, 40, 20])
    kept, held = split(data, share)
    assert torch.bincount(held.y).tolist() == [round(share * n) for n in (100, 40, 20)]
    both = torch.cat([kept.train.x, held.x]).flatten()
    assert sorted(both.tolist()) == list(range(160))
    for x, y in (kept.train, held):
        assert torch.equal(data.train.y[x.flatten().long()], y)
    assert kept.test is data.test


def test_it_is_drawn_by_the_generator():
    data = dataset([50, 50])
    first, again, other = (split(data, 0.2, seed)[1].x for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_keys_go_with_their_examples():
    data = dataset([30, 30], keys={"writer": np.arange(60) * 7})
    kept, _ = split(data, 0.3)
    assert kept.keys["writer"].tolist() == (kept.train.x.flatten() * 7).tolist()


def test_no_class_is_taken_whole():
    kept, held = split(dataset([1, 2, 60]), 0.9)
    assert torch.bincount(kept.train.y).tolist() == [1, 1, 6]
    assert torch.bincount(held.y).tolist() == [0, 1, 54]


def test_no_client_is_taken_whole():
    clients = np.repeat([7, 3, 5], [20, 39, 1])
    kept, held = split(dataset([30, 30], keys={"client": clients}), 0.5)
    assert np.unique(kept.keys["client"], return_counts=True)[1].tolist() == [19, 1, 10]
    assert len(held.y) == 30
    many = dataset([150, 150], keys={"client": np.repeat(np.arange(100), 3)})
    assert len(split(many, 0.1)[1].y) == 30


def test_targets_without_classes_are_one_group():
    x, y = torch.arange(40.0)[:, None], torch.randn(40)
    data = Dataset(train=Examples(x, y), test=Examples(x, y), num_classes=0)
    kept, held = split(data, 0.25)
    assert (len(kept.train.y), len(held.y)) == (30, 10)


def test_too_small_a_share_is_an_error():
    with pytest.raises(InputError, match=r"validation=0\.01 of 40 train examples"):
        split(dataset([20, 20]), 0.01)


@pytest.mark.usefixtures("float32")
def test_a_run_sets_it_aside_before_it_divides_the_rest():
    experiment = build(tiny(validation=0.1, algorithm="fedavg"))
    data, held = experiment.setup.data, experiment.tests["validation"]
    assert torch.bincount(held.y).tolist() == [2] * 10
    assert len(data.y) == 180
    assert sorted(data.parts.indices.tolist()) == list(range(180))
    seen = {tuple(x.flatten().tolist()) for x in data.x}
    assert not seen & {tuple(x.flatten().tolist()) for x in held.x}
    other = build(tiny(validation=0.1, algorithm="scaffold"))
    assert torch.equal(other.tests["validation"].x, held.x)
    assert list(build(tiny()).tests) == ["test"]
    fixed = build(tiny(validation=0.1, seed=1, partition_seed=0))
    assert torch.equal(fixed.tests["validation"].x, held.x)
    assert torch.equal(fixed.setup.data.parts.indices, data.parts.indices)
