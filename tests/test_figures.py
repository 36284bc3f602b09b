"""Figures for a paper: panels, styles, captions, sizes and files."""

import itertools

import numpy as np
import pytest
from made_runs import make_run, make_runs
from matplotlib.colors import to_rgb

from gcfed import InputError
from gcfed.algorithms import ALGORITHMS
from gcfed.results import bands
from gcfed.results.comparison import compare
from gcfed.results.plots import curves
from gcfed.results.styles import COLOURS, KNOWN, WIDTHS, styles

pytest_plugins = ["running"]

BLINDNESS = {  # Machado, Oliveira and Fernandes (2009), rows in linear RGB, severity 1
    "all": np.eye(3).ravel(),
    "protanopia": [
        *(0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216),
        *(-0.003882, -0.048116, 1.051998),
    ],
    "deuteranopia": [
        *(0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413),
        *(-0.011820, 0.042940, 0.968881),
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def records(values):
    return [{"round": t, "test_accuracy": value} for t, value in enumerate(values)]


def panel(methods, rounds=5):
    return {name: [records([0.1] * rounds)] for name in methods}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def thick(axes):
    """The curves of a panel, without thin ones of what was measured."""
    return [line for line in axes.lines if line.get_linewidth() > 1]


def look(line):
    return line.get_color(), line.get_marker(), line.get_linestyle()


# panels


def test_a_panel_for_each_task_and_a_legend_for_all(tmp_path):
    for alpha in ("0.1", "0.05"):
        for name in ("gcfed", "fedavg"):
            partition = f"dirichlet(alpha={alpha}, mode='per_class', min_size=1)"
            settings = {"algorithm": name, "partition": partition, "dataset": "synthetic"}
            make_runs(tmp_path / f"{alpha}-{name}", [0.5, 0.6], **settings)
    figure = compare(tmp_path).plot()
    titles = [axes.get_title().replace("\N{NO-BREAK SPACE}", " ") for axes in figure.axes]
    assert titles == ["α = 0.05", "α = 0.1"]
    assert legend(figure) == ["fedavg", "gcfed"]
    for axes in figure.axes:
        assert [look(line) for line in thick(axes)] == [
            look(line) for line in figure.legends[0].get_lines()
        ]


def test_a_method_without_a_round_has_no_curve(tmp_path):
    make_runs(tmp_path / "a", [0.5], algorithm="fedavg")
    ended = {"reason": "not finite", "diverged": True}
    make_run(tmp_path / "b", [], algorithm="scaffold", status="failed", ended=ended)
    assert legend(compare(tmp_path).plot()) == ["fedavg"]


@pytest.mark.parametrize("size", WIDTHS)
@pytest.mark.parametrize("panels", [1, 2, 4, 5, 8])
@pytest.mark.parametrize("methods", [2, 13])
def test_nothing_covers_anything(size, panels, methods):
    names = [*KNOWN, "fedprox + gcfed"][-methods:]
    titles = [f"cifar100, 5/100 clients, α = {k}" for k in range(panels)]
    figure = curves({title: panel(names, 60) for title in titles}, size=size, title="All of it")
    figure.draw_without_rendering()
    assert figure.get_figwidth() == WIDTHS[size]
    whole, (key,) = figure.bbox, figure.legends
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    boxes += [key.get_window_extent(), figure._suptitle.get_window_extent()]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.padded(-1).overlaps(other.padded(-1))
    for box in boxes:
        assert whole.x0 - 1 <= box.x0 and box.x1 <= whole.x1 + 1
        assert whole.y0 - 1 <= box.y0 and box.y1 <= whole.y1 + 1
    assert all(a.get_window_extent().height > 0.5 * figure.dpi for a in figure.axes)


def test_long_names_are_wrapped():
    names = [f"trace(path='/a/long/folder/of/traces/{i}.csv'), lr=0.01" for i in range(6)]
    figure = curves({"": panel(names)}, size="one column")
    figure.draw_without_rendering()
    assert [text.replace("\n", " ") for text in legend(figure)] == names
    assert figure.legends[0].get_window_extent().width <= figure.bbox.width
    assert figure.axes[0].get_window_extent().height > 0.3 * figure.bbox.height


def test_a_mean_is_of_one_round_where_others_lack_it():
    losses = [[4.0, None, 3.0, 1.0, None], [6.0, 5.0, None, 2.0, 9.0], [None] * 5]
    runs = [[{"round": t, "loss": x} for t, x in enumerate(run)] for run in losses]
    found = bands.band(bands.tested(runs, "loss"), "loss")
    assert found.rounds == (1, 2, 3, 4)  # as far as both got
    assert found.mean.tolist() == [5.0, 5.0, 3.0, 1.5]
    assert found.std.tolist() == [2**0.5, 0.0, 0.0, 0.5**0.5]
    smooth = bands.band(bands.tested(runs, "loss"), "loss", 2, [3])
    assert smooth.mean.tolist() == [(2.0 + 3.5) / 2]


def test_an_unknown_size():
    with pytest.raises(InputError, match="unknown size of a figure: 'three columns'"):
        curves({"": panel(["fedavg"])}, size="three columns")


# styles


def test_every_algorithm_has_a_style_of_its_own():
    assert set(KNOWN) >= set(ALGORITHMS)
    assert len(set(styles(KNOWN).values())) == len(KNOWN)
    assert len({style.colour for style in styles(KNOWN[: len(COLOURS)]).values()}) == len(COLOURS)


def test_a_method_looks_the_same_whatever_stands_beside_it():
    alone = {name: styles([name])[name] for name in (*KNOWN, "mine(x=1)", "fedprox + gcfed")}
    assert styles(reversed(alone)) == alone
    assert styles(["gcfed, lr=0.1"])["gcfed, lr=0.1"] == alone["gcfed"]


def test_methods_of_one_algorithm_look_different():
    names = [f"gcfed, lr={10.0**-k}" for k in range(40)]
    assert len(set(styles(names).values())) == 40


def lab(colour, seen_by):
    """A colour as people see it, in CIELAB."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    white = TO_XYZ.sum(1)
    x, y, z = np.cbrt(
        TO_XYZ @ np.clip(np.reshape(BLINDNESS[seen_by], (3, 3)) @ linear, 0, 1) / white
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("seen_by", BLINDNESS)
def test_colours_can_be_told_apart(seen_by):
    """A distance of 2.3 is just noticeable; white is the paper."""
    seen = [lab(colour, seen_by) for colour in (*COLOURS, "white")]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 12


# what is drawn


def test_a_curve_and_a_target_are_smoothed_alike(tmp_path):
    """The mean of ten times 0.6 is 0.6, whatever came before."""
    make_run(tmp_path / "a", [0.1, *[0.6] * 49])
    found = compare(tmp_path, target=0.6)
    (axes,) = found.plot().axes
    (curve,) = thick(axes)
    smoothed = curve.get_ydata() / 100
    assert smoothed[:3] == pytest.approx([0.1, 0.7 / 2, 1.3 / 3])
    assert smoothed[9:11] == pytest.approx([5.5 / 10, 0.6])
    assert found.results[0].outcomes[0].rounds_to_target == 11
    assert axes.get_ylabel() == "test accuracy (%)\nmean of 10 evaluations"


@pytest.mark.parametrize(("rounds", "window"), [(5, 1), (20, 4), (49, 9), (50, 10), (300, 10)])
def test_short_runs_are_smoothed_less_and_the_axis_says_so(rounds, window):
    (axes,) = curves({"": {"fedavg": [records(np.arange(rounds) / 1000)]}}).axes
    last = thick(axes)[0].get_ydata()[-1]
    assert last == pytest.approx(np.arange(rounds)[-window:].mean() / 10)
    said = "" if window == 1 else f"\nmean of {window} evaluations"
    assert axes.get_ylabel() == f"test accuracy (%){said}"
    assert len(axes.lines) == (1 if window == 1 else 2)


@pytest.mark.parametrize("rounds", [1, 3, 5, 100])
def test_ticks_are_rounds_from_1(rounds):
    figure = curves({"": {"fedavg": [records([0.5] * rounds)]}})
    figure.draw_without_rendering()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    shown = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert shown and all(float(tick).is_integer() and tick >= 1 for tick in shown)


# files


def test_text_is_text_in_vector_files(tmp_path):
    figure = curves({"α = 0.1": panel(["fedavg", "gcfed"])})
    figure.savefig(tmp_path / "a.svg")
    figure.savefig(tmp_path / "a.pdf", metadata={"CreationDate": None})
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert ">gcfed</text>" in drawn and ">test accuracy (%)</text>" in drawn
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/CIDFontType2" in pdf and b"/Type3" not in pdf


@pytest.mark.parametrize(("size", "points"), [("one column", 237.6), ("two columns", 496.8)])
def test_the_command_writes_a_figure_of_the_width_asked_for(tmp_path, gcfed, size, points):
    make_runs(tmp_path / "a", [0.5, 0.6])
    answer = gcfed("compare", tmp_path, "--plot", "curves.pdf", "--size", size)
    assert answer.code == 0
    assert f"/MediaBox [ 0 0 {points} ".encode() in (tmp_path / "curves.pdf").read_bytes()


@pytest.mark.parametrize("words", [["compare", "."], ["reproduce", "lambda", "--reduced"]])
def test_a_width_without_a_plot_is_refused(gcfed, words):
    answer = gcfed(*words, "--size", "two columns")
    assert answer.code == 2
    assert "--size is the width of a plot: name a file for it by --plot" in answer.err
