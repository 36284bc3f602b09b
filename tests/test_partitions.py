"""Every partition covers the examples exactly, leaves no client empty, and is skewed as it says."""

import time
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from gcfed.core.batches import repeated
from gcfed.data.partitions.dirichlet import in_proportion
from gcfed.data.partitions.partition import Partition, Pool, stable_sort, top_up
from gcfed.data.partitions.skew import partition_statistics
from gcfed.data.partitions.ways import PARTITIONS, classes, dirichlet, iid, quantity, shards
from gcfed.errors import InputError

MODES = ("per_class", "capped", "per_client")
EVERY = [
    "iid",
    "quantity(sigma=2.0)",
    "shards(per_client=3)",
    "classes(k=2)",
    "by(key='writer')",
    *(f"dirichlet(alpha=0.3, mode={mode!r})" for mode in MODES),
]


def make_pool(size, num_classes=10, seed=0):
    rng = np.random.default_rng(seed)
    writers = np.array([f"writer {i:02d}" for i in range(40)])
    keys = {"writer": writers[rng.permutation(np.arange(size) % 40)]}
    return Pool(rng.integers(0, num_classes, size), keys, size)


POOL = make_pool(2_000)


def build(text, pool=POOL, num_clients=40, seed=0):
    return PARTITIONS.parse(text)(pool, num_clients, np.random.default_rng(seed))


def check(partition, pool, num_clients, min_size=1):
    """Each example once, every client large enough, indices as a Partition promises them."""
    assert len(partition) == num_clients == len(partition.sizes)
    assert partition.sizes.min() >= min_size
    assert torch.equal(partition.indices.sort().values, torch.arange(pool.size))
    ascends = partition.indices.diff() > 0
    ascends[partition.offsets[1:-1] - 1] = True
    assert ascends.all()


def same(a, b):
    return torch.equal(a.indices, b.indices) and torch.equal(a.offsets, b.offsets)


def distance(partition, pool):
    return float(partition_statistics(partition, pool).distance.mean())


def test_every_registered_partition_is_tested_here():
    assert {text.split("(")[0] for text in EVERY} == set(PARTITIONS)
    assert all(20 < len(PARTITIONS.describe(name)) <= 95 for name in PARTITIONS)


@pytest.mark.parametrize("text", EVERY)
def test_exact_cover_and_seed(text):
    first = build(text)
    check(first, POOL, 40)
    assert same(first, build(text))
    assert same(first, build(text, seed=1)) == text.startswith("by")


@pytest.mark.parametrize("text", EVERY)
def test_one_client_holds_everything_and_the_pool_is_left_alone(text):
    labels, keys = POOL.labels.copy(), {"writer": np.repeat("me", 2_000)}
    labels.setflags(write=False)
    text = text.replace("k=2", "k=10")
    check(build(text, Pool(labels, keys, 2_000), 1), POOL, 1)
    assert (labels == POOL.labels).all()


@pytest.mark.parametrize("text", [t for t in EVERY if not t.startswith(("by", "shards", "class"))])
def test_as_many_clients_as_examples(text):
    assert build(text, num_clients=2_000).sizes.tolist() == [1] * 2_000


@pytest.mark.parametrize("text", [t for t in EVERY if not t.startswith("by")])
def test_the_number_of_clients_is_checked(text):
    with pytest.raises(InputError, match="needs num_clients"):
        build(text, num_clients=None)
    with pytest.raises(InputError, match="at least 1, not 0"):
        build(text, num_clients=0)
    with pytest.raises(InputError, match=r"2001 clients .* 2000"):
        build(text, num_clients=2_001)


@pytest.mark.parametrize("text", ["shards", "classes(k=2)", "dirichlet"])
def test_classes_are_needed(text):
    with pytest.raises(
        InputError, match=rf"{text.split('(')[0]} .*no class labels; take iid, .* whole numbers"
    ):
        build(text, Pool(None, {}, 50), 5)
    check(build("iid", Pool(None, {}, 50), 5), Pool(None, {}, 50), 5)


# --- Dirichlet


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_clients", [100, 1_000, 10_000])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1])
def test_dirichlet_of_many_clients(alpha, num_clients, mode):
    pool = make_pool(20_000)
    partition = dirichlet(pool, num_clients, np.random.default_rng(3), alpha=alpha, mode=mode)
    check(partition, pool, num_clients)
    skew = partition_statistics(partition, pool)
    assert skew.distance.mean() > 0.65 and skew.classes_per_client.mean() < 6
    again = dirichlet(pool, num_clients, np.random.default_rng(3), alpha=alpha, mode=mode)
    assert same(partition, again) and partition.moved == again.moved
    assert (partition.moved == 0) or mode != "per_client"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-3, 1e3, 1e300])
def test_extreme_alphas(alpha, mode):
    pool = make_pool(6_000)
    partition = dirichlet(pool, 30, np.random.default_rng(0), alpha=alpha, mode=mode)
    check(partition, pool, 30)
    skew = partition_statistics(partition, pool)
    if alpha < 1e-200:  # one client takes a class whole, or one class fills a client
        # Per client, only the last of a class that runs out turn to another.
        extra = 10 if mode == "per_client" else partition.moved
        assert skew.classes_per_client.sum() <= 30 + extra
        assert skew.distance.mean() > 0.8
    if alpha > 100:
        assert skew.distance.mean() < 0.05


@pytest.mark.parametrize("mode", MODES)
def test_skew_falls_as_alpha_grows(mode):
    rngs = [np.random.default_rng(1) for _ in range(3)]
    low, middle, high = (
        distance(dirichlet(POOL, 40, rng, alpha=alpha, mode=mode), POOL)
        for rng, alpha in zip(rngs, (0.05, 1.0, 100.0), strict=True)
    )
    assert low > middle + 0.1 and middle > high + 0.1


def test_modes_mean_what_they_say():
    pool = make_pool(50_000)
    plain, capped, even = (
        dirichlet(pool, 100, np.random.default_rng(0), alpha=0.1, mode=mode) for mode in MODES
    )
    assert plain.sizes.max() > 1_500
    # A client below the cap of 500 may be given one more class, of 5,000, but no second.
    skew = partition_statistics(capped, pool)
    before_last = capped.sizes.numpy().copy()
    last = np.searchsorted(skew.client, np.arange(100), side="right") - 1
    before_last -= skew.count[last]
    assert before_last.max() < 500 < capped.sizes.max()
    assert even.sizes.unique().tolist() == [500]


def test_proportions_are_those_of_the_dirichlet():
    """Mean and variance of a client's part of a class: 1/K and (1/K)(1 - 1/K)/(K alpha + 1)."""
    pool = Pool(np.repeat(np.arange(400), 1_000), {}, 400_000)
    partition = dirichlet(pool, 4, np.random.default_rng(0), alpha=0.5)
    skew = partition_statistics(partition, pool)
    parts = np.zeros((4, 400))
    parts[skew.client, skew.label] = skew.count / 1_000
    np.testing.assert_allclose(parts.mean(1), 0.25, atol=0.04)
    np.testing.assert_allclose(parts.var(), 0.25 * 0.75 / 3, rtol=0.08)


def test_mixtures_are_those_of_the_dirichlet():
    """As above, for clients' mixtures about an uneven prior, before any class runs out."""
    labels = np.repeat([0, 1, 2], [500_000, 300_000, 200_000])
    partition = dirichlet(
        Pool(labels, {}, 1_000_000), 1_000, np.random.default_rng(0), alpha=2.0, mode="per_client"
    )
    skew = partition_statistics(partition, Pool(labels, {}, 1_000_000))
    parts = np.zeros((1_000, 3))
    parts[skew.client, skew.label] = skew.count / 1_000
    prior = np.array([0.5, 0.3, 0.2])
    np.testing.assert_allclose(parts.mean(0), prior)
    np.testing.assert_allclose(parts[:800].var(0), prior * (1 - prior) / 3, rtol=0.1)


def test_rounding_favours_neither_a_class_nor_a_client():
    pool = Pool(np.repeat(np.arange(10), 2_000), {}, 20_000)
    small = dirichlet(pool, 10_000, np.random.default_rng(0), alpha=3.0, mode="per_client")
    early = np.bincount(pool.labels[small.indices[: small.offsets[5_000]].numpy()])
    np.testing.assert_allclose(early, 1_000, atol=150)
    many = dirichlet(pool, 10_000, np.random.default_rng(0), alpha=1e6)
    assert many.moved < 2_000, "each class rounds to the same fifth of the clients"
    assert abs(many.sizes[:5_000].sum() - 10_000) < 300


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("alpha", [0.01, 1.0])
def test_a_minimum_size_is_reached_by_moving(alpha, mode):
    rng = np.random.default_rng
    plain = dirichlet(POOL, 100, rng(0), alpha=alpha, mode=mode)
    partition = dirichlet(POOL, 100, rng(0), alpha=alpha, mode=mode, min_size=10)
    check(partition, POOL, 100, min_size=10)
    assert partition.moved >= plain.moved
    assert same(partition, dirichlet(POOL, 100, rng(0), alpha=alpha, mode=mode, min_size=10))
    check(dirichlet(POOL, 100, rng(0), alpha=alpha, mode=mode, min_size=20), POOL, 100, 20)


def test_who_is_given_examples_is_as_skewed_as_the_givers():
    pool = make_pool(50_000)
    partition = dirichlet(pool, 1_000, np.random.default_rng(0), alpha=0.01, min_size=20)
    assert partition.moved > 10_000
    assert distance(partition, pool) > 0.75  # twenty of everyone's would be at about 0.25


def test_topping_up_takes_lots_of_one_giver_and_any_of_its_examples():
    givers = np.repeat(np.arange(100, dtype=np.int32), 100)
    owner = givers.copy()
    assert top_up(owner, 105, 10, np.random.default_rng(0)) == 50
    assert [len(np.unique(givers[owner == client])) for client in range(100, 105)] == [1] * 5
    places = np.flatnonzero(owner >= 100) % 100
    assert 35 < places.mean() < 65


@pytest.mark.parametrize("text", ["iid", "quantity", "classes(k=1)", "dirichlet(alpha=100.0)"])
def test_examples_of_a_class_are_dealt_at_random(text):
    pool = Pool(np.zeros(10_000, np.int64), {}, 10_000)
    partition = build(text, pool, num_clients=4)
    assert all(4_500 < part.double().mean() < 5_500 for part in partition)


def test_rounding_cannot_pass_the_total():
    just_below_one = np.nextafter(1, 0)
    assert in_proportion(np.ones(3), 5, just_below_one).sum() == 5


@pytest.mark.parametrize("alpha", [0, -1.0, float("nan"), float("inf")])
def test_alpha_is_positive_and_finite(alpha):
    with pytest.raises(InputError, match=rf"alpha.*not {alpha}"):
        dirichlet(POOL, 10, np.random.default_rng(0), alpha=alpha)


def test_what_dirichlet_refuses():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"300 clients of at least 7 .* 2100, and there are 2000"):
        dirichlet(POOL, 300, rng, min_size=7)
    with pytest.raises(InputError, match=r"min_size.*not 0"):
        dirichlet(POOL, 300, rng, min_size=0)
    with pytest.raises(InputError, match="did you mean 'capped'"):
        dirichlet(POOL, 300, rng, mode="caped")
    with pytest.raises(InputError, match=r"mode=.*one of 'per_class'"):
        PARTITIONS.parse("dirichlet(mode='caped')")


@settings(deadline=None, max_examples=60)
@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    exponent=st.floats(-300, 300),
    mode=st.sampled_from(MODES),
    min_size=st.integers(1, 4),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_any_small_dirichlet_is_a_partition(labels, exponent, mode, min_size, seed, data):
    pool = Pool(np.array(labels), {}, len(labels))
    min_size = min(min_size, pool.size)
    num_clients = data.draw(st.integers(1, pool.size // min_size))
    partition = dirichlet(
        pool,
        num_clients,
        np.random.default_rng(seed),
        alpha=10.0**exponent,
        mode=mode,
        min_size=min_size,
    )
    check(partition, pool, num_clients, min_size)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=12),
    min_size=st.integers(1, 6),
    seed=st.integers(0, 2**32),
)
def test_topping_up_moves_what_is_missing_and_no_more(sizes, min_size, seed):
    if sum(sizes) < len(sizes) * min_size:
        sizes.append(len(sizes) * min_size + min_size)
    before = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    owner = before.copy()
    moved = top_up(owner, len(sizes), min_size, np.random.default_rng(seed))
    after = np.bincount(owner, minlength=len(sizes))
    assert moved == (owner != before).sum() == sum(max(0, min_size - n) for n in sizes)
    assert all(new == min_size for old, new in zip(sizes, after, strict=True) if old <= min_size)
    assert all(
        min_size <= new <= old for old, new in zip(sizes, after, strict=True) if old > min_size
    )


# --- The others


def test_iid_sizes_differ_by_one():
    assert set(iid(POOL, 7, np.random.default_rng(0)).sizes.tolist()) == {285, 286}
    assert distance(iid(POOL, 4, np.random.default_rng(0)), POOL) < 0.07


def test_quantity_skews_sizes_and_not_labels():
    pool = make_pool(50_000)
    flat, skewed = (
        quantity(pool, 50, np.random.default_rng(0), sigma=sigma, min_size=200)
        for sigma in (0, 1.5)
    )
    assert flat.sizes.min() >= 999 and flat.sizes.max() <= 1_001
    check(skewed, pool, 50, 200)
    logs = np.log(skewed.sizes.numpy() - 200.0 + 1)
    assert 1.1 < logs.std() < 1.9
    assert distance(skewed, pool) < 0.1
    check(quantity(pool, 50, np.random.default_rng(0), sigma=1e308), pool, 50)
    with pytest.raises(InputError, match=r"sigma.*not -1"):
        quantity(pool, 50, np.random.default_rng(0), sigma=-1)


def test_shards_as_in_the_paper():
    """100 clients, two shards of 300 each: at most four classes, nearly always two or fewer."""
    pool = make_pool(60_000)
    partition = shards(pool, 100, np.random.default_rng(0))
    assert partition.sizes.unique().tolist() == [600]
    held = partition_statistics(partition, pool).classes_per_client
    assert held.max() <= 4 and held.mean() < 2.2
    order = np.argsort(pool.labels, kind="stable")
    shard_of = np.empty(60_000, int)
    shard_of[order] = np.arange(60_000) // 300
    assert {len(np.unique(shard_of[partition[k].numpy()])) for k in range(100)} == {2}
    with pytest.raises(InputError, match=r"1000 clients with 3 shards .* 3000, of 2000"):
        shards(POOL, 1_000, np.random.default_rng(0), per_client=3)
    with pytest.raises(InputError, match=r"per_client.*not 0"):
        shards(POOL, 10, np.random.default_rng(0), per_client=0)


@settings(deadline=None, max_examples=40)
@given(k=st.integers(1, 10), num_clients=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_every_client_holds_k_classes(k, num_clients, seed):
    num_clients = max(num_clients, -(-10 // k))
    partition = classes(POOL, num_clients, np.random.default_rng(seed), k=k)
    check(partition, POOL, num_clients)
    skew = partition_statistics(partition, POOL)
    assert skew.classes_per_client.tolist() == [k] * num_clients
    holders = np.bincount(skew.label, minlength=10)
    decks = -(-num_clients // -(-10 // k))
    assert holders.min() >= decks - 1 and holders.max() <= 2 * decks


def test_classes_are_drawn():
    skew = partition_statistics(classes(POOL, 40, np.random.default_rng(0), k=2), POOL)
    assert len(np.unique(skew.label.reshape(40, 2), axis=0)) > 15


def test_what_classes_refuses():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="from 1 to the 10 classes, not 11"):
        classes(POOL, 10, rng, k=11)
    with pytest.raises(InputError, match="4 clients with 2 classes each cannot hold all 10"):
        classes(POOL, 4, rng, k=2)
    rare = Pool(np.repeat([0, 1], [3, 100]), {}, 103)
    with pytest.raises(InputError, match=r"a class of 3 examples .* among 10 clients"):
        classes(rare, 10, rng, k=2)
    with pytest.raises(InputError, match="needs a value for k"):
        PARTITIONS.parse("classes")


def test_by_a_key_follows_it():
    for num_clients in (None, 40):
        partition = build("by(key='writer')", num_clients=num_clients)
        check(partition, POOL, 40)
        for client in (0, 17, 39):
            assert set(POOL.keys["writer"][partition[client]]) == {f"writer {client:02d}"}
    with pytest.raises(InputError, match=r"'writer'.* 40 clients.* 30"):
        build("by(key='writer')", num_clients=30)
    with pytest.raises(InputError, match=r"unknown key .*'writter'; did you mean 'writer'"):
        build("by(key='writter')", num_clients=None)


# --- Partition itself, and its scale


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 5), st.data())
def test_the_examples_of_some_clients(sizes, multiple, data):
    """One client after the other, the first of each repeated to a multiple."""
    parts = Partition.of(list(torch.randperm(sum(sizes)).split(sizes)))
    ids = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=8))
    held, counts = parts.of_clients(ids, multiple)
    expected = [repeated(parts.of_client(k), multiple) for k in ids]
    assert counts.tolist() == [len(part) for part in expected]
    assert held.tolist() == [i for part in expected for i in part.tolist()]
    assert parts.sizes_of(ids).tolist() == [sizes[k] for k in ids]


def test_a_partition_by_owner():
    partition = Partition.by_owner(np.array([2, 0, 1, 0, 2]), 3, moved=4)
    assert [partition[k].tolist() for k in range(3)] == [[1, 3], [2], [0, 4]]
    assert [part.tolist() for part in partition] == [[1, 3], [2], [0, 4]] and partition.moved == 4
    with pytest.raises(IndexError, match="client -1 of 3"):
        partition[-1]
    with pytest.raises(InputError, match=r"clients \[1, 3\] hold no examples"):
        Partition.by_owner(np.array([0, 2]), 4)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_sorting_keeps_the_order_of_equals(values):
    values = np.array(values, np.int64)
    ordered, order = stable_sort(values)
    assert (order == np.argsort(values, kind="stable")).all() and (ordered == values[order]).all()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_memory_grows_with_the_examples_and_not_with_clients_times_classes(mode):
    """100,000 clients by 500 classes would be 400 MB as a table, and 2 million labels are 16."""
    size, num_clients, num_classes = 2_000_000, 100_000, 500
    labels = np.random.default_rng(0).integers(0, num_classes, size)
    pool = Pool(labels, {}, size)
    rng = np.random.default_rng(0)
    tracemalloc.start()
    begin = time.perf_counter()
    partition = dirichlet(pool, num_clients, rng, alpha=0.1, mode=mode)
    partition_statistics(partition, pool)
    seconds, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    check(partition, pool, num_clients)
    assert peak < 150e6, f"{peak / 1e6:.0f} MB"
    assert seconds < 60
