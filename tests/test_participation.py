"""Who takes part, and what goes wrong with them."""

import numpy as np
import pytest
import torch

from gcfed import FederatedData, parse, record, simulate
from gcfed.core import tree
from gcfed.core.algorithm import Algorithm
from gcfed.core.keys import generator
from gcfed.data.partitions.partition import Partition
from gcfed.population.faults import FAULTS, Faults
from gcfed.population.samplers import SAMPLERS, cyclic, examples


def cohorts(make_setup, rounds=40, **changes):
    setup = make_setup(Algorithm(), **changes)
    return [setup.population.sample(t) for t in range(rounds)]


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_a_cohort_holds_no_client_twice_and_follows_its_seed(name, make_setup):
    changes = {"sampler": SAMPLERS.parse(name), "cohort_size": 2}
    drawn = cohorts(make_setup, **changes)
    assert all(len(set(c)) == 2 and c == sorted(c) for c in drawn)
    assert drawn == cohorts(make_setup, **changes)
    assert drawn != cohorts(make_setup, seed=1, **changes)
    assert len({i for cohort in drawn for i in cohort}) > 6


def test_the_more_examples_the_likelier():
    """Two clients, 3 examples to 1: the first is drawn in three quarters of the rounds."""
    parts = Partition.of(list(torch.arange(4).split([3, 1])))
    drawn = [examples(parts, range(2), 1, t, generator("cohort", 0, t)) for t in range(2000)]
    first = sum(ids[0] == 0 for ids in drawn)
    assert first / 2000 == pytest.approx(0.75, abs=0.03)


def test_groups_are_awake_in_turn(make_setup):
    parts = Partition.by_owner(np.arange(40) % 20, 20)
    for t in range(24):
        ids = cyclic(parts, range(20), 3, t, generator("cohort", 0, t), groups=4, rounds=3)
        assert {int(i) % 4 for i in ids} == {t // 3 % 4}
    with pytest.raises(ValueError, match="cohort of 4 cannot be drawn from the 2 of 10 clients"):
        cohorts(make_setup, sampler=SAMPLERS.parse("cyclic(groups=4)"), cohort_size=4)


def test_faults_are_a_clients_own(make_setup):
    """Whoever else takes part; and each kind about as often as asked."""
    faults = Faults(dropout=0.2, straggling=0.3, corruption=0.1)
    fates = np.array([faults.of(0, t, i) for t in range(50) for i in range(40)])
    assert fates.mean(0) == pytest.approx([0.2, 0.3, 0.1], abs=0.03)
    assert faults.of(0, 3, 7) == faults.of(0, 3, 7)
    assert Faults().of(0, 0, 0) == (False, False, False)


def test_absent_clients_leave_the_round_as_though_not_drawn(make_setup, close):
    setup = make_setup(parse("scaffold"), faults=Faults(dropout=0.5), cohort_size=6, rounds=3)
    for result in simulate(setup):
        drawn = setup.population.sample(result.round)
        assert sorted(result.ids + result.absent) == drawn and result.absent
        line = record(setup, result)
        assert line["absent"] == result.absent and line["clients"] == result.ids
        each = tree.num_bytes(setup.model.params)
        assert result.bytes_down == 2 * each * 6 and result.bytes_up == 2 * each * len(result.ids)


def test_a_round_without_answers_leaves_the_weights(make_setup):
    setup = make_setup(parse("fedavgm"), faults=Faults(dropout=1.0), rounds=2)
    *_, result = simulate(setup)
    assert result.ids == [] and len(result.absent) == 4 and result.update_norm == 0
    assert record(setup, result)["train_loss"] is None
    assert all(torch.equal(w, setup.model.params[n]) for n, w in result.server.params.items())


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_stragglers_take_a_share_of_their_steps(engine, make_setup, close):
    faults = Faults(straggling=1.0, share=0.5)
    late = make_setup(Algorithm(), faults=faults, engine=engine, rounds=1)
    whole = make_setup(Algorithm(), engine=engine, rounds=1)
    for client in range(10):
        full, cut = whole.population.plan(0, client), late.population.plan(0, client)
        assert len(cut) == max(1, round(len(full) / 2))
        assert all(torch.equal(a, b) for a, b in zip(cut, full, strict=False))
    result = next(iter(simulate(late)))
    assert result.late == result.ids


def test_a_corrupted_update_is_left_out_or_ends_the_run(make_setup, close):
    faults = Faults(corruption=0.4)
    setup = make_setup(Algorithm(), faults=faults, on_nonfinite="drop", cohort_size=8, rounds=3)
    results = list(simulate(setup))
    assert any(r.corrupted for r in results)
    for result in results:
        assert result.dropped == result.corrupted
    with pytest.raises(ArithmeticError, match="are not finite"):
        list(simulate(make_setup(Algorithm(), faults=faults, cohort_size=8)))


@pytest.mark.parametrize(("how", "check"), [("flip", "opposite"), ("noise", "length")])
def test_a_lie_is_not_found_out_but_recorded(how, check, make_setup, close):
    honest = next(iter(simulate(make_setup(Algorithm(), rounds=1))))
    faults = Faults(corruption=1.0, how=how)
    result = next(iter(simulate(make_setup(Algorithm(), faults=faults, rounds=1))))
    assert result.corrupted == result.ids and result.dropped == []
    for k in range(len(result.ids)):
        lie, truth = (tree.take(r.uploads.delta, k) for r in (result, honest))
        assert tree.norm(lie) == pytest.approx(tree.norm(truth).item())
        if check == "opposite":
            close(lie, tree.map(torch.neg, truth))
        else:
            cosine = tree.dot(lie, truth) / tree.norm(lie) / tree.norm(truth)
            assert abs(cosine) < 0.3


def test_texts():
    assert FAULTS.parse("none")() == Faults()
    assert FAULTS.parse("random(dropout=0.1, how='flip')")() == Faults(dropout=0.1, how="flip")
    with pytest.raises(ValueError, match=r"dropout is between 0 and 1; not 1\.5"):
        FAULTS.parse("random(dropout=1.5)")()


def test_faults_leave_the_batches_and_cohorts_alone(make_setup, data):
    plain, faulty = (
        make_setup(Algorithm(), faults=faults) for faults in (Faults(), Faults(dropout=0.3))
    )
    assert isinstance(data, FederatedData)
    for t in range(5):
        assert plain.population.sample(t) == faulty.population.sample(t)
        assert np.array_equal(plain.population.plan(t, 3).index, faulty.population.plan(t, 3).index)
