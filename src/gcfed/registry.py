"""Names for what a config file or a command line can ask for, with values for its hyper-parameters.

A registry holds callables: the class of an algorithm, or what makes a model, a data set or a
partition.  ``"dirichlet(alpha=0.1)"`` names one and sets its hyper-parameters: the fields of a
dataclass, and of any other callable the parameters that have a default or go by keyword only.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Generic, TypeVar

from gcfed.display import aligned, html_table
from gcfed.errors import InputError, unknown
from gcfed.values import checked, type_hints

T = TypeVar("T", bound=Callable[..., Any])
F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Callables of one kind by name; `register` adds one, ``registry[name]`` finds it.

    It can be read like a dict in the order of names, and prints as a table.  Where ``base`` is
    given, entries are subclasses of it.
    """

    def __init__(self, kind: str, base: type | None = None) -> None:
        self.kind, self.base = kind, base
        self._entries: dict[str, T] = {}
        self._numerics: dict[str, int] = {}

    def register(self, name: str, *, numerics: int = 1) -> Callable[[F], F]:
        """Decorate a callable so that ``name`` stands for it; a name may be taken once.

        The same definition made again, as by a module that is reloaded, replaces the earlier one.
        So does anything that a notebook or a prompt defines, what it defined before.

        ``numerics`` goes up by one whenever the same text begins to give other numbers, be it by
        other code or by another default.  Runs made before are then not taken for runs made after.
        """
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(
                f"the name of {a(self.kind)} is one word of letters, as in register('mine'); "
                f"not {name!r:.200}"
            )

        def add(entry: F) -> F:
            if name in self._entries and not _is_made_again(entry, self._entries[name]):
                raise InputError(f"{self.kind} {name!r} is already registered")
            self._check(name, entry)
            self._entries[name] = entry  # type: ignore[assignment]
            self._numerics[name] = numerics
            return entry

        return add

    def _check(self, name: str, entry: Any) -> None:
        """Refuse what cannot be an entry."""
        wanted = "a function or a class" if self.base is None else _subclass(self.base)
        fits = callable(entry) if self.base is None else _is_subclass(entry, self.base)
        if not fits:
            raise InputError(f"{self.kind} {name!r} is {wanted}; not {entry!r:.200}")

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise self._unknown(name)
        return self._entries[name]

    def _unknown(self, name: str) -> InputError:
        error = unknown(self.kind, name, self._entries)
        if self.base and any(each.__name__.lower() == name.lower() for each in _below(self.base)):
            return InputError(
                f"{error}. The class of this name is not registered: write @register({name!r}) "
                "above it"
            )
        return error

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def keys(self) -> list[str]:
        return list(self)

    def values(self) -> list[T]:
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, T]]:
        return [(name, self[name]) for name in self]

    def __repr__(self) -> str:
        return "\n".join(aligned([self.columns, *self.rows()]))

    def _repr_html_(self) -> str:
        return html_table(self.columns, self.rows())

    @property
    def columns(self) -> tuple[str, str, str]:
        """What stands above the columns of `rows`."""
        return self.kind, "what it is", "hyper-parameters"

    def rows(self) -> list[tuple[str, str, str]]:
        """A row for each entry: its name, what it is, and its hyper-parameters with defaults."""
        return [(name, self.describe(name), self.settable(name)) for name in self]

    def name_of(self, entry: object) -> str | None:
        """The name under which ``entry`` is registered, if it is."""
        return next((n for n, e in self._entries.items() if e is entry), None)

    def numerics(self, name: str) -> int:
        """Which version of its numbers an entry gives, counted from 1."""
        return self._numerics.get(name, 1)

    def describe(self, name: str) -> str:
        """The first line of what documents an entry itself."""
        line = inspect.cleandoc(self[name].__doc__ or "").split("\n")[0]
        return re.sub(r":math:`([^`]*)`|``([^`]*)``", r"\1\2", line)

    def settable(self, name: str) -> str:
        """The hyper-parameters of an entry with their defaults, as a text sets them."""
        known = hyper_parameters(self[name]).items()
        return ", ".join(f"{k}={'...' if d is ... else repr(d)}" for k, (_, d) in known)

    def parse(self, text: str) -> "partial[Any]":
        """What ``text`` names, its hyper-parameters bound."""
        return self.bind(expression(text, self.kind))

    def canonical(self, text: str) -> str:
        """``text`` with every hyper-parameter written out."""
        bound = self.parse(text)
        known = hyper_parameters(bound.func)
        return self._text(bound, {k: bound.keywords.get(k, d) for k, (_, d) in known.items()})

    def short(self, bound: "partial[Any]") -> str:
        """The text of what `parse` gave, without the hyper-parameters that have their defaults."""
        known, given = hyper_parameters(bound.func), bound.keywords
        return self._text(
            bound, {k: given[k] for k, (_, d) in known.items() if given.get(k, d) != d}
        )

    def _text(self, bound: "partial[Any]", values: Mapping[str, Any]) -> str:
        name = self.name_of(bound.func) or ""
        written = ", ".join(f"{key}={value!r}" for key, value in values.items())
        return f"{name}({written})" if written else name

    def _guess(self, node: ast.expr) -> str:
        """What may have been meant by an expression that is no name: cifar10 by cifar-10."""
        if not any(isinstance(part, ast.Call) for part in ast.walk(node)):
            written = _source(node).strip("'").replace(" ", "").lower()
            if near := get_close_matches(written, self, n=1, cutoff=0.75):
                return f"; did you mean {near[0]!r}?"
        return "; write name(key=value)"

    def bind(self, node: ast.expr) -> "partial[Any]":
        """The entry that a name or a call with literal keywords stands for."""
        match node:
            case ast.Name(id=name):
                keywords: list[ast.keyword] = []
            case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
                pass
            case _:
                raise InputError(f"not {a(self.kind)}: {_source(node)}{self._guess(node)}")
        entry, values = self[name], {}
        known = hyper_parameters(entry)
        for keyword in keywords:
            key = str(keyword.arg)
            if key not in known:
                error = unknown(f"hyper-parameter of {name}", key, known)
                raise InputError(f"{error}. {UNTYPED}") if _is_untyped(entry, key) else error
            if key in values:
                raise InputError(f"{name}({key}=...) is given twice")
            values[key] = _value(f"{name}({key}=...)", keyword.value, known[key][0])
        missing = [
            key for key, (_, default) in known.items() if default is ... and key not in values
        ]
        if missing:
            written = ", ".join(f"{key}=..." for key in missing)
            raise InputError(
                f"{self.kind} {name} needs a value for {', '.join(missing)}: {name}({written})"
            )
        return partial(entry, **values)


UNTYPED = (
    "This one has no type, or its class is no dataclass: write @dataclass(frozen=True) above the "
    "class, and a type as in mu: float = 0.1"
)


def _is_untyped(entry: Any, key: str) -> bool:
    """Whether a class has a value of this name, though it is none of its hyper-parameters."""
    own = vars(entry).get(key) if isinstance(entry, type) else None
    return isinstance(own, bool | int | float | str | tuple)


def _below(kind: type[Any]) -> Iterator[type[Any]]:
    """The classes that derive from one."""
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def hyper_parameters(entry: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """The type and the default (``...`` where there is none) of what a text may set."""
    fields = isinstance(entry, type) and is_dataclass(entry)
    documented = entry
    if not (fields or inspect.isroutine(entry)):
        documented = entry.__init__ if isinstance(entry, type) else type(entry).__call__  # type: ignore[misc]
    hints = type_hints(documented)
    try:
        signature = inspect.signature(entry)
    except (TypeError, ValueError) as error:  # some that are written in C have none
        raise InputError(f"{entry!r:.200} does not say what it takes: {error}") from None
    return {
        p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default)
        for p in signature.parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and (fields or p.kind is p.KEYWORD_ONLY or p.default is not p.empty)
    }


def _is_made_again(new: object, old: object) -> bool:
    """Whether two objects come of one definition, which was run twice, or of a notebook."""
    if new is old:
        return False
    typed = all(getattr(entry, "__module__", None) == "__main__" for entry in (new, old))
    if typed and _is_interactive():
        return True
    return _origin(new) is not None and _origin(new) == _origin(old)


def _is_interactive() -> bool:
    """Whether the program is typed as it runs, in a notebook or at a prompt."""
    return not hasattr(sys.modules["__main__"], "__file__")


def _origin(entry: object) -> tuple[str, str] | None:
    """The module and the name of a definition; None of an object that has no name."""
    module, name = (getattr(entry, key, None) for key in ("__module__", "__qualname__"))
    return None if module is None or name is None or "<lambda>" in name else (module, name)


def _subclass(base: type) -> str:
    return f"a class that derives from {base.__name__} and has no abstract methods"


def _is_subclass(entry: Any, base: type) -> bool:
    return isinstance(entry, type) and issubclass(entry, base) and not inspect.isabstract(entry)


def expression(text: str, kind: str) -> ast.expr:
    """``text`` as a Python expression, which nothing evaluates."""
    checked(f"the text of {a(kind)}", text, str)
    if not text.strip():
        raise InputError(f"the text of {a(kind)} is empty: gcfed list shows what it may name")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = f"not {a(kind)}: {text[:200]!r}"
        if ".py:" in text:
            raise InputError(
                f"{said}: give the file as --plugin, and here the name that it registers"
            ) from None
        reason = getattr(error, "msg", str(error))
        raise InputError(f"{said} ({reason}); write name(key=value)") from None


def a(kind: str) -> str:
    """``kind`` with its article."""
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _source(node: ast.expr) -> str:
    """What was written, for a message."""
    try:
        return repr(ast.unparse(node)[:200])
    except RecursionError:
        return "something nested too deeply"


def _value(where: str, node: ast.expr, hint: Any) -> Any:
    try:
        value = ast.literal_eval(node)
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            f"{where} takes a literal, not code: {_source(node)}; text goes in quotes"
        ) from None
    return checked(where, value, hint)
