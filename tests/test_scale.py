"""What does not grow with the number of clients or of examples: work and memory are counted."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from running import tiny
from torch.utils._python_dispatch import TorchDispatchMode

from gcfed import DATASETS, Algorithm, FederatedData, simulate
from gcfed.config.build import build
from gcfed.data.partitions.partition import Partition, Pool
from gcfed.data.partitions.skew import partition_statistics
from gcfed.data.partitions.ways import divide
from gcfed.data.validation import split_validation
from gcfed.population.samplers import cyclic

pytest_plugins = ["running"]

PER_CLIENT = 4


class Work(TorchDispatchMode):
    """Counts the numbers that torch's operations read and write, but for views."""

    def __enter__(self):
        self.numbers = 0
        tracemalloc.start()  # numpy says what it allocates, and torch what it computes
        return super().__enter__()

    def __exit__(self, *error):
        _, self.bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return super().__exit__(*error)

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        out = operation(*arguments, **(keywords or {}))
        if not operation.is_view:
            # a gather reads as many numbers as it writes, however many there are to read from
            gathers = operation in (
                torch.ops.aten.index.Tensor,
                torch.ops.aten.index_select.default,
            )
            seen = [] if gathers else [a for a in arguments if isinstance(a, torch.Tensor)]
            given = [out] if isinstance(out, torch.Tensor) else []
            self.numbers += sum(t.numel() for t in (*seen, *given))
        return out


def of_clients(make_setup, num_clients):
    """A federation whose clients hold four tiny images each; all images are one."""
    size = PER_CLIENT * num_clients
    x = torch.zeros(1, 1, 4, 4).expand(size, -1, -1, -1)
    parts = Partition(torch.arange(size), torch.arange(num_clients + 1) * PER_CLIENT)
    data = FederatedData(x, torch.arange(size) % 5, parts, 5)
    return make_setup(Algorithm(), data=data, engine="sequential", rounds=1)


def test_work_counts_what_is_computed():
    with Work() as work:
        torch.arange(1000).diff()
        np.zeros(10**6)
    assert work.numbers >= 3000 and work.bytes >= 8 * 10**6
    with Work() as work:
        torch.zeros(10**6)[:5].reshape(5, 1)[torch.tensor([0, 1])]
    assert work.numbers < 10**6 + 100


@pytest.mark.parametrize("ask", ["sample", "cyclic", "num_examples", "label_counts", "plan"])
def test_a_cohort_costs_the_same_of_a_thousand_clients_and_of_a_million(make_setup, ask):
    spent = []
    for num_clients in (1_000, 1_000_000):
        setup = of_clients(make_setup, num_clients)
        ids = setup.population.sample(0)
        assert max(ids) > num_clients // 2  # the whole population is drawn from
        work = {
            "sample": lambda s=setup: s.population.sample(1),
            "cyclic": lambda s=setup: replace(s.population, sampler=cyclic).sample(1),
            "num_examples": lambda s=setup, i=ids: s.data.num_examples(i),
            "label_counts": lambda s=setup, i=ids: s.data.label_counts(i),
            "plan": lambda s=setup, i=ids: [s.population.plan(0, k) for k in i],
        }[ask]
        work()  # what is made once is made
        with Work() as counted:
            work()
        spent.append(counted)
    few, many = spent
    assert many.numbers == few.numbers < 1_000
    assert many.bytes < few.bytes + 10_000 < 100_000


def work_of_a_round(setup):
    """Some rounds hold more than others: Python's own caches, and what is made once."""
    with Work() as counted:
        (result,) = simulate(setup)
    assert len(result.ids) == 4
    return counted


def test_a_round_costs_the_same_of_a_thousand_clients_and_of_a_million(make_setup):
    spent = []
    for num_clients in (1_000, 1_000_000):
        setup = of_clients(make_setup, num_clients)
        spent.append(min((work_of_a_round(setup) for _ in range(4)), key=lambda work: work.bytes))
    few, many = spent
    assert many.numbers == few.numbers
    assert many.bytes < few.bytes + 500_000 < 2 * 10**6  # less than a byte a client


def test_a_cohort_of_one_million_has_no_one_twice(make_setup):
    setup = of_clients(make_setup, 1_000_000)
    cohorts = [setup.population.sample(t) for t in range(200)]
    assert all(len(set(ids)) == 4 for ids in cohorts)
    mean = np.mean(cohorts)
    assert abs(mean - 500_000) < 4 * 288_675 / np.sqrt(800)


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("dataset", ["fashion10k", "synthetic(train=200, test=50)"])
def test_building_a_federation_copies_no_image(dataset, registries, tmp_path):
    read = DATASETS.parse(dataset)(tmp_path)
    DATASETS.register("read")(lambda root: read)
    first = build(tiny(dataset="read"))
    second = build(tiny(dataset="read", seed=1), beside=first)
    for experiment in (first, second):
        assert experiment.setup.data.x.data_ptr() == read.train.x.data_ptr()
        assert experiment.setup.data.y.data_ptr() == read.train.y.data_ptr()
        assert experiment.tests["test"].x.data_ptr() == read.test.x.data_ptr()
    parts = divide("dirichlet(alpha=0.1)", read.pool, 10, seed=0)
    data = FederatedData(*read.train, parts, read.num_classes)
    assert data.x.data_ptr() == replace(data).x.data_ptr() == read.train.x.data_ptr()
    assert data.to(torch.device("cpu")).x.data_ptr() == read.train.x.data_ptr()


def test_a_validation_split_is_the_one_copy(tmp_path):
    read = DATASETS.parse("synthetic")(tmp_path)
    kept, held = split_validation(read, 0.1, np.random.default_rng(0))
    assert kept.train.x.data_ptr() != read.train.x.data_ptr()
    assert len(kept.train.y) + len(held.y) == len(read.train.y)
    assert kept.test.x.data_ptr() == read.test.x.data_ptr()


def test_statistics_are_sparse():
    """10,000 clients by 1,000 classes would be ten million counts."""
    labels = np.random.default_rng(0).integers(0, 1000, 50_000)
    pool = Pool(labels, {}, len(labels))
    drawn = divide("dirichlet(alpha=0.01)", pool, 10_000, seed=0)
    with Work() as work:
        found = partition_statistics(drawn, pool)
    assert len(found.count) <= 50_000 and work.bytes < 100 * 50_000
