"""What is sent is bounded, and the mean of it noised, whatever algorithm stands beside."""

from dataclasses import dataclass

import pytest
import torch
from plain_loop import Control, Reference
from scipy import stats
from torch import nn

from gcfed import Algorithm, InputError, chain
from gcfed.algorithms import ClipUpdate, FedAdam, FedVARP, GCFed, Noise, Scaffold
from gcfed.core import keys, tree
from gcfed.core.types import Upload
from gcfed.population.faults import Faults

NORM = 0.3
PRIVATE = ClipUpdate(norm=NORM) + Noise(multiplier=0.5)


def clipped(vectors):
    """Lists of tensors, each list shortened to the norm."""
    length = sum(float((x**2).sum()) for x in vectors) ** 0.5
    return [x * min(1, NORM / length) for x in vectors]


class Clipped(Reference):
    def server(self, deltas):
        super().server([clipped(delta) for delta in deltas])


class ClippedControl(Control):
    """SCAFFOLD sends two vectors a client, which are shortened as one."""

    def server(self, deltas):
        both = [clipped([*d, *c]) for d, c in zip(deltas, self.change, strict=True)]
        half = len(self.w)
        self.change = [sent[half:] for sent in both]
        super().server([sent[:half] for sent in both])


@pytest.mark.parametrize(
    ("algorithm", "reference"), [(Algorithm(), Clipped), (Scaffold(), ClippedControl)]
)
def test_clipping_equals_a_plain_loop(algorithm, reference, net, run, make_setup, close):
    expected = reference(net, make_setup(algorithm)).train()
    close(run(algorithm + ClipUpdate(norm=NORM)).server.params, expected)


def test_clipping_is_of_all_that_is_sent_at_once(client_context):
    sent = {"w": torch.tensor([3.0, 0.0])}, {"0/shift": {"w": torch.tensor([0.0, 4.0])}}
    delta, message = ClipUpdate(norm=1).send(*sent, client_context())
    torch.testing.assert_close(delta["w"], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(message["0/shift"]["w"], torch.tensor([0.0, 0.8]))
    zeros = tree.map(torch.zeros_like, sent)
    for short in (sent, zeros):
        assert_same(ClipUpdate(norm=5.0).send(*short, client_context()), short)


def test_nothing_that_travels_is_longer_than_the_norm(run):
    sent = run(Scaffold() + GCFed() + ClipUpdate(norm=0.1)).uploads
    squares = [x.flatten(1).square().sum(1) for _, x in tree.leaves((sent.delta, sent.message))]
    torch.testing.assert_close(sum(squares).sqrt(), torch.full((4,), 0.1))


def test_noise_is_gaussian_of_the_norm_the_multiplier_and_the_cohort(server_context):
    zeros = {"w": torch.zeros(30_000)}, {"0/shift": {"w": torch.zeros(30_000)}}
    ctx = server_context(upload_norm=3.0, cohort_size=4)
    delta, message = Noise(multiplier=2.0).release(*zeros, ctx)
    one, other = delta["w"] * 4 / (2.0 * 3.0), message["0/shift"]["w"] * 4 / (2.0 * 3.0)
    assert stats.kstest(one.numpy(), "norm").pvalue > 0.01
    assert stats.kstest(other.numpy(), "norm").pvalue > 0.01
    assert abs(stats.pearsonr(one.numpy(), other.numpy()).statistic) < 0.02
    assert_same(Noise(multiplier=2.0).release(*zeros, ctx), (delta, message))
    later, _ = Noise(multiplier=2.0).release(
        *zeros, server_context(upload_norm=3.0, key=keys.key(1))
    )
    assert abs(stats.pearsonr(one.numpy(), later["w"].numpy()).statistic) < 0.02


def test_noise_is_added_to_the_mean_once(run, make_setup):
    """Whoever does not answer, and however many clients are trained at once."""
    faults = Faults(dropout=0.4)
    with_noise = run(PRIVATE, rounds=1, faults=faults)
    without = run(ClipUpdate(norm=NORM), rounds=1, faults=faults)
    assert 0 < len(with_noise.ids) < 4
    noise = tree.sub(with_noise.server.params, without.server.params)
    size = sum(x.numel() for x in noise.values())
    wanted = 0.5 * NORM / len(with_noise.ids)
    assert tree.norm(noise).item() / size**0.5 == pytest.approx(wanted, rel=0.1)
    chunked = run(PRIVATE, rounds=1, faults=faults, chunk=1)
    torch.testing.assert_close(chunked.server, with_noise.server, rtol=0, atol=1e-12)


def test_the_place_in_the_chain_does_not_matter(run):
    links = [Scaffold() + FedAdam(), ClipUpdate(norm=NORM), Noise(multiplier=0.5)]
    orders = [links, links[::-1], links[1:] + links[:1]]
    first, *others = (run(chain(*order), rounds=2).server.params for order in orders)
    for other in others:
        assert_same(other, first)


@dataclass(frozen=True)
class Middle(Algorithm):
    def aggregate(self, uploads, weights, ctx):
        return tree.map(lambda x: x.median(0).values, uploads.delta), {}


@dataclass(frozen=True)
class Counting(Algorithm):
    def upload(self, delta, ctx):
        return Upload(delta, {"counts": {"steps": ctx.step}}, ctx.memory)


@pytest.mark.parametrize(
    ("algorithm", "changes", "said"),
    [
        (Noise(), {}, r"add clip_update\(norm=...\) to the chain"),
        (FedVARP() + PRIVATE, {}, "FedVARP, which looks at uploads one by one, .* plain mean"),
        (Middle() + PRIVATE, {}, "Middle, which looks at uploads one by one"),
        (PRIVATE, {"weighting": "examples"}, "weighting='examples' .* need uniform weights"),
        (Counting() + PRIVATE, {}, "clip_update cannot shorten 0/counts/steps"),
    ],
)
def test_what_has_no_bound_is_refused(algorithm, changes, said, run):
    with pytest.raises(InputError, match=said):
        run(algorithm, **changes)


def test_noise_composes_with_every_algorithm_that_needs_the_mean_alone(all_registered, make_setup):
    refused = []
    for name, algorithm in all_registered.items():
        if name not in ("clip_update", "noise"):
            try:
                make_setup(algorithm + PRIVATE)
            except InputError:
                refused.append(name)
    assert refused == ["fedvarp"]


def test_statistics_that_travel_are_refused(make_setup):
    module = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 5))
    changes = {"module": module, "engine": "sequential"}
    with pytest.raises(InputError, match=r"buffers='average' with a model that has 1.running_mean"):
        make_setup(PRIVATE, **changes)
    make_setup(PRIVATE, buffers="local", **changes)


def test_one_norm_and_one_noise():
    with pytest.raises(InputError, match="each sets the norm of what is sent"):
        PRIVATE + ClipUpdate()
    with pytest.raises(InputError, match="each sets the noise on the mean"):
        PRIVATE + Noise()


def assert_same(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=0)
