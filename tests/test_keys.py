import math

import numpy as np
import torch
from torch.func import vmap

from gcfed.core import keys


def test_uniform_moments_and_range():
    u = keys.uniform(keys.key(7), (400_000,)).double()
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 1 / 2) < 4 * math.sqrt(1 / 12 / len(u))
    assert abs(u.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / len(u))


def test_uniform_chi_square():
    for seed in range(5):
        u = keys.uniform(keys.key(seed), (100_000,))
        counts = torch.histc(u, bins=256, min=0, max=1)
        expected = len(u) / 256
        statistic = ((counts - expected) ** 2 / expected).sum().item()
        assert abs(statistic - 255) < 5 * math.sqrt(2 * 255)


def test_low_bits_are_uniform_too():
    bits = (keys.uniform(keys.key(3), (200_000,)) * 2**24).long()
    for shift in range(24):
        ones = ((bits >> shift) & 1).double().mean()
        assert abs(ones - 1 / 2) < 5 * math.sqrt(1 / 4 / len(bits))


def test_neighbouring_keys_and_counters_are_uncorrelated():
    """Streams of neighbouring clients, steps and seeds; and a stream against itself, shifted."""
    n = 50_000
    uses = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 2**32)]
    streams = [keys.uniform(keys.key(*use), (n,)) for use in uses]
    rows = torch.stack([*streams, streams[0].roll(1), streams[0].roll(2)]).double()
    correlation = torch.corrcoef(rows) - torch.eye(len(rows))
    assert correlation.abs().max() < 5 / math.sqrt(n)


def test_first_draws_of_many_keys_are_uniform():
    each = vmap(keys.fold, (None, 0))(keys.key(0), torch.arange(50_000))
    u = vmap(lambda k: keys.uniform(k, (1,)))(each).flatten().double()
    counts = torch.histc(u, bins=100, min=0, max=1)
    assert abs(((counts - 500) ** 2 / 500).sum().item() - 99) < 5 * math.sqrt(2 * 99)
    assert len(torch.unique(each, dim=0)) == len(each)


def test_order_of_folding_matters():
    assert not torch.equal(keys.key(0, 1, 2), keys.key(0, 2, 1))


def test_vmap_is_the_loop_bit_for_bit():
    base, steps = keys.key(5), torch.arange(6)
    each = torch.stack([keys.fold(base, int(i)) for i in steps])
    assert torch.equal(vmap(keys.fold, (None, 0))(base, steps), each)
    draws = torch.stack([keys.uniform(k, (3, 4)) for k in each])
    assert torch.equal(vmap(lambda k: keys.uniform(k, (3, 4)))(each), draws)


def test_a_longer_draw_begins_with_the_shorter_one():
    """Padding a batch must not change the numbers of its examples."""
    assert torch.equal(keys.uniform(keys.key(1), (9, 5))[:4], keys.uniform(keys.key(1), (4, 5)))


def test_bits_are_pinned():
    """The same numbers on every machine, today and in a year."""
    bits = (keys.uniform(keys.key(2026, 1, 2), (4,)) * 2**24).long().tolist()
    assert bits == [995092, 2711856, 12442961, 15673424]


def test_words_and_integers_are_mixed_alike():
    """Keys are folded as integers and as tensors, and numbers drawn in words of 32 bits."""
    x = torch.tensor([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 0xDEADBEEF])
    integers = [keys._mix(int(i)) for i in x]
    assert keys._mix(x).tolist() == integers
    assert [i & keys.WORD for i in keys._mix_int32(x.to(torch.int32)).tolist()] == integers
    for data in (0, 7, 2**32 - 1, 2**40 + 3, -1):
        expected = keys.key(5, 9, data).tolist()
        assert keys.fold(keys.key(5, 9), data).tolist() == expected
        assert keys.fold(keys.key(5, 9), torch.tensor(data)).tolist() == expected


def test_generators_of_clients_are_numpys():
    """In whatever they are asked, also where a word takes more than 32 bits."""
    drawn = np.random.default_rng(0).integers(0, 2**32, 40).tolist()
    for seed, t, ids in [(0, 0, [0, 1, 2**32 - 1]), (5, 2**31, drawn), (2**40, 3, [7]), (1, 1, [])]:
        found = keys.generators_of_clients("batches", seed, t, ids)
        count = 0
        for client, rng in zip(ids, found, strict=True):
            words = [keys.PURPOSES.index("batches") + 1, seed, t, client]
            for expected in (np.random.default_rng(words), keys.generator("batches", *words[1:])):
                assert rng.bit_generator.state == expected.bit_generator.state
            assert (rng.permutation(50) == expected.permutation(50)).all()
            assert rng.integers(2**31) == expected.integers(2**31)  # half a word waits then
            count += 1
        assert count == len(ids)
