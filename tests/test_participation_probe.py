"""The probe participation: the step of a cohort beside that of all clients."""

import json
from dataclasses import replace

import pytest
import torch
from running import tiny

from gcfed import InputError, parse, run, simulate, verify
from gcfed.analysis import Observation, Participation
from gcfed.config.build import build
from gcfed.engines.sequential import Sequential
from gcfed.simulation.round import run_round
from gcfed.simulation.snapshot import start

pytest_plugins = ["running"]


def observed(setup, t=0):
    """A round of a run, and where it began."""
    before = start(setup).server
    for result in simulate(setup):
        if result.round == t:
            return Observation(setup, before, result)
        before = result.server
    raise AssertionError(t)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("algorithm", ["fedavg", "gcfed", "fedavgm"])
def test_a_cohort_of_all_has_no_gap(make_setup, data, algorithm, engine):
    setup = make_setup(parse(algorithm), engine=engine, cohort_size=data.num_clients)
    for t in (0, 2):
        found = Participation().measure(observed(setup, t))
        assert (found["gap"], found["distance"]) == (0, 0)
        assert found["cosine"] == pytest.approx(1)


def test_the_gap_by_hand(make_setup, data):
    """FedAvg's step of all clients is the mean of what each of them would do alone."""
    setup = make_setup(parse("fedavg"), engine="sequential", cohort_size=3)
    seen = observed(setup)
    begin = start(setup)
    alone = [
        run_round(setup, begin.server, begin.clients, 0, [i]).server.params
        for i in range(data.num_clients)
    ]
    before = _flat(begin.server.params)
    steps = torch.stack([_flat(params) - before for params in alone])
    whole, cohort = steps.mean(0), steps[seen.result.ids].mean(0)
    found = Participation().measure(seen)
    assert found["distance"] == pytest.approx((cohort - whole).norm().item(), rel=1e-9)
    gap = ((cohort - whole).norm() / whole.norm()).item()
    assert found["gap"] == pytest.approx(gap, rel=1e-9) and gap > 0.01
    cosine = torch.nn.functional.cosine_similarity(cohort, whole, dim=0).item()
    assert found["cosine"] == pytest.approx(cosine, rel=1e-9)


def _flat(params):
    return torch.cat([w.flatten() for w in params.values()])


def test_an_engine_of_ones_own_is_left_to_the_run(make_setup):
    class Counted(Sequential):
        closed = 0

        def close(self):
            self.closed += 1

    engine = Counted()
    seen = observed(make_setup(parse("fedavg"), engine=engine))
    closed = engine.closed
    Participation().measure(seen)
    assert engine.closed == closed


def test_clients_that_would_have_kept_something_are_refused(make_setup):
    for algorithm in ("scaffold", "fedvarp"):
        with pytest.raises(InputError, match="keep something from round to round"):
            Participation().check(make_setup(parse(algorithm)))
    Participation().check(make_setup(parse("fedacg")))
    with pytest.raises(InputError, match="keep something"):
        build(tiny(algorithm="feddyn", probes=["participation"]))


def test_updates_that_are_not_finite_do_not_count(make_setup):
    """A client that is never drawn may not end the run that is measured."""
    seen = observed(make_setup(parse("fedavg"), engine="sequential", cohort_size=2))
    poisoned = next(i for i in range(10) if i not in seen.result.ids)
    x = seen.setup.data.x.clone()
    x[seen.setup.data.parts[poisoned]] = torch.inf
    other = replace(seen.setup.data, x=x)
    found = Participation().measure(replace(seen, setup=replace(seen.setup, data=other)))
    assert 0 < found["gap"] < float("inf")


@pytest.mark.usefixtures("float32")
def test_rows_are_the_same_when_measured_again(tmp_path):
    config = tiny(rounds=3, probes=["participation(every=2)"])
    run(config, tmp_path / "run")
    lines = (tmp_path / "run" / "probes.jsonl").read_text().splitlines()
    measured = ["participation.gap" in json.loads(line) for line in lines]
    assert measured == [True, False, True]
    assert verify(tmp_path / "run").holds
    run(tiny(rounds=3), tmp_path / "plain")
    for name in ("rounds.jsonl", "model.safetensors"):
        one, other = ((tmp_path / where / name).read_bytes() for where in ("run", "plain"))
        assert one == other
