"""A cohort in parts: the same round, with fewer clients held at once."""

import pytest
import torch

from gcfed import FederatedData, parse, run_round, simulate, start
from gcfed.core import tree
from gcfed.core.algorithm import Algorithm
from gcfed.engines.sequential import Sequential


@pytest.mark.parametrize("text", ["scaffold + gcfed", "fedvarp", "moon", "fedadam"])
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_chunks_are_the_cohort(text, weighting, run, close):
    if weighting == "examples" and text in ("scaffold + gcfed", "fedvarp"):
        pytest.skip("defined for uniform weights alone")
    changes = {"engine": "sequential", "cohort_size": 5, "weighting": weighting}
    whole, parts = (run(parse(text), chunk=chunk, **changes) for chunk in (None, 2))
    assert whole.ids == parts.ids
    assert (whole.bytes_up, whole.bytes_down) == (parts.bytes_up, parts.bytes_down)
    close(whole.server, parts.server, 1e-12)
    close(whole.uploads, parts.uploads, 1e-12)
    close(whole.losses, parts.losses, 1e-12)


def test_no_more_clients_than_a_chunk_are_trained_at_once(run):
    seen = []

    class Counting(Sequential):
        def __call__(self, jobs):
            seen.extend(job.num_clients for job in jobs)
            return super().__call__(jobs)

    run(Algorithm(), engine=Counting(), cohort_size=5, chunk=2, rounds=1)
    assert seen == [2, 2, 1]


def test_a_dropped_client_counts_in_no_chunk(make_setup, data, close):
    x = data.x.clone()
    x[data.parts[4]] = torch.nan
    broken = FederatedData(x, data.y, data.parts, data.num_classes)
    results = []
    for chunk in (None, 1, 2):
        setup = make_setup(
            parse("scaffold"),
            data=broken,
            engine="sequential",
            cohort_size=10,
            chunk=chunk,
            on_nonfinite="drop",
            rounds=1,
        )
        results.append(next(iter(simulate(setup))))
    for result in results[1:]:
        assert result.dropped == [4]
        close(result.server, results[0].server, 1e-12)


def test_a_run_with_too_little_memory_goes_on_in_smaller_chunks(make_setup, close):
    class Small(Sequential):
        """Has room for two clients."""

        closed = 0

        def __call__(self, jobs):
            if sum(job.num_clients for job in jobs) > 2:
                raise torch.OutOfMemoryError("out of memory")
            return super().__call__(jobs)

        def close(self):
            self.closed += 1

    engine = Small()
    setup = make_setup(parse("scaffold"), engine=engine, cohort_size=5, rounds=2)
    with pytest.warns(UserWarning, match="memory is short: [23] clients at once"):
        *_, result = simulate(setup)
    *_, expected = simulate(
        make_setup(parse("scaffold"), engine="sequential", cohort_size=5, rounds=2)
    )
    close(result.server, expected.server, 1e-12)
    assert engine.closed == 3  # 5 to 3, 3 to 2, and at the end; the second round starts with 2


def test_one_client_that_does_not_fit_is_an_error(make_setup):
    class Full(Sequential):
        def __call__(self, jobs):
            raise torch.OutOfMemoryError("out of memory")

    setup = make_setup(Algorithm(), engine=Full(), cohort_size=2)
    with pytest.raises(torch.OutOfMemoryError), pytest.warns(UserWarning, match="1 clients"):
        next(iter(simulate(setup)))


def test_nonsense_is_refused(make_setup):
    class Median(Algorithm):
        def aggregate(self, uploads, weights, ctx):
            return tree.map(lambda x: x.median(0).values, uploads.delta), {}

    with pytest.raises(ValueError, match="replaces the mean needs the whole cohort"):
        make_setup(Median(), chunk=2)
    with pytest.raises(ValueError, match="chunk is a positive count; not 0"):
        make_setup(Algorithm(), chunk=0)


def test_a_round_by_hand_is_one_chunk(make_setup, close):
    setup = make_setup(Algorithm(), chunk=1, engine="sequential")
    one = run_round(setup, *start(setup), 0, setup.population.sample(0))
    close(next(iter(simulate(setup))).server, one.server, 1e-12)
