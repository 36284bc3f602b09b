"""Modules that no run can train rightly, and what is said of them."""

import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune, weight_norm

from gcfed import Model, fit
from gcfed.errors import InputError

SETTINGS = {
    **{"clients": 4, "cohort": 2, "partition": "iid", "rounds": 1, "batch_size": 5},
    **{"algorithm": "fedavg", "lr": 0.1, "progress": False, "weight_decay": 0.0},
}
MASK = torch.arange(6) > 1


def body():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).float()


def with_change(change):
    module = body()
    change(module)
    return module


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(6, 3, dtype=torch.complex64))


def keep(name, value):
    return lambda module: setattr(module[0], name, value(module))


def hooked(part, register):
    return with_change(lambda module: getattr(part(module), register)(lambda *_: None))


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda m: weight_norm(m[0]),
            r"copied, .* 0.weight is computed .*: take torch.nn.utils.parametrizations.weight_norm",
        ),
        (
            lambda m: prune.l1_unstructured(m[2], "weight", 0.5),
            r"2.weight is computed .*: call torch.nn.utils.prune.remove first",
        ),
        (keep("scale", lambda m: 2 * m[0].bias), "0.scale is computed .*: compute it in forward"),
        (keep("lock", lambda m: threading.Lock()), "0.lock fails with TypeError: .*elsewhere, or"),
    ],
    ids=["weight_norm", "prune", "computed", "lock"],
)
def test_a_module_that_cannot_be_copied_is_refused(change, words):
    with pytest.raises(InputError, match=words) as told:
        Model(with_change(change))
    assert "deepcopy protocol" not in str(told.value)


def test_what_stands_in_the_way_of_a_copy_may_lie_deep():
    """In a list, say, whose tensors are not looked at one by one."""
    with pytest.raises(InputError, match=r"its attribute 0.kept fails with RuntimeError: Only Ten"):
        Model(with_change(keep("kept", lambda m: [2 * m[0].bias])))


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.jit.script(body()), "torch.jit has compiled .*: give the module that it"),
        (lambda: nn.DataParallel(body()), "in DataParallel, .*: give the module inside, module.m"),
        (
            lambda: nn.Sequential(nn.Linear(6, 5), nn.LazyBatchNorm1d(affine=False)),
            "the buffer 1.running_mean has no shape yet",
        ),
        (Complex, "the parameter weight holds complex numbers"),
        (
            lambda: nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten()),
            r"0 \(Embedding\) has sparse gradients, .*sparse=False",
        ),
        (lambda: nn.EmbeddingBag(9, 4, sparse=True), r"the module \(EmbeddingBag\) has sparse gr"),
    ],
    ids=["jit", "parallel", "lazy", "complex", "sparse", "sparse-bag"],
)
def test_a_module_that_cannot_be_trained_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        Model(make())


@pytest.mark.parametrize(
    "register", ["register_full_backward_hook", "register_full_backward_pre_hook"]
)
def test_a_backward_hook_is_no_gradient_checkpointing(register):
    with pytest.raises(InputError, match=r"1 \(Tanh\) has a backward hook, .*: remove it"):
        Model(hooked(lambda m: m[1], register))


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_gradient_is_not_left_out_without_a_word(register):
    with pytest.raises(InputError, match=r"parameter 0.weight has a hook on its gradient, .* mask"):
        Model(hooked(lambda m: m[0].weight, register))


def test_what_is_frozen_may_be_what_cannot_be_trained():
    words = nn.Embedding(9, 4, sparse=True).requires_grad_(False)
    assert list(Model(nn.Sequential(words, nn.Linear(4, 3))).params) == ["1.weight", "1.bias"]


class Masked(nn.Module):
    def forward(self, weight):
        return weight * MASK + (weight * ~MASK).detach()


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "workers"])
def test_some_numbers_of_a_weight_stay_as_is_advised(engine):
    module = body()
    parametrize.register_parametrization(module[0], "weight", Masked())
    torch.manual_seed(1)
    data = torch.randn(40, 6).float(), torch.arange(40) % 3
    weight = fit(module, data, engine=engine, **SETTINGS).module[0].weight
    stayed = (weight == module[0].weight).all(0)
    assert torch.equal(stayed, ~MASK)
