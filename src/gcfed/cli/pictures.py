"""Pictures that commands draw, and the files they go to."""

from pathlib import Path
from typing import TYPE_CHECKING

from gcfed.errors import InputError
from gcfed.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".pdf", ".svg")


def check_out(out: Path | None, force: bool) -> None:
    """Refuse a file that cannot be meant, before the work is done."""
    if out is None:
        if force:
            raise InputError("--force goes with --out")
        return
    if out.suffix.lower() not in PICTURES:
        raise InputError(f"--out ends in one of {', '.join(PICTURES)}; not {out}")
    if out.is_dir() or (out.exists() and not force):
        raise InputError(f"{out} is there already: name another file, or give --force")


def save(figure: "Figure", out: Path, *, dpi: int = 150) -> None:
    """Write a picture of the kind that its name says; ``dpi`` matters where it is of pixels."""
    out.parent.mkdir(parents=True, exist_ok=True)

    def write(path: Path) -> None:
        figure.savefig(path, format=out.suffix[1:].lower(), dpi=dpi)

    write_atomically(out, write)
