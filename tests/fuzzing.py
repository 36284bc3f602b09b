"""Wild inputs: settings, texts, data and damaged run directories, and what they may lead to.

An input is taken, or refused with an `InputError`; nothing else.  The tests try a few of each kind;
``python tests/fuzzing.py --inputs 10000`` tries many, in bounded memory, and prints what else came.

Test modules import its functions, so pytest is told to leave its assertions alone:
PYTEST_DONT_REWRITE
"""

import argparse
import json
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

from gcfed import ALGORITHMS, MODELS, PARTITIONS, Config, InputError, load_run, parse
from gcfed.algorithms import spec
from gcfed.analysis import PROBES
from gcfed.config.build import build
from gcfed.config.materials import make_module
from gcfed.config.settings import make, override
from gcfed.config.toml import assignment, read
from gcfed.data import DATASETS, Pool, dataset_from
from gcfed.data.partitions.ways import divide
from gcfed.errors import DivergedError
from gcfed.population.availability import AVAILABILITIES
from gcfed.population.faults import FAULTS
from gcfed.population.samplers import SAMPLERS
from gcfed.registry import Registry, hyper_parameters
from gcfed.results.comparison import compare
from gcfed.results.finding import find_runs
from gcfed.results.frame import frame, summaries
from gcfed.simulation.loop import simulate

OLD_RUNS = Path(__file__).parent / "old_runs"
NAMED = {
    "algorithm": ALGORITHMS,
    "model": MODELS,
    "partition": PARTITIONS,
    "sampler": SAMPLERS,
    "availability": AVAILABILITIES,
    "faults": FAULTS,
    "probes": PROBES,
}
TINY = {
    "algorithm": "fedavg",
    "dataset": "synthetic(train=60, test=20, shape=(1, 4, 4), num_classes=3)",
    "model": "mlp(hidden=(4,))",
    "clients": 4,
    "cohort": 2,
    "rounds": 1,
    "epochs": 1,
    "batch_size": 8,
    "engine": "sequential",
}
# Either small, or so large that nothing may begin: what lies between would only take its time.
WHOLE = st.sampled_from([-(10**400), -1, 0, 1, 2, 3, 2**40, 2**63 - 1, 2**63, 10**20, 10**400])
REAL = st.sampled_from([-1.0, -1e-30, 0.0, 1e-300, 0.1, 0.5, 1.0, 2.0, 1e30, 1e308])
ODD = st.sampled_from([float("nan"), float("inf"), -float("inf"), None, True, "", "\0", "\ud800"])
WORD = st.one_of(st.text(max_size=8), st.sampled_from(["uniform", "cpu", "meta", "cuda:9", "none"]))
PLAIN = st.one_of(WHOLE, REAL, ODD, WORD)
WILD = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=4)


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type, and now and then of any other."""
    return st.integers(0, 7).flatmap(lambda n: _fitting(hint) if n else WILD)


def _fitting(hint: Any) -> st.SearchStrategy[Any]:
    inner = get_args(hint)
    if get_origin(hint) is Literal:
        return st.sampled_from(inner)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*map(_fitting, inner))
    if get_origin(hint) in (tuple, list):
        return st.lists(_fitting(inner[0]), max_size=3)
    kinds = {int: WHOLE, float: st.one_of(REAL, WHOLE), bool: st.booleans(), str: WORD}
    return kinds.get(hint, st.none() if hint is type(None) else WILD)


def literal(value: Any) -> str:
    """A value as a text sets it."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**100:
        return "9" * 400
    return repr(value)


@st.composite
def call_of(draw: st.DrawFn, registry: Registry[Any], name: str) -> str:
    """A name with some of its hyper-parameters set."""
    known = hyper_parameters(registry[name])
    chosen = draw(st.lists(st.sampled_from(list(known)), unique=True)) if known else []
    values = (f"{key}={literal(draw(of_type(known[key][0])))}" for key in chosen)
    return f"{name}({', '.join(values)})"


@st.composite
def spec_of(draw: st.DrawFn, key: str) -> str:
    """A name that there is, with hyper-parameters of any value; or a text that is torn."""
    registry = NAMED[key]
    name = draw(st.sampled_from(list(registry)))
    text = draw(call_of(registry, name))
    if key == "algorithm" and draw(st.booleans()):
        text += " + " + draw(st.sampled_from(list(registry)))
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", "(", "'", "\0", " + ", "[" * 300])) + text[at:]
    return text


def specs() -> st.SearchStrategy[tuple[str, str]]:
    return st.sampled_from(list(NAMED)).flatmap(lambda k: st.tuples(st.just(k), spec_of(k)))


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A tiny run of which some settings are wild."""
    values: dict[str, Any] = dict(TINY)
    keys = [*Config.model_fields, "alpha", "unknown"]
    for key in draw(st.lists(st.sampled_from(keys), min_size=1, max_size=4, unique=True)):
        if key in ("data_dir", "plugins", "track", "memory"):  # reach beyond a run of a moment
            continue
        if key in NAMED and draw(st.integers(0, 7)):
            text = draw(spec_of(key))
            values[key] = [text] if key == "probes" else text
        elif key == "dataset":
            values[key] = draw(call_of(DATASETS, "synthetic"))
        else:
            field = Config.model_fields.get(key)
            values[key] = draw(of_type(float if field is None else field.annotation))
    return values


@st.composite
def assignments(draw: st.DrawFn) -> str:
    """A setting as the command line has it."""
    key = draw(st.one_of(st.sampled_from(list(Config.model_fields)), WORD))
    field = Config.model_fields.get(key)
    value = draw(of_type(Any if field is None else field.annotation))
    return draw(st.sampled_from([f"{key}={literal(value)}", f" {key} = {literal(value)} ", key]))


@st.composite
def arrays(draw: st.DrawFn, examples: int | None = None) -> np.ndarray:
    """An array of any shape and kind, of small numbers or with an odd one."""
    shape = draw(st.lists(st.integers(0 if draw(st.integers(0, 4)) == 0 else 1, 3), max_size=4))
    if examples is not None and draw(st.integers(0, 9)):
        shape = [examples, *shape[: draw(st.sampled_from([0, 1, 1, 3]))]]
    kinds = ["f4", "f8", "i8", "i4", "u1", "u8", "?", "U3", "c8", "M8[s]", "S3", "f2"]
    array = (
        draw(st.sampled_from([0, 1, 2])) + np.arange(np.prod(shape, dtype=int)).reshape(shape) % 3
    )
    array = array.astype(draw(st.sampled_from(kinds[:8] if draw(st.integers(0, 4)) else kinds)))
    if array.size and draw(st.integers(0, 4)) == 0 and array.dtype.kind in "fiu":
        odd = draw(st.sampled_from([np.nan, np.inf, -1, 10**12, 2**62, 255]))
        with np.errstate(all="ignore"):
            array.flat[0] = np.array(odd).astype(array.dtype)
    return array


@st.composite
def files(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """The arrays of an npz."""
    size = draw(st.sampled_from([0, 1, 9, 20, 20, 20]))
    wanted = draw(st.sampled_from([["x", "y"], ["x", "y", "client"], ["x_train", "y_train"]]))
    if wanted[0] == "x_train":
        wanted = [*wanted, "x_test", "y_test"]
    held = {name: draw(arrays(size)) for name in wanted}
    if draw(st.booleans()):
        held |= {name: np.ones((size, 3), np.float32) for name in wanted if name[0] == "x"}
    if draw(st.booleans()):
        held |= {name: np.arange(size) % 3 for name in wanted if name[0] == "y"}
    return held


def _is_for_torch(array: np.ndarray) -> bool:
    return array.dtype.kind in "fiu?b" and array.dtype != np.uint64


FORMS = st.recursive(
    st.one_of(arrays(6), arrays(6).filter(_is_for_torch).map(torch.as_tensor), PLAIN),
    lambda inner: st.one_of(
        st.tuples(inner, inner),
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["train", "test"]), inner, max_size=2),
    ),
    max_leaves=6,
)


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, str, Any]:
    """A file of a run directory, and what becomes of it."""
    names = ["config.toml", "provenance.json", "summary.json", "rounds.jsonl", "timings.jsonl"]
    names += ["model.safetensors", "probes.jsonl"]
    how = draw(st.sampled_from(["cut", "flip", "value", "drop", "replace", "remove", "folder"]))
    return draw(st.sampled_from(names)), how, (draw(st.integers(0, 4000)), draw(WILD))


def try_settings(values: dict[str, Any]) -> None:
    """Make a config, write it, read it, and do its first round if its model is small."""
    config = make(values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(config.to_toml(), encoding="utf-8")
        assert make(read(path)) == config
    experiment = build(config)
    if sum(weight.numel() for weight in experiment.setup.model.params.values()) > 10**5:
        return
    for result in simulate(experiment.setup):
        experiment.record(result)
        break


def try_assignments(texts: list[str]) -> None:
    """Settings as the command line has them."""
    make(override(TINY, dict(map(assignment, texts))))


def try_spec(given: tuple[str, str]) -> None:
    """Read a text, write it out in full and in short, and make what it names."""
    key, text = given
    if key == "algorithm":
        algorithm = parse(text)
        assert parse(spec.to_text(algorithm)) == algorithm
        assert parse(spec.short(text)) == algorithm
        return
    registry = NAMED[key]
    assert registry.canonical(registry.canonical(text)) == registry.canonical(text)
    registry.short(registry.parse(text))
    if key == "model":
        make_module(text, (3, 8, 8), 3, dtype=torch.float32)
    elif key == "partition":
        divide(text, Pool(np.arange(40) % 4, {"client": np.arange(40) % 5}, 40), 5, 0)
    elif key != "sampler":
        registry.parse(text)()


def try_dataset(text: str) -> None:
    DATASETS.parse(text)(Path())


def try_npz(given: tuple[dict[str, np.ndarray], int]) -> None:
    """A file of arrays, whole or with a byte changed, as the data of a run."""
    held, at = given
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mine.npz"
        np.savez(path, **held)
        if at >= 0:
            content = bytearray(path.read_bytes())
            content[at % len(content)] ^= 0xFF
            path.write_bytes(content)
        values = {k: v for k, v in TINY.items() if k != "clients" or "client" not in held}
        dataset = f"npz(path={str(path)!r})"
        experiment = build(Config(**{**values, "dataset": dataset, "cohort": 1}))
        for result in simulate(experiment.setup):
            experiment.record(result)
            break


def try_form(source: Any) -> None:
    dataset_from(source)


def try_damage(given: tuple[str, str, Any]) -> None:
    """Read a damaged run, alone and beside one that is whole."""
    whole, other = (next(OLD_RUNS.glob(f"{name}-*")) for name in ("gcfed", "scaffold"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for run in (whole, other):
            shutil.copytree(run, folder / run.name)
        damage(folder / other.name, *given)
        assert any(run.path.name == whole.name for run in find_runs(folder))
        for look in (compare, frame, summaries):
            look(folder)
        read_whole(folder / other.name)


def damage(run: Path, name: str, how: str, given: tuple[int, Any]) -> None:
    """Change a file of a run directory."""
    (at, value), path = given, run / name
    content = path.read_bytes() if path.exists() else b"{}\n"
    path.unlink(missing_ok=True)
    if how == "remove":
        return
    if how == "folder":
        path.mkdir()
    elif how == "cut":
        path.write_bytes(content[: at % (len(content) + 1)])
    elif how == "flip":
        changed = bytearray(content)
        changed[at % len(changed)] ^= 0xFF
        path.write_bytes(changed)
    elif how == "replace" or not name.startswith(("provenance", "summary", "rounds", "timings")):
        path.write_text(json.dumps(value) + "\n", encoding="utf-8")
    else:
        first, *rest = content.decode().splitlines() if name.endswith("l") else [content.decode()]
        fields = json.loads(first)
        key = sorted(fields)[at % len(fields)]
        fields = {k: v for k, v in fields.items() if k != key}
        fields |= {key: value} if how == "value" else {}
        path.write_text("\n".join([json.dumps(fields), *rest]) + "\n", encoding="utf-8")


def read_whole(path: Path) -> None:
    run = load_run(path)
    for field in ("config", "summary", "provenance", "records", "probes", "timings", "identity"):
        getattr(run, field)
    run.together()
    run.predict(torch.zeros(2, 1, 4, 4))


KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], None]]] = {
    "settings": (configs(), try_settings),
    "assignments": (st.lists(assignments(), max_size=3), try_assignments),
    "specs": (specs(), try_spec),
    "data sets": (call_of(DATASETS, "synthetic"), try_dataset),
    "npz": (st.tuples(files(), st.sampled_from([-1] * 9 + [7]) | st.integers(-9000, 900)), try_npz),
    "forms": (FORMS, try_form),
    "runs": (damages(), try_damage),
}


def attempt(action: Callable[[Any], None], given: Any) -> bool:
    """Whether an input was taken; anything but an `InputError` that is meant is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            action(given)
        except InputError as error:
            own = isinstance(error.__cause__, Exception) and "cannot be made" in str(error)
            if own and not isinstance(error.__cause__, MemoryError):
                raise AssertionError("a function of gcfed failed on its own") from error.__cause__
            return False
        except DivergedError:
            pass
    return True


def main() -> int:
    """Try many inputs, and print one of each kind of failure."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--inputs", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--seconds", type=int, default=30, help="what one input may take")
    options.add_argument("--gigabytes", type=int, default=6, help="what the process may take")
    options.add_argument("--only", choices=list(KINDS), help="one kind of input")
    chosen = options.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (chosen.gigabytes * 2**30,) * 2)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    kinds = [chosen.only] if chosen.only else list(KINDS)
    failures: dict[str, str] = {}
    for kind in kinds:
        tried = _try_many(kind, chosen, chosen.inputs // len(kinds), failures)
        print(f"{kind}: {tried['taken']} taken, {tried['refused']} refused", flush=True)
    for trace in failures.values():
        print(f"\n{trace}")
    print(f"{len(failures)} kinds of failure")
    return 1 if failures else 0


def _too_long(*_: object) -> None:
    raise TimeoutError("an input took too long")


def _try_many(
    kind: str, chosen: argparse.Namespace, inputs: int, failures: dict[str, str]
) -> dict[str, int]:
    strategy, action = KINDS[kind]
    tried = {"taken": 0, "refused": 0}

    @seed(chosen.seed)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def one(given: Any) -> None:
        signal.alarm(chosen.seconds)
        try:
            tried["taken" if attempt(action, given) else "refused"] += 1
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            where = [f"{f.filename}:{f.lineno}" for f in frames if "gcfed" in f.filename][-1:]
            trace = "".join(traceback.format_exception(error, limit=-6))
            failures.setdefault(f"{type(error)} {where}", f"{kind}: {given!r:.400}\n{trace}")
        finally:
            signal.alarm(0)

    one()
    return tried


if __name__ == "__main__":
    sys.exit(main())
