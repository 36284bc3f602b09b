"""Makes the pictures of docs/gallery.md again, by running the lines that stand on that page."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"\(images/([\w-]+\.png)\)")


def command(language: str, text: str) -> list[str]:
    """What runs a block of the page; lines of a console begin with a prompt."""
    if language == "python":
        return [sys.executable, "-c", text]
    lines = (line[2:] for line in text.splitlines() if line.startswith(("$ ", "> ")))
    return ["bash", "-e", "-c", "\n".join(lines)]


def make(page: Path) -> list[Path]:
    """Run the blocks of a page in an empty folder and keep the pictures that the page shows."""
    text = page.read_text(encoding="utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    made = []
    with TemporaryDirectory() as folder:
        for language, lines in BLOCK.findall(text):
            subprocess.run(
                command(language, lines), cwd=folder, env={**os.environ, "PATH": path}, check=True
            )
        for name in PICTURE.findall(text):
            made.append(page.parent / "images" / name)
            shutil.copyfile(Path(folder) / name, made[-1])
    return made


if __name__ == "__main__":
    for picture in make(DOCS / "gallery.md"):
        print(f"{picture.stat().st_size // 1000:4} kB  {picture}")
