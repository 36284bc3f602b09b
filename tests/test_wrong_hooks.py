"""Hooks that are wrong are told so, by hook, class, file and line; `gcfed check` tells them too."""

import re
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings, strategies as st

import gcfed as package
from gcfed import Algorithm, FederatedData, InputError, Model, chain, simulate
from gcfed.algorithms import FedProx, FedSAM, GCFed, Scaffold
from gcfed.core import keys, tree
from gcfed.core.hook_checks import BELONGS, with_checked_hooks
from gcfed.core.types import Upload
from gcfed.engines.workers import Workers
from gcfed.sweeps.child import CellJob, Child
from gcfed.testing import laws

pytest_plugins = ["running"]

HERE = r"\(test_wrong_hooks\.py, line \d+\)"


def made(base=Algorithm, **hooks):
    """An algorithm of these hooks."""
    return dataclass(frozen=True)(type("Mine", (base,), hooks))()


def refusal(make_setup, algorithm, **changes):
    """What is said of an algorithm before its first round."""
    with pytest.raises(InputError) as error:
        next(simulate(make_setup(algorithm, **changes)))
    return str(error.value)


def in_sentence(part, sentence):
    return re.search(part, sentence) is not None


def of_shape_3(self, grads, params, ctx):
    return {**grads, "fc1.weight": torch.zeros(3)}


def broadcasting(self, grads, params, ctx):
    return tree.map(lambda g: g[:1], grads)


def in_float32(self, grads, params, ctx):
    return tree.map(lambda g: g.float(), grads)


def on_meta(self, grads, params, ctx):
    return tree.map(lambda g: g.to("meta"), grads)


def without_names(self, grads, params, ctx):
    return {name: g for name, g in grads.items() if not name.startswith("fc1")}


def with_a_name(self, grads, params, ctx):
    return {**grads, "fc9.weight": torch.zeros(3)}


def of_none(self, *arguments):
    return None


def other_memory(self, delta, ctx):
    return Upload(delta, {}, {"past": delta})


def wide_memory(self, delta, ctx):
    return Upload(delta, {}, {"c": tree.map(lambda d: d[None], delta)})


def as_tuple(self, delta, ctx):
    return delta, {}, {}


def flat_message(self, delta, ctx):
    return Upload(delta, {"sizes": torch.ones(3)}, {})


def new_state(self, delta, ctx):
    return delta, {"past": delta}


def new_row(self, upload, row, ctx):
    return upload, {"last": upload.delta}


def per_example(self, params, out, batch, ctx):
    return out.logits.square().mean(1)


def per_class(self, logits, ctx):
    return logits.mean(1, keepdim=True)


def one_client_more(self, uploads, weights, ctx):
    return uploads.delta, {}


def flat_state(self, params):
    return params


@pytest.mark.parametrize(
    ("hook", "returning", "problem"),
    [
        ("gradient", of_shape_3, r"fc1\.weight of shape \[3\], where \[12, 64\] belongs"),
        ("gradient", broadcasting, r"conv\.weight of shape \[1, 1, 3, 3\], where \[4, 1, 3, 3\]"),
        ("gradient", in_float32, r"conv\.weight of torch\.float32, where torch\.float64 belongs"),
        ("gradient", on_meta, r"conv\.weight on meta, where cpu belongs"),
        ("gradient", without_names, r"a dict that lacks fc1\.weight, fc1\.bias$"),
        ("gradient", with_a_name, r"a dict that has fc9\.weight, which does not belong there"),
        ("gradient", of_none, r"None, where a dict belongs"),
        ("perturb", of_none, r"None, where a dict belongs"),
        ("begin", of_none, r"None, where a dict belongs"),
        ("logits", per_class, r"a tensor of shape \[3, 1\], where \[3, 5\] belongs"),
        ("penalty", per_example, r"shape \[3\], where a single real number belongs"),
        ("upload", other_memory, r"memory that has past, .*; init_client says what belongs"),
        ("upload", as_tuple, r"a tuple, where an Upload\(delta, message, memory\) belongs"),
        ("upload", flat_message, r"a Tensor as message/sizes, where a dict of tensors"),
        ("receive", new_row, r"row that has last, .*; init_row says what belongs"),
        ("aggregate", one_client_more, r"delta/conv\.weight of shape \[1, 4, 1, 3, 3\], where \[4"),
        ("update", new_state, r"state that has past, .*; init_server says what belongs"),
        ("update", of_none, r"None, where a tuple \(step, state\) belongs"),
        ("broadcast", of_none, r"None, where a tuple \(anchor, message\) belongs"),
        ("init_server", of_none, r"None, where a dict of dicts of tensors, by name, belongs"),
        ("init_client", flat_state, r"a Tensor as conv\.weight, where a dict of tensors"),
        ("init_row", of_none, r"None, where a dict of dicts of tensors, by name, belongs"),
    ],
)
@pytest.mark.parametrize("engine", ["sequential", "vectorized", "workers"])
def test_what_does_not_belong_is_refused(make_setup, engine, hook, returning, problem):
    mine = made(**{hook: returning})
    for algorithm in (mine, FedProx() + mine + GCFed()):
        said = refusal(make_setup, algorithm, engine=engine, cohort_size=1)
        assert in_sentence(f"^{hook} of Mine {HERE} returns {problem}", said), said


def test_memory_of_other_names_and_shapes_is_named(make_setup):
    init = {"init_client": lambda self, params: {"c": tree.zeros(params)}}
    said = refusal(make_setup, made(**init, upload=other_memory))
    assert "memory that lacks c and has past" in said and "init_client says" in said
    said = refusal(make_setup, made(**init, upload=wide_memory))
    assert "memory/c/conv.weight of shape [1, 4, 1, 3, 3], where [4, 1, 3, 3] belongs" in said
