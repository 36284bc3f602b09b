"""Who can be drawn at all, and when."""

import hashlib
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from killing import KILLED, killed_at_write
from running import flags, lines, tiny
from torch import nn

from gcfed import (
    Model,
    TestSet,
    load_run,
    parse,
    record,
    resume,
    run as run_to,
    simulate,
    simulate_together,
    verify,
)
from gcfed.config.build import build
from gcfed.config.identity import digest, identity
from gcfed.core.algorithm import Algorithm
from gcfed.engines.workers import Workers
from gcfed.population.availability import AVAILABILITIES, Always, Daily, Sessions, Trace, settled
from gcfed.population.faults import Faults
from gcfed.population.samplers import SAMPLERS

pytest_plugins = ["running"]

TRACE = "client,from,to\n0,0,2\n2,1,3\n2,5,6\n9,1,100\n"
"""Rounds 0 to 5: client 0; 0, 2 and 9; 2 and 9; 9; 9; 2 and 9."""
THERE = [[0], [0, 2, 9], [2, 9], [9], [9], [2, 9]]


@pytest.fixture
def trace(tmp_path):
    """Write a trace; its path."""

    def write(text=TRACE, name="trace.csv"):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return write


@pytest.fixture(params=["always", "daily", "sessions", "sessions(on=7, off=2)", "trace"])
def availability(request, trace):
    text = request.param
    return settled(f"trace(path={trace()!r})" if text == "trace" else text)[0]


def table(availability, num_clients, rounds, seed=0):
    """Rounds by clients: who is there when."""
    found = np.zeros((rounds, num_clients), bool)
    for t in range(rounds):
        found[t, availability(num_clients, t, seed)] = True
    return found


# each of them


def test_ids_ascend_and_do_not_depend_on_who_asks_when(availability):
    whole = table(availability, 40, 60)
    for t in np.random.default_rng(0).permutation(60):
        ids = np.asarray(availability(40, int(t), 0))
        assert (np.diff(ids) > 0).all() and np.array_equal(ids, np.flatnonzero(whole[t]))
    assert np.array_equal(table(replace(availability), 40, 60), whole)  # nothing is remembered
    assert np.array_equal(table(availability, 25, 60), whole[:, :25])  # nor do others matter


@pytest.mark.parametrize("availability", [Daily(), Daily(least=0.5, most=0.5), Sessions()], ids=str)
def test_seeds_and_clients_differ(availability):
    whole = table(availability, 30, 80)
    assert (whole != table(availability, 30, 80, seed=1)).mean() > 0.2
    assert len({tuple(column) for column in whole.T}) == 30


def test_everyone_costs_nothing():
    assert Always()(10**12, 3, 0) == range(10**12)


# days


def test_the_probability_is_a_cosine_with_a_phase_of_each_client():
    daily = Daily(period=12, least=0.2, most=0.8)
    p = np.array([daily.probability(400, t, 0) for t in range(24)])
    assert np.allclose(p[:12], p[12:])  # a day is a period
    assert np.allclose(p[:6] + p[6:12], 0.2 + 0.8)  # half a day later it is the opposite
    assert 0.2 <= p.min() < 0.201 and 0.799 < p.max() <= 0.8
    best = p[:12].argmax(0)
    assert set(best) == set(range(12))  # all time zones
    assert np.bincount(best).max() < 2 * 400 / 12
    hours = np.arange(12)[:, None] - best  # from each one's best hour, to within half of one
    expected = 0.5 + 0.3 * np.cos(2 * np.pi * hours / 12)
    assert abs(p[:12] - expected).max() < 0.3 * 2 * np.pi / 12 * 0.5 + 1e-9


def test_clients_are_there_as_often_as_their_probability_says():
    """In each hour of 400 days; the deviation of a mean is 0.025 at most."""
    daily = Daily(period=6, least=0.1, most=0.9)
    days = table(daily, 20, 2400).reshape(400, 6, 20)
    expected = np.array([daily.probability(20, t, 0) for t in range(6)])
    assert abs(days.mean(0) - expected).max() < 4.5 * 0.025
    assert days.mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("t", [0, 1, 7])
def test_the_draw_of_a_round_is_not_the_one_of_the_time_zones(t):
    """numpy pads seeds with zeros; then who is there in round 0 would follow from the phase."""
    daily = Daily(period=24, least=0.0, most=1.0)
    p = daily.probability(20_000, t, 0)
    there = np.zeros(20_000, bool)
    there[daily(20_000, t, 0)] = True
    for low in (0.0, 0.25, 0.5, 0.75):
        band = (low <= p) & (p < low + 0.25)
        assert there[band].mean() == pytest.approx(p[band].mean(), abs=0.03)


# sessions


def stretches(whole, value):
    """The lengths of what begins and ends within the table."""
    found = []
    for column in whole.T:
        runs = [(v, len(list(group))) for v, group in itertools.groupby(column)]
        found += [length for v, length in runs[1:-1] if v == value]
    return np.array(found)


@pytest.mark.parametrize(("on", "off"), [(10, 30), (12, 4), (1, 5), (5, 1), (3, 3), (1, 1)])
def test_stretches_have_the_lengths_asked_for(on, off):
    whole = table(Sessions(on=on, off=off), 300, 24 * (on + off))
    for value, mean in ((True, on), (False, off)):
        lengths = stretches(whole, value)
        assert len(lengths) > 6000
        assert lengths.mean() == pytest.approx(mean, rel=0.03)
    drawn = stretches(whole, on <= off)
    assert (drawn.min(), drawn.max()) == (1, 2 * min(on, off) - 1)


def test_as_many_are_there_at_the_start_as_later():
    whole = table(Sessions(on=10, off=30), 4000, 90)
    assert abs(whole.mean(1) - 0.25).max() < 4.5 * np.sqrt(0.25 * 0.75 / 4000)


def test_who_is_there_stays_a_while():
    """Between two rounds one in ten leaves, and one in thirty comes."""
    whole = table(Sessions(on=10, off=30), 2000, 120)
    before, after = whole[:-1], whole[1:]
    assert (~after[before]).mean() == pytest.approx(1 / 10, rel=0.05)
    assert after[~before].mean() == pytest.approx(1 / 30, rel=0.05)


# traces


def test_a_trace_is_what_the_file_says(trace):
    found = Trace(path=trace())
    assert [found(10, t, 0).tolist() for t in range(6)] == THERE
    assert found(10, 99, 7).tolist() == [9] and found(10, 100, 0).tolist() == []


def test_other_ways_to_write_it(trace):
    text = (
        "\ufeffsite, to,from ,client\r\nA, 2,0, 0\r\n\r\n" + 'B,3,1,"2"\r\nA,2,0,0\r\nC,3,0,2\r\n'
    )
    found = Trace(path=trace(text))
    assert [found(10, t, 0).tolist() for t in range(4)] == [[0, 2], [0, 2], [2], []]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "says of nobody"),
        ("client,from,to\n", "says of nobody"),
        ("client,start,to\n1,2,3\n", "line 1: the first line names the columns client, from, to"),
        ("1,2,3\n", "there is no client and no from and no to"),
        ("client,from,to\n1,0,4\n1,5,five\n", "line 3: to is a whole number from 0; not 'five'"),
        ("client,from,to\n1,0.5,4\n", "line 2: from is a whole number from 0; not '0.5'"),
        ("client,from,to\n-1,0,4\n", "line 2: client is a whole number from 0; not '-1'"),
        ("client,from,to\n1,0,9999999999999999999\n", "line 2: to is a whole number"),
        ("client,from,to\n\n1,4,4\n", "line 3: a stay ends after it begins; not from 4 to 4"),
        ("client,from,to\n1,0\n", "line 2: it holds 2 values, and there are 3 columns"),
        ("client,from,to\n1,0,4,\n", "line 2: it holds 4 values"),
        ('client,from,to\n1,0,"4\n', "line 2: unexpected end of data"),
        (b"client,from,to\n1,0,4\n\xff,0,4\n", "line 3: this is not text in UTF-8"),
    ],
)
def test_what_is_wrong_with_a_trace_is_said_with_file_and_line(text, said, trace):
    path = trace(text)
    with pytest.raises(ValueError) as error:
        Trace(path=path)
    assert path in str(error.value) and said in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match=r"there is no trace .*nowhere\.csv"):
        Trace(path=str(tmp_path / "nowhere.csv"))
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        Trace(path=str(tmp_path))


def test_a_client_that_is_not_there_is_found_before_a_run_starts(trace, make_setup):
    late = trace("client,from,to\n3,0,4\n10,500,501\n")
    with pytest.raises(ValueError, match="line 3: there is no client 10; 10 clients count from 0"):
        make_setup(Algorithm(), availability=Trace(path=late))


def test_a_trace_is_told_from_another(trace, monkeypatch, tmp_path):
    path = trace()
    monkeypatch.chdir(tmp_path)
    found, text = settled("trace(path='trace.csv')")
    assert found.path == path and path in text and found.sha256 in text
    assert settled(text) == (found, text)
    trace(TRACE + "1,0,1\n")
    with pytest.raises(ValueError, match=r"trace\.csv is not the trace it was"):
        settled(text)


# cohorts


@pytest.mark.parametrize("sampler", ["uniform", "examples", "cyclic(groups=2, rounds=3)"])
def test_cohorts_are_drawn_from_who_is_there(sampler, make_setup):
    changes = {"sampler": SAMPLERS.parse(sampler), "cohort_size": 3}
    setup = make_setup(Algorithm(), availability=Sessions(on=2, off=3), **changes)
    sizes = set()
    for t in range(60):
        there, cohort = (
            set(np.asarray(setup.population.available(t)).tolist()),
            setup.population.sample(t),
        )
        if sampler.startswith("cyclic"):
            there = {i for i in there if i % 2 == t // 3 % 2}
        assert set(cohort) <= there and cohort == sorted(set(cohort))
        assert len(cohort) == min(3, len(there))
        sizes.add(len(cohort))
    assert sizes >= {1, 2, 3}


@pytest.mark.parametrize("sampler", ["uniform", "examples", "cyclic(groups=3)"])
def test_where_everyone_is_there_nothing_changes(sampler, make_setup):
    changes = {"sampler": SAMPLERS.parse(sampler), "cohort_size": 3}
    plain = make_setup(Algorithm(), **changes)
    everyone = make_setup(Algorithm(), availability=Daily(least=1, most=1), **changes)
    assert not isinstance(everyone.population.available(0), range)
    assert [plain.population.sample(t) for t in range(50)] == [
        everyone.population.sample(t) for t in range(50)
    ]


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize(
    ("sampler", "cohorts"),
    [
        ("uniform", [[0, 1, 6], [2, 5, 6], [3, 5, 7], [0, 2, 9]]),
        ("examples", [[0, 5, 9], [3, 4, 7], [2, 4, 5], [0, 4, 5]]),
        ("cyclic(groups=3, rounds=2)", [[0, 3, 9], [0, 6, 9], [1, 4, 7], [1, 4, 7]]),
    ],
)
def test_cohorts_are_those_from_before_there_was_a_choice(sampler, cohorts):
    setup = build(tiny(sampler=sampler)).setup
    assert [setup.population.sample(t) for t in range(4)] == cohorts


def test_all_who_are_there_are_as_likely(make_setup, trace):
    rows = "".join(f"{k},0,3000\n" for k in (1, 4, 5, 8))
    setup = make_setup(
        Algorithm(), availability=Trace(path=trace("client,from,to\n" + rows)), cohort_size=2
    )
    drawn = np.bincount([i for t in range(3000) for i in setup.population.sample(t)], minlength=10)
    assert drawn[[1, 4, 5, 8]] / 3000 == pytest.approx([0.5] * 4, abs=0.04)
    assert drawn.sum() == 6000 and drawn[[0, 2, 3, 6, 7, 9]].sum() == 0


def test_the_more_examples_the_likelier_among_who_is_there(make_setup, data, trace):
    """Clients 2 and 7 hold 17 and 40 examples, others fewer or more."""
    path = trace("client,from,to\n2,0,3000\n7,0,3000\n")
    changes = {"sampler": SAMPLERS.parse("examples"), "cohort_size": 1}
    setup = make_setup(Algorithm(), availability=Trace(path=path), **changes)
    assert data.num_examples([2, 7]).tolist() == [17, 40]
    drawn = [setup.population.sample(t) for t in range(3000)]
    assert drawn.count([7]) / 3000 == pytest.approx(40 / 57, abs=0.03)
    assert drawn.count([2]) + drawn.count([7]) == 3000


@pytest.mark.parametrize("sampler", ["uniform", "examples", "cyclic(groups=2)"])
def test_nobody_can_be_drawn(sampler, make_setup, trace):
    availability = Trace(path=trace("client,from,to\n2,5,6\n"))
    setup = make_setup(Algorithm(), availability=availability, sampler=SAMPLERS.parse(sampler))
    assert [setup.population.sample(t) for t in range(7)] == [[]] * 5 + [[2]] + [[]]


def test_a_sampler_is_asked_only_where_somebody_is_there(make_setup, trace):
    setup = make_setup(
        Algorithm(),
        availability=Trace(path=trace("client,from,to\n2,5,6\n")),
        sampler=lambda parts, among, size, t, rng: np.array([among[0]]),
    )
    assert [setup.population.sample(t) for t in (4, 5, 6)] == [[], [2], []]


def test_rounds_with_few_and_with_nobody(make_setup, trace):
    path = trace("client,from,to\n3,0,1\n7,0,1\n3,2,9\n")
    setup = make_setup(parse("fedavgm + scaffold"), availability=Trace(path=path))
    few, nobody, one = simulate(setup)
    assert (few.ids, nobody.ids, one.ids) == ([3, 7], [], [3])
    assert few.update_norm > 0 and nobody.update_norm == 0 < one.update_norm
    assert nobody.bytes_up == nobody.bytes_down == 0 and nobody.absent == []
    assert all(torch.equal(w, few.server.params[n]) for n, w in nobody.server.params.items())
    found = [record(setup, result) for result in (few, nobody, one)]
    assert [line["available"] for line in found] == [2, 0, 1]
    assert [line["clients"] for line in found] == [[3, 7], [], [3]]
    assert found[1]["train_loss"] is None
    assert "available" not in record(make_setup(Algorithm()), few)


def test_nobody_has_buffers_to_judge(make_setup, data, trace):
    """Local buffers are judged with the clients of a round; without any there is no score."""
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 5)).double()
    setup = make_setup(
        Algorithm(),
        module=module,
        engine="sequential",
        buffers="local",
        fill="repeat",
        availability=Trace(path=trace("client,from,to\n3,0,1\n")),
    )
    tests = {"test": TestSet(data.x, data.y)}
    some, nobody, _ = (record(setup, result, tests) for result in simulate(setup))
    assert some["tested"] == "cohort" and some["test_loss"] is not None
    assert nobody["tested"] is None and nobody["test_loss"] is nobody["test_accuracy"] is None


# engines, seeds, chunks, faults


@pytest.fixture(scope="module")
def workers():
    engine = Workers(processes=2)
    yield engine
    engine.close()


@pytest.mark.parametrize("availability", [Daily(period=4), Sessions(on=2, off=4)], ids=str)
def test_the_engines_agree(availability, make_setup, workers, close):
    changes = {
        "availability": availability,
        "faults": Faults(dropout=0.3, straggling=0.3),
        "rounds": 5,
        "cohort_size": 5,
    }
    setups = [
        make_setup(parse("scaffold + gcfed"), engine=engine, chunk=chunk, **changes)
        for engine, chunk in (
            ("sequential", None),
            (workers, None),
            ("vectorized", None),
            ("vectorized", 2),
        )
    ]
    for first, *others in zip(*map(simulate, setups), strict=True):
        for other in others:
            assert (first.ids, first.absent, first.late) == (other.ids, other.absent, other.late)
            close(first.server, other.server)
    cohorts = [len(setups[0].population.sample(t)) for t in range(5)]
    assert min(cohorts) < 5 and len(set(cohorts)) > 1


def test_seeds_together_are_seeds_alone(make_setup, net, close, trace):
    """One of them with nobody in the first round and in the last."""
    model = Model(net)
    path = trace("client,from,to\n3,1,2\n")
    setups = [
        make_setup(parse("fedvarp"), model=model, seed=seed, availability=availability)
        for seed, availability in ((0, Daily(period=3)), (1, Daily()), (2, Trace(path=path)))
    ]
    for t, together in enumerate(simulate_together(setups)):
        for setup, result in zip(setups, together.values(), strict=True):
            alone = next(itertools.islice(simulate(setup), t, None))
            assert result.ids == alone.ids == setup.population.sample(t)
            close(result.server, alone.server, tolerance=1e-12)
    assert result.ids == []


def test_it_leaves_faults_and_batches_alone(make_setup):
    faults = Faults(dropout=0.3, straggling=0.3)
    plain = make_setup(Algorithm(), faults=faults)
    varied = make_setup(Algorithm(), faults=faults, availability=Sessions())
    for t in range(5):
        for client in range(10):
            assert plain.population.fate(t, client) == varied.population.fate(t, client)
        assert np.array_equal(plain.population.plan(t, 3).index, varied.population.plan(t, 3).index)


# configs, runs and the command line


def which(**changes):
    return digest(identity(build(tiny(**changes))))


@pytest.mark.usefixtures("float32")
def test_which_run_it_is(trace):
    assert "availability" not in identity(build(tiny()))  # runs of before stay who they are
    path = trace()
    texts = ["always", "daily", "daily(least=0.2)", "sessions", f"trace(path={path!r})"]
    found = [which(availability=text) for text in texts]
    assert len(set(found)) == len(texts)
    assert found[0] == which() and found[1] == which(availability="daily(most=0.9)")
    trace(TRACE + "1,0,1\n")
    assert which(availability=f"trace(path={path!r})") not in found


@pytest.mark.usefixtures("float32")
def test_the_source_of_one_that_others_registered_counts(monkeypatch):
    monkeypatch.setattr(AVAILABILITIES, "_entries", dict(AVAILABILITIES._entries))

    @AVAILABILITIES.register("evens")
    def evens():
        return lambda num_clients, t, seed: np.arange(0, num_clients, 2)

    made = identity(build(tiny(availability="evens")))
    assert made["code_sha256"] == [hashlib.sha256(Path(__file__).read_bytes()).hexdigest()]


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("availability", ["sessions(on=2, off=3)", "trace(path='trace.csv')"])
def test_a_killed_run_resumes_to_the_same_bits(availability, trace, tmp_path, monkeypatch):
    trace("client,from,to\n" + "".join(f"{k},{k},{3 * k + 2}\n" for k in range(10)))
    monkeypatch.chdir(tmp_path)
    config = tiny(
        algorithm="scaffold",
        availability=availability,
        faults="random(dropout=0.2)",
        rounds=6,
        checkpoint_every=2,
    )
    run_to(config, tmp_path / "straight")
    assert killed_at_write(lambda: run_to(config, tmp_path / "killed"), 40) == KILLED
    monkeypatch.chdir("/")
    done = load_run(tmp_path / "killed").num_rounds
    assert 0 < done < 6
    resume(tmp_path / "killed")
    for name in ("rounds.jsonl", "model.safetensors", "summary.json"):
        straight, killed = ((tmp_path / run / name).read_bytes() for run in ("straight", "killed"))
        assert straight == killed, name
    found = lines(tmp_path / "straight")
    assert all(len(line["clients"]) <= line["available"] <= 10 for line in found)
    assert len({line["available"] for line in found}) > 1
    assert verify(tmp_path / "killed").holds


@pytest.mark.usefixtures("float32")
def test_a_trace_that_changed_is_refused(trace, tmp_path):
    path = trace("client,from,to\n1,0,9\n2,0,9\n3,1,9\n")
    run_to(tiny(availability=f"trace(path={path!r})"), tmp_path / "a")
    trace("client,from,to\n1,0,9\n")
    with pytest.raises(ValueError, match="is not the trace it was"):
        resume(tmp_path / "a", rounds=4)


def wrong(answer):
    assert (answer.code, answer.out) == (2, "") and "Traceback" not in answer.err
    return " ".join(answer.err.split())


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("availability=dayly", "unknown availability: 'dayly'; did you mean 'daily'?"),
        ("availabilty=daily", "unknown key: 'availabilty'; did you mean 'availability'?"),
        ("availability=daily(hours=3)", "unknown hyper-parameter of daily: 'hours'"),
        ("availability=daily(period=0)", "daily takes a positive count of rounds; not period=0"),
        ("availability=daily(least=0.9, most=0.1)", "not least=0.9, most=0.1"),
        ("availability=sessions(on=0)", "sessions takes positive counts; not on=0, off=30"),
        ("availability=sessions(on=2.5)", "sessions(on=...) is a whole number, not 2.5"),
        ("availability=trace", "availability trace needs a value for path"),
        ("availability=trace(path='no.csv')", "there is no trace"),
        ("sampler=cyclic(groups=4)", "a cohort of 3 cannot be drawn from the 2 of 10 clients"),
        ("sampler=cyclic(rounds=0)", "cyclic takes positive counts; not groups=4, rounds=0"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_made(setting, said, gcfed, tmp_path):
    assert said in wrong(gcfed("run", *flags(), f"--set={setting}", "--out", "a"))
    assert list(tmp_path.iterdir()) == []


def test_the_list(gcfed):
    answer = gcfed("list", "availabilities")
    rows = {line.split()[0]: line for line in answer.out.splitlines()[1:]}
    assert answer.code == 0 and list(rows) == sorted(AVAILABILITIES)
    assert rows["daily"].endswith("period=24, least=0.1, most=0.9")
    assert "availabilities" in gcfed("list", "--help").out


@pytest.mark.usefixtures("float32")
def test_one_of_your_own(gcfed, tmp_path, monkeypatch):
    monkeypatch.setattr(AVAILABILITIES, "_entries", dict(AVAILABILITIES._entries))
    (tmp_path / "mine.py").write_text(
        "import numpy as np\n"
        "from gcfed.population.availability import AVAILABILITIES\n"
        "@AVAILABILITIES.register('every')\n"
        "def every(*, step: int = 2):\n"
        '    """One client in so many."""\n'
        "    return lambda num_clients, t, seed: np.arange(t % step, num_clients, step)\n"
    )
    assert "every" in gcfed("list", "availabilities", "--plugin", "mine.py").out
    words = ("--set=availability=every(step=5)", "--plugin", "mine.py", "--out", "a")
    assert gcfed("run", *flags(), *words).code == 0
    assert [line["clients"] for line in lines(tmp_path / "a")] == [[0, 5], [1, 6]]
    made = json.loads((tmp_path / "a" / "provenance.json").read_text())["identity"]
    assert made["availability"] == "every(step=5)" and len(made["code_sha256"]) == 1
