"""How far the step of a cohort is from the step that all clients would have made."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from gcfed.analysis.probe import PROBES, Observation, Probe
from gcfed.core import keys, tree
from gcfed.core.chain import parts
from gcfed.core.tree import Tree
from gcfed.errors import InputError
from gcfed.population.availability import ALWAYS
from gcfed.population.samplers import uniform
from gcfed.simulation.round import Sent, conclude, prepare, receive
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import start


@PROBES.register("participation")
@dataclass(frozen=True)
class Participation(Probe):
    r"""How far the step of a round is from the step that all clients would have made.

    :math:`\Delta_S` is the step of the cohort and :math:`\Delta_N` the one of all clients.

    - ``gap``: :math:`\|\Delta_S - \Delta_N\| / \|\Delta_N\|`, which is 0 if all took part.
    - ``distance``: :math:`\|\Delta_S - \Delta_N\|`.
    - ``cosine``: of the two steps.

    In every round that is measured, all clients train from the weights that the cohort received, on
    the batches that they would have had: as many as there are clients, so it is measured in every
    tenth round unless ``every`` says otherwise.  Clients that keep something from round to round
    are refused: what they would have kept is not known.
    """

    every: int = field(default=10, kw_only=True)

    def check(self, setup: Setup) -> None:
        params, algorithm = setup.model.params, setup.algorithm
        kept = [algorithm.init_client(params), algorithm.init_row(params)]
        if setup.buffers == "local":
            kept.append({"buffers": setup.model.buffers})
        if any(list(tree.leaves(each)) for each in kept):
            raise InputError(
                "the probe participation trains clients that were never drawn, and here clients "
                "keep something from round to round: take an algorithm without such memory, and "
                "buffers = 'average'"
            )

    def measure(self, seen: Observation) -> Mapping[str, float]:
        before = seen.received.params
        step = tree.sub(seen.result.server.params, before)
        whole = tree.sub(_after_all(seen), before)
        step, whole = (tree.map(lambda x: x.double(), each) for each in (step, whole))
        apart, length = tree.norm(tree.sub(step, whole)), tree.norm(whole)
        cosine = tree.dot(step, whole) / (tree.norm(step) * length)
        found = {"gap": apart / length, "distance": apart, "cosine": cosine}
        return {name: value.item() for name, value in found.items()}


def _after_all(seen: Observation) -> Tree:
    """The global weights after a round with all clients, from where the cohort's round began."""
    setup, server, t = seen.setup, seen.received, seen.result.round
    took_part = set(seen.result.ids)
    others = (i for i in range(setup.data.num_clients) if i not in took_part)
    ids = [*seen.result.ids, *others]  # in the cohort's order, so that a whole cohort has no gap
    needs_all = any("aggregate" in part.claims for part in parts(setup.algorithm))
    everyone = replace(
        setup,
        schedule=replace(setup.schedule, cohort_size=len(ids), on_nonfinite="drop"),
        engine=setup.engine if isinstance(setup.engine, str) else "sequential",  # the run has it
        chunk=None if needs_all else setup.room,
        keep=frozenset(),
        sampler=uniform,  # everyone is asked, whatever chance the run's own gives them
        availability=ALWAYS,
    )
    clients, received = start(everyone).clients, []
    with torch.enable_grad(), everyone.chosen.make() as engine:
        for chunk in everyone.chunks(ids):
            job = prepare(everyone, server, clients, t, chunk)
            with keys.untouched(), everyone.arithmetic():
                (trained,) = engine([job])
            part, clients = receive(everyone, server, clients, t, chunk, Sent.by(job), trained)
            received.append(part)
        result = conclude(everyone, server, clients, t, received)
    return result.server.params
