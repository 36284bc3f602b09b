"""Probes that are wrong, told by the probe, its file and its line."""

import inspect
import traceback
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from gcfed.core import keys, tree
from gcfed.core.hook_checks import NOT_THE_HOOKS
from gcfed.core.memory import HostStore
from gcfed.core.seeding import generators_seeded
from gcfed.errors import InputError, place
from gcfed.registry import a
from gcfed.values import shown

if TYPE_CHECKING:
    from gcfed.analysis.probe import Observation, Probe

DRAWS = 0x70726F62  # the key that global generators start from while a probe measures


class Undeclared:
    """What stands where a probe would find what it does not say it needs: any use is refused."""

    def __init__(self, what: str, sight: str) -> None:
        self._said = (
            f'it looks at {what} and does not say so: add "{sight}" to its needs, as in '
            f'needs = frozenset({{"{sight}"}})'
        )

    def _refuse(self, *_: object) -> NoReturn:
        raise InputError(self._said)

    __getattr__ = __getitem__ = __iter__ = __len__ = __bool__ = _refuse


@contextmanager
def naming_probe(name: str, probe: "Probe") -> Iterator[None]:
    """Inside, an error that a probe raises becomes an `InputError` that names the probe."""
    try:
        yield
    except NOT_THE_HOOKS:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        what = f"{type(error).__name__}: {said}" if said else type(error).__name__
        raise InputError(f"{_named(name, probe, error)} raises {what}") from error


def checked_row(
    name: str, probe: "Probe", seen: "Observation", *, closely: bool
) -> dict[str, float]:
    """What a probe measures of a round, if nothing is wrong with it.

    It may draw from the global generators, which start from a key of the round and are afterwards
    as they were; so it changes no run by that, and can be repeated.  With ``closely`` it is also
    found to write where torch does not count it, as numpy's arrays and ``.data`` do.
    """
    before = _state(seen, closely)
    seeded = generators_seeded(keys.key(DRAWS, seen.result.round), seen.setup.device)
    with naming_probe(name, probe), seeded:
        try:
            found = probe.measure(seen)
        except InputError as error:
            raise InputError(f"{_named(name, probe, error)}: {error}") from error
    after = _state(seen, closely)
    for path in dict.fromkeys([*before, *after]):
        (old, *was), (new, *now) = (each.get(path, (None,)) for each in (before, after))
        if old is not new or was != now:
            raise InputError(
                f"{_named(name, probe)} writes into what it is shown ({path}), which would change "
                "the run: work on a copy, as x.clone() gives one, x.numpy() and x.data do not"
            )
    return _numbers(_named(name, probe), found)


def refuse_other_names(
    name: str, probe: "Probe", row: Mapping[str, float], known: dict[str, list[str]]
) -> None:
    """Refuse numbers that are not called as before; ``known`` has their names by probe."""
    names = sorted(row)
    if (first := known.setdefault(name, names)) != names:
        differ = sorted({*first} ^ {*names})[0]
        raise InputError(
            f"{_named(name, probe)} gives {differ!r} in some rounds and not in others: give the "
            "same names in every round, and NaN for what there is not"
        )


def without_measure(name: str, kind: type) -> InputError:
    """That the class of a probe measures nothing, and where it stands."""
    try:
        where = place(str(inspect.getsourcefile(kind)), inspect.getsourcelines(kind)[1])
    except (OSError, TypeError):  # made by other than a class statement
        where = f"of {kind.__module__}"
    return InputError(
        f"probe {name}: the class {kind.__qualname__} ({where}) has no method measure(self, seen), "
        "which gives a dict of numbers by name"
    )


def _numbers(named: str, found: Any) -> dict[str, float]:
    if not isinstance(found, Mapping):
        given = "None" if found is None else a(type(found).__name__)
        raise InputError(
            f"{named} returns {given}, where a dict of numbers by name belongs, as in "
            '{"mean": 0.5}'
        )
    numbers: dict[str, float] = {}
    for key, value in found.items():
        if not isinstance(key, str):
            raise InputError(f"{named} names a number {key!r:.200}, where a text belongs")
        try:
            numbers[key] = float(value)  # waits for an accelerator
        except NOT_THE_HOOKS:
            raise
        except (TypeError, ValueError, RuntimeError, OverflowError):
            given = " ".join(shown(value).split())
            raise InputError(
                f"{named} returns {given} as {key!r}, where one number belongs"
            ) from None
    return numbers


def _state(seen: "Observation", closely: bool) -> dict[str, tuple[Tensor, int, int]]:
    """What a probe is shown, how often torch wrote into it, and, ``closely``, a hash of it."""
    return {path: (x, x._version, _hash(x) if closely else 0) for path, x in _watched(seen)}


def _hash(x: Tensor) -> int:
    """A hash of what is in the host's memory; none of what would have to be copied for it."""
    if x.device.type != "cpu" or not x.is_contiguous():
        return 0
    return zlib.crc32(x.detach().view(-1).view(torch.uint8).numpy().data)


def _watched(seen: "Observation") -> Iterator[tuple[str, Tensor]]:
    """The tensors that a probe must not write into: later rounds and other probes read them."""
    result = seen.result
    kept = {
        name: {i: store.find(i) for i in result.ids}
        for name, store in result.clients._asdict().items()
        if isinstance(store, HostStore)
    }
    places = {
        "received": seen.received,
        "result.server": result.server,
        "result.uploads": result.uploads,
        "result.models": result.models,
        "result.losses": result.losses,
        "result.clients": kept,
        "test": () if seen.test is None else (seen.test.x, seen.test.y),
        "setup.data": (seen.setup.data.x, seen.setup.data.y, seen.setup.data.parts),
    }
    for path, x in tree.leaves(places):
        if isinstance(x, Tensor):  # and not something that is read when it is needed
            yield path.removeprefix("/"), x


def _named(name: str, probe: "Probe", error: Exception | None = None) -> str:
    """A probe by its name, file and line: the last that led to an error, or where it begins."""
    code = getattr(inspect.unwrap(type(probe).measure), "__code__", None)
    if code is None:
        return f"probe {name}"
    lines = traceback.extract_tb(error.__traceback__ if error else None)
    own = [x.lineno for x in lines if x.filename == code.co_filename]
    return f"probe {name} ({place(code.co_filename, own[-1] if own else code.co_firstlineno)})"
