"""What pyproject.toml cannot say: the README as a package index shows it."""

import re
from pathlib import Path

from setuptools import setup

PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?:)[^)]*\)\n+", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?!https?:|#)([^)#]*)[^)]*\)")


def without_files(text: str) -> str:
    """A text that names files of the source, which an index does not have, without a link."""
    return LINK.sub(r"\1 (`\2` in the source)", PICTURE.sub("", text))


if __name__ == "__main__":
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    setup(long_description=without_files(readme), long_description_content_type="text/markdown")
