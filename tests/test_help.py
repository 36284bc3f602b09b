"""What the command line says of itself, and how little it needs for that."""

import ast
import io
import json
import os
import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import gcfed as package
from gcfed.cli import console
from gcfed.cli.app import app
from gcfed.cli.choices import LISTS, choices
from gcfed.cli.completion import names_of
from gcfed.config.settings import Config
from gcfed.results.tables import Entry, Section, Table

pytest_plugins = ["running"]

QUICK = [
    ["--help"],
    ["--version"],
    ["runn"],
    ["data", "--help"],
    ["data", "lst"],
    ["run", "--help"],
    ["run", "--roundz", "3"],
    ["run", "--rounds", "x"],
    ["sweep"],
    ["resume", ""],
    ["list"],
    ["list", "modells"],
]

SCRIPT = """
import json, sys
from gcfed.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["gcfed", *words]
    try:
        main()
    except SystemExit:
        pass
    assert "torch" not in sys.modules, words
"""


LISTED = """
import contextlib, io, sys
from gcfed.cli import main
from gcfed.cli.choices import LISTS

def printed(what):
    sys.argv = ["gcfed", "list", what]
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        main()
    return text.getvalue()

written = {what: printed(what) for what in LISTS}
assert "torch" not in sys.modules
import gcfed.registry  # from here on the registries are asked
for what, text in written.items():
    assert text.count("\\n") > 1
    assert text == printed(what), f"{what} changed: run python tools/make_tables.py"
assert "torch" in sys.modules
"""


def commands():
    """Every command by its words."""
    from typer.main import get_command  # gcfed.cli imports typer without its warnings

    def under(words, command):
        yield words, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from under((*words, name), inner)

    yield from under((), get_command(app))


def test_help_and_typing_errors_do_without_torch():
    command = [sys.executable, "-c", SCRIPT, json.dumps(QUICK)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "AssertionError" not in answer.stderr


def test_lists_do_without_torch_and_are_what_the_registries_say():
    answer = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_lists_have_no_markup():
    rows = [row for what in LISTS for row in choices(what).rows]
    assert not [row for row in rows if any("`" in cell or "\\" in cell for cell in row)]


def test_a_list_has_what_a_plugin_registers(tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from gcfed.algorithms import FedProx, register\n"
        "@register('nearby')\nclass Nearby(FedProx):\n    'Nearby: much like FedProx.'\n"
    )
    words = [sys.executable, "-m", "gcfed", "list", "algorithms", "--plugin", plugin]
    answer = subprocess.run(words, capture_output=True, text=True)
    assert "\nnearby       Nearby: much like FedProx." in answer.stdout


def test_the_table_of_engines_has_auto():
    assert str(package.ENGINES).splitlines()[1].startswith("auto ")
    assert "auto" not in package.ENGINES


def test_the_package_imports_a_name_when_it_is_asked_for():
    code = (
        "import sys, gcfed; assert 'torch' not in sys.modules; gcfed.InputError; "
        "assert 'torch' not in sys.modules; from gcfed import *; "
        "assert [fit, GCFed, tree.sub, gcfed.data.DATASETS]; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_there():
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert sorted(dir(package)) == sorted([*package.__all__, "__version__"])
    assert package.FedAvg() == package.parse("fedavg")
    assert "uniform" in package.SAMPLERS and "random" in package.FAULTS
    assert len(set(package.__all__)) == len(package.__all__)
    assert set(package.algorithms.__all__) < set(package.__all__)
    assert pickle.loads(pickle.dumps(package.FedProx(mu=0.5))) == package.FedProx(mu=0.5)
    with pytest.raises(AttributeError, match="module 'gcfed' has no attribute 'fitt'"):
        package.fitt  # noqa: B018


def test_type_checkers_see_the_names_that_are_there():
    body = ast.parse(Path(package.__file__).read_text(encoding="utf-8")).body
    block = next(node for node in body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        for alias in node.names
        if alias.name not in ("*", "algorithms", *package._MODULES)
    }
    assert seen == package._HOME_OF


def test_commands_stand_in_the_order_of_use(gcfed):
    out = gcfed("--help").out
    words = ["demo", "list", "data", "run", "sweep", "resume", "show", "compare", "verify", "check"]
    words += ["theory"]
    places = [out.index(f"\n  {word} ") for word in words]
    assert places == sorted(places)
    for text in ("To begin with:", "Training:", "Results:", "docs/quickstart.md"):
        assert text in out
    assert (Path(__file__).parents[1] / "docs/quickstart.md").is_file()


def test_options_stand_in_sections_with_the_defaults_of_settings(gcfed):
    out = gcfed("run", "--help").out
    sections = ["What is trained:", "How it is trained:", "Where things are:", "Options:"]
    assert [line for line in out.splitlines() if line in sections] == sections
    (run,) = (command for words, command in commands() if words == ("run",))
    said = {param.name: param.show_default for param in run.params}
    config = Config()
    for key in ("algorithm", "dataset", "model", "cohort", "rounds", "seed", "engine", "device"):
        assert said[key] == str(getattr(config, key)), key
    assert config.partition == f"dirichlet(alpha={said['alpha']})"
    assert "[default: (gcfed)]" in out
    assert "\\[" not in out


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_examples_are_commands(words):
    """Every example of a command's help is understood by the command."""
    every = dict(commands())
    for line in every[words].help.splitlines():
        if not line.startswith("    gcfed "):
            continue
        given = shlex.split(line)[1:]
        length = 2 if hasattr(every[(given[0],)], "commands") else 1
        command = every[tuple(given[:length])]
        with command.make_context(given[0], given[length:], resilient_parsing=False):
            pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runn"], "unknown command of gcfed: 'runn'; did you mean 'run'? There are check"),
        (["data", "lst"], "unknown command of gcfed data: 'lst'; did you mean 'list'?"),
        (["run", "--roundz", "1"], "unknown option of gcfed run: '--roundz'; did you mean '--r"),
        (["run", "--lr", "1"], "lr is no option of gcfed run, but a setting: --set lr=VALUE"),
        (["run", "--batch-size=9"], "batch_size is no option of gcfed run, but a setting: --set b"),
        (["show", "--lr", "1"], "unknown option of gcfed show: '--lr'"),
        (["sweep", "a.toml", "--rounds=9"], "rounds is no option of gcfed sweep, but a setting: w"),
        (["sweep", "a.toml", "--seeds=9"], "but a setting: write it into GRID.toml"),
        (["resume", "a", "--rounds", "0"], "rounds is a positive count; not 0"),
        (["run", "."], ". is a folder: name a file of settings"),
        (["check", "my:Mine"], "a class is named by its file, as in my.py:MyAlgorithm; not 'my:M"),
        (["run", "--dataset", "cifar-10"], "not a dataset: 'cifar - 10'; did you mean 'cifar10'?"),
        (["run", "--algorithm", "fedprox mu=1"], "(invalid syntax); write name(key=value)"),
        (["run", "--algorithm", "my.py:Mine"], "the file as --plugin, and here the name that it"),
        (["run", "--rounds", "x"], "invalid value for '--rounds': 'x' is not a valid integer; "),
        (["show"], "missing argument 'RUNS...'; gcfed show --help shows what it takes"),
        (["resume", ""], "invalid value for 'RUNS...': a path is empty: name a file or a folder"),
        (["verify", " "], "invalid value for 'RUNS...': a path is empty: name a file or a folder"),
        (["show", ""], "invalid value for 'RUNS...': a path is empty: name a file or a folder"),
        (["compare", ""], "a path is empty: name a file or a folder"),
        (["sweep", ""], "invalid value for 'GRID.toml': a path is empty"),
        (["run", ""], "invalid value for '[CONFIG.toml]': a path is empty"),
        (["run", "--store", ""], "invalid value for '--store': a path is empty"),
        (["run", "--out", ""], "invalid value for '--out': a path is empty"),
        (["run", "--plugin", ""], "invalid value for '--plugin': a path is empty"),
        (["demo", "--out", ""], "invalid value for '--out': a path is empty"),
        (["data", "list", "--data-dir", ""], "invalid value for '--data-dir': a path is empty"),
        (["compare", "x", "--plot", ""], "invalid value for '--plot': a path is empty"),
        (["list", "modells"], "unknown list: 'modells'; did you mean 'models'?"),
    ],
)
def test_errors_have_one_style(gcfed, words, message):
    answer = gcfed(*words)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("error: ")
    assert message in answer.err
    assert answer.err.lower().count("did you mean") <= 1
    assert answer.err.count("\n") == 1


def test_an_option_without_its_value_names_the_command(gcfed):
    said = gcfed("run", "--set").err
    assert (
        said == "error: option '--set' requires an argument; gcfed run --help shows what it takes\n"
    )


def test_what_may_be_repeated_is(gcfed, tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("")
    same = ("--set", "rounds=1", "--set", "rounds = 1")
    words = ("--rounds", "1", *same, "--json", "--json", "--plugin", "a.py", "--plugin", "b.py")
    assert "unknown model" in gcfed("run", *words, "--model", "none").err


def test_a_grid_is_no_config(gcfed, tmp_path):
    (tmp_path / "grid.toml").write_text("rounds = 2\n[grid]\nlr = [0.1, 0.2]\n")
    answer = gcfed("run", "grid.toml")
    assert answer.code == 2
    assert "grid.toml is a grid of settings: train it with gcfed sweep grid.toml" in answer.err


def test_a_screen_of_no_width_is_one_of_80_columns(tmp_path):
    code = "from gcfed.cli import console; print(console.out.width)"
    command, environment = [sys.executable, "-c", code], {**os.environ, "COLUMNS": "0"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "80\n"


def test_the_list_of_models_says_for_which_examples(gcfed):
    answer = gcfed("list", "models")
    assert "are for examples of 3 x 32 x 32 and 10 classes" in answer.err


def test_nothing_becomes_a_picture(capsys):
    for show in (console.tell, console.say, console.fail):
        show("f.py:X: no :bug: here")
    console.table(("f.py:X:",), [("f.py:X:",)])
    said = capsys.readouterr()
    assert said.out.count("f.py:X:") == 3
    assert said.err.count("f.py:X:") == 2


@pytest.fixture
def screen(monkeypatch):
    """A terminal 60 columns wide, as a file."""
    shown = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")  # a dumb one is 80 columns wide
    options = {"force_terminal": True, "width": 60, "color_system": None}
    monkeypatch.setattr(console, "out", Console(file=shown, **options))
    return shown


def test_a_table_on_a_terminal_breaks_no_word_and_no_number(screen):
    numbers = ("5,167.04 (0.31)", "1,033.44 (0.57)")
    prose = "what a reader sees of a table that is long"
    console.table(("parameter name", "size", "share", "it is"), [("conv1.weight", *numbers, prose)])
    said = screen.getvalue()
    assert all(word in said for word in ("conv1.weight", *numbers, *prose.split()))
    assert max(map(len, said.splitlines())) <= 60


def test_a_path_too_long_for_a_terminal_stands_below_its_row(screen):
    path = "runs/gcfed-fashion10k-mlp-seed-0-e348123a16"
    console.table(("algorithm", "status", "run"), [("gcfed", "finished", path)] * 2)
    row = ["gcfed      finished", f"  {path}"]
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert lines == ["algorithm  status", "  run", *row, *row]


def printed(screen):
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_columns_that_do_not_fit_stand_below_as_a_table_of_their_own(screen):
    heads = ("method", *(f"heading-{k}" for k in range(6)))
    console.table(heads, [(name, *["1,033.4"] * 6) for name in ("fedavg", "gcfed")])
    first, second = (["method", *heads[k : k + 3]] for k in (1, 4))
    rows = [[name, *["1,033.4"] * 3] for name in ("fedavg", "gcfed")]
    assert [line.split() for line in printed(screen)] == [first, *rows, [], second, *rows]


def test_every_row_of_runs_goes_on_below_to_its_path(screen):
    heads = ("algorithm", *(f"heading-{k}" for k in range(5)), "run")
    path = "runs/gcfed-fashion10k-mlp-seed-0-e348123a16"
    console.table(heads, [("gcfed", *"12345", path)] * 2)
    shown, row = printed(screen), ["gcfed 1 2", "  3 4 5", f"  {path}"]
    assert [re.sub(r"(?<=\S) +", " ", line) for line in shown[3:]] == row * 2
    assert shown[:3] == [
        "algorithm  heading-0  heading-1",
        "  heading-2  heading-3  heading-4",
        "  run",
    ]


def test_an_interval_is_never_broken_nor_a_word_of_a_note(screen):
    heads, gap = ("method", "final", "best", "minus fedavg [95 % CI]"), "+8.05 [-84.39, +100.49]"
    value, note = (
        "48.19 (10.06)",
        "best: chosen on the test set, as the papers do it; more is below",
    )
    rows = (tuple(map(Entry, ("gcfed", value, value, gap))),)
    console.show(Table(heads, (Section("", rows),), (note,)))
    assert any(line.endswith(gap) for line in printed(screen))
    assert " ".join(printed(screen)[-2:]) == note
    assert max(map(len, printed(screen))) <= 60


def test_a_cell_that_fits_no_terminal_is_whole(screen):
    word = "a" * 70
    console.table(("name", "what", "it is"), [("one", word, "1"), ("two", "2", "2")])
    assert [line.split() for line in printed(screen)] == [
        *(["name", "what"], ["one", word], ["two", "2"], []),
        *(["name", "it", "is"], ["one", "1"], ["two", "2"]),
    ]


def test_a_shell_completes_names(gcfed, monkeypatch):
    monkeypatch.setenv("_GCFED_COMPLETE", "complete_bash")
    for line, found in {
        "gcfed run --algorithm fedp": ["fedprox"],
        "gcfed list eng": ["engines"],
        "gcfed inspect vg": ["vgg11"],
        "gcfed ver": ["verify"],
    }.items():
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        assert gcfed().out.split() == found
    assert names_of("algorithms")("fedlc + gc") == ["fedlc + gcfed"]
