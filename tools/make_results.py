"""Makes docs/results.md, and its pictures, of what ``gcfed reproduce ITEM --out x.json`` wrote.

What was found out about a table beside its numbers stands in x.txt.

``python tools/make_results.py`` makes them again; a test asks whether the page is up to date.
"""

import json
import sys
from pathlib import Path

from gcfed.paper.beside import Beside
from gcfed.paper.item import item_names
from gcfed.paper.reproduction import Reproduction, read_reproduction
from gcfed.progress import duration

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results"
HEAD = """\
# Results

The tables and figures of the GC-Fed paper, done again with `gcfed reproduce` and shown beside what
the paper prints. Methods are as its authors ran them ([parity notes](parity.md)). This page is made
of the files in `docs/results`; [Reproduce the paper](reproduce.md) says how they are made.

All of it was trained before 2026-11-18 by `fused` in bf16, which now and then got the gradient of a
convolution's kernels wrong by a tile ([a race](performance-log.md#a-race)). These runs cannot be
repeated to the bit, but their accuracies show nothing of it: 330 rounds of four methods were done
again without it, and their means differ by less than 0.5 points
([there](performance-log.md#accuracy)).
"""
HOW = ("engine", "precision")
"""Settings that say how cells are trained, and not what."""
NOTHING = "\nNo table has been done yet.\n"


def read_all(folder: Path) -> dict[str, Reproduction]:
    """The reproductions in a folder by the names of their files, in the order of the paper."""
    found = {
        path.stem: read_reproduction(json.loads(path.read_text(encoding="utf-8")), str(path))
        for path in sorted(folder.glob("*.json"), key=lambda path: path.stem)
    }
    order = item_names()
    return dict(sorted(found.items(), key=lambda pair: order.index(pair[1].item.name)))


def read_remarks(folder: Path) -> dict[str, str]:
    """What people found out about reproductions, by the names of their files."""
    return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.txt")}


def page(found: dict[str, Reproduction], remarks: dict[str, str]) -> str:
    """The whole page."""
    sections = [section(name, made, remarks.get(name, "")) for name, made in found.items()]
    return HEAD + ("".join(sections) or NOTHING)


def section(name: str, made: Reproduction, remarks: str = "") -> str:
    """One reproduction: its table, what is to be said of it, its picture, and how it was made."""
    how = made.made
    facts = [f"{how.seeds} seed{'s' if how.seeds > 1 else ''}"]
    facts += [f"on {how.device}"] if how.device else []
    facts += [f"{duration(how.seconds)} of training"] if how.seconds else []
    facts += [f"commit {how.commit[:10]}"] if how.commit else []
    return (
        f"\n## {heading(made)}\n\n"
        f"{made.item.source} of the paper; {', '.join(facts)}.\n\n"
        f"```console\n$ {how.command}\n```\n\n"
        f"{Beside(made).render('markdown')}\n{remarks}"
        f"![{made.item.title}]({picture(name)})\n"
    )


def heading(made: Reproduction) -> str:
    """What a table or figure shows: which of its cells, if it has several, and what is changed."""
    cells = dict.fromkeys(number.cell for number in made.numbers)
    one_of_many = len(cells) == 1 < len(made.item.cells)
    title = f"{made.item.title}: {next(iter(cells))}" if one_of_many else made.item.title
    rounds = [f"{made.made.rounds} rounds"] if made.made.rounds else []
    changes = {k: v for k, v in (made.made.changes or {}).items() if k not in HOW}
    return ", ".join([title, *rounds, *(f"{key} = {value}" for key, value in changes.items())])


def picture(name: str) -> str:
    """Where the picture of a file of results is, seen from the page."""
    return f"images/results-{name}.png"


def draw(found: dict[str, Reproduction], docs: Path) -> None:
    """Make the pictures of the page."""
    for name, made in found.items():
        Beside(made).plot().savefig(docs / picture(name), dpi=90)


if __name__ == "__main__":
    results = read_all(RESULTS)
    (DOCS / "results.md").write_text(page(results, read_remarks(RESULTS)), encoding="utf-8")
    draw(results, DOCS)
    sys.stdout.write(f"docs/results.md shows {len(results)} reproductions\n")
