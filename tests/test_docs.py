"""The pages keep up with the code: names, settings, links, examples."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import make_gallery
import make_tables
import nbformat
import pytest
from docstring_markdown import as_markdown

from gcfed.algorithms import ALGORITHMS
from gcfed.config.settings import Config
from gcfed.core.types import ClientContext, ServerContext
from gcfed.data import DATASETS, PARTITIONS
from gcfed.engines import ENGINES
from gcfed.models import MODELS
from gcfed.testing.laws import HOOKS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def first_cells(page):
    """What stands, in backticks, first in the rows of a page's tables, arguments left out."""
    return set(re.findall(r"^\| `(\w+)", page.read_text(encoding="utf-8"), re.MULTILINE))


def test_readme_says_the_two_commands():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert text.index("<!-- demo-output:start -->") < text.index("<!-- demo-output:end -->")


def ours(registry):
    """What gcfed itself registers; tests and plugins may add to it."""
    return {name for name in registry if registry[name].__module__.startswith("gcfed.")}


def test_the_readme_has_the_table_of_methods():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert ours(ALGORITHMS) <= first_cells(ROOT / "README.md")
    assert make_tables.readme(text) == text, "run python tools/make_tables.py"


def test_a_method_is_described_by_its_docstring():
    method = make_tables.Method("gcfed", ALGORITHMS["gcfed"])
    assert method.path == "gcfed.algorithms.centralized.GCFed"
    assert method.sentence == "Local GC on all layers but the head, Global GC on all"
    assert method.source == "[Seo et al., 2026](https://arxiv.org/abs/2503.13180)"
    assert method.departures.startswith("the head by name is the default")
    assert method.departures.endswith("spares the very last tensor.")
    assert r"\(\lambda\)" in method.departures


def test_what_the_authors_ran_is_still_there():
    assert first_cells(DOCS / "parity.md") >= {"gcfed", "scaffold", "feddyn"}
    assert first_cells(DOCS / "parity.md") <= ours(ALGORITHMS) | set(MODELS)


def test_docstrings_become_markdown():
    docstring = r"""A sentence with ``code`` and :math:`\|x\|`.

.. math:: a = b, \qquad
    c = d

>>> 1 + 1
2

Author et al. (2020), https://a.example/1
Departures: none."""
    assert (
        as_markdown(docstring)
        == r"""A sentence with ``code`` and \(\|x\|\).

\[a = b, \qquad c = d\]

```pycon
>>> 1 + 1
2
```

Author et al. (2020), <https://a.example/1>

Departures: none."""
    )


def test_the_index_leads_to_every_page():
    pages = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    linked = re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8"))
    assert len(pages) > 10
    assert set(pages) - {"index.md"} == set(linked)


def test_pictures_are_small():
    pictures = sorted((DOCS / "images").glob("*.png"))
    assert pictures
    assert not [p.name for p in pictures if p.stat().st_size > 150_000]


def test_the_gallery_makes_what_it_shows():
    """Every picture is named by a command or line of the page."""
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    lines = "\n".join(lines for _, lines in make_gallery.BLOCK.findall(text))
    shown = make_gallery.PICTURE.findall(text)
    assert len(shown) >= 6
    assert not [name for name in shown if name not in lines]


def test_the_gallery_tool_runs_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ for x in a b; do\n>   printf $x >> made.png\n> done\nsaid\n```\n"
        "```python\nopen('made.png', 'a').write('c')\n```\n![made](images/made.png)\n"
    )
    (tmp_path / "images").mkdir()
    assert make_gallery.make(page) == [tmp_path / "images" / "made.png"]
    assert (tmp_path / "images" / "made.png").read_text() == "abc"


def test_notebooks_are_stored_without_outputs():
    for path in DOCS.rglob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert not [cell.id for cell in cells if cell.get("outputs")]


def test_every_data_set_and_partition_is_described():
    text = (DOCS / "data.md").read_text(encoding="utf-8")
    missing = {n for r in (DATASETS, PARTITIONS) for n in ours(r) if f"`{n}" not in text}
    assert not missing


def test_every_engine_is_described():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert not [name for name in ENGINES if f"`{name}`" not in text]


def test_every_hook_is_described():
    assert set(HOOKS) <= first_cells(DOCS / "add-an-algorithm.md")


def test_what_hooks_read_is_documented():
    text = (DOCS / "add-an-algorithm.md").read_text()
    section = text.partition("## What hooks read")[2].partition("## When")[0]
    for context in (ClientContext, ServerContext):
        for name in (field.name for field in fields(context)):
            assert re.search(rf"`{name}\b", section), f"{name} of {context.__name__}"


def test_every_setting_is_described_with_its_default():
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([^|]*?)`? \|", text, re.MULTILINE))
    assert rows.keys() == Config.model_fields.keys() | {"alpha"}
    for key, field in Config.model_fields.items():
        toml = "none" if field.default is None else str(field.default)
        shown = {"()": "[]"}.get(toml, f'"{toml}"' if isinstance(field.default, str) else toml)
        assert rows[key] == shown, key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_each_section_once(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    sections = re.findall(r"^## .+", text, flags=re.MULTILINE)
    assert len(sections) == len(set(sections))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Those within the repository; `mkdocs build --strict` looks at anchors too."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    local = [t.partition("#")[0] for t in targets if "://" not in t]
    assert not [t for t in local if t and not (page.parent / t).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_exist(page):
    """``examples/...``, ``tools/...`` and what a page embeds."""
    named = re.findall(r"\b((?:examples|tools|docs)/[\w./-]+\w)", page.read_text(encoding="utf-8"))
    assert not [name for name in named if not (ROOT / name).exists()]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_are_short(example):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 50


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_examples_run(example, tmp_path):
    """In a process of their own, as a reader runs them, warnings being errors."""
    text, words = example.read_text(encoding="utf-8"), list[str]()
    for package in ("datasets", "peft", "transformers"):
        if f"from {package} import" in text:
            pytest.importorskip(package)
            words = ["1", "1"]  # a seed and a round: these take a minute otherwise
    command = [sys.executable, "-W", "error", str(example), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert " %" in done.stdout or "perplexity" in done.stdout


@pytest.mark.slow
def test_the_own_algorithm_obeys_the_laws():
    code = "import sys; from gcfed.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "check", "examples/own_algorithm.py:FedExP"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
