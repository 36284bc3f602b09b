"""Bad input ends with a sentence and exit code 2, never with a traceback."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from made_runs import as_done_here, make_run
from running import TINY, flags, tiny
from torch import nn

import gcfed as library
from gcfed import InputError, fit, load_run
from gcfed.capacity import check_fits, memory
from gcfed.config.build import build
from gcfed.config.plugins import load_plugin
from gcfed.config.settings import Config
from gcfed.config.toml import read
from gcfed.data.datasets.user import MOST_CLASSES, dataset_from
from gcfed.data.downloads.catalog import PUBLICATIONS
from gcfed.data.downloads.fetch import ensure
from gcfed.results.finding import find_runs
from gcfed.results.frame import frame, summaries

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

OLD = Path(__file__).parent / "old_runs"
X, Y = np.ones((40, 3), np.float32), np.arange(40) % 4

HUGE = [
    ("epochs=99999999999999999999", "epochs should be less than 9223372036854775808"),
    ("epochs=999999999999", "a round of epochs=999999999999, batch_size=10 and .* of memory"),
    ("batch_size=999999999999", "a round of epochs=1, batch_size=999999999999 and"),
    ("model=mlp(hidden=(99999999999,))", r"mlp of widths \(64, 99999999999, 10\) takes 29.6 TB"),
    ("model=mlp(hidden=(99999999999999999999,))", "takes whole numbers below 2.63"),
    ("dataset=synthetic(train=100000000000)", "synthetic.train=100000000000.* of memory, and the"),
    ("dataset=synthetic(shape=(99999999, 99999999))", "synthetic.* of memory"),
    ("dataset=synthetic(seed=-1)", "the seed of a data set is at least 0; not -1"),
    ("dataset=synthetic(train=-1)", "positive num_classes"),
    ("dataset=folder(path='.', size=-1)", r"folder\(size=...\) is at least 0; not -1"),
    ("seed=-1", "seed should be greater than or equal to 0"),
    ("clients=99999999999999", "99999999999999 clients of at least 1 examples need"),
    ("alpha=" + "9" * 400, "alpha is a positive number; not a number of more than 100 digits"),
    ("rounds=" + "9" * 5000, "rounds should be a valid integer"),
    ("lr=1e999", "lr should be"),
    ("availability=sessions(on=9223372036854775807)", "sessions last less than 2.53 rounds"),
    ("device=meta", "device 'meta' cannot be used"),
    ("device=nonsense", "there is no device 'nonsense'"),
    ("data_dir=a\0b", "data_dir holds a character of code 0"),
    ("init=" + "x" * 5000, "File name too long|there is no file of weights"),
]


@pytest.mark.parametrize(("setting", "message"), HUGE, ids=[s[:40] for s, _ in HUGE])
def test_settings_that_no_machine_can_meet(gcfed, setting, message):
    changed = setting.partition("=")[0]
    given = [flag for flag in flags() if not flag.startswith(f"--set={changed}=")]
    answer = gcfed("run", *given, f"--set={setting}", "--out", "a")
    assert answer.code == 2 and not Path("a").exists()
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(answer.err)


def test_memory_is_what_the_machine_has():
    assert 2**28 < memory() < 2**50
    check_fits("nothing", 0)
    with pytest.raises(InputError, match=r"it takes .* of memory, and there are .*; ask for less"):
        check_fits("it", memory() + 1)


def test_a_file_that_is_nested_too_deeply(gcfed, tmp_path):
    path = tmp_path / "deep.toml"
    path.write_text(f"seed = {'[' * 3000}{']' * 3000}\n")
    with pytest.raises(InputError, match=r"deep.toml is not a TOML file of settings: it is nested"):
        read(path)
    assert gcfed("run", path).code == 2
    assert gcfed("run", f"--set=seed={'[' * 3000}{']' * 3000}").code == 2


NPZ = [
    ({"x": np.float32(1), "y": Y}, "x and y have an axis of examples; not one number alone"),
    ({"x": X, "y": np.int64(1)}, "x and y have an axis of examples"),
    ({"x": X[:, :0], "y": Y}, r"train: examples of shape \[0\] hold nothing"),
    ({"x": X, "y": Y, "client": np.full(40, np.nan)}, "the client of example 0 is not a finite"),
    ({"x": X, "y": Y, "client": np.ones((40, 2))}, r"client has one axis; not the shape \[40, 2\]"),
    ({"x": X, "y": Y, "client": np.int64(3)}, r"client has one axis; not the shape \[\]"),
    ({"x": X, "y": np.where(Y == 3, 10**12, Y)}, "example 3 has the label 1000000000000, which"),
    ({"x": X, "y": Y.astype(np.uint64) + 2**63}, "whole numbers are below 2.63; not 9223"),
    (
        {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y[:, None] + np.zeros(3, int)},
        r"train and test labels are of different kinds: torch.int64 of shape \[\] and .* \[3\]",
    ),
    ({"x": X, "y": Y.astype(complex)}, "neither numbers nor words, but complex128"),
    ({"x": X, "y": Y.astype("datetime64[s]")}, "neither numbers nor words, but datetime64"),
]


@pytest.mark.parametrize(("arrays", "message"), NPZ, ids=[m[:40] for _, m in NPZ])
def test_arrays_that_make_no_sense(gcfed, tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(InputError, match=message):
        dataset_from(tmp_path / "mine.npz")
    assert gcfed("run", *flags(dataset="npz(path='mine.npz')")).code == 2


def test_many_classes_may_be_meant():
    labels = np.where(Y == 3, MOST_CLASSES, Y)
    assert dataset_from((X, labels), num_classes=MOST_CLASSES + 1).num_classes == 1_000_001


@pytest.fixture
def divided(tmp_path):
    np.savez(tmp_path / "mine.npz", x=X, y=Y, client=np.repeat(["ann", "bob", "cem", "dora"], 10))
    given = {**TINY, "dataset": f"npz(path='{tmp_path / 'mine.npz'}')", "batch_size": 4}
    return {key: value for key, value in given.items() if key != "clients"}


def test_data_that_come_divided_stay_so_in_a_run(gcfed, divided):
    settings = [f"--set={key}={value}" for key, value in divided.items()]
    assert gcfed("run", *settings, "--out", "own").code == 0
    found = library.load_run("own")
    assert found.config.partition == "by(key='client')" and found.config.clients == 4
    assert found.provenance["partition"]["clients"] == 4
    assert gcfed("run", "own/config.toml", "--out", "again").code == 0
    assert Path("own/rounds.jsonl").read_bytes() == Path("again/rounds.jsonl").read_bytes()
    listed = gcfed("data", "partition", "--dataset", divided["dataset"]).out
    assert "by(key='client')" in listed


@pytest.mark.parametrize("given", [{"partition": "dirichlet(alpha=0.1)"}, {"alpha": 0.1}])
def test_a_partition_that_is_written_is_obeyed(divided, given):
    experiment = build(Config(**divided, **given, clients=5))
    assert experiment.config.partition.startswith("dirichlet(alpha=0.1")
    assert experiment.setup.data.num_clients == 5


def test_a_sweep_keeps_what_was_not_given(divided):
    """Its configs travel between processes, as copies that differ in some settings."""
    import pickle

    config = pickle.loads(pickle.dumps(Config(**divided))).model_copy(update={"device": "cpu"})
    assert build(config).config.partition == "by(key='client')"


def net(inputs=3):
    return nn.Linear(inputs, 4)


def test_clients_may_be_lists_of_two_arrays():
    lists = [[X[:20], Y[:20]], [X[20:], Y[20:]]]
    tuples = [tuple(client) for client in lists]
    given = {"cohort": 2, "rounds": 1, "batch_size": 5, "engine": "sequential"}
    first, second = (fit(net(), clients, **given) for clients in (lists, tuples))
    assert first.experiment.config.clients == 2
    assert first.experiment.config.partition == "by(key='client')"
    one = library.FederatedData.label_counts
    assert torch.equal(*(one(h.experiment.setup.data, [0, 1]) for h in (first, second)))


FORMS = [
    ((X.astype(int), Y), r"cannot read an example of shape \[3\].* int64: features are floats"),
    ((X.astype(np.uint8), Y), r"uint8: features are floats, so give x.astype\('float32'\)"),
    ((X.tolist(), Y.tolist()), "a pair is a tuple of two arrays.* not a tuple of list and list"),
    ([[X[:20], Y[:20].tolist()], [X[20:], Y[20:].tolist()]], "example 0 has a list as its label"),
    ([[X[0], [1, 0, 0]]] * 8, "train example 0 has a list as its label: give one number or word"),
    ([[X[:20], Y[:3]], [X[20:], Y[20:]]], "client 0:.* 20 examples have 3 labels"),
    ((X, Y[:, None].astype(np.float32)), "the loss cannot read logits of shape .4. and labels of"),
    ((X, np.eye(4, dtype=int)[Y]), r"the loss cannot read logits of shape.* give y\.argmax"),
    ((X, 1 - np.eye(4, dtype=int)[Y]), "the loss cannot read logits.*loss='bce' reads them"),
]


@pytest.mark.parametrize(("train", "message"), FORMS, ids=[m[:40] for _, m in FORMS])
def test_forms_that_cannot_be_read(train, message):
    with pytest.raises(InputError, match=message):
        fit(net(), train, clients=4, cohort=2, rounds=1, partition="iid", batch_size=5)


def test_a_batch_that_no_client_can_fill_is_told(recwarn):
    given = {"clients": 4, "cohort": 2, "rounds": 1, "partition": "iid", "engine": "sequential"}
    with pytest.warns(
        UserWarning, match=r"each of the 4 clients holds less than half of batch_size=17"
    ):
        fit(net(), (X, Y), batch_size=17, **given)
    fit(net(), (X, Y), batch_size=17, fill="none", **given)
    fit(net(), (X, Y), batch_size=16, **given)
    assert not recwarn.list


def test_a_model_with_parameters_still_to_be_made():
    with pytest.raises(
        InputError, match=r"the parameter 0.weight has no shape yet, as that of a L"
    ):
        fit(nn.Sequential(nn.LazyLinear(4)), (X, Y), clients=4, cohort=2, rounds=1, batch_size=5)


PLUGINS = [
    ("1 / 0", r"mine.py cannot be run: ZeroDivisionError: division by zero \(mine.py, line 1\)"),
    ("import nothing_like_it", r"No module named 'nothing_like_it' \(mine.py, line 1\)"),
    ("x = (", r"cannot be run: .*\(line 1\)"),
    ("raise KeyError", r"KeyError \(mine.py, line 1\)"),
    ("import sys; sys.exit(3)", "SystemExit: 3"),
    (
        "import gcfed\ngcfed.ALGORITHMS.register('x')(3)",
        "algorithm 'x' is a class that derives from Algorithm",
    ),
    (
        "import gcfed\ngcfed.ALGORITHMS.register('x')(dict)",
        "'x' is a class that derives from Algorithm.*dict",
    ),
    ("import gcfed\ngcfed.MODELS.register('x')(3)", "model 'x' is a function or a class; not 3"),
    (
        "import gcfed\n@gcfed.ALGORITHMS.register\nclass A(gcfed.Algorithm): pass",
        "one word of letters",
    ),
]


@pytest.mark.parametrize(("text", "message"), PLUGINS, ids=[t for t, _ in PLUGINS])
def test_plugins_that_fail(gcfed, tmp_path, text, message):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_plugin(path)
    answer = gcfed("run", *flags(), "--plugin", path, "--out", "a")
    assert answer.code == 2 and "Traceback" not in answer.err and not Path("a").exists()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("model", "def bad(shape, num_classes): 1 / 0"),
        ("dataset", "def bad(root): 1 / 0"),
        ("partition", "def bad(pool, num_clients, rng): 1 / 0"),
    ],
)
def test_what_a_plugin_makes_and_fails(gcfed, tmp_path, kind, text):
    path = tmp_path / f"fails_{kind}.py"
    path.write_text(f"import gcfed\n@gcfed.{kind.upper()}S.register('bad_{kind}')\n{text}\n")
    answer = gcfed("run", *flags(**{kind: f"bad_{kind}"}), "--plugin", path, "--out", "a")
    reason = f"ZeroDivisionError: division by zero (fails_{kind}.py, line 3)"
    assert answer.code == 2
    assert f"{kind} bad_{kind} cannot be made: {reason}" in answer.err


DAMAGE = {
    "summary.json": [
        "[]",
        "3",
        "{}",
        '{"status": 3}',
        '{"status": "finished"}',
        "nothing",
        "[" * 9999,
    ],
    "provenance.json": ["[]", "null", "", "[" * 9999],
    "rounds.jsonl": ["[]\n", "{}\n", '{"round": "a"}\n', "3\n", "x\n"],
    "probes.jsonl": ["[]\n", "{}\n", "x\n"],
    "config.toml": ["rounds = 0", "x"],
}
DAMAGES = [(name, content) for name, contents in DAMAGE.items() for content in contents]


@pytest.mark.parametrize(("name", "content"), DAMAGES, ids=[f"{n} {c[:30]}" for n, c in DAMAGES])
def test_a_damaged_run_does_not_break_its_neighbours(gcfed, tmp_path, name, content):
    make_run(tmp_path / "runs" / "good", [0.5, 0.6])
    damaged = make_run(tmp_path / "runs" / "bad", [0.5, 0.6], seed=1)
    (damaged / name).write_text(content)
    with pytest.warns(UserWarning, match="bad is left out: ") as told:
        assert len(find_runs(tmp_path / "runs")) == 1
        assert len(summaries(tmp_path / "runs")) == 1
        assert len(frame(tmp_path / "runs")) == 2
    assert len(told) == 3 and all(name in str(warning.message) for warning in told)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for command in ("show", "compare"):
            answer = gcfed(command, "runs")
            assert answer.code == 0 and "warning: runs/bad is left out" in answer.err


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("runs", "error: runs cannot be read: no"),
        ("runs/kept", "kept is left out: it cannot be read"),
    ],
)
def test_a_folder_that_may_not_be_read_is_called_so(gcfed, tmp_path, monkeypatch, which, told):
    def walk(folder, onerror):
        onerror(PermissionError(13, "no", which))
        return iter(())

    (tmp_path / "runs").mkdir()
    monkeypatch.setattr("gcfed.results.finding.os.walk", walk)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        answer = gcfed("show", "runs")
    assert answer.code == 2 and told in answer.err


@pytest.mark.filterwarnings("ignore:.*last bits may differ")  # with another torch
@pytest.mark.parametrize("key", ["engine", "device", "gcfed", "runs_together", "threads"])
def test_a_run_without_a_key_of_its_provenance(gcfed, tmp_path, key):
    run = tmp_path / "run"
    shutil.copytree(next(path for path in OLD.iterdir() if path.name.startswith("gcfed")), run)
    as_done_here(load_run(run), tmp_path / "new")
    made = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps({k: v for k, v in made.items() if k != key}))
    for command in ("show", "compare", "verify", "resume"):
        answer = gcfed(command, run)
        assert answer.code in (0, 1, 2) and "Traceback" not in answer.err
        said = answer.out if command == "verify" else answer.err
        assert answer.code == 0 or f"provenance.json is damaged: it lacks '{key}'" in said


ARGUMENTS = {
    "the text of an algorithm is a text, not 3": lambda: library.parse(3),
    "runs are named by the path of a folder; not 3": lambda: library.load_run(3),
    "by the path of a folder; not None": lambda: frame(None),
    r"by the path of a folder; not '.x00'": lambda: library.compare("\0"),
    "a target is a number such as 0.6.* not 'a'": lambda: library.compare("x", target="a"),
    "metrics are names, or functions by name; not 3": lambda: tried(metrics=3),
    "the metric mine cannot read .*ZeroDivisionError": lambda: tried(
        metrics={"mine": lambda a, b: 1 / 0}
    ),
    "the loss gives one value for a batch": lambda: tried(
        loss=lambda logits, y: nn.functional.cross_entropy(logits, y)
    ),
    "the loss cannot read .*TypeError": lambda: tried(loss=3),
    "the parameter weight is on the device 'meta'": lambda: tried(nn.Linear(3, 4, device="meta")),
    "train: Cannot copy out of meta tensor": lambda: dataset_from(
        (torch.ones(9, device="meta"),) * 2
    ),
    r"on_round is a function of a round's line; not 3": lambda: tried(on_round=3),
    "progress is True or False; not <built-in .*: on_round takes": lambda: tried(progress=print),
    "progress is True or False; not 'yes'$": lambda: tried(progress="yes"),
    r"algorithm=GCFed is a class: write algorithm=GCFed\(\)": lambda: tried(
        algorithm=library.GCFed
    ),
    "the text of an algorithm is empty: gcfed list shows": lambda: tried(algorithm=" "),
    r"GCFed\(lam=...\) is a number or None, not 'a'": lambda: library.GCFed(lam="a"),
    r"mlp\(hidden=...\) is a list of whole numbers, not 3": lambda: library.MODELS.parse(
        "mlp(hidden=3)"
    ),
    "path is empty: name a file or a folder, as in path=": lambda: library.DATASETS.parse(
        "folder(path='')"
    )(Path()),
    "unknown key: 'qqq'. gcfed list settings shows all; a hyper-parameter stands in": lambda: tried(
        qqq=3
    ),
    "unknown key: 'batchsize'; did you mean 'batch_size'. gcfed list settings shows all$": (
        lambda: tried(batchsize=3)
    ),
    r"SGD\(lr=...\) is positive; not -1": lambda: library.SGD(-1),
    r"SGD\(lr=...\) is a number, not 'a'": lambda: library.SGD("a"),
    r"SGD\(momentum=...\) is at least 0 and less than 1": lambda: library.SGD(0.1, 1.0),
    r"AdamW\(weight_decay=...\) is at least 0": lambda: library.AdamW(0.1, weight_decay=-1),
    "the head is named by a text, or several; not 3": lambda: library.Model(net(), head=3),
    "takes a torch.optim optimizer first": lambda: library.centralize_gradients(net(), None),
    "an update is tensors by name; not list": lambda: library.centralize_update([1]),
    "a model wraps an nn.Module; not 3": lambda: library.Model(3),
    "test_fraction is a number, not 'a'": lambda: dataset_from((X, Y), test_fraction="a"),
    "num_classes is at least 0; not -1": lambda: dataset_from((X, Y), num_classes=-1),
    "class_names is .*, not 3": lambda: dataset_from((X, Y), class_names=3),
    "seed is a whole number, not 1.5": lambda: dataset_from((X, Y), seed=1.5),
    "columns is .*, not 3": lambda: dataset_from((X, Y), columns=3),
    "one tensor of indices for each client": lambda: library.Partition.of([]),
    r"Dataset\(train=...\) is Examples, not 3": lambda: library.Dataset(
        train=3, test=3, num_classes=1
    ),
    "rounds is a whole number, not 'a'": lambda: library.Schedule(
        rounds="a", cohort_size=1, batch_size=1, epochs=1
    ),
}


def tried(module=None, **given):
    return fit(module or net(), (X, Y), clients=4, cohort=2, rounds=1, batch_size=5, **given)


@pytest.mark.parametrize("message", ARGUMENTS)
def test_arguments_of_another_type(message):
    with pytest.raises(InputError, match=message):
        ARGUMENTS[message]()


def test_a_folder_where_a_file_belongs(gcfed, tmp_path):
    file = PUBLICATIONS["mnist"].files[0]
    (tmp_path / file.name).mkdir(parents=True)
    answer = gcfed("data", "check", "mnist", "--data-dir", tmp_path)
    assert answer.code == 1
    assert "folder: a folder lies where the file belongs; move it" in answer.out
    with pytest.raises(InputError, match=r"mnist: .* is a folder, and should be a file: move it"):
        ensure(PUBLICATIONS["mnist"], [file], tmp_path)
    (tmp_path / "tiny-imagenet-200").mkdir()  # the archive, unpacked
    (tmp_path / "tiny-imagenet-200/wnids.txt").touch()
    assert "unverified" in gcfed("data", "check", "tinyimagenet", "--data-dir", tmp_path).out


def test_a_misspelt_hook_is_told():
    with pytest.warns(UserWarning, match=r"Mine.penalti is no hook .* did you mean penalty\?"):

        class Mine(library.Algorithm):
            def penalti(self, params, out, batch, ctx):
                return 0


def test_a_model_says_which_examples_it_takes(tmp_path):
    library.run(tiny(), tmp_path / "a")
    run = library.load_run(tmp_path / "a")
    with pytest.raises(InputError, match=r"takes examples of shape \['n', 1, 8, 8\]; not \[5, 3\]"):
        run.predict(torch.ones(5, 3))


def test_a_damaged_line_is_named(tmp_path):
    library.run(tiny(), tmp_path / "a")
    with (tmp_path / "a" / "rounds.jsonl").open("a") as file:
        file.write("what?\n")
    with pytest.raises(InputError, match=r"rounds.jsonl is damaged in line 3: Expecting value"):
        library.Run(tmp_path / "a").records  # noqa: B018
