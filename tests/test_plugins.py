"""Other people's algorithms, models, data sets and partitions."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from running import flags, lines, tiny
from torch import nn

from gcfed import ALGORITHMS, DATASETS, MODELS, PARTITIONS, InputError, load_run, run
from gcfed.config import plugins
from gcfed.config.plugins import load_installed, load_plugin, load_plugins
from gcfed.registry import hyper_parameters

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32", "registries")

PLUGIN = '''
from dataclasses import dataclass
import numpy as np
import torch
from torch import nn
import gcfed

@gcfed.ALGORITHMS.register("slow")
@dataclass(frozen=True)
class Slow(gcfed.Algorithm):
    """Slow: a shorter step on the server."""

    factor: float = 0.5

    def update(self, delta, ctx):
        return {name: self.factor * x for name, x in delta.items()}, ctx.state

@gcfed.MODELS.register("tiny")
class Tiny(nn.Module):
    """Tiny: one layer."""

    def __init__(self, shape, num_classes, width: int = 5):
        super().__init__()
        self.a, self.b = nn.Linear(shape[0], width), nn.Linear(width, num_classes)

    def forward(self, x):
        return self.b(self.a(x).relu())

@gcfed.DATASETS.register("dots")
def dots(root, *, size: int = 40):
    """Dots: points in a plane."""
    x = torch.randn(size, 2, generator=torch.Generator().manual_seed(0))
    examples = gcfed.Examples(x, (x[:, 0] > 0).long())
    return gcfed.Dataset(train=examples, test=examples, num_classes=2)

@gcfed.PARTITIONS.register("turns")
def turns(pool, num_clients, rng):
    """Turns: one example after another."""
    return gcfed.Partition.of([torch.arange(k, pool.size, num_clients) for k in range(num_clients)])
'''
NAMES = {"algorithms": "slow", "models": "tiny", "datasets": "dots", "partitions": "turns"}
NAMED = {"algorithm": "slow(factor=0.25) + gcfed", "model": "tiny(width=4)"}
NAMED |= {"dataset": "dots(size=60)", "partition": "turns"}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Plugins that a test loads are loaded again in the next."""
    monkeypatch.setattr(plugins, "_loaded", {})
    load_installed.cache_clear()
    yield
    load_installed.cache_clear()


@pytest.fixture
def plugin(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


def test_a_plugin_reaches_every_command(gcfed, plugin, tmp_path):
    assert gcfed("run", *flags(**NAMED), "--plugin", plugin, "--out", "a").code == 0
    for what, name in NAMES.items():
        answer = gcfed("list", what, "--plugin", plugin)
        (line,) = [row for row in answer.out.splitlines() if row.startswith(name)]
        assert f"{name.capitalize()}: " in line
    assert "factor=0.5" in gcfed("list", "algorithms", "--plugin", plugin).out
    assert "slow(factor=0.25)" in gcfed("show", "a", "--plugin", plugin).out
    checked = gcfed("check", "slow", "--plugin", plugin)
    assert "docstring of Slow lacks" in checked.out
    config = (tmp_path / "a" / "config.toml").read_text()
    assert f'plugins = ["{plugin}"]' in config
    assert 'dataset = "dots(size=60)"' in config


def test_the_order_of_words_does_not_matter(gcfed, plugin):
    assert gcfed("list", "--plugin", plugin, "models").code == 0
    assert gcfed("check", "--plugin", plugin, "slow").code == 1


def test_a_config_names_its_plugins_and_a_loaded_run_finds_them(plugin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(tiny(**NAMED, plugins=("mine.py",)), tmp_path / "a")
    plugins._loaded.clear()  # as in another process
    for registry in (ALGORITHMS, DATASETS, MODELS, PARTITIONS):
        for name in NAMES.values():
            registry._entries.pop(name, None)
    loaded = load_run(tmp_path / "a")
    assert loaded.predict(torch.zeros(3, 2)).shape == (3,)
    assert len(lines(tmp_path / "a")) == 2


def test_plugins_beside_those_that_a_text_names(gcfed, tmp_path):
    """A file's name may hold a comma, and so may a text that names several."""
    for name in ("a.py", "b.py", "c,d.py"):
        (tmp_path / name).write_text("")
    words = ["run", *flags(rounds=1), "--plugin", "c,d.py", "--set"]
    assert gcfed(*words, "plugins=a.py, b.py", "--out", "x").code == 0
    assert gcfed(*words, "plugins=c,d.py", "--out", "y").code == 0
    loaded = [[Path(p).name for p in load_run(tmp_path / n).config.plugins] for n in "xy"]
    assert loaded == [["a.py", "b.py", "c,d.py"], ["c,d.py", "c,d.py"]]


def test_a_file_is_run_once(plugin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = load_plugin("mine.py")
    assert load_plugin(plugin) is first
    load_plugins([plugin, "mine.py"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", "import nothing_of_the_kind", r"a\.py cannot be run: ModuleNotFoundError.*line 1"),
        ("a.py", "x = 1\nx / 0", r"ZeroDivisionError.*\(a\.py, line 2\)"),
        ("a.py", "def", r"invalid syntax \(line 1\)"),
        ("a.py", "import sys; sys.exit(0)", "cannot be run: SystemExit"),
        ("a.txt", "", "not a Python file"),
        (
            "a.py",
            "import gcfed\ngcfed.MODELS.register('cnn')(int)",
            "model 'cnn' is already registered",
        ),
        ("a.py", "import gcfed\ngcfed.MODELS.register('my net')(int)", "one word"),
    ],
)
def test_a_plugin_that_fails(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    before = set(sys.modules)
    with pytest.raises(InputError, match=message):
        load_plugin(tmp_path / name)
    assert not {module for module in set(sys.modules) - before if "gcfed_plugin" in module}


def test_a_plugin_that_imports_what_lies_beside_it(tmp_path):
    (tmp_path / "lies_beside.py").write_text("")
    (tmp_path / "a.py").write_text("import lies_beside")
    with pytest.raises(InputError, match=r"ModuleNotFoundError.* A plugin is one file, which imp"):
        load_plugin(tmp_path / "a.py")


def test_a_plugin_that_is_not_there(gcfed, tmp_path, monkeypatch):
    """It is looked for in the working directory, wherever the TOML file is."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "sib.py").write_text("")
    text = 'plugins = ["sib.py"]\n[grid]\nlr = [0.1]\n'
    (tmp_path / "sub" / "grid.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    said = " ".join(gcfed("sweep", "sub/grid.toml", "--dry-run").err.split())
    assert f"there is no plugin sib.py in {tmp_path}, the working directory: put it there" in said
    with pytest.raises(
        InputError, match=r"there is no plugin /x/a\.py: put it there.* in plugins of"
    ):
        load_plugin("/x/a.py")


def installed(folder, monkeypatch, modules):
    """A distribution of these modules, as pip leaves it behind, with their entry points."""
    about = folder / "someones-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: someones\nVersion: 1.0\n")
    points = "".join(f"{name} = {name}\n" for name in modules)
    (about / "entry_points.txt").write_text(f"[gcfed.plugins]\n{points}")
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()


def test_an_installed_package_brings_its_own(gcfed, tmp_path, monkeypatch):
    installed(tmp_path, monkeypatch, {"someones_fed": PLUGIN})
    try:
        assert "slow" in gcfed("list", "algorithms").out
        answer = gcfed("run", *flags(**NAMED), "--json", "--out", "a")
        assert json.loads(answer.out)["status"] == "finished"
        assert load_run(tmp_path / "a").config.plugins == ()
    finally:
        sys.modules.pop("someones_fed", None)


def test_an_installed_package_that_fails_is_left_out(tmp_path, monkeypatch):
    installed(tmp_path, monkeypatch, {"bad_fed": "1 / 0", "good_fed": PLUGIN})
    with pytest.warns(UserWarning, match=r"bad_fed .* is left out: ZeroDivisionError"):
        load_plugins([])
    assert "slow" in ALGORITHMS
    load_plugins([])  # and is not complained of again
    sys.modules.pop("good_fed")


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("model", "def wrong(shape, num_classes): return 3", "model wrong gave a int"),
        ("dataset", "def wrong(root): return (1, 2)", "dataset wrong gave a tuple"),
        ("partition", "def wrong(pool, n, rng): return [[0]]", "partition wrong gave a list"),
    ],
)
def test_what_is_made_must_be_of_its_kind(tmp_path, kind, text, message):
    (tmp_path / "a.py").write_text(
        f"import gcfed\n@gcfed.{kind.upper()}S.register('wrong')\n{text}\n"
    )
    with pytest.raises(InputError, match=message):
        run(tiny(**{kind: "wrong"}, plugins=(str(tmp_path / "a.py"),)), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_hyper_parameters_of_functions_classes_and_objects():
    def function(shape, num_classes, width: int = 3, *rest, deep: bool, **more):
        """A function."""

    class Net(nn.Module):
        def __init__(self, shape, num_classes: int, *, names: list[str] | None = None):
            super().__init__()

    class Callable:
        def __call__(self, jobs):
            """An object."""

    assert hyper_parameters(function) == {"width": (int, 3), "deep": (bool, ...)}
    assert hyper_parameters(Net) == {"names": (list[str] | None, None)}
    assert hyper_parameters(Callable()) == {}
    MODELS.register("net_of_names")(Net)
    MODELS.register("function_of")(function)
    assert MODELS.parse("net_of_names(names=['a', 'b'])").keywords == {"names": ("a", "b")}
    with pytest.raises(InputError, match="needs a value for deep"):
        MODELS.parse("function_of(width=1)")
    assert MODELS.canonical("function_of(deep=True)") == "function_of(width=3, deep=True)"
    assert MODELS.describe("net_of_names") == ""  # not nn.Module's


def test_a_plugin_that_was_imported_is_not_run_again(tmp_path, monkeypatch):
    (tmp_path / "imported_first.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("imported_first")
    assert load_plugin(tmp_path / "imported_first.py") is module
    assert ALGORITHMS["slow"] is module.Slow
