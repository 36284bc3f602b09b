"""Deployments whose nodes are in this process: the same bits as a simulation, and faults."""

import json

import pytest
import torch
from flower.loopback import LoopbackGrid, failed, honest
from flwr.app import Array, ArrayRecord, MessageType, RecordDict
from torch import nn

import gcfed
from gcfed import ALGORITHMS, MODELS, Config, InputError, tree
from gcfed.config.build import Given, build
from gcfed.deploy.apps import _experiment, client_app
from gcfed.deploy.deployment import deploy
from gcfed.deploy.nodes import Nodes
from gcfed.deploy.records import BadMessageError, from_arrays, to_arrays
from gcfed.deploy.serving import RoundTerms, TooFewAnswersError
from gcfed.deploy.shares import blind_experiment, check_deployable
from gcfed.engines import Sequential
from gcfed.results.run import Run
from gcfed.runs.resume import resume
from gcfed.simulation.lines import weights_sha256
from gcfed.simulation.loop import simulate
from gcfed.simulation.round import run_round
from gcfed.simulation.snapshot import start

pytest_plugins = ["running"]
pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("float32", "registries")]

SETTINGS = {
    **{"model": "mlp(hidden=[6])", "clients": 4, "cohort": 3, "rounds": 4, "epochs": 2},
    **{"batch_size": 4, "lr": 0.05, "fill": "none", "seed": 3},
}
TERMS = RoundTerms(timeout=0.3, minimum=1, tries=2)


def simulated(whole, **settings):
    config = Config(**{**SETTINGS, **settings}, partition="by(key='client')", engine="sequential")
    return build(config, Given(dataset=whole)).setup


def deployed(folder, load, settings, tamper=honest, terms=TERMS):
    """The run directory of a deployment, which goes on if it was begun."""
    settings = {**SETTINGS, **settings}
    grid = LoopbackGrid(4, settings, folder, load, tamper)
    nodes = Nodes(grid, terms.timeout)
    assert nodes.wait_for(range(4)) == set()
    sizes = [nodes.num_examples[i] for i in range(4)]
    deploy(blind_experiment(Config(**settings), load(None), sizes), folder / "run", nodes, terms)
    return Run(folder / "run")


def replayed(whole, run, **settings):
    """The weights after each round of a simulation that is done with the clients of a run."""
    setup = simulated(whole, **settings)
    server, clients = start(setup)
    for line in run.records:
        result = run_round(
            setup, server, clients, line["round"], line["clients"], engine=Sequential()
        )
        server, clients = result.server, result.clients
        yield weights_sha256({**server.params, **server.buffers})


def weights(run):
    return [line["weights_sha256"] for line in run.records]


CHAINS = ("fedlc + gcfed", "scaffold + gcfed", "gcfed + clip_update + noise")


@pytest.mark.parametrize("algorithm", [*sorted({*ALGORITHMS} - {"noise"}), *CHAINS])
def test_every_algorithm_comes_to_the_same_bits_as_in_a_simulation(
    tmp_path, whole, load, algorithm
):
    run = deployed(tmp_path, load, {"algorithm": algorithm, "rounds": 3})
    results = simulate(simulated(whole, algorithm=algorithm, rounds=3))
    expected = [weights_sha256({**r.server.params, **r.server.buffers}) for r in results]
    assert weights(run) == expected
    assert run.summary["status"] == "finished"
    assert not (run.path / "left_out.jsonl").exists()


@pytest.fixture
def batch_norm(registries):
    """The name of a model that keeps statistics of its batches."""

    @MODELS.register("batch_norm_of_a_test")
    def make(shape, num_classes):
        layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, num_classes)
        return nn.Sequential(*layers)

    return "batch_norm_of_a_test"


def test_batch_statistics_and_weights_by_examples_are_the_same_too(
    tmp_path, whole, load, batch_norm
):
    settings = {"model": batch_norm, "weighting": "examples", "rounds": 1}
    run = deployed(tmp_path, load, settings)
    (result,) = simulate(simulated(whole, **settings))
    assert result.server.buffers
    assert weights(run) == [weights_sha256({**result.server.params, **result.server.buffers})]


def spoilt(change):
    """Have the replies of client 1 changed in its second round."""
    seen = []

    def tamper(client, sent, reply):
        if client != 1 or sent.metadata.message_type != MessageType.TRAIN:
            return reply
        seen.append(sent.content["task"]["round"])
        return change(reply) if seen[-1] == seen[0] + 1 else reply

    return tamper


def lost(reply):
    return None


def with_nan(reply):
    record = reply.content["delta"]
    name = next(iter(record))
    record[name] = Array((record[name].numpy() * float("nan")).astype("float32"))
    return reply


def of_wrong_shape(reply):
    record = reply.content["delta"]
    name = next(iter(record))
    record[name] = Array(record[name].numpy()[:1])
    return reply


def of_wrong_names(reply):
    record = reply.content["delta"]
    record["/other"] = record.pop(next(iter(record)))
    return reply


def of_another_round(reply):
    reply.content["trained"]["round"] = 77
    return reply


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lost, "it did not answer within 0.3 s"),
        (with_nan, "its answer was refused: its delta/fc1.weight is not finite"),
        (of_wrong_shape, "its answer was refused: its delta/fc1.weight is [1, 16] of float32"),
        (of_wrong_names, "its answer was refused: its delta lacks /fc1.weight"),
        (of_another_round, "its answer was refused: it is of round 78"),
    ],
)
def test_an_answer_that_is_late_or_wrong_is_left_out_and_leaves_no_trace(
    tmp_path, whole, load, change, why
):
    settings = {"algorithm": "scaffold", "cohort": 4}
    run = deployed(tmp_path, load, settings, spoilt(change))
    assert [line["absent"] for line in run.records] == [[], [1], [], []]
    assert [line["clients"] for line in run.records][1] == [0, 2, 3]
    (note,) = map(json.loads, (run.path / "left_out.jsonl").read_text().splitlines())
    assert (note["round"], note["client"]) == (1, 1) and note["why"].startswith(why)
    assert weights(run) == list(replayed(whole, run, **settings))


def test_a_round_with_too_few_answers_is_tried_again(tmp_path, whole, load):
    terms = RoundTerms(timeout=0.3, minimum=4, tries=2)
    settings = {"algorithm": "scaffold", "cohort": 4}
    tries = []

    def tamper(client, sent, reply):
        if sent.metadata.message_type == MessageType.TRAIN and client == 1:
            tries.append(sent.content["task"]["round"])
            return None if tries == [0, 1] else reply
        return reply

    run = deployed(tmp_path, load, settings, tamper, terms)
    assert tries == [0, 1, 1, 2, 3]
    assert [line["absent"] for line in run.records] == [[], [], [], []]
    assert weights(run) == list(replayed(whole, run, **settings))


def test_a_run_fails_after_its_tries_and_goes_on_when_nodes_are_back(tmp_path, whole, load):
    terms = RoundTerms(timeout=0.2, minimum=2, tries=2)
    settings = {"algorithm": "scaffold", "cohort": 4}

    def tamper(client, sent, reply):
        is_training = sent.metadata.message_type == MessageType.TRAIN
        return None if is_training and client and sent.content["task"]["round"] == 2 else reply

    with pytest.raises(TooFewAnswersError, match=r"round 3 was tried 2 times, and 1 of 4 clients"):
        deployed(tmp_path, load, settings, tamper, terms)
    assert Run(tmp_path / "run").summary["status"] == "failed"
    run = deployed(tmp_path, load, settings, terms=terms)
    results = simulate(simulated(whole, **settings))
    assert weights(run) == [weights_sha256(r.server.params) for r in results]


def test_terms_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match=r"deploy.minimum is positive; not 0"):
        RoundTerms(minimum=0)
    with pytest.raises(InputError, match=r"deploy.timeout is a number, not 'soon'"):
        RoundTerms(timeout="soon")


def test_a_run_that_is_done_is_not_done_again(tmp_path, load):
    before = deployed(tmp_path, load, {"rounds": 1}).summary

    def asleep(client, sent, reply):
        assert sent.metadata.message_type != MessageType.TRAIN
        return reply

    assert deployed(tmp_path, load, {"rounds": 1}, asleep).summary == before
    with pytest.raises(InputError, match="began with other"):
        deployed(tmp_path, load, {"rounds": 1, "algorithm": "scaffold"})


def test_a_node_that_did_not_say_who_it_is_is_asked_again(tmp_path, load):
    """One fails at first, and the first answer of another is lost."""
    silent = {1: 1, 2: 1}

    def tamper(client, sent, reply):
        if not silent.get(client):
            return reply
        silent[client] -= 1
        return failed(reply.metadata.reply_to_message_id, "tired") if client == 1 else None

    grid = LoopbackGrid(4, SETTINGS, tmp_path, load, tamper)
    nodes = Nodes(grid, 0.3)
    assert nodes.find() == {0, 3}
    assert nodes.find() == {0, 1, 2, 3} and grid.count == 6


def test_an_answer_that_comes_late_says_who_a_node_is(tmp_path, load):
    grid = LoopbackGrid(4, SETTINGS, tmp_path, load)
    nodes, pull = Nodes(grid, 30.0), grid.pull_messages
    nodes._asked = dict.fromkeys(grid.get_node_ids(), 0.0)  # so that nobody is waited for
    grid.pull_messages = lambda numbers: []
    assert nodes.find() == set()
    grid.pull_messages = pull
    assert nodes.find() == {0, 1, 2, 3} and grid.count == 4


def test_the_folder_of_a_simulation_is_refused(tmp_path, load):
    gcfed.run(Config(**{**SETTINGS, "rounds": 1}), tmp_path / "run")
    with pytest.raises(InputError, match="holds a run of another kind"):
        deployed(tmp_path, load, {"rounds": 1})


class PowerCutError(BaseException):
    """Ends a server without a chance to write anything."""


def test_a_server_that_died_goes_on_from_its_checkpoint_with_the_nodes_memory(
    tmp_path, whole, load
):
    settings = {"algorithm": "scaffold"}

    def tamper(client, sent, reply):
        if sent.metadata.message_type == MessageType.TRAIN and sent.content["task"]["round"] == 2:
            raise PowerCutError
        return reply

    with pytest.raises(PowerCutError):
        deployed(tmp_path, load, settings, tamper)
    run = deployed(tmp_path, load, settings)
    assert run.provenance["resumed"][0]["after_rounds"] == 2
    results = simulate(simulated(whole, **settings))
    assert weights(run) == [weights_sha256(r.server.params) for r in results]
    files = sorted((tmp_path / "nodes").rglob("client-*"))
    assert all(len(list(folder.iterdir())) <= 2 for folder in files) and len(files) == 4
    with pytest.raises(InputError, match="was trained by nodes"):
        resume(run.path, rounds=6)


def test_a_node_whose_memory_is_gone_says_so_and_is_left_out(tmp_path, load):
    settings = {"algorithm": "scaffold", "cohort": 4, "rounds": 2}

    def forgetful(client, sent, reply):
        if client == 2 and sent.metadata.message_type == MessageType.TRAIN:
            for path in (tmp_path / "nodes").rglob("client-2/*"):
                path.unlink()
        return reply

    run = deployed(tmp_path, load, settings, forgetful)
    assert [line["absent"] for line in run.records] == [[], [2]]
    assert "is gone: this client cannot go on" in (run.path / "left_out.jsonl").read_text()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("faults", "random(dropout=0.1)"), ("buffers", "local"), ("chunk", 2)],
        ("probes", ("drift",)),
    ],
)
def test_what_only_a_simulation_can_do_is_refused(key, value):
    with pytest.raises(InputError, match=f"{key} = .* is for simulations"):
        check_deployable(Config(**{key: value}))


def test_an_array_travels_bit_by_bit_and_nothing_else_is_read():
    value = {"part": {"a.b": torch.tensor([1.5, float("nan"), -0.0]), "n": torch.tensor(3)}}
    content = RecordDict({"message": to_arrays(value)})
    found = from_arrays(content, "message", tree.map(torch.zeros_like, value))
    assert weights_sha256(found["part"]) == weights_sha256(value["part"])

    array = content["message"]["/part/a.b"]
    forged = Array("float32", (3,), "numpy.ndarray", array.data.replace(b"(3,)", b"(9,)"))
    record = ArrayRecord()
    record["/part/a.b"], record["/part/n"] = forged, content["message"]["/part/n"]
    with pytest.raises(BadMessageError, match=r"its message/part/a\.b is"):
        from_arrays(RecordDict({"message": record}), "message", value)
    with pytest.raises(BadMessageError, match="it holds no message"):
        from_arrays(RecordDict(), "message", value)


def without(client, load, why):
    """``load``, but for one client whose data cannot be loaded."""

    def give(number):
        if number == client:
            raise why
        return load(number)

    return give


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (InputError("train example 3 holds a number that is not finite"), "2: train example 3 hol"),
        (FileNotFoundError("/data/ward.csv"), r"2: FileNotFoundError: /data/ward.csv \(test_depl"),
    ],
    ids=["nan", "file"],
)
def test_data_that_cannot_be_loaded_end_a_run_at_once(tmp_path, load, why, said):
    """Nobody waits until the node has none of its time left, and its reason is told."""
    grid = LoopbackGrid(4, SETTINGS, tmp_path, without(2, load, why))
    nodes, config = Nodes(grid, 600.0), Config(**SETTINGS)
    with pytest.raises(InputError, match=f"the data of clients cannot be loaded: {said}"):
        _experiment(config, nodes, load)
    assert nodes.ask({2: RecordDict()}).missing == {2: nodes.unable[2]}


def test_a_node_whose_data_were_mended_takes_part(tmp_path, load):
    """Its SuperNode is started again, and so it is another node."""
    grid = LoopbackGrid(4, SETTINGS, tmp_path, without(2, load, InputError("no")))
    nodes = Nodes(grid, 30.0)
    assert nodes.wait_for(range(4)) == {2}
    grid.contexts[7] = grid.contexts.pop(98)
    grid.app = client_app(load)
    assert nodes.wait_for(range(4)) == set() and nodes.unable == {}


def test_data_of_ones_own_are_everybodys_or_nobodys(tmp_path, load):
    config = Config(**SETTINGS)

    def forgets(client):
        return None if client == 1 else load(client)

    nodes = Nodes(LoopbackGrid(4, SETTINGS, tmp_path, forgets), 0.3)
    with pytest.raises(InputError, match=r"load\(1\) gives None, .* load\(None\) gives data"):
        _experiment(config, nodes, load)
    nodes = Nodes(LoopbackGrid(4, SETTINGS, tmp_path, load), 0.3)
    with pytest.raises(InputError, match=r"load\(0\) gives data, .* load\(None\) gives None"):
        _experiment(config, nodes, lambda client: None)
