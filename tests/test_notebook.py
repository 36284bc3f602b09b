"""What a notebook shows: tables, pictures and how far something is."""

import io
from dataclasses import is_dataclass
from html.parser import HTMLParser
from importlib.metadata import version

import numpy as np
import pytest
import torch
from made_runs import make_run, make_runs
from rich.console import Console
from running import TINY, tiny
from torch import nn

import gcfed
from gcfed import ALGORITHMS, Algorithm, DivergedError, Partition, compare, fit, load_run, progress
from gcfed.data.datasets.gallery import draw_gallery
from gcfed.data.partitions.picture import draw_partition, draw_partitions
from gcfed.figures import Picture
from gcfed.registry import Registry
from gcfed.results.tables import Entry, Section, Table, html

pytest_plugins = ["running"]
pytestmark = pytest.mark.usefixtures("float32")

SCRIPT = "<script>alert(1)</script>"


class Cells(HTMLParser):
    """The tables of a page, row by row, and every tag that stands in it."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.tags = [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, text):
        if self.rows and text.strip():
            self.rows[-1][-1] += text


def shown(thing):
    page = thing._repr_html_()
    found = Cells(page)
    assert page.count("<table>") == page.count("</table>") > 0 and "script" not in found.tags
    return found


def test_every_algorithm_is_a_name_of_the_package():
    classes = {ALGORITHMS[name] for name in ALGORITHMS}
    ours = {c for c in classes if c.__module__.startswith("gcfed.") and c is not Algorithm}
    exported = {getattr(gcfed, name) for name in gcfed.__all__ if name[0].isupper()}
    assert gcfed.Scaffold in ours and ours <= exported
    assert gcfed.GCFed() + gcfed.FedProx(mu=0.5) == gcfed.parse("gcfed + fedprox(mu=0.5)")
    assert all(is_dataclass(c) for c in ours)


def test_the_package_says_its_version_and_has_its_tools():
    assert gcfed.__version__ == version("gcfed")
    assert gcfed.tree.map(lambda x: x + 1, {"a": torch.zeros(1)})["a"].item() == 1
    assert gcfed.keys.uniform(gcfed.keys.key(0), (2,)).shape == (2,)
    assert sorted(gcfed.__all__) == sorted(set(gcfed.__all__))
    assert all(hasattr(gcfed, name) for name in gcfed.__all__)


@pytest.fixture
def registry():
    made = Registry("thing")

    @made.register("second")
    def second(*, size: int = 3, name: str = "<b>"):
        pass

    second.__doc__ = f"Large & {SCRIPT}\n\nMore of it."

    @made.register("first")
    def first():
        """Small."""

    return made


def test_a_registry_is_read_like_a_dict(registry):
    assert registry.keys() == ["first", "second"]
    assert dict(registry) == dict(registry.items())
    assert registry.values() == [registry["first"], registry["second"]]


def test_a_registry_prints_as_a_table(registry):
    header, first, second = repr(registry).splitlines()
    assert header.split() == ["thing", "what", "it", "is", "hyper-parameters"]
    assert first.split() == ["first", "Small."]
    assert second.endswith("size=3, name='<b>'") and "More" not in second
    assert header.index("hyper") == second.index("size=")
    found = shown(registry)
    assert found.rows[1:] == [["first", "Small.", ""], list(registry.rows()[1])]
    assert found.rows[2] == ["second", f"Large & {SCRIPT}", "size=3, name='<b>'"]


def test_a_table_of_results():
    cells = (Entry("gcfed"), Entry("71.67", " (16.07)", "best"))
    others = (Entry(SCRIPT), Entry("60.00", " <10>", "second"))
    page = html(Table(("method", "final"), (Section("a < b", (cells, others)),), ("n & m",)))
    assert "<td><b>71.67</b> (16.07)</td>" in page
    assert "<td><u>60.00</u> &lt;10&gt;</td>" in page
    assert "<b>a &lt; b</b>" in page and "<li>n &amp; m</li>" in page and "<script" not in page


def test_a_comparison(tmp_path):
    make_runs(tmp_path / "a", [0.5, 0.6, 0.7], algorithm="fedavg")
    make_runs(tmp_path / "b", [0.9, 0.7, 0.8], algorithm=SCRIPT)
    comparison = compare(tmp_path)
    found = shown(comparison)
    assert found.rows[0] == list(comparison.table().columns)
    rows = {row[0]: row for row in found.rows[1:]}
    assert rows["fedavg"][2] == "60.00 (10.00)" and rows[SCRIPT][2] == "80.00 (10.00)"
    assert "<b>80.00</b> (10.00)" in comparison._repr_html_()
    assert "<li>the groups differ in: algorithm</li>" in comparison._repr_html_()


def test_a_run(tmp_path):
    gcfed.run(tiny(rounds=7), tmp_path / SCRIPT.replace("/", "_"))
    run = load_run(tmp_path / SCRIPT.replace("/", "_"))
    rows = shown(run).rows
    assert rows[0] == ["run", str(run.path)] and ["algorithm", "fedavg"] in rows
    assert ["rounds", "7 of 7"] in rows and ["status", "finished"] in rows
    assert [row[0] for row in rows[-5:]] == ["3", "4", "5", "6", "7"]
    assert rows[-1][1] == f"{run.records[-1]['test_accuracy']:.4f}"


def test_a_sweep(tmp_path):
    grid = {**TINY, "algorithm": None, "grid": {"algorithm": ["fedavg", "fedprox(mu=0.5)"]}}
    grid = {key: value for key, value in grid.items() if value is not None}
    before = gcfed.Sweep(grid, tmp_path, name="two")
    assert [row[-2:] for row in shown(before).rows[1:]] == 2 * [["waiting", "-"]]
    gcfed.RunStore(tmp_path).run(before.cells[1].cell.configs[0])
    rows = shown(after := gcfed.Sweep(grid, tmp_path, name="two")).rows
    assert rows[0] == ["cell", "algorithm", "seeds", "status", "test_accuracy"]
    assert rows[1] == ["1", "fedavg", "0 of 1", "waiting", "-"]
    final = after.cells[1].runs[0].summary["test_accuracy"]
    assert rows[2] == ["2", "fedprox(mu=0.5)", "1", "done", f"{100 * final:.2f} %"]


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(12, 9), nn.Linear(9, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def fitted(**changes):
    torch.manual_seed(0)
    x, y = torch.randn(120, 12), torch.arange(120) % 3
    settings = {
        "clients": 6,
        "cohort": 2,
        "rounds": 3,
        "partition": "iid",
        "epochs": 2,
        "batch_size": 20,
    }
    settings |= {"engine": "sequential", **changes}
    return fit(Mine(), (x, y), (x[:30], y[:30]), algorithm="fedprox(mu=0.1)", **settings)


def test_fit_says_what_it_will_do_and_how_far_it_is(capsys):
    history = fitted()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == 6
    assert lines[0] == (
        "Mine of 147 parameters, trained by fedprox: 3 rounds, a client doing 2 epochs in each"
    )
    assert lines[1] == "2 of 6 clients a round; with iid a client holds 20 to 20 of 120 examples"
    assert lines[2] == "engine: sequential on cpu (as set)"
    for t, line in enumerate(lines[3:]):
        accuracy = f"{100 * history['test_accuracy'][t]:.2f}"
        assert line.startswith(f"fedprox: round {t + 1} of 3  accuracy {accuracy} %")
    assert [line.endswith(" s left") for line in lines[3:]] == [False, True, False]


def test_fit_can_be_quiet(capsys):
    loud = fitted()
    capsys.readouterr()
    assert fitted(progress=False).records == loud.records
    assert capsys.readouterr() == ("", "")


def test_fit_counts_steps_and_says_what_a_client_holds(capsys):
    fitted(epochs=None, steps=4, partition="dirichlet(alpha=0.5)", rounds=1)
    plan = capsys.readouterr().err
    assert "1 round, a client doing 4 steps in each" in plan and "with α = 0.5 a client h" in plan


def test_a_history(capsys):
    history = fitted(rounds=8)
    rows = shown(history).rows
    assert ["algorithm", "fedprox(mu=0.1)"] in rows and ["clients", "2 of 6 a round"] in rows
    assert ["engine", "sequential on cpu (as set)"] in rows and ["rounds", "8 of 8"] in rows
    assert [row[0] for row in rows[-5:]] == ["4", "5", "6", "7", "8"]
    assert rows[-1][1] == f"{history['test_accuracy'][-1]:.4f}"


@pytest.fixture
def terminal(monkeypatch):
    """Standard error as a terminal; what was drawn on it, without its colours."""
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(progress, "err", console)
    return drawn


def test_a_bar_on_a_terminal(terminal, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0)
    with progress.progress("[fedavg]", 4) as tick:
        for done in range(1, 5):
            tick(done, f"accuracy {done}")
    frames = terminal.getvalue().split("\x1b[2K")
    assert any("[fedavg]" in f and "2/4" in f and "accuracy 2" in f for f in frames)
    assert "4/4" in frames[-1] and "accuracy 4" in frames[-1]


def test_a_bar_is_not_drawn_at_every_tick(terminal, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 1e9)
    with progress.progress("file", 1000, unit="byte") as tick:
        for done in range(1, 1001):
            tick(done, "")
    frames = terminal.getvalue().split("\x1b[2K")
    assert len(frames) < 6 and "1.0/1.0 kB" in frames[-1]


def test_a_bar_goes_away_where_there_was_nothing_to_do(terminal):
    with progress.progress("fedavg", 4):
        pass
    assert "fedavg" not in terminal.getvalue().split("\x1b[2K")[-1]


def test_a_bar_goes_away_before_an_error(terminal):
    with pytest.raises(DivergedError), progress.progress("fedavg", 4):
        raise DivergedError(0, "far")
    assert terminal.getvalue().rstrip().endswith("\x1b[2K")


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_has_a_bar_where_there_are_widgets(has_widgets, monkeypatch):
    notebook = Console(file=io.StringIO(), force_jupyter=True)
    monkeypatch.setattr(progress, "err", notebook)
    monkeypatch.setattr(progress, "find_spec", lambda name: name if has_widgets else None)
    assert progress._can_draw() is has_widgets


def test_plain_lines_at_every_tenth(capsys):
    with progress.progress("long", 200) as tick:
        for done in range(1, 201):
            tick(done, "")
    lines = capsys.readouterr().err.splitlines()
    assert [int(line.split()[2]) for line in lines] == [1, *range(20, 201, 20)]
    assert lines[0] == "long: round 1 of 200" and lines[-1] == "long: round 200 of 200"
    assert " left" in lines[5]


def test_time_left_is_by_what_was_seen(capsys, monkeypatch):
    """Of a run that goes on after round 60, at 2 seconds a round."""
    now = iter(range(1000, 2000, 2))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with progress.progress("resumed", 100) as tick:
        for done in range(61, 101):
            tick(done, "")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["resumed: round 61 of 100", "resumed: round 70 of 100  1:00 left"]


def pictures():
    images = gcfed.DATASETS["synthetic"](None)
    pool = images.pool
    parts = Partition.by_owner(np.arange(pool.size) % 4, 4)
    yield draw_gallery(images)
    yield draw_partition(parts, pool)
    yield draw_partitions({"a": parts, "b": parts}, pool, kind="stack")
    yield fitted(progress=False).plot()


def test_a_picture_shows_itself_and_can_be_saved(tmp_path):
    for picture in pictures():
        assert isinstance(picture, Picture)
        assert picture._repr_png_().startswith(b"\x89PNG")
    for kind, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        picture.savefig(tmp_path / f"a.{kind}")
        assert (tmp_path / f"a.{kind}").read_bytes().startswith(start)


def test_a_comparison_draws_pictures(tmp_path):
    make_run(tmp_path / "a", [0.1, 0.2])
    assert isinstance(compare(tmp_path).plot(), Picture)
