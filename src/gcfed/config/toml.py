"""Settings as TOML: a file of them, one of them, and how a value is written."""

import json
import tomllib
from pathlib import Path
from typing import Any

from gcfed.errors import InputError


def read(path: Path) -> dict[str, Any]:
    """The values of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no config file {path}") from None
    except RecursionError:
        raise InputError(
            f"{path} is not a TOML file of settings: it is nested too deeply"
        ) from None
    except ValueError as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def assignment(text: str) -> tuple[str, Any]:
    """``key=value``, the value as TOML has it, or else as a string."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise InputError(f"--set takes key=value; not {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key, value


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
