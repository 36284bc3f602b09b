"""What is kept of each client: a value, of which a new version shares what did not change."""

import pytest
import torch

from gcfed.core import tree
from gcfed.core.memory import HostStore
from gcfed.runs.disk_memory import DiskStore, SpillFolder

CPU = torch.device("cpu")


@pytest.fixture(params=["host", "disk"])
def empty(request, tmp_path):
    """A store of each kind."""
    return HostStore() if request.param == "host" else DiskStore(SpillFolder(tmp_path))


def rows(*numbers):
    return {"c": {"w": torch.tensor(numbers, dtype=torch.float64)[:, None].repeat(1, 3)}}


def fresh():
    return {"c": {"w": torch.full((3,), -1.0)}}


def held(store):
    return {client: row["c"]["w"][0].item() for client, row in store.items()}


def test_rows_come_back_by_client_and_missing_ones_are_made(empty):
    store = empty.scatter([7, 3], rows(70, 30))
    got = store.gather([3, 5, 7], fresh, CPU)
    assert got["c"]["w"].tolist() == [[30] * 3, [-1] * 3, [70] * 3]
    assert held(store) == {3: 30, 7: 70}


def test_old_versions_stay_as_they_were(empty):
    versions, wanted = [empty], [{}]
    generator = torch.Generator().manual_seed(0)
    for t in range(30):
        ids = torch.randperm(40, generator=generator)[:5].tolist()
        versions.append(versions[-1].scatter(ids, rows(*(100 * t + i for i in ids))))
        wanted.append({**wanted[-1], **{i: 100 * t + i for i in ids}})
    assert [held(v) for v in versions] == wanted


def test_a_row_is_in_storage_of_its_own():
    given = rows(1, 2)
    store = HostStore().scatter([0, 1], given)
    given["c"]["w"].fill_(9)
    assert held(store) == {0: 1, 1: 2}
    for _, row in store.items():  # not a view that keeps the whole cohort alive
        assert row["c"]["w"].untyped_storage().nbytes() == 3 * 8


def test_ids_may_be_large_and_come_in_order(empty):
    ids = [10**9, 0, 2**30 - 1, 2**30, 31, 32, 1023, 1024, 10**12]
    store = empty.scatter(ids, rows(*range(len(ids))))
    assert held(store) == {i: k for k, i in enumerate(ids)}
    assert [client for client, _ in store.items()] == sorted(ids)
    assert store.gather([10**9], fresh, CPU)["c"]["w"][0, 0] == 0


def nodes(store):
    """Every dict of a store's trie, by identity."""

    def walk(node, depth=0):
        yield node
        for child in node.values():
            if depth < 6:
                yield from walk(child, depth + 1)

    return {id(node): node for node in walk(store.rows.root)}


@pytest.mark.parametrize("spacing", [1, 1009])
def test_what_a_round_copies_does_not_grow_with_the_clients_ever_visited(spacing):
    copied, store, ids = [], HostStore(), list(range(0, 2000 * spacing, spacing))
    for start in range(0, 2000, 500):
        visited = ids[start : start + 500]
        store = store.scatter(visited, rows(*visited))
        before = nodes(store)
        new = nodes(store.scatter(ids[start : start + 5], rows(*range(5))))
        copied.append(sum(len(node) for i, node in new.items() if i not in before))
    assert max(copied) <= 5 * 7 * 32  # five paths of seven nodes of 32 branches at most
    assert len(held(store)) == 2000


def test_nothing_is_kept_where_there_is_nothing(empty):
    store = empty
    assert store.scatter([1, 2], {}) is store
    assert store.scatter([1, 2], {"c": {}}) is store
    assert store.gather([1, 2], dict, CPU) == {}


def test_dtypes_and_trees_survive(empty):
    stacked = {"n": torch.tensor([3, 4]), "h": torch.ones(2, 2, dtype=torch.bfloat16)}
    got = empty.scatter([5, 6], stacked).gather([6, 5], dict, CPU)
    assert {k: v.dtype for k, v in got.items()} == {k: v.dtype for k, v in stacked.items()}
    assert got["n"].tolist() == [4, 3]
    assert tree.num_bytes(got) == tree.num_bytes(stacked)


def test_what_changed_since_an_earlier_version(empty):
    first = empty.scatter([1, 2, 40], rows(1, 2, 40))
    second = first.scatter([2, 99], rows(22, 99))
    assert {i: row["c"]["w"][0].item() for i, row in second.changed(first)} == {2: 22, 99: 99}
    assert list(second.changed(second)) == []
    assert dict(second.changed(empty)).keys() == {1, 2, 40, 99}


def test_the_difference_of_versions_looks_at_no_more_than_it_finds():
    """Were it to look at a subtree that both share, it would meet this."""

    class Untouchable(dict):
        def __iter__(self):
            raise AssertionError

    store = HostStore().scatter(list(range(0, 10**6, 997)), rows(*range(0, 10**6, 997)))
    fenced = HostStore(type(store.rows)({b: Untouchable(n) for b, n in store.rows.root.items()}))
    far = 2**31
    assert [i for i, _ in fenced.scatter([far], rows(1)).changed(fenced)] == [far]


def test_files_go_with_the_last_version_that_needs_them(tmp_path):
    folder = SpillFolder(tmp_path)
    first = DiskStore(folder).scatter([1, 2], rows(1, 2))
    second = first.scatter([2], rows(22))
    assert len(list(folder.path.iterdir())) == 3
    assert held(first) == {1: 1, 2: 2}
    del first
    assert len(list(folder.path.iterdir())) == 2
    assert held(second) == {1: 1, 2: 22}
    del second, folder
    assert list(tmp_path.iterdir()) == []
