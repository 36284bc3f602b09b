"""Tables of the paper done again: our numbers beside the printed ones."""

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_reproductions import made
from running import TINY

from gcfed import DATASETS, InputError, Sweep
from gcfed.paper.agreement import OurNumber, agrees, difference, judge, same_order
from gcfed.paper.beside import Beside
from gcfed.paper.doing import busy_seconds
from gcfed.paper.drawing import draw
from gcfed.paper.extent import extent
from gcfed.paper.item import Column, item_names, paper_item, read_printed
from gcfed.paper.methods import METHODS
from gcfed.paper.reproduction import read_reproduction
from gcfed.results.styles import styles
from gcfed.runs.store import RunStore

pytest_plugins = ["running"]

SMALL = {k: v for k, v in TINY.items() if k not in ("algorithm", "rounds")}


@pytest.mark.parametrize(
    ("ours", "printed", "near"),
    [
        ([64.0, 66.0], "66.44 (1.40)", True),
        ([63.0, 63.5], "66.44 (1.40)", False),
        ([], "10.00 (failed)", True),
        ([30.0], "10.00 (failed)", True),  # one of two failed, as theirs did
        ([30.0, 31.0], "10.00 (failed)", False),
        ([66.0], "66.44 (1.40)", False),  # one of two failed, and none of theirs
    ],
)
def test_what_agrees_with_an_accuracy(ours, printed, near):
    assert agrees(OurNumber(tuple(ours), 2), read_printed(printed), "accuracy") is near


def test_what_agrees_with_rounds():
    printed = read_printed("287-425")
    assert agrees(OurNumber((500.0,), 1), printed, "rounds_to_target")
    assert not agrees(OurNumber((200.0,), 1), printed, "rounds_to_target")
    assert not agrees(OurNumber((math.inf,), 1), printed, "rounds_to_target")
    assert difference(OurNumber((300.0,), 1), printed) is None
    assert difference(OurNumber((300.0,), 1), read_printed("182")) == 118


def test_the_order_of_methods():
    """By hand: ranks 1 2 3 4 and 1 3 2 4 differ by two ones: 1 - 6 * 2 / (4 * 15) = 0.8."""
    printed = {
        n: read_printed(v) for n, v in zip("abcd", ("1.0", "2.0", "3.0", "4.0"), strict=True)
    }
    ours = {n: OurNumber((v,), 1) for n, v in zip("abcd", (10.0, 30.0, 20.0, 40.0), strict=True)}
    found = same_order(ours, printed)
    assert found.spearman == pytest.approx(0.8) and found.methods == 4 and found.agrees
    turned = {n: OurNumber((-x.mean,), 1) for n, x in ours.items()}
    assert same_order(turned, printed).spearman == pytest.approx(-0.8)
    assert not same_order(turned, printed).agrees
    assert same_order({"a": ours["a"], "b": ours["b"]}, printed) is None
    assert same_order(dict.fromkeys("abcd", OurNumber((1.0,), 1)), printed) is None


def test_a_method_that_fails_is_ranked_at_chance():
    printed = {
        n: read_printed(v) for n, v in zip("abc", ("10.0 (failed)", "20.0", "30.0"), strict=True)
    }
    ours = {"a": OurNumber((), 3, 10.0), "b": OurNumber((50.0,), 3), "c": OurNumber((60.0,), 3)}
    assert same_order(ours, printed).spearman == pytest.approx(1)


def test_claims_are_tried_on_what_there_is():
    item = paper_item("small-scale")
    first, falls, _ = item.claims
    found = made({"GC-Fed": [50.0], "FedAvg": [40.0], "FedLC": [55.0]}, seeds=1).numbers
    verdict = judge(first, item, found)
    assert (verdict.holds, verdict.comparisons) == (1, 2)
    assert str(verdict).startswith("holds 1 times of 2")
    assert str(judge(falls, item, found)).startswith("not tried")
    found = {**found, Column("cifar10 5/100 0.05", "accuracy"): {"FedAvg": OurNumber((30.0,), 1)}}
    assert str(judge(falls, item, found)).startswith("agrees")


def test_a_claim_says_if_only_a_part_of_it_was_tried():
    item, of = paper_item("training-dynamics"), paper_item("training-dynamics").cells[0].name
    spread = {"FedAvg": 4.0, "LocalGC": 3.0, "GC-Fed": 2.0, "GlobalGC": 1.0}

    def said(*methods):
        numbers = {m: OurNumber((spread[m],), 1) for m in methods}
        return str(judge(item.claims[0], item, {Column(of, "step_std"): numbers}))

    assert said(*spread).startswith("agrees: ")
    assert said("FedAvg", "GC-Fed").startswith("agrees as far as it was tried: ")
    assert said("FedAvg").startswith("not tried: ")


def test_targets_that_neither_reaches_are_not_compared():
    item = paper_item("rounds-to-target")
    claim, column = item.claims[0], Column(item.cells[0].name, item.quantities[0])
    never, late = OurNumber((math.inf,), 1), OurNumber((700.0,), 1)
    found = judge(claim, item, {column: {"FedAvg": never, "GC-Fed": never}})
    assert str(found).startswith("not tried")
    found = judge(claim, item, {column: {"FedAvg": never, "GC-Fed": late}})
    assert (found.holds, found.comparisons) == (1, 1)


def test_the_table_by_eye():
    text = Beside(made({"FedAvg": [66.0, 66.4, 66.8], "GC-Fed": [60.0, 61.0]})).render()
    rows = {line.split()[0]: line.split() for line in text.splitlines()}
    assert rows["FedAvg"][1:] == ["3", "66.44", "(1.40)", "66.40", "(0.40)", "-0.04", "yes"]
    assert rows["GC-Fed"][1:] == [
        "2",
        "of",
        "3",
        "72.44",
        "(2.14)",
        "60.50",
        "(0.71)",
        "-11.94",
        "no",
    ]
    assert "--on-nonfinite" in text and "order" in text


def test_what_is_reduced_says_so_and_gives_no_difference():
    found = made({"FedAvg": [66.0], "GC-Fed": [60.0], "FedLC": [50.0]}, seeds=1, is_reduced=True)
    text = Beside(found).render()
    assert "REDUCED" in text and "-0.44" not in text and "Spearman" in text
    rows = csv.DictReader(Beside(found).render("csv").splitlines())
    assert {(row["difference"], row["agrees"]) for row in rows} == {("", "")}


def test_a_number_that_no_run_has_is_a_dash():
    """A run of one round has no step of accuracy; that is no failure."""
    numbers = {Column("cifar10 5/200 0.05", "step_std"): {"FedAvg": OurNumber((), 0)}}
    text = Beside(replace(made({}, item="training-dynamics"), numbers=numbers)).render()
    line = next(line for line in text.splitlines() if line.startswith("FedAvg"))
    assert line.split()[1:] == ["0", "7.33", "-", "-", "-"]


def test_a_method_of_which_nothing_finished_is_shown_at_chance():
    text = Beside(made({"SCAFFOLD": [], "FedAvg": [66.0] * 3})).render()
    line = next(line for line in text.splitlines() if line.startswith("SCAFFOLD"))
    assert "0 of 3" in line and line.count("10.00 (failed)") == 2 and line.endswith("yes")


@pytest.mark.parametrize("pivot", [False, True])
@pytest.mark.parametrize("form", ["text", "markdown", "latex", "csv", "json"])
def test_every_format_holds_the_numbers(form, pivot):
    found = made({"FedAvg": [66.0, 66.4, 66.8], "GC-Fed": [70.0] * 3})
    text = Beside(found).render(form, pivot=pivot)
    assert "66.4" in text and "GC-Fed" in text
    if form == "csv":
        rows = list(csv.DictReader(text.splitlines()))
        assert [row["paper"] for row in rows] == ["66.44 (1.40)", "72.44 (2.14)"]


def test_a_reproduction_is_read_again_as_it_was():
    where = {"item": "rounds-to-target", "quantity": "rounds_to_target"}
    how = {"rounds": 700, "device": "cpu", "seconds": 3.5}
    found = made({"FedAvg": [598.0, math.inf]}, **where, **how)
    text = Beside(found).render("json")
    again = read_reproduction(json.loads(text), "x.json")
    assert again.numbers == found.numbers and again.made == found.made
    assert Beside(again).render() == Beside(found).render()
    assert "not reached" in Beside(again).render()


@pytest.mark.parametrize("change", [{"item": "nothing"}, {"numbers": [{}]}, {"made": {}}])
def test_what_no_reproduction_wrote_is_refused(change):
    values = json.loads(Beside(made({"FedAvg": [1.0]})).render("json")) | change
    with pytest.raises(InputError):
        read_reproduction(values, "x.json")


@pytest.fixture
def reproduce(gcfed, float32):
    """Do runs in this process, where the command then finds them, and call it."""

    def call(name, *words, cells=(), methods=(), **changes):
        changes = {k: v for k, v in {**SMALL, **changes}.items() if v is not None}
        how = {"cells": cells, "methods": methods, "seeds": 1, "rounds": 3}
        for cell in extent(paper_item(name), changes=changes, **how).grid().cells:
            RunStore("runs").run_together(cell.configs)
        chosen = [f"--cells={cell}" for cell in cells]
        chosen += [f"--algorithms={','.join(methods)}"] if methods else []
        given = [f"--set={key}={value}" for key, value in changes.items()]
        return gcfed("reproduce", name, "--seeds=1", "--rounds=3", *chosen, *given, *words)

    return call


def test_the_command_finds_runs_and_compares_them(reproduce, tmp_path):
    chosen = {"cells": ["5/100 1"], "methods": ["fedavg", "localgc", "gcfed"]}
    found = reproduce("baseline-validation", "--out=x.json", "--plot=x.png", lr=0.05, **chosen)
    assert found.code == 0, found.err
    assert "73.50 (1.97)" in found.out and "Spearman" in found.out and "3 rounds" in found.out
    again = read_reproduction(json.loads((tmp_path / "x.json").read_text()), "x.json")
    assert again.made.seeds == 1 and again.made.command.startswith("gcfed reproduce baseline")
    assert list(again.curves["cifar10 5/100 1"]) == ["FedAvg", "LocalGC", "GC-Fed"]
    assert (tmp_path / "x.png").stat().st_size > 1000
    some = reproduce("baseline-validation", "--found", lr=0.05, **chosen)
    assert some.code == 0 and "73.50 (1.97)" in some.out
    dry = reproduce("baseline-validation", "--dry-run", lr=0.05, **chosen)
    assert dry.code == 0 and dry.out.count(" done ") == 3


@pytest.mark.slow
def test_the_command_trains_what_is_missing(gcfed):
    words = [f"--set={key}={value}" for key, value in SMALL.items()]
    chosen = ("--cells=5/100 1", "--algorithms=fedavg,gcfed", "--seeds=2", "--rounds=2")
    found = gcfed("reproduce", "baseline-validation", *chosen, *words)
    assert found.code == 0 and found.err.count("starts on") == 2, found.err
    again = gcfed("reproduce", "baseline-validation", *chosen, *words)
    assert again.out == found.out and "starts on" not in again.err


def test_failed_runs_are_counted(reproduce):
    """A learning rate at which nothing stays finite: 0 of 1; and the way out is told."""
    found = reproduce("baseline-validation", cells=["5/100 1"], methods=["fedavg"], lr=1e30)
    assert "0 of 1" in found.out and "10.00 (failed)" in found.out and found.code == 3
    assert "--on-nonfinite drop" in found.out


def test_training_dynamics_and_targets(reproduce):
    found = reproduce("training-dynamics", methods=["fedavg"])
    assert "step std" in found.out and "7.33" in found.out and found.code == 0
    found = reproduce("rounds-to-target", cells=["cifar10 5/100"], methods=["fedavg"])
    assert "598" in found.out and found.code == 0


def test_participation_is_one_command_and_one_plot(reproduce, tmp_path):
    cells = ["non-iid 1/100", "non-iid 10/100"]
    small = {"clients": None, "cohort": None, "batch_size": 4, "steps": 1, "epochs": None}
    probe = {"probes": ["participation(every=2)"]}
    found = reproduce("participation", "--plot=x.png", cells=cells, **small, **probe)
    assert found.code == 0, found.err
    assert (
        "claim agrees as far as it was tried: The gap widens as fewer clients take part"
        in found.out
    )
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_cka_layer_by_layer(reproduce, tmp_path):
    probe = {"probes": ["cka(every=2, examples=20)"]}
    mlp = {"model": "mlp(hidden=(8,))"}
    found = reproduce("cka", "--plot=x.png", cells=["non-iid"], methods=["FedAvg"], **probe, **mlp)
    assert found.code == 0, found.err
    assert "cka.received.fc1" in found.out and (tmp_path / "x.png").exists()


def test_the_data_distribution_trains_nothing(gcfed, tmp_path):
    found = gcfed("reproduce", "data-distribution", "--reduced", "--seeds=3", "--plot=x.png")
    assert found.code == 0 and "claim agrees: Clients are farther" in found.out
    assert not (tmp_path / "runs").exists() and (tmp_path / "x.png").exists()


def test_a_dry_run_of_what_trains_nothing_needs_no_data(gcfed, tmp_path):
    found = gcfed("reproduce", "data-distribution", "--dry-run", "--data-dir", tmp_path / "none",
                  "--out", tmp_path / "x.md")  # fmt: skip
    assert found.code == 0 and "trains nothing: it divides data" in found.out
    assert not (tmp_path / "x.md").exists()


def test_a_part_of_the_data_is_not_taken_for_the_whole(tmp_path, monkeypatch):
    from gcfed.paper import stand_in

    few = DATASETS.parse("synthetic(train=30, test=10)")(tmp_path)
    monkeypatch.setattr(stand_in, "_lacks", lambda name, root: False)
    monkeypatch.setattr(stand_in, "read_dataset", lambda name, root: few)
    item = paper_item("small-scale")
    wanted = extent(item, cells=["cifar10 5/100 0.1"], methods=["fedavg"])
    assert stand_in.parts_at_hand(wanted) == {"cifar10": (30, 50_000)}
    assert list(stand_in.stand_ins(wanted)) == ["cifar10"]
    monkeypatch.setattr(stand_in, "_lacks", lambda name, root: True)
    assert stand_in.parts_at_hand(wanted) == {}
    assert list(stand_in.stand_ins(wanted)) == ["cifar10"]
    reduced = extent(item, cells=["cifar10 5/100 0.1"], methods=["fedavg"], is_reduced=True)
    assert stand_in.stand_ins(reduced) == {}


def test_stopped_before_the_first_cell_is_over(gcfed, monkeypatch):
    monkeypatch.setattr(Sweep, "run", lambda self, observe: None)  # every cell still waits
    found = gcfed("reproduce", "small-scale", "--reduced", "--cells=cifar10 5/100 0.1",
                  "--algorithms=fedavg", "--seeds=1", "--rounds=1", "--out=x.md")  # fmt: skip
    assert found.code == 130 and "stopped; the same command goes on" in found.err
    assert not Path("x.md").exists()


def test_another_process_at_the_same_cells(gcfed, tmp_path):
    """Other methods are of the same record."""
    made = extent(paper_item("small-scale"), cells=["cifar10 5/100 0.1"], is_reduced=True)
    folder = tmp_path / "runs" / "sweeps" / made.grid().name
    folder.mkdir(parents=True)
    code = (
        "import sys; from pathlib import Path; from gcfed.lock import locked\n"
        "with locked([Path(sys.argv[1])]): print(flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], **pipes) as other:
        other.stdout.readline()
        found = gcfed("reproduce", "small-scale", "--reduced", "--cells=cifar10 5/100 0.1",
                      "--algorithms=fedavg", "--seeds=1", "--rounds=1")  # fmt: skip
    assert found.code == 2 and f"is being written by process {other.pid} on " in found.err
    assert "wait until it ends, and the same command goes on, or take another --store" in found.err


def test_found_trains_nothing(gcfed):
    words = [f"--set={key}={value}" for key, value in SMALL.items()]
    found = gcfed("reproduce", "baseline-validation", "--found", "--cells=5/100 1", *words)
    assert found.code == 2 and "no cell of baseline-validation" in found.err


def test_the_list(gcfed):
    found = gcfed("reproduce", "--list")
    assert "small-scale" in found.out and "Table 5" in found.out
    found = gcfed("reproduce", "lambda", "--list")
    assert "GC-Fed 0.85" in found.out and "claim: Lambda from 0.85" in found.out
    assert "model=resnet18, cohort=5, rounds=1000, clients=400, alpha=0.1\n" in found.out


def test_the_list_of_what_is_asked_for(gcfed):
    words = ("--reduced", "--rounds=7", "--set=lr=0.1", "--algorithms=GC-Fed 1")
    listed = gcfed("reproduce", "lambda", "--list", *words).out.splitlines()
    said = "dataset=fashion10k, model=mlp, cohort=5, rounds=7, clients=100, alpha=0.05, epochs=1"
    assert listed[1].startswith(f"cifar100 5/400 0.05  {said}") and "lr=0.1" in listed[1]
    assert listed[3] == "methods: GC-Fed 1"  # of 400 and of 800 clients 100 are left
    partition = gcfed("reproduce", "lambda", "--list", "--set=partition=iid").out
    assert "partition=iid" in partition and "alpha=" not in partition


def test_costs_of_data_that_are_not_at_hand(gcfed, tmp_path):
    found = gcfed("reproduce", "small-scale", "--cells=emnist", "--algorithms=fedavg", "--dry-run",
                  "--data-dir", tmp_path)  # fmt: skip
    assert found.code == 0 and "emnist is not at hand" in found.err
    assert "new" in found.out


def test_methods_whose_names_hold_commas(gcfed, tmp_path):
    found = gcfed("reproduce", "mean-vector", "--algorithms=FedAvg,[out,1,1,1]", "--dry-run",
                  "--data-dir", tmp_path)  # fmt: skip
    assert found.code == 0
    assert found.out.count("FedAvg") == found.out.count("[out,1,1,1]") == 2  # once a cell
    assert "[out,in,1,1]" not in found.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a table or figure"),
        (["small-scal"], "did you mean"),
        (["small-scale", "--cells", "cifar12"], "cell of small-scale"),
        (["small-scale", "--algorithms", "fedavgg"], "method of small-scale"),
        (["small-scale", "--algorithms", ""], "method of small-scale"),
        (["cka", "--cells", "iid 5/200", "--algorithms", "gcfed"], "has GC-Fed: iid 5/200: FedAvg"),
        (["small-scale", "--seeds", "0"], "--seeds is at least 1"),
        (["small-scale", "--rounds", "0"], "--rounds is at least 1"),
        (["small-scale", "--rounds", "2", "--set", "rounds=3"], "--rounds 2 and --set rounds=3"),
        (["small-scale", "--on-nonfinite=fail", "--set=on_nonfinite=drop"], "contradict each"),
        (["small-scale", "--set=lr=1", "--set=lr=2"], "--set lr=1 and --set lr=2 contradict"),
        (["small-scale", "--set", "seed=3"], "--set seed changes no cell: --seeds says which"),
        (["small-scale", "--list", "--set", "rounds=0"], "small-scale: rounds should be greater"),
        (["small-scale", "--list", "--set", "lr=2020-01-01"], "lr should be a valid number; not"),
        (["small-scale", "--list", "--set", "rouns=3"], "unknown key: 'rouns'; did you mean"),
        (["small-scale", "--dry-run", "--set", "data_dir=5"], "data_dir should be a valid string"),
        (["small-scale", "--out", "x.doc"], "x.doc"),
        (["lambda", "--reduced", "--per-device", "0"], "a positive count; not 0"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_words(gcfed, words, message):
    found = gcfed("reproduce", *words)
    assert found.code == 2 and message in found.err and "Traceback" not in found.err


@pytest.mark.parametrize("name", item_names())
def test_every_item_can_be_drawn(name):
    """A line or curve for whoever has numbers, in the style that the method has everywhere."""
    item = paper_item(name)
    number, curve = OurNumber((1.0, 2.0), 2), [[(1, 0.1), (2, 0.2)]]
    numbers = {
        Column(cell.name, quantity): dict.fromkeys(cell.methods, number)
        for cell in item.cells
        for quantity in item.quantities
    }
    curves = {cell.name: dict.fromkeys(cell.methods, curve) for cell in item.cells[:2]}
    figure = draw(item, numbers, curves, "two columns")
    (legend,) = figure.legends
    assert legend.get_texts() and all(axes.lines for axes in figure.axes)


def test_a_method_has_one_style_however_it_is_written():
    assert styles(["GC-Fed"])["GC-Fed"] == styles(["gcfed"])["gcfed"]
    assert len(set(styles(list(METHODS)).values())) == len(METHODS)


def test_the_time_of_cells_beside_each_other_counts_once():
    spans = [[(0, 10)], [(5, 6), (9, 12)], [(20, 21)]]
    timings = [[{"at": end, "seconds": end - begin} for begin, end in each] for each in spans]
    assert busy_seconds([SimpleNamespace(timings=each) for each in timings]) == 13
    assert busy_seconds([SimpleNamespace(timings=[{"seconds": 2.0}])]) == 0  # of before
