"""A house whose rooms can be guessed: one meaning for a name, and no two modules of one name."""

import ast
from collections import defaultdict
from pathlib import Path

import gcfed

ROOT = Path(gcfed.__file__).parent
COMMANDS = "cli"  # a command is called as what it does, which another room does for it


def modules():
    return sorted(path for path in ROOT.rglob("*.py") if path.stem not in ("__init__", "__main__"))


def types(path):
    """The classes of a module, and the names that it gives to types."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                is_variable = isinstance(value, ast.Call) and "TypeVar" in ast.unparse(value.func)
                if name[0].isupper() and not name.isupper() and not is_variable:
                    yield name


def test_a_type_has_a_name_of_its_own():
    found = defaultdict(list)
    for path in modules():
        for name in types(path):
            found[name].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_a_module_has_a_name_of_its_own():
    found = defaultdict(list)
    for path in modules():
        if path.relative_to(ROOT).parts[0] != COMMANDS:
            found[path.stem].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
