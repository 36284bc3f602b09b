"""What a report says of runs, the command that makes it, and who may see it while it is served."""

import http.client
import json
import sys
import threading

import pytest
from made_runs import make_run, make_runs
from running import flags

from gcfed.core.metrics import Scale
from gcfed.report.charts import (
    MOST_NUMBERS,
    Measure,
    chart,
    most_points,
    probe_measures,
    round_measures,
)
from gcfed.report.contents import compare_warned, gather
from gcfed.report.holdings import holdings
from gcfed.report.live import ReportServer
from gcfed.results.run import Run

pytest_plugins = ["running"]

ACCURACY = Measure("test_accuracy", "test accuracy (%)", 100)


def said(folder):
    return gather(compare_warned(folder))


def texts(table):
    """Every row of a table as texts, by its first."""
    rows = [row for block in table.blocks for row in block.rows]
    return {row[0].value: [cell.value + cell.rest for cell in row[1:]] for row in rows}


def lines(values, **more):
    return [{"round": t, "test_accuracy": value, **more} for t, value in enumerate(values)]


# charts


def test_a_curve_is_the_mean_over_seeds_as_measured_and_smoothed():
    runs = [lines([0.1] * 5 + [0.3] * 5), lines([0.1] * 5 + [0.5] * 5)]
    rounds = {}
    found = chart({"fedavg": runs}, ACCURACY, 100, rounds)
    curve = found["curves"]["fedavg"]
    assert found["window"] == 2 and curve["runs"] == 2
    assert list(rounds) == [tuple(range(1, 11))] and curve["rounds"] == 0
    assert curve["mean"] == [10.0] * 5 + [40.0] * 5
    assert curve["smooth"] == [10.0] * 5 + [25.0] + [40.0] * 4
    assert curve["std"][-1] == curve["smooth_std"][-1] == 14.142


def test_a_number_that_is_not_finite_leaves_a_gap():
    found = chart({"fedavg": [lines([0.1, float("nan"), 0.3])]}, ACCURACY, 9, {})
    assert found["curves"]["fedavg"]["mean"] == [10.0, None, 30.0]


def test_long_curves_are_thinned_and_keep_their_ends():
    rounds = {}
    found = chart({"fedavg": [lines([t / 1000 for t in range(1000)])]}, ACCURACY, 50, rounds)
    (kept,) = rounds
    assert len(kept) == 50 and (kept[0], kept[-1]) == (1, 1000)
    assert found["curves"]["fedavg"]["mean"][-1] == 99.9
    assert found["curves"]["fedavg"]["smooth"][-1] == 99.45  # of the last ten, kept or not


@pytest.mark.parametrize(("methods", "measures"), [(1, 4), (13, 40), (500, 4), (500, 40)])
def test_all_charts_together_have_so_many_numbers(methods, measures):
    panels = {"": {str(number): [[]] for number in range(methods)}}
    points = most_points(panels, measures)
    assert points * 2 * methods * measures <= MOST_NUMBERS
    assert 10 <= points <= 200


def test_a_layer_is_shown_where_there_is_no_number_of_the_whole():
    probes = {"drift.norm": 1.0, "drift.norm.fc": 1.0, "cka.new.fc": 1.0, "clients.decile.10": 1.0}
    panels = {"": {"fedavg": [lines([0.1], **probes)]}}
    assert [each.name for each in probe_measures(panels)] == ["drift.norm", "cka.new.fc"]


def test_measures_of_rounds_are_those_that_have_values():
    panels = {"": {"fedavg": [lines([None, 0.1], test_loss=None, train_loss=1.0)]}}
    found = round_measures(
        panels, {"accuracy": Scale("accuracy", percent=True), "loss": Scale("loss")}
    )
    assert [(each.name, each.label, each.factor) for each in found] == [
        ("test_accuracy", "test accuracy (%)", 100),
        ("train_loss", "train loss", 1),
    ]


# tables


def test_runs_that_go_on_have_curves_and_no_final_value(tmp_path):
    make_run(tmp_path / "a", [0.1, 0.2], algorithm="fedavg", rounds=9, status="running")
    make_run(tmp_path / "b", [0.3, 0.4], algorithm="gcfed")
    found = said(tmp_path)
    assert found.summary == "2 runs, 2 methods, 2 tasks: 1 killed, 1 finished"
    tasks = {task["methods"][0]: task["rounds"][0]["curves"] for task in found.charts["tasks"]}
    assert tasks["fedavg"]["fedavg"]["mean"] == [10.0, 20.0]
    assert texts(found.results)["fedavg"][:2] == ["0 of 1", "-"]


def test_a_run_that_has_just_begun_has_a_page(tmp_path):
    make_run(tmp_path / "a", [], rounds=3, status="running")
    found = said(tmp_path)
    assert found.charts["tasks"][0]["rounds"] == []
    assert texts(found.spent)["fedavg"] == ["-"] * 4


def test_settings_that_differ_stand_apart_and_all_are_there(tmp_path):
    make_runs(tmp_path / "a", [0.5, 0.6], algorithm="fedavg", lr=0.1)
    make_runs(tmp_path / "b", [0.5, 0.6], algorithm="gcfed", lr=0.2)
    found = said(tmp_path)
    assert found.differences.columns == ("method", "algorithm", "lr")
    assert texts(found.differences)["gcfed, lr=0.2"] == ["gcfed", "0.2"]
    settings = texts(found.settings)
    assert settings["lr"] == ["0.1 (2); 0.2 (2)"] and settings["cohort"] == ["3"]


def test_a_method_in_two_tasks_is_listed_twice(tmp_path):
    for alpha in (0.1, 0.5):
        make_runs(tmp_path / str(alpha), [0.5], partition=f"dirichlet(alpha={alpha})")
    found = said(tmp_path)
    rows = [[cell.value for cell in row] for row in found.differences.blocks[0].rows]
    assert rows == [["fedavg", "dirichlet"], ["fedavg", "dirichlet(alpha=0.5)"]]
    assert found.summary == "2 runs, 1 method, 2 tasks: 2 finished"
    assert [task["title"] for task in found.charts["tasks"]] == ["α = 0.1", "α = 0.5"]


def test_one_run_differs_from_the_defaults(tmp_path):
    make_run(tmp_path / "a", [0.5], lr=0.5)
    found = texts(said(tmp_path).differences)
    assert found["lr"] == ["0.5", "0.01"] and "weight_decay" not in found


def test_what_was_sent_is_counted_by_round(tmp_path):
    make_run(tmp_path / "a", [0.5] * 4)
    assert texts(said(tmp_path).spent)["fedavg"] == ["6e-05", "4e-05", "0.0004", "-"]


def test_what_runs_warn_of_is_on_the_page(tmp_path):
    make_runs(tmp_path / "a", [0.5, 0.6])
    (tmp_path / "a" / "seed-1" / "summary.json").write_text("{")
    with pytest.warns(UserWarning, match="seed-1 is left out"):
        found = said(tmp_path)
    assert len(found.warnings) == 1 and "seed-1 is left out" in found.warnings[0]


def test_old_runs_have_a_report(request):
    found = said(request.path.parent / "old_runs")
    assert len(found.runs.blocks[0].rows) == 10
    assert texts(found.environment)["torch"][0].count("2.13")
    assert any("scaffold" in texts(table) for table in found.kept.values())


# who holds what


def test_the_partition_of_a_run_is_drawn_again(tmp_path):
    (found,) = holdings([Run(make_run(tmp_path / "a", [0.5], seed=3))])
    assert len(found["counts"]) == 10 and len(found["counts"][0]) == found["clients"] == 10
    assert sum(map(sum, found["counts"])) == 200
    (other,) = holdings([Run(make_run(tmp_path / "b", [0.5], seed=4))])
    assert other["counts"] != found["counts"]


def test_a_partition_that_comes_out_differently_is_not_shown(tmp_path):
    path = make_run(tmp_path / "a", [0.5])
    (path / "provenance.json").write_text(json.dumps({"partition": {"examples": 201}}))
    (found,) = holdings([Run(path)])
    assert "not what the run recorded" in found["reason"]


def test_data_that_are_not_here_are_not_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "gcfed.data.downloads.download._retrieve", lambda *_: pytest.fail("fetched")
    )
    run = Run(make_run(tmp_path / "a", [0.5], dataset="cifar10", data_dir=str(tmp_path)))
    (found,) = holdings([run])
    assert "is not on this machine" in found["reason"]


# the command


def test_the_command_makes_a_page_and_figures(gcfed, tmp_path):
    words = flags(rounds=3, probes='["drift", "clients(every=1)"]')
    assert gcfed("run", *words, "--out", "runs/a").code == 0
    answer = gcfed("report", "runs", "--figures", "figures")
    assert answer.code == 0, answer.err
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "plotly.js v" in page
    assert "src=" not in page.split('id="plotly"')[0] and "@import" not in page.split("</style>")[0]
    made = {path.name for path in (tmp_path / "figures").iterdir()}
    for name in ("test_accuracy", "train_loss", "drift.norm", "clients.decile"):
        assert {f"{name}.png", f"{name}.pdf", f"{name}.svg"} <= made
    assert "page  report.html" in answer.err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["runs"], "report.html is there already: name another file by --out, or give --force"),
        (["runs", "-o", "a.pdf"], "--out makes a page, such as report.html; not a.pdf"),
        (["runs", "-o", "no/a.html"], "there is no folder"),
        (["runs", "-o", "a.html", "--figures", "full"], "full holds files already"),
        (["runs", "-o", "a.html", "--figures", "report.html"], "report.html is a file"),
        (["runs", "-o", "a.html", "--serve"], "--serve writes no files"),
        (["nowhere", "--serve"], "nowhere is no folder"),
        (["runs", "--serve", "--port", "70000"], "port 70000 cannot be used"),
        (["runs", "-o", "a.html", "--baseline", "moon"], "unknown baseline: 'moon'"),
        (["nowhere", "-o", "a.html"], "nowhere is neither a run nor a folder of runs"),
    ],
)
def test_what_is_refused(gcfed, tmp_path, words, problem):
    make_runs(tmp_path / "runs", [0.5])
    (tmp_path / "report.html").write_text("kept")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.png").write_text("kept")
    answer = gcfed("report", *words)
    assert answer.code == 2
    assert problem in " ".join(answer.err.split())
    assert (tmp_path / "report.html").read_text() == "kept"
    assert not (tmp_path / "a.html").exists()


@pytest.mark.parametrize("missing", ["plotly", "jinja2"])
def test_without_what_it_needs_it_says_what_to_install(gcfed, tmp_path, monkeypatch, missing):
    make_runs(tmp_path / "runs", [0.5])
    monkeypatch.setitem(sys.modules, missing, None)
    answer = gcfed("report", "runs")
    assert answer.code == 2
    assert "pip install 'gcfed[report]'" in answer.err


# served


@pytest.fixture
def serve(tmp_path):
    """A server of the runs in a folder; asks it for an address."""
    server = ReportServer([tmp_path], lambda: said(tmp_path), 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def ask(path, **headers):
        link = http.client.HTTPConnection(*server.server_address)
        link.request("GET", path, headers=headers)
        answer = link.getresponse()
        found = answer.status, answer.headers.get("X-Stamp"), answer.read().decode()
        link.close()
        return found

    ask.server = server
    yield ask
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_served_report_says_what_is_new(serve, tmp_path):
    status, stamp, page = serve("/")
    assert status == 200 and "There is nothing to show yet" in page
    make_run(tmp_path / "a", [0.5], algorithm="fedavg")
    status, later, part = serve(f"/contents?since={stamp}")
    assert status == 200 and later != stamp
    assert "1 run, 1 method, 1 task: 1 finished" in part and "plotly.js v" not in part
    assert serve(f"/contents?since={later}") == (204, None, "")
    with (tmp_path / "a" / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({}) + "\n")
    assert serve(f"/contents?since={later}")[0] == 200


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/../../etc/passwd", "/a/config.toml", "/%2e%2e/", "/contents/x"]
)
def test_there_are_no_files_to_be_had(serve, tmp_path, path):
    make_run(tmp_path / "a", [0.5])
    assert serve(path)[0] == 404


def test_no_other_machine_and_no_other_name_leads_to_it(serve, tmp_path):
    make_run(tmp_path / "a", [0.5])
    host, port = serve.server.server_address
    assert host == "127.0.0.1"
    assert serve("/contents", Host=f"localhost:{port}")[0] == 200
    for name in ("evil.example", f"evil.example:{port}", f"127.0.0.1:{port + 1}"):
        assert serve("/contents", Host=name)[0] == 403


def test_the_command_serves_until_it_is_interrupted(gcfed, tmp_path, monkeypatch):
    make_runs(tmp_path / "runs", [0.5])

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(ReportServer, "serve_forever", interrupted)
    answer = gcfed("report", "runs", "--serve", "--port", "0")
    assert answer.code == 0
    assert "http://127.0.0.1:" in answer.err and "Ctrl+C stops it" in answer.err
    assert not (tmp_path / "report.html").exists()
