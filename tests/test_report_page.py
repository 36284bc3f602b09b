"""The page of a report, looked at with a real browser."""

import threading

import pytest
from browsing import WIDTHS
from made_runs import make_run
from running import tiny

from gcfed import run
from gcfed.report.contents import compare_warned, gather
from gcfed.report.live import ReportServer
from gcfed.report.page import render_page

pytest.importorskip("playwright")
pytest_plugins = ["browsing"]
pytestmark = pytest.mark.slow

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A page of two methods with two seeds, with probes, on the embedded data."""
    folder = tmp_path_factory.mktemp("page")
    probes = ("drift", "cka", "clients(every=1)")
    for algorithm in ("fedavg", "gcfed"):
        for seed in (0, 1):
            config = tiny(algorithm=algorithm, seed=seed, rounds=12, probes=probes)
            run(config, folder / "runs" / f"{algorithm}-{seed}")
    page = folder / "report.html"
    page.write_text(render_page(gather(compare_warned(folder / "runs"))), encoding="utf-8")
    return page.as_uri()


@pytest.fixture(scope="module")
def desktop(address, show):
    """The page on a wide screen; tests put back what they change."""
    return show(address)


def check_drawn(shown, address, width):
    names = ("test_accuracy", "test_loss", "train_loss")
    charts = [f"round-charts-{name}" for name in names]
    for chart in [*charts, "client-charts-clients-decile", "probe-charts-drift-norm"]:
        assert shown.visible(chart) == ["fedavg", "gcfed"]
    assert shown.page.locator("#round-charts .scatterlayer .trace").count() >= 8
    assert shown.page.locator("#data-charts .heatmaplayer image").count() == 1
    assert shown.complaints == []
    assert {each for each in shown.requests if not each.startswith("data:")} == {address}
    assert shown.page.evaluate("document.documentElement.scrollWidth") == WIDTHS[width]


def paper(shown):
    return shown.page.evaluate("getComputedStyle(document.body).backgroundColor")


def ink(shown):
    """The colour of the letters in a chart."""
    return shown.page.evaluate("document.querySelector('.plot').layout.font.color")


def test_it_is_drawn_without_complaint_and_without_a_network(address, desktop):
    check_drawn(desktop, address, "desktop")
    assert paper(desktop) == "rgb(255, 255, 255)"


def test_it_is_drawn_on_a_phone_in_the_dark(address, show, desktop):
    shown = show(address, "phone", "dark")
    check_drawn(shown, address, "phone")
    assert paper(shown) == "rgb(18, 22, 27)"
    assert ink(shown) != ink(desktop)


def test_it_follows_when_the_light_goes_out(desktop):
    letters = "wanted => document.querySelector('.plot').layout.font.color === wanted"
    light = ink(desktop)
    for scheme, colour in {"dark": "#e6edf3", "light": light}.items():
        desktop.page.emulate_media(color_scheme=scheme)
        desktop.page.wait_for_function(letters, arg=colour)


def test_charts_stand_beside_each_other_and_not_on_each_other(desktop):
    figures = desktop.page.locator("#round-charts figure").all()
    assert len(figures) == 4
    for figure in figures:
        box, drawing = figure.bounding_box(), figure.locator(".main-svg").first.bounding_box()
        assert box["x"] <= drawing["x"]
        assert drawing["x"] + drawing["width"] <= box["x"] + box["width"]


def test_a_press_in_the_legend_hides_a_curve_and_a_second_shows_it(desktop):
    button = desktop.page.locator("#legend button", has_text="fedavg")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    for chart in ("round-charts-test_accuracy", "client-charts-clients-decile"):
        assert desktop.visible(chart) == ["gcfed"]
    button.press("Enter")
    assert desktop.visible("round-charts-test_accuracy") == ["fedavg", "gcfed"]
    desktop.page.locator("#hide-all").click()
    assert desktop.visible("round-charts-test_accuracy") == []
    desktop.page.locator("#show-all").click()
    assert desktop.visible("round-charts-test_accuracy") == ["fedavg", "gcfed"]
    assert desktop.complaints == []


def test_smoothing_and_bands_can_be_switched_off(desktop):
    read = "() => document.getElementById('round-charts-test_accuracy').data.at(-1).y"
    count = "() => document.getElementById('round-charts-test_accuracy').data.length"
    smooth, bands = desktop.page.locator("#smooth"), desktop.page.locator("#bands")
    caption = desktop.page.locator("#round-charts figcaption").first
    smoothed = desktop.page.evaluate(read)
    assert desktop.page.evaluate(count) == 4
    assert caption.inner_text() == "test accuracy (%), mean of 2 evaluations"
    smooth.uncheck()
    assert desktop.page.evaluate(read) != smoothed
    assert caption.inner_text() == "test accuracy (%)"
    bands.uncheck()
    assert desktop.page.evaluate(count) == 2
    smooth.check()
    bands.check()
    assert desktop.page.evaluate(read) == smoothed


def test_another_probe_can_be_chosen(desktop):
    names = desktop.page.locator("#probe option").all_inner_texts()
    assert {"drift.norm", "drift.pair_cosine", "clients.mean", "cka.new.fc1"} <= set(names)
    assert not any(name.startswith(("drift.norm.", "clients.decile")) for name in names)
    desktop.page.locator("#probe").select_option("drift.pair_cosine")
    assert desktop.visible("probe-charts-drift-pair_cosine") == ["fedavg", "gcfed"]
    assert desktop.page.locator("#probe-charts figure").count() == 1
    desktop.page.locator("#probe").select_option("drift.norm")


def test_a_table_is_sorted_by_mouse_and_by_keyboard(desktop):
    head = desktop.page.locator("#runs thead th", has_text="final")
    place = head.evaluate("head => head.cellIndex")
    button = head.locator("button")
    button.click()
    values = [float(text.split()[0]) for text in desktop.column("All runs", place)]
    assert values == sorted(values) and len(set(values)) > 1
    assert head.get_attribute("aria-sort") == "ascending"
    button.press("Space")
    assert [float(text.split()[0]) for text in desktop.column("All runs", place)] == values[::-1]
    assert head.get_attribute("aria-sort") == "descending"


def test_what_is_no_number_comes_last(tmp_path, show):
    """Numbers of different lengths, and a run without any."""
    for name, value in {"a": 0.09, "b": 0.5, "c": 0.1}.items():
        make_run(tmp_path / "runs" / name, [value], lr=1 + value)
    make_run(
        tmp_path / "runs" / "d", [], lr=3.0, status="failed", ended={"reason": "x", "round": 0}
    )
    page = tmp_path / "report.html"
    page.write_text(render_page(gather(compare_warned(tmp_path / "runs"))), encoding="utf-8")
    shown = show(page.as_uri())
    for order in (["9.00", "10.00", "50.00", "-"], ["50.00", "10.00", "9.00", "-"]):
        shown.page.locator("#runs thead button", has_text="final").click()
        head = shown.page.locator("#runs thead th", has_text="final")
        place = head.evaluate("head => head.cellIndex")
        assert [text.split()[0] for text in shown.column("All runs", place)] == order


def test_people_who_do_not_see_or_use_a_mouse_can_use_it(desktop):
    page = desktop.page
    assert page.locator("html").get_attribute("lang") == "en"
    assert page.title() == "gcfed report"
    assert page.locator("h1").count() == 1
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and all(level == 2 for level in levels[1:])
    tables = page.locator("table").count()
    assert tables >= 8 and page.locator("table > caption").count() == tables
    assert page.locator("th:not([scope])").count() == 0
    assert page.locator("thead th > button").count() == page.locator("thead th").count()
    assert page.locator(".plot:not([role=group][aria-label])").count() == 0
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    unnamed = "e => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())"
    controls = "[...document.querySelectorAll('main button, main select, main input')]"
    assert page.evaluate(f"{controls}.filter({unnamed}).map(e => e.outerHTML)") == []
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.locator(".skip").focus()
    where = "document.activeElement.closest('#legend, thead, nav, .modebar')?.tagName"
    seen = {page.keyboard.press("Tab") or page.evaluate(where) for _ in range(40)}
    assert seen >= {"NAV", "THEAD", "DIV"}


def test_names_are_text_whatever_they_are(tmp_path, show):
    for seed in (0, 1):
        settings = {"algorithm": HOSTILE, "dataset": HOSTILE, "seed": seed}
        make_run(tmp_path / "runs" / f"<b>{seed}", [0.1, 0.2], **settings)
    page = tmp_path / "report.html"
    page.write_text(render_page(gather(compare_warned(tmp_path / "runs"))), encoding="utf-8")
    shown = show(page.as_uri(), drawn="#round-charts .main-svg")
    assert shown.complaints == []
    assert shown.page.locator("img").count() == 0
    assert shown.page.locator("#legend button").inner_text().endswith(HOSTILE)
    assert any("<b>0" in text for text in shown.column("All runs", 7))


def test_a_served_page_follows_its_runs_and_keeps_what_was_chosen(tmp_path, show):
    make_run(tmp_path / "a", [0.1, 0.2], algorithm="fedavg")
    make_run(tmp_path / "b", [0.1, 0.2], algorithm="gcfed")
    paths = [tmp_path]
    with ReportServer(paths, lambda: gather(compare_warned(paths)), 0, refresh=0.1) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            shown = show(server.address)
            shown.page.locator("#legend button", has_text="fedavg").click()
            shown.page.locator("#runs thead button", has_text="algorithm").click(click_count=1)
            make_run(tmp_path / "c", [0.3, 0.4], algorithm="scaffold")
            shown.page.wait_for_selector("#legend button >> text=scaffold")
            assert shown.visible("round-charts-test_accuracy") == ["gcfed", "scaffold"]
            assert shown.column("All runs", 0) == ["fedavg", "gcfed", "scaffold"]
            assert "refreshes by itself" in shown.page.locator("[role=status]").inner_text()
            assert all(each.startswith(server.address) for each in shown.requests)
        finally:
            server.shutdown()
            thread.join()
    shown.page.wait_for_selector("[role=status] >> text=does not answer")


def test_five_hundred_runs_are_a_page_of_some_megabytes(tmp_path, show):
    for number in range(500):
        values = [0.5 + 0.4 * ((7 * number + t) % 11) / 11 for t in range(100)]
        make_run(tmp_path / "runs" / str(number), values, lr=0.001 * (number + 1))
    page = tmp_path / "report.html"
    page.write_text(render_page(gather(compare_warned(tmp_path / "runs"))), encoding="utf-8")
    assert page.stat().st_size < 10_000_000
    shown = show(page.as_uri())
    assert len(shown.visible("round-charts-test_accuracy")) == 16
    assert shown.page.locator("#legend button").count() == 500
    assert len(shown.column("All runs", 0)) == 500
    assert shown.complaints == []
