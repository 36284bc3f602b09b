"""The two halves of a run as Flower's apps."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from platformdirs import user_data_path

from gcfed.errors import InputError, reason

if TYPE_CHECKING:
    from gcfed.config.experiment import Experiment
    from gcfed.config.settings import Config
    from gcfed.deploy.node import Node
    from gcfed.deploy.nodes import Nodes
    from gcfed.deploy.serving import RoundTerms
    from gcfed.deploy.shares import Load

PREFIX = "deploy."
"""Begins the settings that are not the run's but the deployment's."""


def client_app(load: "Load" = lambda client: None) -> ClientApp:
    """The app of nodes; ``load`` gives each its own examples, or None where the config does."""
    app = ClientApp()

    def who(message: Message, context: Context) -> Message:
        client = _client(context)
        told: MetricRecord | ConfigRecord
        try:
            own = load(client)
        except Exception as error:  # the server's log says what to mend here
            told = ConfigRecord({"client": client, "why": reason(error)})
        else:
            held = 0 if own is None else len(own.train.y)
            told = MetricRecord({"client": client, "num_examples": held})
        return Message(RecordDict({"who": told}), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        values = tuple(sorted(_settings(context).items()))
        node = _node(values, _client(context), _folder(context), load)
        return Message(node.answer(message.content), reply_to=message)

    app.query()(who)
    app.train()(train)
    return app


def server_app(load: "Load" = lambda client: None) -> ServerApp:
    """The app of the server; ``load(None)`` gives what it tests on, or None as for `client_app`."""
    app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        from gcfed.config.settings import make
        from gcfed.deploy.deployment import deploy
        from gcfed.deploy.nodes import Nodes

        config, (terms, path) = make(_settings(context), "the app's config"), _deployment(context)
        nodes = Nodes(grid, terms.timeout)
        deploy(_experiment(config, nodes, load), path, nodes, terms)

    app.main()(main)
    return app


def _experiment(config: "Config", nodes: "Nodes", load: "Load") -> "Experiment":
    """What the server trains: on the data set that the config names, or on what nodes hold.

    Nodes are waited for.  None that has data of its own may be away: the server has to know how
    many examples each holds.
    """
    from gcfed.deploy.shares import blind_experiment, server_experiment

    if (own := load(None)) is None:
        experiment = server_experiment(config)
        nodes.wait_for(range(experiment.setup.data.num_clients))
        _refuse_mixed(nodes, own=False)
        return experiment
    if config.clients is None:
        raise InputError("the app's config says how many clients there are: set clients")
    if missing := sorted(nodes.wait_for(range(config.clients))):
        told = "; ".join(f"{i}: {nodes.unable[i]}" for i in missing if i in nodes.unable)
        raise InputError(
            f"the data of clients cannot be loaded: {told}"
            if told
            else f"clients {missing} are not connected"
        )
    _refuse_mixed(nodes, own=True)
    return blind_experiment(config, own, [nodes.num_examples[i] for i in range(config.clients)])


def _refuse_mixed(nodes: "Nodes", *, own: bool) -> None:
    """Refuse nodes that have data of their own where the server has none, or the other way."""
    gives = {True: "gives data", False: "gives None"}
    for client, held in sorted(nodes.num_examples.items()):
        if bool(held) != own:
            raise InputError(
                f"load({client}) {gives[bool(held)]}, and on the server load(None) {gives[own]}: "
                "either both give a Dataset, or both None, for the data set that the config names"
            )


@cache
def _node(values: tuple[tuple[str, Any], ...], client: int, folder: Path, load: "Load") -> "Node":
    """A client, which is made once for all rounds that one process trains."""
    from gcfed.config.settings import make
    from gcfed.deploy.node import Node
    from gcfed.deploy.shares import node_experiment

    config = make(dict(values), "the app's config")
    return Node(client, node_experiment(config, client, load(client)).setup, folder)


def _settings(context: Context) -> dict[str, Any]:
    """The settings of the run, as the app's pyproject and ``flwr run --run-config`` have them."""
    return {k: v for k, v in context.run_config.items() if not k.startswith(PREFIX)}


def _deployment(context: Context) -> "tuple[RoundTerms, Path]":
    """How long the server waits and for how many, and the run directory that it writes."""
    from gcfed.deploy.serving import RoundTerms

    given = {
        k.removeprefix(PREFIX): v for k, v in context.run_config.items() if k.startswith(PREFIX)
    }
    path = given.pop("out", None)
    known = set(RoundTerms.__dataclass_fields__)
    if unknown := sorted(given.keys() - known):
        names = ", ".join(PREFIX + name for name in sorted({*known, "out"}))
        raise InputError(f"unknown setting {PREFIX}{unknown[0]}; there are {names}")
    if not isinstance(path, str) or not path:
        raise InputError(f"the app's config names the run directory: set {PREFIX}out")
    return RoundTerms(**given), Path(path).expanduser()


def _client(context: Context) -> int:
    """Which client this node is, as its owner says."""
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise InputError("a node is told which client it is: --node-config 'partition-id=0'")
    return number


def _folder(context: Context) -> Path:
    """Where this node keeps its memory."""
    given = context.node_config.get("folder")
    return user_data_path("gcfed") / "nodes" if given is None else Path(str(given)).expanduser()
