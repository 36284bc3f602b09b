"""Traces made shorter: fewer operations, the same numbers."""

import pytest
import torch
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from gcfed.core.torch_compiler import make_core_fx, writes_last
from gcfed.core.torch_internals import without_memory
from gcfed.kernels.simplifying import read_sources, simplify, skip_views

X = torch.arange(6.0).view(2, 3)
TORCHS = "default::DeprecationWarning"  # of what torch imports


def simplified(fn, *arguments):
    module = make_fx(fn)(*arguments)
    simplify(module.graph)
    module.recompile()
    return module


def called(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


def test_what_no_argument_enters_is_computed_once():
    def fn(x):
        scale = torch.full((3,), 2.0).log() + 1
        return x * scale.exp() + scale

    module = simplified(fn, X)
    assert called(module) == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert torch.equal(module(X), fn(X)) and torch.equal(module(X + 1), fn(X + 1))


def test_a_matrix_is_not_turned_twice():
    module = simplified(lambda x: (x.t().t() @ x.t()).t().t(), X)
    assert called(module) == ["aten.t.default", "aten.mm.default"]
    assert torch.equal(module(X), X @ X.t())


def test_what_is_given_out_is_new_every_time():
    module = simplified(lambda x: (torch.zeros(3), x + torch.ones(3)), X)
    zeros, _ = module(X)
    zeros += 5
    again, more = module(X)
    assert again.tolist() == [0, 0, 0] and torch.equal(more, X + 1)


def test_what_is_both_used_and_given_out_is_new_every_time():
    def fn(x):
        ones = torch.ones(3)
        return ones, x + ones

    module = simplified(fn, X)
    module(X)[0].mul_(9)
    ones, more = module(X)
    assert ones.tolist() == [1, 1, 1] and torch.equal(more, X + 1)


@pytest.mark.parametrize("piece", [lambda c: c.view(3, 2), lambda c: c.unbind()[1]])
def test_views_that_are_given_out_are_new_every_time(piece):
    def fn(x):
        constant = torch.zeros(2, 3)
        return piece(constant), x + constant

    module = simplified(fn, X)
    module(X)[0].add_(7)
    first, more = module(X)
    assert not first.any() and torch.equal(more, X)


def test_statistics_that_a_batch_norm_writes_unsaid_are_new_every_time():
    def fn(x):
        mean = torch.zeros(3).to(x)
        y = functional.batch_norm(x, mean, torch.ones(3).to(x), training=True, momentum=0.5)
        return y + mean

    module = simplified(fn, X)
    assert torch.equal(module(X), fn(X)) and torch.equal(module(X), fn(X))


def test_nothing_is_kept_where_something_is_written_into():
    def fn(x):
        total = torch.zeros(3)
        before = x + total
        total.add_(x.sum(0))
        return before, total

    module = simplified(fn, X)
    for _ in range(2):  # kept, the zeros would have been added to
        before, total = module(X)
        assert torch.equal(before, X) and torch.equal(total, X.sum(0))


def test_random_numbers_are_drawn_anew():
    module = simplified(lambda x: x + torch.rand(3), X)
    assert not torch.equal(module(X), module(X))


def read_on(fn, change=read_sources):
    """A step that writes into its second argument, traced and changed, to the same numbers."""
    with without_memory():
        module = make_core_fx(fn)(torch.empty(2, 3), torch.empty(2, 3))
    found, expected = X.clone(), X.clone()
    module(X + 1, expected)
    change(module.graph)
    module.graph.eliminate_dead_code()
    module.recompile()
    module(X + 1, found)
    assert torch.equal(found, expected)
    return module


@pytest.mark.filterwarnings(TORCHS)
def test_a_copy_in_between_is_read_where_it_comes_from():
    def fn(x, to):
        norm = x.exp()
        norm.copy_(norm.clamp(min=5.0))
        to.copy_(x / norm)

    module = read_on(fn)
    assert called(module).count("aten.copy_.default") == 1 and writes_last(module.graph)


@pytest.mark.filterwarnings(TORCHS)
def test_a_similarity_of_cosines_writes_into_nothing_of_its_own():
    def one(x):
        return functional.cosine_similarity(x, x.flip(-1), dim=-1).sum()

    def fn(x, to):
        to.copy_(grad(one)(x))

    module = read_on(fn)
    assert called(module).count("aten.copy_.default") == 1 and writes_last(module.graph)


def later_reading(x, to):
    y = x * 2
    row = y[0]
    y.copy_(x + 1)
    to.copy_(y + row)


def of_another_kind(x, to):
    y = x * 2
    y.copy_(x[0] + 1)
    to.copy_(y)


def source_written(x, to):
    y, z = x * 2, x * 3
    y.copy_(z)
    z.copy_(x)
    to.copy_(y + z)


def twice(x, to):
    y = x * 2
    y.copy_(x + 1)
    z = y * 3
    y.copy_(x + 2)
    to.copy_(y + z)


def by_a_view(x, to):
    y, z = x * 2, x * 3
    y.copy_(z)
    z[0].add_(1)
    to.copy_(y + z)


def from_an_argument(x, to):
    y = x * 2
    y.copy_(to)
    to.copy_(x)
    to.add_(y)


@pytest.mark.filterwarnings(TORCHS)
@pytest.mark.parametrize(
    "fn", [later_reading, of_another_kind, source_written, twice, by_a_view, from_an_argument]
)
def test_what_might_be_another_number_later_is_copied(fn):
    assert called(read_on(fn)).count("aten.copy_.default") > 1


@pytest.mark.filterwarnings(TORCHS)
def test_views_that_lead_back_are_left_out():
    """As those around an operator that is mapped over clients."""

    def fn(x, to):
        clients = x.unsqueeze(1).permute(0, 1, 2).flatten(0, 1)
        to.copy_(clients.exp().unflatten(0, (2, -1))[:, 0])

    assert called(read_on(fn, skip_views)) == ["aten.exp.default", "aten.copy_.default"]


def elsewhere(x, to):
    row = x[0]
    to[0].copy_(torch.as_strided(row, (3,), (1,), 3))


def turned(x, to):
    to.copy_(x.view(3, 2).t().reshape(2, 3))


def of_a_copy(x, to):
    to.copy_(x.t().contiguous().view(2, 3))


def pieces(x, to):
    first, second = x.unbind()
    to.copy_(torch.stack([second, first]))


def written(x, to):
    y = x * 2
    y.view(6).view(2, 3).copy_(x)
    to.copy_(y)


def conjugate(x, to):
    z = torch.fft.fft(x)
    to.copy_(vmap(lambda row: (row.conj() * row * (1 + 2j)).imag)(z))


def turned_in_place(x, to):
    y = x.mul(2)
    y.t_()
    to.copy_(y.t())


def written_by_name(x, to):
    y = torch.empty(2, 3)
    torch.exp(x, out=y)
    to.copy_(y)


ALSO = [elsewhere, turned, of_a_copy, pieces, written, conjugate, turned_in_place, written_by_name]


@pytest.mark.filterwarnings(TORCHS)
@pytest.mark.parametrize("fn", ALSO)
def test_other_views_stay_what_they_are(fn):
    read_on(fn, skip_views)
