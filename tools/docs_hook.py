"""What MkDocs does while it builds the pages: mathematics, tables of methods, the notebook.

Mathematics becomes MathML here, so that a browser needs neither a network nor a script to show it.
"""

import html
import re
from collections.abc import Callable
from pathlib import Path

import make_tables
import notebook_page
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

MATHEMATICS = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
NOTEBOOK = re.compile(r"<!-- notebook: (\S+) -->")
GENERATED: dict[str, Callable[[], str]] = {
    "<!-- table of methods -->": lambda: make_tables.table(link=True),
    "<!-- entries of methods -->": make_tables.entries,
    "<!-- departures of methods -->": make_tables.departures,
}


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Put what is generated in the place of the comments that ask for it."""
    for comment, make in GENERATED.items():
        if comment in markdown:
            markdown = markdown.replace(comment, make())

    def run(found: re.Match[str]) -> str:
        path = Path(config.docs_dir) / found[1]
        return notebook_page.render(path, execute=config.extra["execute_notebooks"])

    return NOTEBOOK.sub(run, markdown)


def on_page_content(content: str, **_: object) -> str:
    """Turn what the Markdown extension *arithmatex* marked as LaTeX into MathML."""

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found["tag"] == "div" else "inline"
        return convert(html.unescape(found["tex"]), display=display)

    return MATHEMATICS.sub(mathml, content)
