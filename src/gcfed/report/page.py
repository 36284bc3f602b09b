"""A report as HTML: one page that needs nothing else, and no network."""

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from typing import Any

from gcfed.errors import InputError
from gcfed.report.contents import Contents


def render_page(said: Contents | str, *, refresh: float = 0, stamp: str = "") -> str:
    """The whole page, of contents or of a sentence that says why there are none.

    With ``refresh`` it asks every so many seconds for what changed since ``stamp``.
    """
    live = {"refresh": refresh, "stamp": stamp}
    return _rendered("page.html", _values(said), live, plotly=_plotly())


def render_contents(said: Contents | str) -> str:
    """What changes while runs go on: the page without its scripts and its style."""
    return _rendered("contents.html", _values(said))


def check_installed() -> None:
    """Say what to install, before any work is done, where that is missing."""
    for name in ("plotly", "jinja2"):
        _imported(name)


def _values(said: Contents | str) -> dict[str, Any]:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    found = {"notice": said} if isinstance(said, str) else {"contents": said}
    return {**found, "made": f"gcfed {version('gcfed')}, {now}"}


def _plotly() -> str:
    """The script that draws charts, as the package of plotly carries it."""
    return str(_imported("plotly.offline").get_plotlyjs())


def _rendered(name: str, *values: Mapping[str, Any], plotly: str = "") -> str:
    """A template with these values, every one escaped: names and settings are anybody's text."""
    jinja2 = _imported("jinja2")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gcfed.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    given = {key: value for some in values for key, value in some.items()}
    return str(environment.get_template(name).render(given, plotly=plotly))


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise InputError("a report needs plotly and jinja2: pip install 'gcfed[report]'") from None
