r"""Our docstrings as the Markdown of the API reference.

Docstrings are written for ``help()``, with the few marks of reStructuredText that read well as
plain text.  ``.. math::`` and ``:math:`` become ``\[...\]`` and ``\(...\)``, an example becomes a
block of code, an address a link, and *Departures* gets a paragraph of its own.  Backticks mean the
same in both.
"""

import re
from typing import Any

import griffe

DISPLAY = re.compile(r"^\.\. math::[ \n]*(.+?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")
EXAMPLE = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"https://[^\s;,)]+")
DEPARTURES = re.compile(r"\n(?=Departures: )")


def as_markdown(docstring: str) -> str:
    """A docstring, its indentation removed, as Markdown."""
    text = DISPLAY.sub(lambda found: f"\\[{_one_line(found[1])}\\]", docstring)
    text = INLINE.sub(lambda found: f"\\({_one_line(found[1])}\\)", text)
    text = LINK.sub(lambda found: f"<{found[0]}>", text)
    text = EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
    return DEPARTURES.sub("\n\n", text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


class Docstrings(griffe.Extension):
    """Gives mkdocstrings every docstring of the package as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
