"""The folder in which things are kept that can be fetched or made again."""

import getpass
import hashlib
import os
import re
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import platformdirs

from gcfed.files import write_text


def cache_dir() -> Path:
    """The folder: what GCFED_CACHE names, else one among the user's caches."""
    return Path(os.environ.get("GCFED_CACHE") or platformdirs.user_cache_dir("gcfed")).expanduser()


@cache
def keep_compiled_code(torch_version: str, device: str) -> None:
    """Have torch and Triton keep what they compile for a device, unless the user says where.

    Torch's default is a folder that a restart of the machine deletes; torch puts it into the
    environment, as if the user had, when its compiler is imported.  There is one folder for each
    version of torch and kind of device, so that what is old can be told and deleted.
    """
    kind = re.sub(r"[^A-Za-z0-9.+]+", "-", f"torch-{torch_version}-{device}")
    folder = cache_dir() / "compiled" / kind
    for name, own in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        if _is_torchs(os.environ.get(name, "")):
            del os.environ[name]
        os.environ.setdefault(name, str(folder / own))


def _is_torchs(folder: str) -> bool:
    """Whether a folder is the one that torch takes by default, or lies in it."""
    with suppress(Exception):  # nobody has a name in some containers
        torchs = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
        return Path(folder).is_relative_to(torchs)
    return False


class CompiledNote:
    """A file that says that something was compiled before, and may hold what came of it.

    It lies in torch's folder of compiled code, so that both are deleted together.
    """

    def __init__(self, what: str) -> None:
        self._path = _notes() / hashlib.sha256(what.encode()).hexdigest()

    def is_there(self) -> bool:
        return self._path.exists()

    def read(self) -> str:
        return self._path.read_text(encoding="utf-8")

    def write(self, text: str = "") -> None:
        """Leave the note; where the disk takes none, the next start is slower."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._path, text)


def nothing_is_compiled() -> bool:
    """Whether there is no note at all."""
    return not _notes().exists()


@cache
def hash_of_package() -> str:
    """A hash of all modules of gcfed: what they compile may change with any of them."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def _notes() -> Path:
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "gcfed"
