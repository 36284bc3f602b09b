"""A real browser without a window, for what a page does: PYTEST_DONT_REWRITE"""

import shutil
from dataclasses import dataclass, field

import pytest

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
WIDTHS = {"desktop": 1280, "phone": 390}


@dataclass
class Shown:
    """A page in the browser, what it complained of and what it asked the network for."""

    page: object
    complaints: list = field(default_factory=list)
    requests: list = field(default_factory=list)

    def visible(self, chart):
        """The methods whose curves a chart has, in the order in which they are drawn."""
        code = "id => document.getElementById(id).data.filter(t => t.name).map(t => t.name)"
        return self.page.evaluate(code, chart)

    def column(self, caption, number):
        """The texts of a column of the table with this caption."""
        table = self.page.locator("table", has=self.page.locator("caption", has_text=caption))
        rows = table.first.locator("tbody tr")
        cells = rows.locator(f":nth-child({number + 1})")
        return [text.strip() for text in cells.all_inner_texts()]


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium, driven by playwright."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def show(browser):
    """Open an address, at some width and in light or dark, and wait until its charts are drawn."""
    contexts = []

    def opened(address, width="desktop", scheme="light", drawn="#data-charts .main-svg"):
        size = {"width": WIDTHS[width], "height": 850}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme))
        shown = Shown(contexts[-1].new_page())
        shown.page.on("pageerror", lambda error: shown.complaints.append(str(error)))
        shown.page.on("dialog", lambda dialog: shown.complaints.append(dialog.message))
        shown.page.on(
            "console",
            lambda said: said.type in ("error", "warning") and shown.complaints.append(said.text),
        )
        shown.page.on("request", lambda request: shown.requests.append(request.url))
        shown.page.goto(address)
        shown.page.wait_for_selector(drawn, state="attached")
        return shown

    yield opened
    for context in contexts:
        context.close()
