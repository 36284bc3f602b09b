"""The folder in which things are kept that can be fetched or made again."""

import hashlib
import os
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """The folder: what GCFED_CACHE names, else one among the user's caches."""
    return Path(os.environ.get("GCFED_CACHE") or platformdirs.user_cache_dir("gcfed")).expanduser()


@cache
def keep_compiled_code(torch_version: str, device: str) -> None:
    """Have torch and Triton keep what they compile for a device, unless the user says where.

    By default torch's lies where a restart of the machine deletes it.  There is one folder for each
    version of torch and kind of device, so that what is old can be told and deleted.
    """
    kind = re.sub(r"[^A-Za-z0-9.+]+", "-", f"torch-{torch_version}-{device}")
    folder = cache_dir() / "compiled" / kind
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))


class CompiledNote:
    """A file that says that some code was compiled before.

    It lies in torch's folder of compiled code, so that both are deleted together.
    """

    def __init__(self, code: str) -> None:
        self._path = _notes() / hashlib.sha256(code.encode()).hexdigest()

    def is_there(self) -> bool:
        return self._path.exists()

    def write(self) -> None:
        """Leave the note; where the disk takes none, the next start is slower."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()


def nothing_is_compiled() -> bool:
    """Whether there is no note at all."""
    return not _notes().exists()


def _notes() -> Path:
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "gcfed"
