"""The commands, as a person calls them: what they print, what they leave, how they end."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from made_runs import make_run
from running import TINY, flags, lines, tiny
from safetensors.torch import save_file

from gcfed import ALGORITHMS, DATASETS, ENGINES, MODELS, PARTITIONS
from gcfed.cli import demo, training
from gcfed.config.settings import Config
from gcfed.core.losses import LOSSES
from gcfed.core.metrics import METRICS
from gcfed.results.comparison import compare
from gcfed.results.directory import manifests
from gcfed.results.finding import find_runs

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")


def wrong(answer):
    """The one message of an input that makes no sense."""
    assert answer.code == 2, answer
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert "Traceback" not in answer.err
    return answer.err


def test_run_writes_a_directory_and_says_where(gcfed, tmp_path):
    answer = gcfed("run", *flags(), "--out", "mine")
    assert answer.code == 0
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {
        *("config.toml", "provenance.json", "rounds.jsonl", "timings.jsonl"),
        *("summary.json", "model.safetensors", "checkpoints", ".lock"),
    }
    assert "finished" in answer.out
    assert "mine" in answer.out
    assert answer.err.splitlines()[0].startswith("mlp(hidden=(8,)) of 610 parameters, trained by f")
    assert "\nengine: sequential on cpu (as set)\nfedavg: round 1 of 2  accuracy" in answer.err


def test_run_takes_the_folder_of_data(gcfed, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(folder / "mine.npz", x=x, y=np.arange(60) % 3)
    words = flags(dataset="npz(path='mine.npz')", rounds=1, clients=3, cohort=2, batch_size=5)
    assert gcfed("run", *words, "--data-dir", "data", "--out", "a").code == 0
    assert f'data_dir = "{folder}"' in (tmp_path / "a/config.toml").read_text()
    assert "mine.npz" in wrong(gcfed("run", *words, "--out", "b"))


def test_a_setting_may_be_given_twice_if_both_agree(gcfed):
    assert gcfed("run", *flags(), "--rounds", "2", "--alpha=1", "--set=alpha=1.0").code == 0
    words = flags(partition="dirichlet(alpha=0.5)", rounds=1)
    assert gcfed("run", *words, "--alpha", "0.5").code == 0


def test_clients_that_hold_less_than_a_batch_are_told_once(gcfed):
    said = "10 of 10 clients hold fewer examples than a batch of 21 and "
    words = flags(partition="iid", batch_size=21, rounds=1)
    assert gcfed("run", *words, "--seeds", "0,1").err.count(said + "repeat them to fill it") == 1
    assert said + "train on smaller batches" in gcfed("run", *words, "--set=fill=none").err
    assert "fewer examples" not in gcfed("run", *flags(partition="iid", batch_size=20)).err
    quiet = gcfed("run", *words, "--set=lr=0.5", "--json")
    assert quiet.err == ""


def test_every_flag_reaches_the_config(gcfed, tmp_path):
    path = tmp_path / "base.toml"
    path.write_text(Config(**TINY).to_toml())
    words = {
        "algorithm": "fedprox(mu=0.5)",
        "dataset": "synthetic(train=120, test=30)",
        "model": "mlp(hidden=(4,))",
        "clients": "6",
        "cohort": "2",
        "alpha": "0.7",
        "rounds": "1",
        "seed": "3",
        "engine": "vectorized",
        "device": "cpu",
    }
    given = [word for key, value in words.items() for word in (f"--{key}", value)]
    assert gcfed("run", path, *given, "--set", "lr=0.5", "--out", "a").code == 0
    made = (tmp_path / "a" / "config.toml").read_text().splitlines()
    for line in (
        'algorithm = "fedprox(mu=0.5)"',
        'model = "mlp(hidden=(4,))"',
        "clients = 6",
        "cohort = 2",
        "partition = \"dirichlet(alpha=0.7, mode='per_class', min_size=1)\"",
        "rounds = 1",
        "seed = 3",
        'engine = "vectorized"',
        'device = "cpu"',
        "lr = 0.5",
        "batch_size = 10",
    ):
        assert line in made
    assert any("train=120" in line for line in made)


def test_seeds_make_a_run_each_and_their_mean(gcfed, tmp_path):
    answer = gcfed("run", *flags(), "--seeds", "0,2", "--out", "both")
    assert answer.code == 0
    assert gcfed("run", *flags(), "--seed", "2", "--out", "alone").code == 0
    assert lines(tmp_path / "both" / "seed-2") == lines(tmp_path / "alone")
    assert lines(tmp_path / "both" / "seed-0") != lines(tmp_path / "alone")
    summary = json.loads((tmp_path / "both" / "summary.json").read_text())
    found = [run["test_accuracy"] for run in summary["runs"]]
    assert summary["test_accuracy_mean"] == pytest.approx(np.mean(found))
    assert summary["test_accuracy_std"] == pytest.approx(np.std(found, ddof=1))
    assert f"{100 * np.mean(found):.2f} ({100 * np.std(found, ddof=1):.2f})" in answer.out
    provenance = json.loads((tmp_path / "both" / "seed-2" / "provenance.json").read_text())
    assert provenance["seeds_together"] == [0, 2]


def test_json_prints_the_summary_alone(gcfed, tmp_path):
    answer = gcfed("run", *flags(), "--json", "--out", "a")
    assert answer.err == ""
    assert json.loads(answer.out) == json.loads((tmp_path / "a" / "summary.json").read_text())
    several = gcfed("run", *flags(), "--json", "--seeds", "0,1", "--out", "b")
    assert json.loads(several.out) == json.loads((tmp_path / "b" / "summary.json").read_text())


def test_the_resolved_config_runs_again_to_the_same_bytes(gcfed, tmp_path, monkeypatch):
    weights = {
        "fc1.weight": torch.zeros(8, 64),
        "fc1.bias": torch.ones(8),
        "fc2.weight": torch.randn(10, 8),
        "fc2.bias": torch.zeros(10),
    }
    save_file(weights, tmp_path / "start.safetensors")
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "import gcfed\n"
        "@gcfed.PARTITIONS.register('halves')\n"
        "def halves(pool, num_clients, rng):\n"
        "    '''Two clients.'''\n"
        "    import torch\n"
        "    return gcfed.Partition.of(torch.arange(pool.size).chunk(2))\n"
    )
    changed = {"partition": "halves", "cohort": 1, "init": "start.safetensors", "engine": "auto"}
    settings = [word for word in flags(**changed) if "clients=" not in word]
    assert gcfed("run", *settings, "--plugin", "mine.py", "--out", "first").code == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)  # what the file names is found from anywhere
    assert gcfed("run", "../first/config.toml", "--out", "again").code == 0
    first, again = (p / "rounds.jsonl" for p in (tmp_path / "first", elsewhere / "again"))
    assert first.read_bytes() == again.read_bytes()
    assert (first.parent / "config.toml").read_text() == (again.parent / "config.toml").read_text()


BAD = [
    (["--cohort", "11"], "cohort=11 is more than clients=10"),
    (["--alpha", "0"], "alpha is a positive number; not 0.0"),
    (["--alpha", "nan"], "alpha is a positive number; not nan"),
    (["--set", "partition=dirichlet(alpha=-1)"], "dirichlet"),
    (["--set", "partition=dirichlet(alpha=1e999)"], "dirichlet"),
    (["--algorithm", "fedprx"], "unknown algorithm: 'fedprx'; did you mean 'fedprox'?"),
    (["--algorithm", "fedprox(nu=1)"], "unknown hyper-parameter of fedprox: 'nu'"),
    (["--algorithm", "fedprox(mu=1, mu=2)"], "fedprox(mu=...) is given twice"),
    (["--algorithm", "fedprox(mu=__import__('os').getpid())"], "takes a literal, not code"),
    (["--algorithm", "__import__('os').system('touch pwned')"], "not an algorithm"),
    (["--algorithm", "fedprox(mu=" + "-" * 900 + "1)"], "nested too deeply"),
    (["--algorithm", "fedadam + fedavgm"], "cannot be chained"),
    (["--dataset", "synthetik"], "did you mean 'synthetic'?"),
    (["--dataset", "npz(path='none.npz')"], "none.npz"),
    (["--model", "cn"], "did you mean 'cnn'?"),
    (["--set", "partition=idd"], "did you mean 'iid'?"),
    (["--set", "metrics=acuracy"], "unknown metric: 'acuracy'; did you mean 'accuracy'?"),
    (["--set", "metrics=loss, loss"], "metrics names one twice: loss, loss"),
    (["--set", "metrics=r2"], "metric r2 cannot read logits of shape [10]"),
    (["--engine", "sequentail"], "unknown engine: 'sequentail'; did you mean 'sequential'?"),
    (["--device", "gpu"], "there is no device 'gpu': write cpu, cuda"),
    (["--device", "cuda:99"], "device 'cuda:99' cannot be used: "),
    (["--clients", "1000", "--cohort", "5"], "1000 clients"),
    (["--seeds", "0,x"], "--seeds takes numbers such as 0,1,2; not '0,x'"),
    (["--seeds", ""], "--seeds takes numbers"),
    (["--seeds", "0,,1"], "--seeds takes numbers"),
    (["--seeds", "1,1"], "names a seed twice"),
    (["--seeds", "-1"], "seed should be greater than or equal to 0"),
    (["--seed", "1", "--seeds", "0,1"], "not both"),
    (["--set", "seed=1", "--seeds", "0,1"], "give a seed or --seeds, not both"),
    (["--rounds", "2", "--set", "rounds=1"], "--rounds 2 and --set rounds=1 contradict"),
    (["--alpha", "0.1", "--set", "alpha=0.5"], "--alpha 0.1 and --set alpha=0.5 contradict"),
    (["--data-dir", "x", "--set", "data_dir=y"], "--data-dir x and --set data_dir=y contradict"),
    (
        ["--alpha", "0.1", "--set", "partition=dirichlet(alpha=0.5)"],
        "alpha=0.1 and partition=dirichlet(alpha=0.5) contradict each other",
    ),
    (["--set=lr=1", "--set", "lr = 2"], "--set lr=1 and --set lr=2 contradict each other"),
    (["--rounds", "2", "--rounds", "3"], "--rounds is given 2 times: give it once"),
    (["--algorithm", "fedlc", "+", "gcfed"], "goes in quotes, as in 'fedlc + gcfed'"),
    (["--set", "lr"], "--set takes key=value"),
    (["--set", "learning_rate=1"], "unknown key: 'learning_rate'"),
    (["--set", "roundz=1"], "did you mean 'rounds'?"),
    (["--set", "init=none.safetensors"], "there is no file of weights none.safetensors"),
    (["--set", "init=junk"], "junk is not a safetensors file"),
    (["--set", "init=other.safetensors"], "do not fit the model: fc1.weight is [3, 3]"),
    (["--set", "validation=0.001"], "validation=0.001 of 200 train examples"),
    (["--set", "weighting=examples", "--algorithm", "feddyn"], "uniform weights"),
    (["--plugin", "none.py"], "there is no plugin none.py"),
    (["none.toml"], "there is no config file none.toml"),
    (["junk"], "junk is not a TOML file"),
]


@pytest.mark.parametrize(("words", "message"), BAD, ids=[" ".join(w)[:40] for w, _ in BAD])
def test_bad_input(gcfed, tmp_path, words, message):
    (tmp_path / "junk").write_text("junk")
    save_file({"fc1.weight": torch.zeros(3, 3), "z": torch.zeros(1)}, "other.safetensors")
    settings = [f"--set={k}={v}" for k, v in TINY.items() if f"--{k}" not in words]
    said = wrong(gcfed("run", *settings, *words, "--out", "a"))
    assert message in said
    assert not (tmp_path / "a").exists()
    assert {p.name for p in tmp_path.iterdir()} == {"junk", "other.safetensors"}


def test_nan_in_the_data(gcfed, tmp_path):
    x = np.zeros((40, 1, 4, 4), np.float32)
    x[7, 0, 2, 2] = np.nan
    np.savez(
        tmp_path / "mine.npz", x_train=x, y_train=np.arange(40) % 4, x_test=x[:4], y_test=[0] * 4
    )
    said = wrong(gcfed("run", *flags(dataset="npz(path='mine.npz')"), "--out", "a"))
    assert "train example 7 holds a number that is not finite" in said
    (tmp_path / "mine.py").write_text(
        "import torch, gcfed\n"
        "@gcfed.DATASETS.register('mine')\n"
        "def mine(root):\n"
        "    x, y = torch.zeros(20, 1, 4, 4), torch.arange(20) % 2\n"
        "    x[3] = torch.inf\n"
        "    examples = gcfed.Examples(x, y)\n"
        "    return gcfed.Dataset(train=examples, test=examples, num_classes=2)\n"
    )
    said = wrong(gcfed("run", *flags(dataset="mine"), "--plugin", "mine.py", "--out", "a"))
    assert "train example 3 holds a number that is not finite" in said
    assert not (tmp_path / "a").exists()


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seeds", [[], ["--seeds", "0,1"]])
def test_what_exists_is_not_written_into(gcfed, tmp_path, seeds):
    assert gcfed("run", *flags(), "--out", "a").code == 0
    before = contents(tmp_path / "a")
    assert "a exists already" in wrong(gcfed("run", *flags(), *seeds, "--out", "a"))
    assert contents(tmp_path / "a") == before
    assert "a exists already" in wrong(gcfed("demo", "--out", "a"))
    (tmp_path / "file").write_text("mine")
    assert "file exists already" in wrong(gcfed("run", *flags(), *seeds, "--out", "file"))
    below = wrong(gcfed("run", *flags(), *seeds, "--out", "file/x/y"))
    assert "file/x/y cannot be made" in below
    assert "is a file" in below
    assert (tmp_path / "file").read_text() == "mine"


def test_a_mistake_is_said_of_the_file_or_of_the_command_line(gcfed, tmp_path):
    (tmp_path / "good.toml").write_text('rounds = 3\nplugins = "none.py"')
    (tmp_path / "bad.toml").write_text("roundz = 3")
    assert wrong(gcfed("run", "bad.toml")).startswith("error: bad.toml: unknown key: 'roundz'")
    said = wrong(gcfed("run", "good.toml", "--rounds", "0"))
    assert said.startswith("error: the command line: rounds should be")
    (tmp_path / "some.py").write_text("")
    assert "there is no plugin none.py" in wrong(gcfed("run", "good.toml", "--plugin", "some.py"))


def test_what_click_refuses(gcfed):
    for words in (["run", "--bogus"], ["run", "--rounds", "x"], ["runn"], ["show"]):
        answer = gcfed(*words)
        assert answer.code == 2
        assert answer.out == ""
        assert "Traceback" not in answer.err
    assert gcfed("--version").out.startswith("gcfed 0.")


def test_a_run_that_diverges(gcfed, tmp_path):
    answer = gcfed("run", *flags(lr=300, rounds=50, epochs=5), "--out", "a", "--json")
    summary = json.loads(answer.out)
    assert answer.code == 3
    assert summary["status"] == "failed"
    assert "not finite" in summary["reason"]
    assert summary == json.loads((tmp_path / "a" / "summary.json").read_text())
    kept = lines(tmp_path / "a")
    assert summary["rounds"] == summary["round"] == len(kept)
    assert (tmp_path / "a" / "model.safetensors").is_file()
    answer = gcfed("run", *flags(lr=1e30), "--out", "b")
    assert answer.code == 3
    assert "seed 0: failed in round 1: the updates of clients" in answer.err
    assert "a smaller lr or server_lr often helps; on_nonfinite = 'drop'" in answer.err
    assert (tmp_path / "b" / "rounds.jsonl").read_bytes() == b""
    shown = gcfed("show", "b")
    assert shown.code == 0
    assert "failed in round 1: the updates" in shown.out


def test_a_seed_that_diverges_leaves_the_others(gcfed, tmp_path):
    """A start far out for one seed: its first step overflows."""
    (tmp_path / "mine.py").write_text(
        "import torch, gcfed\n"
        "@gcfed.MODELS.register('fragile')\n"
        "def fragile(shape, num_classes):\n"
        "    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, num_classes))\n"
        "    if torch.initial_seed() % 2:\n"
        "        torch.nn.init.constant_(net[1].weight, 1e38)\n"
        "    return net\n"
    )
    words = ["--plugin", "mine.py", "--seeds", "0,1,2,3,4,5", "--json", "--out", "a"]
    answer = gcfed("run", *flags(model="fragile", clients=4, cohort=1, rounds=1), *words)
    summary = json.loads(answer.out)
    statuses = [run["status"] for run in summary["runs"]]
    assert answer.code == 3
    assert set(statuses) == {"finished", "failed"}
    kept = [run["test_accuracy"] for run in summary["runs"] if run["status"] == "finished"]
    assert summary["test_accuracy_mean"] == pytest.approx(np.mean(kept))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_done(tmp_path, number):
    """And so does the end of a Slurm job, which all processes are told of."""
    code = "from gcfed.cli import main; main()"
    endless = flags(rounds=100_000, engine="workers(processes=2)")
    command = [sys.executable, "-c", code, "run", *endless, "--out", "a", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, start_new_session=True, **pipes
    ) as process:
        rounds = tmp_path / "a" / "rounds.jsonl"
        for _ in range(600):  # lines are there while the run goes on
            if rounds.exists() and rounds.read_bytes().count(b"\n") >= 3:
                break
            time.sleep(0.1)
        assert process.poll() is None
        os.killpg(process.pid, number)
        out, err = process.communicate(timeout=60)
    summary = json.loads(out)
    kept = lines(tmp_path / "a")
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert summary["status"] == "stopped"
    assert summary["rounds"] == summary["round"] == len(kept) >= 3
    assert summary["weights_sha256"] == kept[-1]["weights_sha256"]
    assert json.loads((tmp_path / "a" / "summary.json").read_text()) == summary


@pytest.mark.parametrize("name", ["importlib.metadata", "typer", "gcfed.cli.sweep"])
def test_ctrl_c_while_modules_are_imported(name):
    code = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {name!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from gcfed.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", code, "list"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_ctrl_c_while_torch_imports_numpy(tmp_path):
    """Torch would drop the interrupt: it imports numpy from C++."""
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # also in the background
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'numpy.lib':\n"
        "            sys.meta_path.pop(0)\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from gcfed.cli import main; main()"
    )
    words = [sys.executable, "-c", code, "show", str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_the_demo_stops_when_it_is_stopped(gcfed, monkeypatch, tmp_path):
    def interrupted(setups, places, **keywords):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("gcfed.runs.train.simulate_together", interrupted)
    monkeypatch.setattr(demo, "configs", lambda rounds: {n: [tiny()] for n in ("one", "two")})
    answer = gcfed("demo", "--out", "d one")
    assert answer.code == 130 and "stopped: gcfed demo --out FOLDER starts it again" in answer.err
    assert "(gcfed show 'd one')" in answer.out
    assert not (tmp_path / "d one" / "two").exists()


def test_demo(gcfed, monkeypatch, tmp_path):
    monkeypatch.setattr(
        demo,
        "configs",
        lambda rounds: {
            name: [tiny(algorithm=name, rounds=rounds, seed=s) for s in (0, 1)]
            for name in ("fedavg", "gcfed")
        },
    )
    answer = gcfed("demo", "--rounds", "3", "--out", "a")
    assert answer.code == 0
    comparison = compare(tmp_path / "a", baseline="fedavg")
    assert answer.out.startswith(comparison.render())
    assert "minus fedavg [95 % CI]" in answer.out
    for result in comparison.results:
        summary = json.loads((tmp_path / "a" / result.name / "summary.json").read_text())
        assert summary["test_accuracy_mean"] == result.spread("final").mean
    assert (tmp_path / "a" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "a/accuracy.png" in answer.out


def test_the_demo_is_what_it_says():
    configs = demo.configs()
    assert list(configs) == ["fedavg", "gcfed"]
    for name, runs in configs.items():
        assert [run.seed for run in runs] == [0, 1, 2]
        for run in runs:
            assert run.algorithm == name
            assert run.dataset == "fashion10k"
            assert (run.clients or 100, run.cohort) == (100, 5)
            assert "alpha=0.05" in run.partition


@pytest.mark.parametrize(
    ("what", "registry"),
    [
        ("algorithms", ALGORITHMS),
        ("datasets", DATASETS),
        ("models", MODELS),
        ("partitions", PARTITIONS),
        ("engines", ENGINES),
        ("losses", LOSSES),
        ("metrics", METRICS),
        ("settings", Config.model_fields),
    ],
)
def test_list(gcfed, what, registry):
    answer = gcfed("list", what)
    rows = [line.split() for line in answer.out.splitlines()[1:]]
    assert answer.code == 0
    assert {row[0] for row in rows} - {"auto"} == set(registry)
    assert all(len(row) > 2 for row in rows)
    assert all(line == line.rstrip() for line in answer.out.splitlines())


def test_list_says_hyper_parameters_and_costs(gcfed, registries):
    assert "mu=0.1" in gcfed("list", "algorithms").out
    assert "did you mean 'models'?" in wrong(gcfed("list", "modells"))

    @MODELS.register("particular")
    def particular(shape, num_classes, *, width: int):
        """Refuses the images of CIFAR-10."""
        raise AssertionError

    MODELS._entries = {k: v for k, v in MODELS._entries.items() if k in ("mlp", "particular")}
    mlp, other = sorted(gcfed("list", "models").out.splitlines()[1:])
    assert mlp.split()[:2] == ["mlp", "1,707,274"]
    assert other.split()[:3] == ["particular", "-", "-"]
    assert other.endswith("width=...")


def test_show(gcfed, tmp_path):
    gcfed("run", *flags(algorithm="fedprox(mu=0.25)"), "--out", "runs/a")
    gcfed("run", *flags(), "--seeds", "0,1", "--out", "runs/b")
    (tmp_path / "runs" / "config.toml").write_text("of = 'something else'")
    shown = gcfed("show", "runs/a")
    last = lines(tmp_path / "runs" / "a")[-1]
    assert shown.code == 0
    for text in ("fedprox(mu=0.25)", "finished", "2 of 2", f"{last['test_loss']:.4f}", "as set"):
        assert text in shown.out
    several = gcfed("show", "runs").out.splitlines()
    assert [line.split()[-1] for line in several[1:4]] == ["a", "b/seed-0", "b/seed-1"]
    assert "neither a run nor a folder of runs" in wrong(gcfed("show", "none"))
    (tmp_path / "runs" / "a" / "summary.json").write_text('{"status": "running"}')
    assert "killed" in gcfed("show", "runs/a").out


GOOD = '''
from dataclasses import dataclass
from gcfed import Algorithm
from gcfed.algorithms import FedProx

class Helper:
    pass

@dataclass(frozen=True)
class Mine(FedProx):
    r"""Mine: near the received weights.

    .. math:: x

    Me et al. (2030), https://example.org
    Departures: none.
    """

@dataclass(frozen=True)
class Broken(Algorithm):
    """Broken."""

    def gradient(self, grads, params, ctx):
        for g in grads.values():
            g.mul_(2)
        return grads

@dataclass(frozen=True)
class Needy(Algorithm):
    mu: float
'''


def test_check_of_numbers_that_are_not_finite(gcfed, tmp_path):
    (tmp_path / "my.py").write_text(
        "from gcfed import Algorithm\n"
        "class Lost(Algorithm):\n"
        "    def update(self, delta, ctx):\n"
        "        return {name: d * float('nan') for name, d in delta.items()}, ctx.state\n"
    )
    answer = gcfed("check", "my.py:Lost")
    assert answer.code == 1 and answer.out.count("not finite") == 1
    assert answer.out.splitlines()[-1] == "my.py:Lost: 0 of 9 laws hold, 7 cannot be judged"


def test_check(gcfed, tmp_path):
    (tmp_path / "my.py").write_text(GOOD)
    good = gcfed("check", "my.py:Mine")
    assert (good.code, good.out) == (0, "my.py:Mine: 9 of 9 laws hold\n")
    bad = gcfed("check", "my.py:Broken")
    assert bad.code == 1
    assert "- gradient of Broken (my.py, line 23) changes what it is given: grads" in bad.out
    assert "- the docstring of Broken lacks its equations" in bad.out
    assert "laws hold" in bad.out.splitlines()[-1]
    assert "did you mean 'Mine'?" in wrong(gcfed("check", "my.py:Mime"))
    assert "Helper in my.py is no Algorithm" in wrong(gcfed("check", "my.py:Helper"))
    needy = wrong(gcfed("check", "my.py:Needy"))
    assert "algorithm in my.py Needy needs a value for mu: Needy(mu=...)" in needy
    assert "laws hold" in gcfed("check", "my.py:Needy(mu=0.1)").out
    assert "unknown hyper-parameter of Needy: 'nu'" in wrong(gcfed("check", "my.py:Needy(nu=1)"))
    assert "it has no hooks of its own, so it is FedAvg" in gcfed("check", "my.py:Needy(mu=1)").out
    assert "no hooks" not in good.out + bad.out
    assert "name the class in my.py too: my.py:MyAlgorithm" in wrong(gcfed("check", "my.py"))
    assert "there is no plugin your.py" in wrong(gcfed("check", "your.py:Mine"))


CHOOSY = (
    GOOD
    + '''
@dataclass(frozen=True)
class Choosy(Mine):
    r"""Choosy: takes no momentum, and a model with a layer fc2.

    .. math:: x

    Me et al. (2030), https://example.org
    Departures: none.
    """

    def check(self, params, roles):
        if "fc2.weight" not in params:
            raise gcfed.InputError("there is no fc2")

    def begin(self, anchor, ctx):
        if ctx.momentum != 0:
            raise gcfed.InputError("momentum is not 0")
        return anchor
'''
)


def test_check_on_a_model_and_settings_of_ones_own(gcfed, tmp_path):
    (tmp_path / "my.py").write_text(
        CHOOSY.replace("import Algorithm", "import Algorithm\nimport gcfed", 1)
    )
    words = ["check", "my.py:Choosy"]
    assert "there is no fc2" in wrong(gcfed(*words))
    assert "momentum is not 0" in wrong(gcfed(*words, "--model", "mlp"))
    words += ["--model", "mlp(hidden=(8,))", "--set", "momentum=0.0"]
    assert gcfed(*words).out == "my.py:Choosy: 9 of 9 laws hold\n"
    for dataset in ("synthetic", "fashion10k"):  # which has a transform
        assert gcfed(*words, "--dataset", dataset).out == "my.py:Choosy: 9 of 9 laws hold\n"
    assert "check takes no rounds: of the settings there are model" in wrong(
        gcfed(*words, "--set", "rounds=3")
    )
    assert "unknown key: 'momentun'" in wrong(gcfed(*words, "--set", "momentun=3"))
    both = "--model mlp(hidden=(8,)) and --set model=cnn contradict each other"
    assert both in wrong(gcfed(*words, "--set", "model=cnn"))
    twice = "--set momentum=0.0 and --set momentum=0.5 contradict each other: leave one out"
    assert twice in wrong(gcfed(*words, "--set", "momentum=0.5"))


@pytest.mark.parametrize(
    ("layer", "forward", "why"),
    [
        (
            "nn.BatchNorm1d(9)",
            "self.last(self.own(x.flatten(1)))",
            "cannot train own (BatchNorm1d)",
        ),
        (
            "nn.Identity()",
            "self.last(x.flatten(1)) * float(self.last.bias[0] < 9)",
            "out of tensors",
        ),
    ],
)
def test_check_on_a_model_that_one_engine_cannot_train(gcfed, tmp_path, layer, forward, why):
    """That is not laid to the algorithm."""
    (tmp_path / "model.py").write_text(
        "from gcfed import MODELS\n"
        "from torch import nn\n"
        "@MODELS.register('own')\n"
        "class Own(nn.Module):\n"
        "    'One of my own.'\n"
        "    def __init__(self, shape, num_classes):\n"
        "        super().__init__()\n"
        f"        self.own, self.last = {layer}, nn.Linear(9, num_classes)\n"
        f"    def forward(self, x): return {forward}\n"
    )
    said = wrong(gcfed("check", "fedprox", "--plugin", "model.py", "--model", "own"))
    assert "the laws compare the engines sequential and vectorized, so take another model" in said
    assert why in said


def test_messages_may_hold_brackets(gcfed):
    """What rich would take for markup is printed as it is."""
    assert "[bold]" in wrong(gcfed("run", "--algorithm", "[bold]x"))
    assert "'[bold]x'" in wrong(gcfed("list", "[bold]x"))


def test_means_are_of_the_runs_that_finished(tmp_path):
    statuses = ("finished", "failed", "stopped", "finished")
    for seed, (status, value) in enumerate(zip(statuses, (0.5, 0.9, 0.1, 0.7), strict=True)):
        make_run(tmp_path / str(seed), [value], seed=seed, status=status)
    runs = find_runs(tmp_path)
    found = training.summarize(runs)
    assert found["test_accuracy_mean"] == pytest.approx(0.6)
    assert found["test_accuracy_std"] == pytest.approx(0.02**0.5)
    assert [summary["status"] for summary in found["runs"]] == list(statuses)
    assert training.is_stopped(runs) and not training.is_stopped(runs[:2])
    assert training.summarize(runs[1:2])["test_accuracy_mean"] is None
    assert training.summarize(runs[:1])["test_accuracy_std"] is None


@pytest.mark.parametrize(("there", "asked"), [(6, 4), (4, 4), (4, 3)])
def test_a_killed_run_is_asked_for_fewer_rounds(gcfed, tmp_path, there, asked):
    """They are there: nothing is trained, and the run goes on being one of six rounds."""
    gcfed("run", *flags(rounds=6, checkpoint_every=2), "--json")
    (run,) = find_runs(tmp_path / "runs")
    rounds = run.path / "rounds.jsonl"
    rounds.write_bytes(b"".join(rounds.read_bytes().splitlines(keepends=True)[:there]))
    (run.path / "summary.json").write_text('{"status": "running"}')
    (run.path / "model.safetensors").unlink()
    before = contents(run.path)
    answer = gcfed("run", *flags(rounds=asked, checkpoint_every=2), "--json")
    assert json.loads(answer.out)["rounds"] == asked
    assert contents(run.path) == before


def test_a_run_that_nobody_reads_on_is_stopped_and_nothing_of_it_lost(gcfed, tmp_path, monkeypatch):
    @contextmanager
    def closing(*_, **__):
        def tick(done, note):
            if done == 2:
                raise BrokenPipeError

        yield tick

    with monkeypatch.context() as patched:
        patched.setattr("gcfed.cli.training.progress", closing)
        answer = gcfed("run", *flags(rounds=4), "--out", "a")
    assert answer.code == 130 and "stopped  2 of 4" in answer.out
    assert [int(path.stem) for path in manifests(tmp_path / "a" / "checkpoints")] == [2]
    assert gcfed("resume", "a").code == 0


def test_a_run_that_has_more_rounds_is_said_to(gcfed):
    assert gcfed("run", *flags(rounds=2)).code == 0
    assert "(it has more than 1 round)" in gcfed("run", *flags(rounds=1)).err


PLACES = [
    (["--out", "new/mine"], "start again"),
    (["--out", "mine", "--seeds", "0,1"], "start again"),
    ([], "give the same command again"),
]


@pytest.mark.parametrize(("words", "advice"), PLACES)
def test_a_disk_that_is_full_before_a_run_begins(gcfed, monkeypatch, words, advice):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("gcfed.runs.writer.write_text", full)
        said = wrong(gcfed("run", *flags(), *words))
    assert f"No space left on device; the run has not begun: mend this, then {advice}" in said
    assert gcfed("run", *flags(), *words).code == 0


@pytest.mark.parametrize("words", [words for words, _ in PLACES])
@pytest.mark.parametrize("where", ["train.RunWriter", "writer.write_text"])
def test_ctrl_c_before_a_run_has_begun(gcfed, tmp_path, monkeypatch, words, where):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"gcfed.runs.{where}", interrupted)
        answer = gcfed("run", *flags(), *words)
    assert answer.code == 130 and "error" not in answer.err
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}
    assert find_runs(tmp_path) == []  # and none is said to be damaged
    assert gcfed("run", *flags(), *words).code == 0


def test_what_others_put_beside_a_run_that_has_not_begun_stays(gcfed, tmp_path, monkeypatch):
    def interrupted(*_):
        (tmp_path / "new" / "theirs").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("gcfed.runs.train.RunWriter", interrupted)
    assert gcfed("run", *flags(), "--out", "new/mine").code == 130
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["theirs"]
