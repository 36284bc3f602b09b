"""Tables of all methods, made of the registry and of what the docstrings say.

``python tools/make_tables.py`` writes the table of README.md, and the tables that ``gcfed list``
prints without importing torch.  The pages get theirs when they are built.
"""

import inspect
import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from docstring_markdown import as_markdown

import gcfed.cli
from gcfed.algorithms import ALGORITHMS
from gcfed.cli.choices import FILE, LISTS, collect

CHOICES = Path(gcfed.cli.__file__).parent / FILE
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- methods:start, by tools/make_tables.py -->", "<!-- methods:end -->"
SOURCE = re.compile(r"(\w+ et al\.) \((\d{4})\).*?(https://[^\s;,]+)", re.DOTALL)


@dataclass(frozen=True)
class Method:
    """An algorithm of ours as its docstring describes it."""

    name: str
    cls: type

    @property
    def docstring(self) -> str:
        return inspect.cleandoc(self.cls.__doc__ or "")

    @property
    def path(self) -> str:
        """Where the class is defined, which is also its anchor in the reference."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    @property
    def sentence(self) -> str:
        """The docstring's first line, without the name of the method before it."""
        line = self.docstring.split("\n")[0]
        return line.partition(": ")[2].rstrip(".") or line

    @property
    def source(self) -> str:
        """The paper, as a link."""
        found = SOURCE.search(self.docstring)
        if found is None:
            raise SystemExit(f"the docstring of {self.path} names no source: run the laws on it")
        authors, year, link = found.groups()
        return f"[{authors}, {year}]({link})"

    @property
    def departures(self) -> str:
        """In what it differs from its paper."""
        found = re.search(
            r"^Departures: (.+?)(?=\n\n|\Z)", self.docstring, re.DOTALL | re.MULTILINE
        )
        return as_markdown(" ".join(found[1].split())) if found else ""


def methods() -> list[Method]:
    """Every algorithm that is part of gcfed, by name; plugins may register more."""
    found = [Method(name, ALGORITHMS[name]) for name in ALGORITHMS]
    return [method for method in found if method.path.startswith("gcfed.")]


def table(link: bool = False) -> str:
    """A row for each method; with ``link``, its name leads to its entry on the same page."""
    rows = ["| name | in one line | source |", "|---|---|---|"]
    for method in methods():
        name = f"[`{method.name}`](#{method.path})" if link else f"`{method.name}`"
        rows.append(f"| {name} | {method.sentence} | {method.source} |")
    return "\n".join(rows)


def departures() -> str:
    """An entry of a list for each method: in what it differs from its paper."""
    return "\n".join(f"- `{method.name}`: {method.departures}" for method in methods())


def entries() -> str:
    """All methods for the reference, under what the docstrings of their modules say they share."""
    modules: defaultdict[str, list[Method]] = defaultdict(list)
    for method in methods():
        modules[method.cls.__module__].append(method)
    return "\n\n".join(_section(module, modules[module]) for module in sorted(modules))


def _section(module: str, found: list[Method]) -> str:
    title = (sys.modules[module].__doc__ or module).partition("\n")[0].rstrip(".")
    shown = (f"::: {method.path}\n    options:\n      members: false" for method in found)
    return "\n\n".join([f"## {title}", *shown])


def readme(text: str) -> str:
    """The README with the table as it should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def lists() -> str:
    """All that ``gcfed list`` can print, as JSON."""
    found = {what: collect(what)._asdict() for what in LISTS}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    CHOICES.write_text(lists(), encoding="utf-8")
    sys.stdout.write(f"{README.name} has {len(methods())} methods, {FILE} {len(LISTS)} lists\n")
