"""Laws that every algorithm obeys, each tried on a tiny federation in float64.

``check(MyAlgorithm())`` says in sentences which of them a new algorithm breaks.
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from gcfed.algorithms import GCFed
from gcfed.core import keys, tree
from gcfed.core.algorithm import ARGUMENTS, Algorithm
from gcfed.core.chain import Chain, chain, parts
from gcfed.core.memory import Store
from gcfed.core.model import Model
from gcfed.core.optimizer import SGD
from gcfed.core.schedule import Schedule
from gcfed.core.tree import State
from gcfed.core.types import ServerContext
from gcfed.data.federated import FederatedData
from gcfed.data.partitions.partition import Partition
from gcfed.errors import DivergedError, InputError
from gcfed.simulation.loop import simulate
from gcfed.simulation.rehearsal import rehearse
from gcfed.simulation.round import run_round
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import RoundResult, start
from gcfed.testing.comparing import LawBroken as LawBroken, compare, shapes
from gcfed.testing.watching import watched

HOOKS = list(ARGUMENTS)


class Judged(NamedTuple):
    """The names of the laws that hold and that could not be judged, and what is to be said."""

    held: list[str]
    unjudged: list[str]
    sentences: list[str]


def check(algorithm: Algorithm, on: Setup | None = None) -> list[str]:
    """A sentence for each law that ``algorithm`` breaks.

    They are tried on `problem`, or ``on`` another one that is made of it, with a model or an
    optimizer of its own.  A hook that is wrong, so that no law can be tried, is an `InputError`
    that names it; so is a model that one of the two engines compared cannot train.
    """
    return judge(algorithm, on).sentences


def judge(algorithm: Algorithm, on: Setup | None = None) -> Judged:
    """Which laws hold of an algorithm, as `check` tries them."""
    token = _problem.set(on or _problem.get())
    try:
        setup = _setup(algorithm)
        for engine in ("sequential", "vectorized"):
            _rehearse(setup, engine)
        return _judged({law.__name__: _broken(law, algorithm) for law in LAWS})
    finally:
        _problem.reset(token)


def _broken(law: Callable[[Algorithm], None], algorithm: Algorithm) -> Exception | None:
    try:
        law(algorithm)
    except Exception as error:
        return error
    return None


def _judged(errors: Mapping[str, Exception | None]) -> Judged:
    """What the errors of laws say; that numbers are not finite is said once, by its own law."""
    name = stays_finite.__name__
    diverged = [law for law, error in errors.items() if _diverges(error)]
    unjudged = [law for law in diverged if law != name] if name in diverged else []
    sentences = []
    for law, error in errors.items():
        if error is None or law in unjudged:
            continue
        said = str(error)
        if not isinstance(error, LawBroken):
            said = f"{law} cannot be tried: {type(error).__name__}: {error}"
        if law == name and unjudged:
            said += f"; for that reason these laws cannot be judged: {', '.join(unjudged)}"
        sentences.append(said)
    return Judged([law for law, e in errors.items() if e is None], unjudged, sentences)


def _diverges(error: Exception | None) -> bool:
    return any(isinstance(each, DivergedError) for each in (error, error and error.__cause__))


def _rehearse(setup: Setup, engine: str) -> None:
    compared = "the laws compare the engines sequential and vectorized, so take another model"
    try:
        able = replace(setup, engine=engine)
    except InputError as error:
        raise InputError(f"{compared}: {error}") from None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        able = rehearse(able, start(setup).server, 0)
    if able.engine != engine:
        raise InputError(f"{compared}: {warned[0].message}")
    for each in warned:
        warnings.warn(each.message, stacklevel=3)


def engines_agree(algorithm: Algorithm) -> None:
    """Ragged clients come out alike one by one, and padded and mapped."""
    one, all_ = (_run(algorithm, engine) for engine in ("sequential", "vectorized"))
    compare("the engines disagree", _outcome(one), _outcome(all_))


def composes_with_gcfed(algorithm: Algorithm) -> None:
    """Before GC-Fed, or after it where the algorithm must have the last word on the step."""
    last = any(part.steps_last for part in parts(algorithm))
    order, both = ("after", GCFed() + algorithm) if last else ("before", algorithm + GCFed())
    try:
        one, all_ = (_run(both, engine) for engine in ("sequential", "vectorized"))
    except Exception as error:
        raise LawBroken(f"it does not run {order} GC-Fed: {error}") from error
    compare(f"{order} GC-Fed, the engines disagree", _outcome(one), _outcome(all_))


def fedavg_is_its_identity(algorithm: Algorithm) -> None:
    """Beside FedAvg it is itself, and as a link of a chain it does what it does alone."""
    if not chain(Algorithm(), algorithm) == chain(algorithm, Algorithm()) == algorithm:
        raise LawBroken("chained with FedAvg, it is not equal to itself: is it a frozen dataclass?")
    link = _run(Chain((Algorithm(), *parts(algorithm), Algorithm())))
    alone = _run(algorithm)
    compare("as a link of a chain, it differs", link.server.params, alone.server.params, 1e-12)


def hooks_leave_their_arguments(algorithm: Algorithm) -> None:
    """Hooks write into nothing that they are given, and keep nothing but what they return."""
    changes = list[str]()
    try:
        # under vmap nothing can be compared, so receive is called by itself
        setup = _setup(watched(algorithm, changes, mapped=["receive"]))
        result = _two_rounds(setup, [1, 2, 4])
    except Exception as error:
        raise (LawBroken(changes[0]) if changes else error) from None
    server, key = result.server, keys.key(0)
    ctx = ServerContext(server.params, server.state, {}, 1, key, cohort_size=3, num_clients=6)
    receive: Callable[..., Any] = watched(algorithm, changes).receive
    receive(tree.take(result.uploads, 0), _kept(result.clients.rows, result), ctx)
    if changes:
        raise LawBroken(changes[0])


def same_seed_same_bits(algorithm: Algorithm) -> None:
    first, again = _run(algorithm, "vectorized"), _run(algorithm, "vectorized")
    compare("run twice with one seed, it differs", _outcome(first), _outcome(again), 0.0)


def order_of_a_cohort_is_no_matter(algorithm: Algorithm) -> None:
    setup = _setup(algorithm, "vectorized")
    one, other = (_two_rounds(setup, ids).server for ids in ([1, 2, 4], [4, 1, 2]))
    compare("the order of a cohort matters", one, other)


def what_is_kept_keeps_its_shape(algorithm: Algorithm) -> None:
    """State, memory and rows: the same names, shapes and dtypes as at the start."""
    result, params = _run(algorithm), _federation()[0].params
    memory, row = (_kept(s, result) for s in (result.clients.memory, result.clients.rows))
    for what, before, after in (
        ("the server's state", algorithm.init_server(params), result.server.state),
        ("a client's memory", algorithm.init_client(params), memory),
        ("the row of a client", algorithm.init_row(params), row),
    ):
        old, new = shapes(before), shapes(after)
        if old != new:
            raise LawBroken(f"{what} began as {old} and became {new}")


def stays_finite(algorithm: Algorithm) -> None:
    try:
        result = _run(algorithm)
    except DivergedError as error:
        raise LawBroken(f"{error.reason} on a small smooth problem") from error
    for name, x in tree.leaves((result.server, result.uploads)):
        if not x.isfinite().all():
            raise LawBroken(f"{int((~x.isfinite()).sum())} numbers of {name} are not finite")


def docstring_has_its_parts(algorithm: Algorithm) -> None:
    for part in parts(algorithm):
        doc, name = type(part).__doc__ or "", type(part).__name__
        wanted = {
            "its equations (.. math::)": ".. math::" in doc or ":math:" in doc,
            "its source (et al., a year)": "et al. (" in doc,
            "a link to it": "https://" in doc,
            "its departures (Departures: ...)": "Departures: " in doc,
            "a first line that is a sentence": doc.split("\n")[0].endswith("."),
        }
        missing = [what for what, there in wanted.items() if not there]
        if missing:
            raise LawBroken(f"the docstring of {name} lacks {', '.join(missing)}")


LAWS: tuple[Callable[[Algorithm], None], ...] = (
    hooks_leave_their_arguments,  # which is the cause of what else is then broken
    engines_agree,
    composes_with_gcfed,
    fedavg_is_its_identity,
    same_seed_same_bits,
    order_of_a_cohort_is_no_matter,
    what_is_kept_keeps_its_shape,
    stays_finite,
    docstring_has_its_parts,
)


@cache
def problem() -> Setup:
    """Six clients of 2 to 12 examples, three classes, a small convolutional net, FedAvg."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
        x, y = torch.randn(39, 1, 3, 3, dtype=torch.float64), torch.randint(0, 3, (39,))
    parts = torch.split(torch.arange(39), [2, 5, 9, 4, 7, 12])
    return Setup(
        algorithm=Algorithm(),
        model=Model(net.double()),
        data=FederatedData(x, y, Partition.of(parts), 3),
        optimizer=SGD(0.05, momentum=0.9, weight_decay=1e-3),
        schedule=Schedule(rounds=2, cohort_size=3, epochs=1, batch_size=4, fill="none"),
        engine="sequential",
    )


_problem: ContextVar[Setup | None] = ContextVar("problem", default=None)


def _federation() -> tuple[Model, FederatedData]:
    setup = _problem.get() or problem()
    return setup.model, setup.data


def _setup(algorithm: Algorithm, engine: str = "sequential") -> Setup:
    on = _problem.get() or problem()
    model = copy.copy(on.model)
    model.params = tree.map(torch.clone, model.params)  # a hook may write into them
    return replace(on, model=model, algorithm=algorithm, engine=engine)


def _run(algorithm: Algorithm, engine: str = "sequential") -> RoundResult:
    *_, result = simulate(_setup(algorithm, engine))
    return result


def _two_rounds(setup: Setup, ids: list[int]) -> RoundResult:
    """The second of two rounds with the same clients, without a rehearsal."""
    first = run_round(setup, *start(setup), 0, ids)
    return run_round(setup, first.server, first.clients, 1, ids)


def _outcome(result: RoundResult) -> tuple[Any, ...]:
    return result.server, result.uploads, result.losses


def _kept(store: Store[State], result: RoundResult) -> State:
    """What a store holds of the first client of a round."""
    return tree.take(store.gather(result.ids[:1], dict, torch.device("cpu")), 0)
