"""Grids: the cells of a file, what is refused before anything is trained, and what it costs."""

import json

import numpy as np
import pytest
import torch
from running import TINY, tiny
from torch import nn

from gcfed import MODELS, InputError, RunStore, Sweep
from gcfed.cli.sweep import short
from gcfed.config.build import build
from gcfed.sweeps.cost import bytes_a_client, cost, examples_a_round, forward_flops
from gcfed.sweeps.grid import read_grid

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

BASE = "".join(f"{key} = {json.dumps(value)}\n" for key, value in TINY.items())
WITHOUT = {key: BASE.replace(f"{key} = {json.dumps(value)}\n", "") for key, value in TINY.items()}


def written(tmp_path, text, name="grid.toml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_cells_are_the_product_in_the_order_written(tmp_path):
    text = (
        WITHOUT["algorithm"]
        + "seeds = [3, 1]\n[grid]\nalgorithm = ['fedavg', 'gcfed']\nalpha = [0.1, 1]\n"
        + "cohort = [2]\n"
    ).replace("cohort = 3\n", "")
    grid = read_grid(written(tmp_path, text, "mine.toml"))
    assert grid.name == "mine"
    assert [cell.number for cell in grid.cells] == [1, 2, 3, 4]
    assert [cell.name for cell in grid.cells] == [
        *("fedavg, alpha=0.1, cohort=2", "fedavg, alpha=1, cohort=2"),
        *("gcfed, alpha=0.1, cohort=2", "gcfed, alpha=1, cohort=2"),
    ]
    for cell in grid.cells:
        assert [config.seed for config in cell.configs] == [3, 1]
        for config in cell.configs:
            assert config.cohort == 2
            assert config.algorithm == cell.settings["algorithm"]
            assert f"alpha={float(cell.settings['alpha'])}" in config.partition
            assert config.rounds == TINY["rounds"]
    assert not grid.is_tuned


def test_a_dict_is_a_grid_too():
    grid = read_grid({**TINY, "seed": 7, "grid": {"lr": (0.1, 0.2)}, "tune": {}})
    assert [cell.configs[0].lr for cell in grid.cells] == [0.1, 0.2]
    assert grid.seeds == [7]
    assert read_grid(TINY).cells[0].name == "fedavg"
    assert read_grid(TINY).seeds == [0]
    tuned = read_grid(
        {**TINY, "validation": 0.2, "grid": {"alpha": [1.0]}, "tune": {"lr": [0.1, 0.2]}}
    )
    assert [(cell.point, cell.candidate) for cell in tuned.cells] == [
        ({"alpha": 1.0}, {"lr": 0.1}),
        ({"alpha": 1.0}, {"lr": 0.2}),
    ]


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "..", "a/../b", "x y", ""])
def test_a_name_is_one_folder(tmp_path, name):
    safe = read_grid(TINY, name=name).name
    folder = tmp_path / "sweeps"
    assert (folder / safe).resolve().parent == folder.resolve()


BAD = [
    ("rouns = 1\n", "unknown key: 'rouns'; did you mean 'rounds'?"),
    ("[grid]\nalhpa = [1.0]\n", "[grid]: unknown key: 'alhpa'; did you mean 'alpha'?"),
    ("[tune]\nlrr = [1.0]\n", "[tune]: unknown key: 'lrr'"),
    (
        "[grid]\ngkd.gamma = [1.0]\n",
        "[grid]: unknown key: 'gkd'. gcfed list settings shows all; a hyp",
    ),
    ("[grid]\nmu = [1.0]\n", "of what it belongs to, as in algorithm = 'fedprox(mu=0.1)'"),
    ("[grid]\nlr = 0.1\n", "lr in [grid] is a list of values, such as [0.1]"),
    ("[grid]\nlr = []\n", "lr in [grid] is an empty list"),
    ("[grid]\nlr = [0.1, 0.2, 0.1]\n", "lr in [grid] has the value 0.1 twice"),
    ("[grid]\nseed = [0, 1]\n", "seeds stand at the top, as seeds = [0, 1, 2]"),
    ("[grid]\nrounds = [3]\n", "rounds stands at the top and in [grid]"),
    ("validation = 0.2\n[tune]\ncohort = [3]\n", "cohort stands at the top and in [tune]"),
    ("[grid]\nlr = [0.1]\n[tune]\nlr = [0.2]\n", "lr stands in [grid] and in [tune]"),
    ("grid = 3\n", "grid is a table, [grid]"),
    ("seeds = 3\n", "seeds is a list of numbers, such as [0, 1, 2]; not 3"),
    ("seeds = []\n", "seeds is a list of numbers"),
    ("seeds = [1, 1]\n", "seeds has the value 1 twice"),
    ("seeds = [-1]\n", "seed should be greater than or equal to 0"),
    ("seed = [0, 1]\n", "seed is one number; several are seeds = [0, 1]"),
    ("seed = 1\nseeds = [0]\n", "give seed or seeds, not both"),
    ("[grid]\nlr = [0.1, -1.0]\n", "cell 2 (lr=-1.0): lr should be greater than 0"),
    ("[grid]\nlr = [0.1, 'x']\n", "cell 2 (lr=x): lr should be a valid number"),
    ("[grid]\nsteps = [3]\n", "cell 1 (steps=3): epochs and steps: give one of them"),
    ("[grid]\noptimizer = ['sgd', 'adam']\n", "cell 2 (optimizer=adam): optimizer is one of"),
    ("[tune]\nlr = [0.1, 0.2]\n", "[tune] selects on validation examples, and there are none"),
    # what only shows when a cell is built
    ("[grid]\npartition = ['iid', 'idd']\n", "cell 2 (partition=idd): unknown partition: 'idd'"),
    ("[grid]\nsampler = ['uniform', 'x']\n", "cell 2 (sampler=x): unknown sampler: 'x'"),
    ("[grid]\nengine = ['sequential', 'vectorized']\n", "engine stands at the top"),
    ("[grid]\nprecision = ['auto', 'float32']\n", "cell 2 (precision=float32) is the same run as"),
    ("[grid]\nmomentum = [0.9]\nalpha = [0.1, 1, 1.0]\n", "is the same run as cell 2"),
    ("[grid]\nmemory = ['host', 'disk']\n", "differ in nothing that changes its numbers"),
    ("[grid]\nvalidation = [0.0, 0.001]\n", "cell 2 (validation=0.001): validation=0.001 of 200"),
    ("track = ['nowhere']\n", "unknown tracker: 'nowhere'"),
    ("junk", "is not a TOML file"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[text for text, _ in BAD])
def test_bad_grids(tmp_path, text, message):
    path = written(tmp_path, BASE + text)
    with pytest.raises(InputError) as error:
        Sweep(path, tmp_path / "runs")
    assert str(error.value).startswith(f"{path}")
    assert message in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_a_longer_run_counts_as_far_as_it_is_asked_for(tmp_path):
    """Or candidates of different lengths would be compared."""
    store = RunStore(tmp_path / "runs")
    store.run(tiny(rounds=4))
    (cell,) = Sweep({**TINY, "rounds": 2}, store.folder).cells
    assert cell.status == "done" and cell.runs[0].summary["rounds"] == 2


def test_an_engine_of_gpus_is_refused_where_there_is_none(tmp_path, monkeypatch):
    grid = {**TINY, "engine": "streams"}
    with pytest.raises(InputError, match="needs a CUDA device"):
        Sweep(grid, tmp_path / "runs")
    monkeypatch.setattr("gcfed.sweeps.sweep.find_devices", lambda *_: ["cuda:0"])
    assert Sweep(grid, tmp_path / "runs").plans[0].cell.configs[0].engine == "streams"


def test_bad_devices(tmp_path):
    for devices, message in (
        (["gpu"], "there is no device 'gpu'"),
        (["cpu", "cuda:99"], "device 'cuda:99' cannot be used"),
        ([], "name a device"),
    ):
        with pytest.raises(InputError, match=message):
            Sweep(TINY, tmp_path / "runs", devices)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fill": "none"},
        {"steps": 7, "epochs": None},
        {"steps": 7, "epochs": None, "fill": "none"},
    ],
    ids=str,
)
def test_examples_are_those_that_clients_see(changes):
    """On average over clients, which is the expectation over uniform cohorts."""
    setup = build(tiny(**changes)).setup
    seen = [
        setup.population.plan(0, client).sizes.sum() for client in range(setup.data.num_clients)
    ]
    sizes = setup.data.parts.sizes.numpy()
    found = examples_a_round(setup.schedule, sizes)
    tolerance = 0.15 if "steps" in changes and "fill" in changes else 1e-9
    assert found == pytest.approx(3 * np.mean(seen), rel=tolerance)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_costs_are_those_of_a_run(tmp_path, algorithm):
    config = tiny(algorithm=algorithm, rounds=1)
    experiment = build(config)
    found = cost(experiment, forward_flops(experiment), bytes_a_client(experiment))
    line = RunStore(tmp_path).run(config).records[0]
    assert found.bytes == line["bytes_up"] + line["bytes_down"]
    multiply_adds = 64 * 8 + 8 * 10
    assert found.flops == 3 * 2 * multiply_adds * found.examples


def test_a_dry_run_lists_costs_and_writes_nothing(gcfed, tmp_path):
    base = BASE.replace("rounds = 2", "rounds = 4") + "seeds = [0, 1]\n"
    path = written(tmp_path, base + "[grid]\nlr = [0.1, 0.2, 0.3]\n")
    before = gcfed("sweep", path, "--dry-run")
    assert before.code == 0
    assert [p.name for p in tmp_path.iterdir()] == ["grid.toml"]
    lines = before.out.splitlines()
    assert lines[0].split()[:5] == ["cell", "lr", "seeds", "status", "rounds"]
    assert [line.split()[:5] for line in lines[1:4]] == [
        [str(k + 1), lr, "2", "new", "8"] for k, lr in enumerate(("0.1", "0.2", "0.3"))
    ]
    assert all(line.endswith(" ?") for line in lines[1:5])  # no run to tell the time by
    RunStore("runs").run_together([tiny(lr=0.1, rounds=4, seed=s) for s in (0, 1)])
    RunStore("runs").run_together([tiny(lr=0.2, rounds=1, seed=s) for s in (0, 1)])
    held = sorted(tmp_path.rglob("*"))
    found = json.loads(gcfed("sweep", path, "--dry-run", "--json").out)
    assert [line["status"] for line in found] == ["done", "2 of 8 rounds", "new"]
    assert [line["rounds"] for line in found] == [0, 6, 8]
    first, second, third = (line["seconds"] for line in found)
    assert first == 0 < second < third == pytest.approx(second * 8 / 6)
    assert found[2]["examples"] == pytest.approx(found[1]["examples"] * 8 / 6, abs=1)
    assert sorted(tmp_path.rglob("*")) == held
    last = gcfed("sweep", path, "--dry-run").out.splitlines()[4].split()
    assert last[:3] == ["all", "2", "14"]
    assert "?" not in last


def test_time_is_not_told_by_the_round_in_which_an_engine_starts(tmp_path):
    run = RunStore(tmp_path).run(tiny(lr=0.1, rounds=2))
    path = run.path / "timings.jsonl"
    first, second = map(json.loads, path.read_text().splitlines())
    lines = ({**first, "seconds": 100.0}, {**second, "seconds": 1.0})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (plan,) = Sweep({**TINY, "lr": 0.2}, tmp_path).plans
    assert plan.seconds == pytest.approx(1.0)


def test_many_cells_are_planned_quickly(tmp_path, monkeypatch):
    """Their data are read once."""
    from gcfed.config import build as experiment

    reads, read_dataset = [], experiment.read_dataset

    def read(*arguments):
        reads.append(arguments)
        return read_dataset(*arguments)

    monkeypatch.setattr(experiment, "read_dataset", read)
    grid = {"lr": [0.01 * k for k in range(1, 11)], "alpha": [0.1, 1.0]}
    made = Sweep({**TINY, "seeds": list(range(5)), "grid": grid}, tmp_path)
    assert len(made.plans) == 20
    assert len(reads) == 1


def test_it_is_shown_how_far_the_plan_of_many_cells_is(gcfed, tmp_path):
    few = gcfed("sweep", written(tmp_path, BASE + "[grid]\nlr = [0.1, 0.2]\n"), "--dry-run")
    assert "planning" not in few.err
    rates = [0.01 * k for k in range(1, 21)]
    many = gcfed("sweep", written(tmp_path, BASE + f"[grid]\nlr = {rates}\n"), "--dry-run")
    assert "planning: cell 2 of 20" in many.err
    assert "planning" not in many.out


def test_a_model_is_made_and_tried_once_for_cells_that_share_it(tmp_path, monkeypatch):
    """What differs in the weights, or in what a trial looks at, is made and tried for itself."""
    from gcfed.config import build as experiment

    calls = {"module_for": 0, "try_model": 0}

    def counted(name):
        original = getattr(experiment, name)

        def call(*arguments, **settings):
            calls[name] += 1
            return original(*arguments, **settings)

        monkeypatch.setattr(experiment, name, call)

    for name in calls:
        counted(name)
    grid = {
        "init_seed": [0, 1],
        "loss": ["cross_entropy", "cross_entropy(label_smoothing=0.1)"],
        "algorithm": ["fedavg", "gcfed", "scaffold"],
        "alpha": [0.1, 1.0],
    }
    text = {key: value for key, value in TINY.items() if key not in grid}
    made = Sweep({**text, "grid": grid}, tmp_path)
    assert len(made.plans) == 24
    assert calls == {"module_for": 4, "try_model": 4}
    costs = [plan.cost for plan in made.plans]
    assert costs[:6] == costs[6:12] == costs[12:18] == costs[18:]
    assert costs[4].bytes == 2 * costs[0].bytes  # scaffold's variates


def test_a_shared_model_is_the_one_that_would_have_been_made():
    first = build(tiny(algorithm="fedavg"))
    shared = build(tiny(algorithm="gcfed"), beside=first, tried=first)
    alone = build(tiny(algorithm="gcfed"))
    assert shared.config == alone.config
    assert shared.setup.model is first.setup.model
    for name, weight in alone.setup.initial.items():
        assert torch.equal(shared.setup.initial[name], weight)


def test_a_model_is_not_shared_with_cells_to_which_padding_matters(registries):
    class Centred(nn.Module):
        def __init__(self, shape, num_classes):
            super().__init__()
            self.last = nn.Linear(64, num_classes)

        def forward(self, x):
            x = x.flatten(1)
            return self.last(x - x.mean(0))

    MODELS.register("centred")(Centred)
    padded, plain = (build(tiny(model="centred", fill=fill)) for fill in ("none", "repeat"))
    beside = build(tiny(model="centred", fill="repeat", seed=1), beside=padded)
    assert padded.setup.model.cross_batch
    assert beside.setup.model.cross_batch == plain.setup.model.cross_batch == []


def test_numbers_in_short():
    assert [short(v) for v in (None, 0, 0.5, 7, 999, 999.9, 2.5e6, 3e13, 4e20)] == [
        *("?", "0", "0.5", "7", "999", "1 k", "2.5 M", "30 T", "400 E"),
    ]
