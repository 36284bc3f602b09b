"""The documentation as it is built: reference, mathematics, nothing loaded from elsewhere."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import notebook_page
import pytest
from nbclient.exceptions import CellExecutionError

import gcfed

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """All pages, the notebook not executed: `make docs` does that."""
    folder = tmp_path_factory.mktemp("site")
    env = {**os.environ, "GCFED_DOCS_EXECUTE": "false", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def pages(site):
    return {path: path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}


def formulas(page):
    """The text of each formula, in MathML."""
    found = re.findall(r"<math.*?</math>", page.read_text(encoding="utf-8"), re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", math)) for math in found]


@pytest.mark.slow
def test_mathematics_is_mathml(site):
    assert "P=I−ee⊤" in formulas(site / "reference" / "algorithms.html")  # noqa: RUF001
    assert any("w←w+PΔ" in formula for formula in formulas(site / "methods.html"))


@pytest.mark.slow
def test_no_mathematics_is_left_as_text(site):
    marks = (".. math::", ":math:", 'class="arithmatex"', "<merror")
    shown = {
        path: re.sub(r"<code.*?</code>", "", text, flags=re.DOTALL)
        for path, text in pages(site).items()
    }
    assert not [(path.name, mark) for path, text in shown.items() for mark in marks if mark in text]
    unknown = [f for path in shown for f in formulas(path) if "\\" in f]  # LaTeX not understood
    assert not unknown


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site):
    loads = re.compile(
        r"<(?:script|img|iframe|source|video)\b[^>]*?\b(?:src|srcset)=[\"']?(?:https?:)?//[^>]*"
        r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?(?:https?:)?//[^>]*"
    )
    styles = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//")
    assert not [
        (p.name, found[0]) for p, text in pages(site).items() if (found := loads.search(text))
    ]
    sheets = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    assert sheets
    assert not [path.name for path, text in sheets.items() if styles.search(text)]


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(site):
    text = "".join(text for path, text in pages(site).items() if path.parent.name == "reference")
    text += (site / "methods.html").read_text(encoding="utf-8")
    documented = {name.rpartition(".")[2] for name in re.findall(r'id="(gcfed\.[\w.]+)"', text)}
    missing = set(gcfed.__all__) - documented
    assert not missing, f"add a line ::: gcfed.NAME to a page of docs/reference: {missing}"


@pytest.mark.slow
def test_every_method_has_an_entry_and_its_departures(site):
    methods = (site / "methods.html").read_text(encoding="utf-8")
    parity = (site / "parity.html").read_text(encoding="utf-8")
    for name, cls in ((n, gcfed.ALGORITHMS[n]) for n in gcfed.ALGORITHMS):
        if cls.__module__.startswith("gcfed."):
            assert f'id="{cls.__module__}.{cls.__name__}"' in methods
            assert f"<li><code>{name}</code>: " in parity


def notebook(tmp_path, *sources):
    path = tmp_path / "a.ipynb"
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


@pytest.mark.slow
def test_a_notebook_becomes_a_page(tmp_path):
    html_cell = "class H:\n    def _repr_html_(self): return '<b>rich</b>'\nH()"
    text = notebook_page.render(notebook(tmp_path, "print('<said>')", "6 * 7", html_cell))
    assert "```python\n6 * 7\n```" in text
    assert "<pre>&lt;said&gt;</pre>" in text
    assert "<pre>42</pre>" in text
    assert "<b>rich</b>" in text


@pytest.mark.slow
def test_a_cell_that_fails_fails_the_build(tmp_path):
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        notebook_page.render(notebook(tmp_path, "1 / 0"))
