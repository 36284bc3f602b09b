"""What is published: its metadata, its readme and its files."""

import re
import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_readme_of_an_index_has_no_link_to_a_file():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = runpy.run_path(str(ROOT / "setup.py"))["without_files"](text)
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert len(targets) > 20
    assert [t for t in targets if not t.startswith(("https://", "#"))] == []
    assert "More (`docs/own-loop.md` in the source)" in shown
    headings = {re.sub(r"\W+", "-", h.lower()) for h in re.findall(r"^#+ (.*)$", shown, re.M)}
    assert {t[1:] for t in targets if t.startswith("#")} <= headings


def test_both_licences_are_named_and_their_texts_are_there(project):
    assert project["license"] == "Apache-2.0 AND MIT"
    texts = [p.read_text() for pattern in project["license-files"] for p in ROOT.glob(pattern)]
    assert len(texts) == 2
    for words in ("Apache License", "MIT License"):
        assert any(words in text for text in texts)


def test_every_dependency_has_a_floor_that_was_tried(project):
    """`constraints-lowest.txt` holds what the tests were run with, and the floors are no lower."""
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    tried = dict(line.split("==") for line in lines if "==" in line)
    needs = list(map(Requirement, project["dependencies"]))
    assert {need.name for need in needs} == set(tried)
    for need in needs:
        (floor,) = need.specifier
        assert (floor.operator, Version(floor.version)) == (">=", Version(tried[need.name]))
