"""Ways to divide examples among clients.

Every partition is a function of a `Pool`, a number of clients and a random generator, the only
source of chance; it gives each example to one client and every client an example.  The work is
bounded (nothing is drawn again until it fits) and the memory grows with the examples, not with
clients times classes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from gcfed.core import keys
from gcfed.data.partitions.dirichlet import Shares, by_class, by_mixture, even, in_proportion
from gcfed.data.partitions.partition import Partition, Pool, stable_sort, top_up
from gcfed.errors import InputError, made, unknown
from gcfed.registry import Registry

PARTITIONS: Registry[Callable[..., Partition]] = Registry("partition")
"""Functions of a `Pool`, a number of clients and a generator that give a `Partition`."""

DirichletMode = Literal["per_class", "capped", "per_client"]

NUM_CLIENTS = 100
"""Where nobody says how many."""


@PARTITIONS.register("iid")
def iid(pool: Pool, num_clients: int | None, rng: np.random.Generator) -> Partition:
    """Equal shares at random; sizes differ by one at most (McMahan et al., 2017)."""
    num_clients = _checked("iid", pool, num_clients)
    return _shuffled(even(pool.size, num_clients), rng)


@PARTITIONS.register("quantity")
def quantity(
    pool: Pool,
    num_clients: int | None,
    rng: np.random.Generator,
    *,
    sigma: float = 1.0,
    min_size: int = 1,
) -> Partition:
    """Sizes skewed by a log-normal of deviation sigma, labels at random.

    Every client holds ``min_size`` examples, and the rest is divided in proportion to exp(sigma z)
    with z standard normal, rounded as in `dirichlet`.
    """
    num_clients = _checked("quantity", pool, num_clients, min_size)
    if not 0 <= sigma < math.inf:
        raise InputError(f"quantity(sigma=...) is a finite number from 0 up, not {sigma}")
    z = rng.standard_normal(num_clients)
    with np.errstate(over="ignore"):  # exp(-inf) = 0 is the right weight
        weights = np.exp((z - z.max()) * sigma)
    return _shuffled(min_size + in_proportion(weights, pool.size - num_clients * min_size), rng)


@PARTITIONS.register("shards")
def shards(
    pool: Pool, num_clients: int | None, rng: np.random.Generator, *, per_client: int = 2
) -> Partition:
    """Examples sorted by label, cut into equal shards, per_client for each (McMahan et al., 2017).

    Departures: shards may differ in size by one, so that no example is left over.
    """
    num_clients = _checked("shards", pool, num_clients)
    if per_client < 1:
        raise InputError(f"shards(per_client=...) is at least 1, not {per_client}")
    if num_clients * per_client > pool.size:
        raise InputError(
            f"{num_clients} clients with {per_client} shards each need as many examples as shards, "
            f"{num_clients * per_client}, of {pool.size}; lower clients or per_client"
        )
    order = np.concatenate(_classes("shards", pool))
    dealt = np.repeat(np.arange(num_clients, dtype=np.int32), per_client)
    rng.shuffle(dealt)
    owner = np.empty(pool.size, np.int32)
    owner[order] = np.repeat(dealt, even(pool.size, len(dealt)))
    return Partition.by_owner(owner, num_clients)


@PARTITIONS.register("classes")
def classes(pool: Pool, num_clients: int | None, rng: np.random.Generator, *, k: int) -> Partition:
    """Every client holds k classes, each divided evenly among those who hold it (Li et al., 2022).

    Departures: Li et al. (NIID-Bench, #C = k) give client i class i mod C and draw the others.
    Here shuffled decks of all classes are dealt, k to a client, so that every class has a holder
    even where there are fewer clients than classes, and all have about equally many.
    """
    num_clients = _checked("classes", pool, num_clients)
    members = _classes("classes", pool)
    if not 1 <= k <= len(members):
        raise InputError(f"classes(k=...) is from 1 to the {len(members)} classes, not {k}")
    if num_clients * k < len(members):
        raise InputError(
            f"{num_clients} clients with {k} classes each cannot hold all {len(members)} classes; "
            "raise num_clients or k"
        )
    held = _hands(num_clients, k, len(members), rng)
    holders = np.bincount(held, minlength=len(members))
    scarce = np.flatnonzero(holders > [len(m) for m in members])
    if len(scarce):
        few, many = len(members[scarce[0]]), holders[scarce[0]]
        raise InputError(
            f"a class of {few} examples cannot be divided among {many} clients; "
            f"lower clients ({num_clients}) or k ({k})"
        )
    clients = np.split(stable_sort(held)[1] // k, np.cumsum(holders)[:-1])
    shares = ((c, even(len(m), len(c))) for m, c in zip(members, clients, strict=True))
    return Partition.by_owner(_dealt(members, shares, rng), num_clients)


@PARTITIONS.register("by")
def by(pool: Pool, num_clients: int | None, rng: np.random.Generator, *, key: str) -> Partition:
    """One client for each value of a key that the data come with: writer, domain, client.

    Clients stand in the order of their values; nothing is left to chance.
    """
    if key not in pool.keys:
        raise unknown("key of the examples", key, pool.keys)
    values, owner = np.unique(pool.keys[key], return_inverse=True)
    if num_clients not in (None, len(values)):
        raise InputError(
            f"by(key={key!r}) makes {len(values)} clients, one for each value, and num_clients "
            f"asks for {num_clients}; leave num_clients out"
        )
    return Partition.by_owner(owner, len(values))


@PARTITIONS.register("dirichlet")
def dirichlet(
    pool: Pool,
    num_clients: int | None,
    rng: np.random.Generator,
    *,
    alpha: float = 0.1,
    mode: DirichletMode = "per_class",
    min_size: int = 1,
) -> Partition:
    """Label skew by Dir(alpha): the smaller alpha, the fewer classes a client holds.

    ``per_class``: each class is divided over the clients in proportions drawn from Dir(alpha)
    (Yurochkin et al., 2019).  ``capped``: the same, but a client that holds N / num_clients or more
    by then is left out of further classes (NIID-Bench; the GC-Fed authors' hetero-dirichlet).
    ``per_client``: clients of equal size draw label mixtures from Dir(alpha * prior), the prior
    being the distribution of all labels (Hsu et al., 2019); as it sums to one, this alpha compares
    with the others' times the number of classes.  A class used up leaves later clients' mixtures.

    Counts are differences of floor(n cumsum(p)), so that they sum to n; over clients the sum runs
    in a random order for each class, over classes it starts from a uniform number, and rounding
    favours nobody.  Departures: where those codes draw again until every client is large enough,
    clients short of ``min_size`` are given examples of those that have more (`Partition.moved`).
    """
    num_clients = _checked("dirichlet", pool, num_clients, min_size)
    if not 0 < alpha < math.inf:
        raise InputError(f"dirichlet(alpha=...) is a finite number above 0, not {alpha}")
    if mode not in get_args(DirichletMode):
        raise unknown("mode of dirichlet", mode, get_args(DirichletMode))
    members = _classes("dirichlet", pool)
    if mode == "per_client":
        supply = np.array([len(m) for m in members])
        shares: Shares = by_mixture(supply, num_clients, alpha, rng)
    else:
        cap = pool.size / num_clients if mode == "capped" else math.inf
        shares = by_class(members, num_clients, alpha, cap, rng)
    owner = _dealt(members, shares, rng)
    moved = top_up(owner, num_clients, min_size, rng)
    return Partition.by_owner(owner, num_clients, moved)


def divide(text: str, pool: Pool, num_clients: int | None, seed: int) -> Partition:
    """Divide as ``text`` says: the same for the same seed, whatever else is drawn by it."""
    partition = PARTITIONS.parse(text)
    if num_clients is None and partition.func is not by:  # which finds its clients in the data
        num_clients = NUM_CLIENTS
    rng = keys.generator("partition", seed)
    drawn = made(f"partition {text}", lambda: partition(pool, num_clients, rng))
    if not isinstance(drawn, Partition):
        raise InputError(
            f"partition {text} gave a {type(drawn).__name__}, where a Partition belongs"
        )
    return drawn


def _hands(num_clients: int, k: int, num_classes: int, rng: np.random.Generator) -> np.ndarray:
    """The k classes of the first client, of the second, ...: from shuffled decks of all classes."""
    clients_per_deck = -(-num_classes // k)
    decks = np.tile(
        np.arange(num_classes, dtype=np.int32), (-(-num_clients // clients_per_deck), 1)
    )
    rng.permuted(decks, axis=1, out=decks)
    # The last hand of a deck is filled up from its front, so that no hand holds a class twice.
    cards = np.arange(clients_per_deck * k) % num_classes
    return decks[:, cards].reshape(-1)[: num_clients * k]


def _dealt(members: Sequence[np.ndarray], shares: Shares, rng: np.random.Generator) -> np.ndarray:
    """The client of each example, when the examples of each class are dealt at random."""
    owner = np.empty(sum(map(len, members)), np.int32)
    for examples, (clients, counts) in zip(members, shares, strict=True):
        owners = np.repeat(clients, counts)
        rng.shuffle(owners)
        owner[examples] = owners
    return owner


def _shuffled(sizes: np.ndarray, rng: np.random.Generator) -> Partition:
    """Clients of these sizes, whose examples are drawn at random."""
    owner = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    rng.shuffle(owner)
    return Partition.by_owner(owner, len(sizes))


def _classes(name: str, pool: Pool) -> list[np.ndarray]:
    """The examples of each class that occurs, in the order of the labels."""
    if pool.labels is None:
        raise InputError(
            f"partition {name} divides by class, and these examples have no class labels; "
            "take iid, quantity or by(key=...), or give classes as whole numbers, one an example"
        )
    ordered, order = stable_sort(pool.labels)
    return np.split(order, np.flatnonzero(np.diff(ordered)) + 1)


def _checked(name: str, pool: Pool, num_clients: int | None, min_size: int = 1) -> int:
    """The number of clients, when so many can hold ``min_size`` examples each."""
    if num_clients is None:
        raise InputError(f"partition {name} needs num_clients, the number of clients")
    if num_clients < 1:
        raise InputError(f"num_clients is at least 1, not {num_clients}")
    if min_size < 1:
        raise InputError(f"{name}(min_size=...) is at least 1, not {min_size}")
    if num_clients * min_size > pool.size:
        raise InputError(
            f"{num_clients} clients of at least {min_size} examples need "
            f"{num_clients * min_size}, and there are {pool.size}; lower clients or min_size"
        )
    return num_clients
