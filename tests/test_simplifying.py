"""Traces made shorter: fewer operations, the same numbers."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from gcfed.kernels.simplifying import simplify

X = torch.arange(6.0).view(2, 3)


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
