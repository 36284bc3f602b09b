"""CKA of matrices: against direct computations, known values, and what leaves it as it is."""

import weakref

import pytest
import torch

from gcfed.analysis.similarity import batch_grams, cka, hsic, rbf, unbiased_hsic, whole_gram


def random(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def linear(x, y, size=None):
    """The linear CKA of two matrices of activations, streamed in batches of this size."""
    grams = (whole_gram(as_layer, list(z.split(size or len(z))))["layer"] for z in (x, y))
    return cka(*grams).item()


def as_layer(x):
    return {"layer": x}


def direct(x, y):
    """The formula for covariances: ||Y'X||^2 / (||X'X|| ||Y'Y||), of centred columns."""
    x, y = (z - z.mean(0) for z in (x, y))
    return ((y.T @ x).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())).item()


def doubly_centred(k):
    h = torch.eye(len(k), dtype=k.dtype) - 1 / len(k)
    return h @ k @ h


@pytest.mark.parametrize("size", [40, 13, 7, 1])
def test_linear_cka_is_that_of_covariances_whatever_the_batches(size):
    x, y = random(40, 6), random(40, 9, seed=1)
    y[:, :6] += x
    assert linear(x, y, size) == pytest.approx(direct(x, y), abs=1e-12)


def test_hsic_is_the_trace_of_doubly_centred_matrices():
    k, l = (z @ z.T for z in (random(12, 3), random(12, 5, seed=1)))  # noqa: E741
    wanted = torch.trace(k @ doubly_centred(l)) / 11**2
    torch.testing.assert_close(hsic(k, l), wanted)


def test_three_points_by_hand():
    """Centred, they are (-1, 0, 1) and (1, -2, 1) / 3: these are orthogonal, and then equal."""
    x, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[1.0], [0.0], [1.0]])
    assert linear(x, y) == pytest.approx(0, abs=1e-12)
    both = torch.cat([x, y], 1)  # the squared norms of the two columns are 2 and 2/3
    assert linear(x, both) == pytest.approx(4 / (2 * (4 + 4 / 9) ** 0.5))


def test_four_points_of_the_unbiased_estimate_by_hand():
    """Points 1 and 2 are alike in K, and so are 3 and 4; in L, points 1 and 3, and 2 and 4."""
    k, l = torch.zeros(2, 4, 4, dtype=torch.float64)  # noqa: E741
    k[0, 1] = k[1, 0] = k[2, 3] = k[3, 2] = 1
    l[0, 2] = l[2, 0] = l[1, 3] = l[3, 1] = 1
    # tr(KL) = 0, 1'K1 = 1'L1 = 4, 1'KL1 = 4
    assert unbiased_hsic(k, l).item() == pytest.approx((0 + 16 / 6 - 4) / 4)
    assert unbiased_hsic(k, k).item() == pytest.approx((4 + 16 / 6 - 4) / 4)
    assert cka([k], [l], unbiased_hsic).item() == pytest.approx(-1 / 2)
    k.fill_diagonal_(9)
    assert unbiased_hsic(k, l).item() == pytest.approx((0 + 16 / 6 - 4) / 4)


def test_the_unbiased_estimate_is_the_mean_over_four_different_points():
    """HSIC_1 by its definition as a U-statistic, a sum over all quadruples of different points."""
    n = 6
    k, l = (z @ z.T for z in (random(n, 2), random(n, 3, seed=1)))  # noqa: E741
    i, j, q, r = torch.cartesian_prod(*[torch.arange(n)] * 4).T
    apart = (i != j) & (i != q) & (i != r) & (j != q) & (j != r) & (q != r)
    i, j, q, r = (each[apart] for each in (i, j, q, r))
    wanted = (k[i, j] * (l[i, j] + l[q, r] - 2 * l[i, q])).mean()
    torch.testing.assert_close(unbiased_hsic(k, l), wanted)


@pytest.mark.parametrize("measure", [hsic, unbiased_hsic])
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_rotation_scale_and_offset_are_no_matter(measure, kernel):
    def similarity(x, y):
        grams = [z @ z.T if kernel == "linear" else rbf(z @ z.T, 0.5) for z in (x, y)]
        return cka(grams[:1], grams[1:], measure).item()

    x, y = random(30, 8), random(30, 5, seed=1)
    y += x[:, :5]
    rotation = torch.linalg.qr(random(8, 8, seed=2)).Q
    before = similarity(x, y)
    assert similarity(x, x) == pytest.approx(1)
    assert similarity(3 * x @ rotation, y) == pytest.approx(before)
    assert similarity(x + 2, y) == pytest.approx(before)
    assert similarity(y, x) == pytest.approx(before)
    assert similarity(x * torch.arange(1, 9), y) != pytest.approx(before, abs=1e-3)


def test_independent_activations_are_unlike_for_the_unbiased_estimate_alone():
    x, y = random(100, 200), random(100, 200, seed=1)
    plain, batches = linear(x, y), [batch_grams(as_layer, z.split(25))["layer"] for z in (x, y)]
    assert plain > 0.6
    assert abs(cka(*batches, unbiased_hsic).item()) < 0.05


def test_one_batch_is_the_whole():
    x, y = random(20, 3), random(20, 4, seed=1)
    y[:, :3] += x
    one = [batch_grams(as_layer, [z])["layer"] for z in (x, y)]
    whole = [whole_gram(as_layer, [z])["layer"] for z in (x, y)]
    for measure in (hsic, unbiased_hsic):
        torch.testing.assert_close(cka(*one, measure), cka(*whole, measure))


def test_batches_estimate_what_all_examples_do():
    x = random(2000, 4)
    y = x[:, :2] + 0.5 * random(2000, 2, seed=1)
    whole = [whole_gram(as_layer, [z])["layer"] for z in (x, y)]
    batches = [batch_grams(as_layer, z.split(20))["layer"] for z in (x, y)]
    assert cka(*batches, unbiased_hsic).item() == pytest.approx(
        cka(*whole, unbiased_hsic).item(), abs=0.02
    )


def test_the_bandwidth_is_a_fraction_of_the_median_distance():
    """Distances of the points 0, 1 and 3 are 1, 2 and 3."""
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    found = rbf(x @ x.T, 0.5)  # a bandwidth of 1
    wanted = torch.exp(-(x - x.T).square() / 2)
    torch.testing.assert_close(found, wanted)


def test_no_more_than_two_batches_are_held():
    made, held = [], []

    def activate(x):
        rows = x.clone()
        made.append(weakref.ref(rows))
        held.append(sum(each() is not None for each in made))
        return {"layer": rows}

    whole_gram(activate, random(40, 3).split(4))
    assert max(held) == 2 and len(held) == 10 + 9 * 10 / 2


def test_what_is_constant_or_too_little_has_no_alignment():
    x, same = random(10, 3), torch.full((10, 2), 0.1, dtype=torch.float64)
    assert torch.tensor(linear(x, same)).isnan()
    assert cka([x[:3] @ x[:3].T], [x[:3] @ x[:3].T], unbiased_hsic).isnan()
