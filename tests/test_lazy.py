"""Data that are read when a batch needs them: random transforms, and more than the memory holds."""

import random
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from leftovers import children
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset
from vision import vision

from gcfed import (
    DATASETS,
    Config,
    FederatedData,
    InputError,
    Sequential,
    Vectorized,
    Workers,
    fit,
    load_run,
    resume,
    run,
    simulate,
)
from gcfed.algorithms import FedAvg
from gcfed.config.fingerprint import fingerprint
from gcfed.core.batches import Batches
from gcfed.core.lazy import LazyInputs, loaded
from gcfed.data import Lazy, dataset_from
from gcfed.runs.plan import plan

pytestmark = pytest.mark.usefixtures("float32")
pytest_plugins = ["running"]

LABELS = np.arange(60) % 3
SETTINGS = {"clients": 6, "cohort": 3, "rounds": 2, "batch_size": 8, "progress": False}


class Noisy:
    """Examples of six numbers, to which ``draw`` adds."""

    def __init__(self, draw=float, size=60):
        values = np.random.default_rng(0).normal(size=(size, 6)).astype(np.float32)
        self.x, self.y, self.draw, self.reads = values, LABELS[:size], draw, []

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        self.reads.append(i)
        return torch.tensor(self.x[i]) + np.float32(self.draw()), int(self.y[i])


def by_torch():
    return torch.rand(()).item()


def rarely():
    return 1.0 if torch.rand(()) < 1e-9 else 0.0


GENERATORS = {"python": random.random, "numpy": np.random.rand, "torch": by_torch, "rare": rarely}


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def lazily(source, **changes):
    return dataset_from(Lazy(source, **{"processes": 0, **changes}), Lazy(source, processes=0))


@pytest.mark.parametrize("draw", GENERATORS.values(), ids=GENERATORS)
def test_what_draws_from_a_generator_is_read_anew(draw):
    source = Noisy(draw)
    data = dataset_from(source)
    assert isinstance(data.train.x, LazyInputs) and isinstance(data.test.x, LazyInputs)
    assert len(data.train.y) == 48 and data.num_classes == 3
    assert data.train.x.shape == (48, 6) and data.train.x.dtype == torch.float32


def test_what_is_not_random_is_read_into_memory():
    assert isinstance(dataset_from(Noisy()).train.x, torch.Tensor)


def test_a_later_example_may_be_the_first_to_draw():
    source = Noisy()
    source.draw = lambda: by_torch() if source.reads[-1] == 50 else 0.0
    assert isinstance(dataset_from(source).train.x, LazyInputs)


def test_a_generator_of_ones_own_is_refused():
    with pytest.raises(InputError, match="train example 0 is another each time that it is read"):
        dataset_from(Noisy(np.random.default_rng(0).random))
    with pytest.raises(InputError, match="so that runs can be repeated"):
        dataset_from(Lazy(Noisy(np.random.default_rng(0).random)))


def test_the_generators_of_the_caller_are_left_alone():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.random(), np.random.rand(), by_torch()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    loaded(dataset_from(Noisy(by_torch)).train.x[:5])
    assert before == (random.random(), np.random.rand(), by_torch())


def test_every_epoch_client_and_round_draws_anew_and_can_be_repeated(make_setup):
    data = lazily(Noisy(by_torch))
    parts = list(torch.arange(60).split(10))
    held = FederatedData(*data.train, parts, 3)
    population = make_setup(FedAvg(), data=held, batch_size=10).population
    plans = [population.plan(t, client) for t, client in ((0, 1), (0, 1), (1, 1), (0, 2))]
    seen = [list(Batches(held.handle, plans).of(k)) for k in range(4)]

    def added(batch, plan, step):
        noise = batch.x - torch.tensor(Noisy().x)[torch.from_numpy(plan.index[step])]
        return noise.mean(1)

    rows = [added(b, p, t) for bs, p in zip(seen, plans, strict=True) for t, b in enumerate(bs)]
    first, again, *others = rows[:2], rows[2:4], *rows[4:]
    torch.testing.assert_close(first, again, atol=0, rtol=0)
    numbers = torch.cat([*first, *others]).round(decimals=4)
    assert len(numbers) == 60 and len(numbers.unique()) > 55
    assert numbers.min() >= 0 and numbers.max() < 1


def test_test_examples_are_the_same_every_time():
    x = dataset_from(Noisy(by_torch)).test.x
    assert torch.equal(loaded(x), loaded(x)) and torch.equal(loaded(x[3:5]), loaded(x)[3:5])


ENGINES = [Sequential, Vectorized, partial(Workers, processes=2)]


@pytest.fixture
def ragged(make_setup, data):
    """A setup whose clients hold from 3 to 40 examples, read with noise."""

    def make(processes):
        class Images:
            def __len__(self):
                return 200

            def __getitem__(self, i):
                return data.x[i].float() + torch.rand(()), int(data.y[i])

        lazy = dataset_from(Lazy(Images(), processes=processes), (data.x.float(), data.y)).train
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
        held = replace(data, x=lazy.x)
        small = {"rounds": 2, "cohort_size": 2}
        return make_setup(FedAvg(), module=module, data=held, engine="sequential", **small)

    return make


def weights(setup, engine=None):
    setup = setup if engine is None else replace(setup, engine=engine)
    results = list(simulate(setup))
    setup.data.x.reader.close()
    return [result.server.params for result in results]


def test_engines_agree_on_what_they_read(ragged):
    setup = ragged(0)
    expected = weights(setup)
    for engine in ENGINES:
        torch.testing.assert_close(weights(setup, engine()), expected)


def test_processes_read_the_same_bits_and_end(ragged):
    before = children()
    torch.testing.assert_close(weights(ragged(2)), weights(ragged(0)), atol=0, rtol=0)
    assert children() == before


def test_a_run_goes_on_as_if_it_had_not_stopped(ragged):
    setup = ragged(0)
    first, *others = simulate(setup)
    for found, expected in zip(simulate(setup, after=first), others, strict=True):
        torch.testing.assert_close(found.server, expected.server, atol=0, rtol=0)


@pytest.mark.slow
def test_fresh_processes_read_the_same_bits(ragged):
    """Beside another thread nothing is forked: neither what reads nor what trains."""
    expected = weights(ragged(0))
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        torch.testing.assert_close(weights(ragged(1)), expected, atol=0, rtol=0)
        torch.testing.assert_close(weights(ragged(0), Workers(processes=1)), expected)
    finally:
        stop.set()
        other.join()


def test_padding_is_not_read(ragged):
    setup = ragged(0)
    reader = setup.data.x.reader
    asked = []
    reader.items = reader.items._replace(
        read=lambda i, read=reader.items.read: asked.append(i) or read(i)
    )
    plans = [setup.population.plan(0, client) for client in (0, 7)]  # of 3 and of 40 examples
    for _ in Batches(setup.data.handle, plans).stacked(20, 12):
        pass
    assert len(asked) == 2 * (3 + 40)


def test_two_fits_are_the_same_and_leave_no_process(module):
    before = children()
    source = Noisy(by_torch)
    one, other = (fit(module, source, **SETTINGS, engine="sequential") for _ in range(2))
    assert one.records == other.records and children() == before
    said = "train and test examples are read anew for every batch (their transforms are random)"
    assert said in plan(one.experiment)


class NoisyRows(Noisy):
    """The same examples as dicts, with what ``also`` names beside them."""

    def __init__(self, draw=float, also=(), size=60):
        super().__init__(draw, size)
        self.also = dict.fromkeys(also, 1.0)

    def __getitem__(self, i):
        x, label = super().__getitem__(i)
        return {"pixel_values": x, "labels": label, **self.also}


def test_dicts_of_one_input_may_be_random_or_lazy(module):
    one, other = (fit(module, NoisyRows(random.random), **SETTINGS) for _ in range(2))
    assert one.records == other.records
    x = one.experiment.dataset.train.x
    assert isinstance(x, LazyInputs) and x.reader.why == "their transforms are random"
    lazy = dataset_from(Lazy(NoisyRows(), processes=0), NoisyRows())
    assert isinstance(lazy.train.x, LazyInputs) and torch.equal(loaded(lazy.train.x), lazy.test.x)
    source = NoisyRows(random.random)
    source.targets = LABELS.tolist()
    assert lazily(source).train.y.tolist() == LABELS.tolist() and len(source.reads) < 50
    by_name = Lazy(NoisyRows(also=["w"]), processes=0)
    assert isinstance(dataset_from(by_name, columns=("w", "labels")).train.x, LazyInputs)


def test_several_inputs_by_name_are_neither_random_nor_lazy():
    both = {"columns": (("pixel_values", "w"), "labels")}
    said = "train: texts, and several inputs by name, are read once before training, and "
    for draw in GENERATORS.values():
        with pytest.raises(InputError, match=said + "pixel_values, w are drawn anew at every"):
            dataset_from(NoisyRows(draw, also=["w"]), **both)
    later = NoisyRows(also=["w"])
    later.draw = lambda: by_torch() if later.reads[-1] == 50 else 0.0
    with pytest.raises(InputError, match="draw them once before training"):
        dataset_from(later, **both)
    with pytest.raises(InputError, match="train example 0 is another each time that it is read"):
        dataset_from(NoisyRows(np.random.default_rng(0).random, also=["w"]), **both)
    with pytest.raises(InputError, match="are Lazy: give the dataset itself, without Lazy"):
        dataset_from(Lazy(NoisyRows(also=["w"]), processes=0), **both)


class Locked(Dataset):
    """Cannot be pickled."""

    def __init__(self):
        self.lock, self.targets = threading.Lock(), torch.arange(40) % 2

    def __len__(self):
        return 40

    def __getitem__(self, i):
        with self.lock:
            return torch.full((4,), float(i)), int(self.targets[i])


def test_what_cannot_be_pickled_is_read_by_forked_processes():
    few = {"rounds": 1, "clients": 4, "cohort": 2, "progress": False, "partition": "iid"}
    few |= {"batch_size": 8}
    lazy = Lazy(Locked(), processes=2)
    fit(nn.Linear(4, 2), lazy, lazy, engine="sequential", algorithm="fedavg", **few)


def test_a_run_directory_of_lazy_data(tmp_path, registries):
    def made(seed):
        x = torch.randn(60, 3, generator=torch.Generator().manual_seed(seed))
        return dataset_from(Lazy(TensorDataset(x, torch.arange(60) % 3), processes=0))

    DATASETS.register("lazily")(lambda root, seed=0: made(seed))
    config = {"model": "mlp(hidden=(4,))", "rounds": 3, "clients": 4, "cohort": 2}
    config |= {"partition": "iid", "engine": "sequential", "batch_size": 10}
    run(Config(dataset="lazily", **config), tmp_path / "whole")
    run(Config(dataset="lazily", **{**config, "rounds": 1}), tmp_path / "part")
    resume(tmp_path / "part", rounds=3)
    whole, part = (load_run(tmp_path / name) for name in ("whole", "part"))
    assert whole.records == part.records
    assert fingerprint(made(0)) == fingerprint(made(0)) != fingerprint(made(1))


def test_labels_are_the_targets_of_a_dataset_and_only_a_few_examples_are_read():
    source = Noisy(by_torch)
    source.targets = LABELS.tolist()
    assert lazily(source).train.y.tolist() == LABELS.tolist()
    assert len(source.reads) < 40
    some = lazily(Subset(source, range(5, 20)))
    assert some.train.y.tolist() == LABELS[5:20].tolist() and len(source.reads) < 80
    source.targets = (LABELS + 1).tolist()  # a target_transform makes others of them
    assert lazily(source).train.y.tolist() == LABELS.tolist()
    given = dataset_from(Lazy(Noisy(), LABELS[::-1].copy(), processes=0))
    assert given.num_classes == 3


def test_images_of_bytes_are_normalised_by_a_sample():
    images = np.random.default_rng(0).integers(0, 256, (30, 4, 4, 3), dtype=np.uint8)
    pairs = list(zip(images, LABELS[:30].tolist(), strict=True))
    lazy, eager = dataset_from(Lazy(pairs, processes=0), pairs), dataset_from(pairs, pairs)
    assert lazy.transform == eager.transform
    assert torch.equal(loaded(lazy.train.x), eager.train.x)


def test_data_by_client():
    data = dataset_from([Lazy(Noisy(size=9), processes=0), Noisy(by_torch)], Noisy())
    assert data.keys["client"].tolist() == 9 * [0] + 60 * [1]
    expected = torch.from_numpy(Noisy().x)
    assert torch.equal(loaded(data.train.x[:9]), expected[:9])
    assert ((loaded(data.train.x[9:]) - expected).std(1) < 1e-6).all()
    with pytest.raises(InputError, match="give a map-style dataset for every client, or for none"):
        dataset_from([Noisy(by_torch), Noisy()])


class Broken(Noisy):
    def __getitem__(self, i):
        if i == 30:
            raise OSError("no such file")
        x, y = super().__getitem__(i)
        return (x * np.nan if i == 20 else x[:3] if i == 10 else x), y


def test_examples_that_cannot_be_read_are_named():
    source = Broken(by_torch)
    source.targets = LABELS
    x = dataset_from(Lazy(source, LABELS, processes=2), (Noisy().x, LABELS)).train.x
    messages = {10: "is not like others", 20: "holds a number that is not fin", 30: "no such file"}
    for i, message in messages.items():
        with pytest.raises(InputError, match=f"train example {i} .*{message}"):
            list(x.reader.stream(part.request for part in (x[:5], x[i - 1 : i + 1], x[:5])))
    x.reader.close()


def test_what_lazy_refuses():
    with pytest.raises(InputError, match="Lazy takes a dataset with __getitem__ and __len__; not"):
        Lazy(iter([]))
    with pytest.raises(InputError, match="processes is at least 0; not -1"):
        Lazy(Noisy(), processes=-1)
    with pytest.raises(InputError, match="train: there are no examples"):
        dataset_from(Lazy([], processes=0))


@pytest.mark.slow
def test_a_hugging_face_dataset_may_be_random_or_lazy():
    datasets = pytest.importorskip("datasets")
    source = Noisy()
    table = datasets.Dataset.from_dict({"x": source.x.tolist(), "label": source.y.tolist()})

    def add_noise(rows):
        return {**rows, "x": [np.float32(x) + np.float32(by_torch()) for x in rows["x"]]}

    data = dataset_from(table.with_transform(add_noise), table)
    assert isinstance(data.train.x, LazyInputs) and isinstance(data.test.x, torch.Tensor)
    assert ((loaded(data.train.x) - data.test.x).std(1) < 1e-6).all()
    lazy = dataset_from(Lazy(table, processes=0), table).train
    assert torch.equal(loaded(lazy.x), data.test.x) and lazy.y.tolist() == LABELS.tolist()


@pytest.mark.slow
def test_a_hugging_face_dataset_is_what_its_transform_makes():
    datasets = pytest.importorskip("datasets")
    images = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    columns = {"image": list(images), "label": [0, 1] * 6}
    table = datasets.Dataset.from_dict(columns, features)

    def with_noise(rows):
        values = [torch.tensor(np.array(v)).float() for v in rows["image"]]
        noisy = [v.movedim(-1, 0) + torch.rand(()) for v in values]
        return {"pixel_values": noisy, "label": rows["label"]}

    def beside(rows):
        return {**rows, **with_noise(rows)}

    for transform in (with_noise, beside):
        data = dataset_from(table.with_transform(transform))
        assert isinstance(data.train.x, LazyInputs) and data.class_names == ("a", "b")
        assert data.train.x.shape == (10, 3, 8, 8) and data.train.x.dtype == torch.float32
    named = table.with_transform(with_noise)
    same = dataset_from(named, columns=("pixel_values", "label"))
    assert torch.equal(loaded(same.train.x), loaded(data.train.x))
    with pytest.raises(InputError, match="unknown column of the train data: 'image'"):
        dataset_from(named, columns=("image", "label"))
    with pytest.raises(InputError, match=r"train example 0 cannot be read: .*ZeroDivisionError"):
        dataset_from(table.with_transform(lambda rows: 1 / 0))
    with pytest.raises(InputError, match="train: there are no examples"):
        dataset_from(table.select([]).with_transform(with_noise))


@pytest.mark.slow
def test_texts_of_a_transform():
    datasets = pytest.importorskip("datasets")
    words = datasets.Dataset.from_dict({"text": ["a b", "c", "d e f"] * 4, "label": [0, 1, 0] * 4})

    def tokens(rows):
        ids = [[ord(word) - 96 for word in text.split()] for text in rows["text"]]
        return {"input_ids": ids, "label": rows["label"]}

    def random_tokens(rows):
        found = tokens(rows)
        return {**found, "input_ids": [[random.randint(1, 9)] for _ in found["input_ids"]]}

    data = dataset_from(words.with_transform(tokens), words.with_transform(tokens))
    assert data.train.x["input_ids"][:2].tolist() == [[1, 2, 0], [3, 0, 0]]
    with pytest.raises(InputError, match="input_ids are drawn anew at every reading"):
        dataset_from(words.with_transform(random_tokens))
    with pytest.raises(InputError, match="input_ids are Lazy"):
        dataset_from(Lazy(words.map(tokens, batched=True)))


@pytest.mark.vision
def test_transforms_of_torchvision():
    torchvision = vision("torchvision")
    steps = torchvision.transforms
    flip = steps.Compose([steps.RandomCrop(8, 2), steps.RandomHorizontalFlip(), steps.ToTensor()])
    fake = partial(torchvision.datasets.FakeData, 20, (3, 8, 8), 2)
    data = dataset_from(fake(flip), fake(steps.ToTensor()))
    assert isinstance(data.train.x, LazyInputs) and isinstance(data.test.x, torch.Tensor)
    one, again = (loaded(data.train.x) for _ in range(2))
    assert torch.equal(one, again) and not torch.equal(one, data.test.x)
