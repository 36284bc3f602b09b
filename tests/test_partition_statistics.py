"""What is said of a partition, against small cases worked by hand; and its pictures."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from matplotlib.collections import PathCollection

from gcfed.data.partitions.partition import Partition, Pool
from gcfed.data.partitions.picture import draw_partition, draw_partitions
from gcfed.data.partitions.skew import partition_statistics
from gcfed.data.partitions.ways import dirichlet, divide
from gcfed.errors import InputError

LABELS = np.array([0, 0, 0, 0, 1, 1, 2, 2])
POOL = Pool(LABELS, {}, 8)
PARTITION = Partition.by_owner(np.array([0, 0, 0, 1, 0, 1, 2, 1]), 3, moved=2)


def test_a_histogram_by_hand():
    skew = partition_statistics(PARTITION, POOL)
    entries = list(zip(skew.client.tolist(), skew.label.tolist(), skew.count.tolist(), strict=True))
    assert entries == [(0, 0, 3), (0, 1, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 2, 1)]
    assert skew.sizes.tolist() == [4, 3, 1]
    assert skew.class_sizes.tolist() == [4, 2, 2]
    assert skew.classes_per_client.tolist() == [2, 3, 1]


def test_distances_by_hand():
    skew = partition_statistics(PARTITION, POOL)
    # All: (1/2, 1/4, 1/4). Clients: (3/4, 1/4, 0), (1/3, 1/3, 1/3), (0, 0, 1).
    np.testing.assert_allclose(skew.distance, [1 / 4, 1 / 6, 3 / 4])
    # Pairs of sizes differ by 1, 3 and 2: sum over all ordered pairs 12, over 2 n² mean = 48.
    assert skew.gini == pytest.approx(12 / 48)


def test_equal_clients_have_no_skew():
    skew = partition_statistics(Partition.by_owner(np.array([0, 1] * 4), 2), POOL)
    assert skew.gini == pytest.approx(0) and skew.distance.tolist() == [0, 0]


def test_a_short_account():
    skew = partition_statistics(PARTITION, POOL)
    short = json.loads(json.dumps(skew.to_json()))
    assert (short["clients"], short["examples"], short["moved"], short["classes"]) == (3, 8, 2, 3)
    assert short["size"]["min"] == 1 and short["size"]["median"] == 3 and short["size"]["max"] == 4
    assert short["label_distance"]["mean"] == pytest.approx((1 / 4 + 1 / 6 + 3 / 4) / 3)
    rows = dict(skew.rows())
    assert rows["clients"] == "3" and rows["moved to reach the minimum"] == "2"
    assert "median 3" in rows["examples per client"] and "max 0.75" in " ".join(rows.values())


def test_without_labels_there_are_sizes():
    skew = partition_statistics(PARTITION, Pool(None, {}, 8))
    assert not skew.has_labels and "label_distance" not in skew.to_json()
    assert dict(skew.rows())["examples"] == "8" and len(skew.client) == 0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=50))
def test_the_sparse_histogram_is_the_dense_one(pairs):
    owner, labels = np.array(pairs).T
    _, owner = np.unique(owner, return_inverse=True)
    num_clients = int(owner.max()) + 1
    pool = Pool(labels, {}, len(labels))
    skew = partition_statistics(Partition.by_owner(owner, num_clients), pool)
    table = np.zeros((num_clients, 7))
    np.add.at(table, (owner, labels), 1)
    sparse = np.zeros_like(table)
    sparse[skew.client, skew.label] = skew.count
    assert (sparse == table).all() and len(skew.count) == (table > 0).sum()
    of_clients, of_all = table / table.sum(1, keepdims=True), table.sum(0) / table.sum()
    np.testing.assert_allclose(skew.distance, abs(of_clients - of_all).sum(1) / 2, atol=1e-12)
    sizes = table.sum(1)
    pairwise = abs(sizes[:, None] - sizes).sum() / (2 * num_clients * sizes.sum())
    assert skew.gini == pytest.approx(pairwise, abs=1e-12)


# --- Pictures


def test_bubbles_stand_where_counts_are():
    (axes,) = draw_partition(PARTITION, POOL, "bubble").axes
    (discs,) = (c for c in axes.collections if isinstance(c, PathCollection))
    assert discs.get_offsets().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 2]]
    np.testing.assert_allclose(discs.get_sizes() / discs.get_sizes()[1], [3, 1, 1, 1, 1, 1])


def test_bars_are_as_high_as_clients_are_large():
    figure = draw_partition(PARTITION, POOL, "stack", class_names=("cat", "dog", "eel"))
    bars = figure.axes[0].patches
    assert [bar.get_height() for bar in bars] == [3, 1, 0, 1, 1, 0, 0, 1, 1]
    assert [bar.get_y() for bar in bars[-3:]] == [4, 2, 0]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["eel", "dog", "cat"]


@pytest.mark.parametrize("kind", ["bubble", "stack"])
@pytest.mark.parametrize("num_classes", [10, 62])
def test_a_picture_of_many_clients_shows_the_first(kind, num_classes, tmp_path):
    labels = np.arange(2_000) % num_classes
    pool = Pool(labels, {}, 2_000)
    partition = dirichlet(pool, 200, np.random.default_rng(0))
    figure = draw_partition(partition, pool, kind, max_clients=12)
    assert figure.axes[0].get_title() == "the first 12 of 200 clients"
    assert figure.axes[0].get_xlim() == (-0.7, 11.7)
    figure.savefig(tmp_path / "partition.png")
    assert (tmp_path / "partition.png").stat().st_size > 5_000


@pytest.mark.parametrize("kind", ["bubble", "stack"])
@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_panel_for_each_partition(kind, number, tmp_path):
    pool = Pool(np.arange(1_000) % 10, {}, 1_000)
    alphas = [0.05, 0.1, 1.0, 10.0, 100.0, 1000.0][:number]
    drawn = {f"alpha {a}": divide(f"dirichlet(alpha={a})", pool, 10, seed=3) for a in alphas}
    figure = draw_partitions(drawn, pool, kind)
    assert [axes.get_title() for axes in figure.axes] == list(drawn)
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert len({axes.get_position().y0 for axes in figure.axes}) == (2 if number == 6 else 1)
    figure.savefig(tmp_path / "alphas.svg")


def test_a_panel_may_be_left_over():
    figure = draw_partitions({str(i): PARTITION for i in range(5)}, POOL, max_clients=2)
    assert [axes.get_visible() for axes in figure.axes] == [True] * 5 + [False]
    assert figure.axes[1].get_title() == "1\nthe first 2 of 3 clients"


def test_discs_of_a_legend_are_round_numbers_of_examples():
    pool = Pool(np.zeros(997, int), {}, 997)
    (legend,) = draw_partition(divide("iid", pool, 1, 0), pool).legends
    assert [text.get_text() for text in legend.get_texts()] == ["20", "100", "500"]


def test_discs_of_a_legend_do_not_overlap():
    pool = Pool(np.arange(2000) % 10, {}, 2000)
    figure = draw_partition(divide("classes(k=2)", pool, 20, 0), pool)
    figure.draw_without_rendering()
    discs = [disc.get_window_extent() for disc in figure.legends[0].legend_handles]
    assert len(discs) == 3
    assert all(above.y0 >= below.y1 for above, below in itertools.pairwise(discs))


def test_a_class_that_nobody_holds_has_a_row_all_the_same():
    (axes,) = draw_partition(PARTITION, POOL, class_names=("a", "b", "c", "d")).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "c", "d"]


def test_what_a_picture_refuses():
    with pytest.raises(InputError, match="unknown kind of picture: 'bubbles'; did you mean"):
        draw_partition(PARTITION, POOL, "bubbles")
    with pytest.raises(InputError, match="2 class_names were given for 3 classes"):
        draw_partition(PARTITION, POOL, class_names=("cat", "dog"))
    with pytest.raises(InputError, match="max_clients is at least 1"):
        draw_partition(PARTITION, POOL, max_clients=0)
    with pytest.raises(InputError, match="needs class labels"):
        draw_partition(PARTITION, Pool(None, {}, 8))
    with pytest.raises(InputError, match="at least one"):
        draw_partitions({}, POOL)


def test_pictures_leave_the_global_generators_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    draw_partitions({"one": PARTITION}, POOL)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
