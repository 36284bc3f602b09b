"""Hooks that are wrong are told so, by hook, class, file and line, before the first round."""

import random
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from running import tiny

from gcfed import Algorithm, InputError, run_round, simulate, start
from gcfed.algorithms import FedProx, FedSAM, GCFed, Scaffold
from gcfed.config.build import Given, build
from gcfed.core import tree
from gcfed.core.hook_checks import with_checked_hooks
from gcfed.core.hook_returns import BELONGS
from gcfed.core.seeding import drawn_since, states
from gcfed.core.types import Upload
from gcfed.engines.workers import Workers
from gcfed.sweeps.cost import bytes_a_client
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


def new_message(self, delta, message, ctx):
    return delta, {**message, "norm": delta}


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
        ("logits", per_class, r"a tensor of shape \[7, 1\], where \[7, 5\] belongs"),
        (
            "penalty",
            per_example,
            r"a tensor of torch.float64 and shape \[7\], where a single real number belongs",
        ),
        ("upload", other_memory, r"memory that has past, .*; init_client says what belongs"),
        ("upload", as_tuple, r"a tuple, where an Upload\(delta, message, memory\) belongs"),
        ("upload", flat_message, r"a Tensor as message/sizes, where a dict of tensors"),
        ("send", new_message, r"message that has norm, which does not belong there"),
        ("release", of_none, r"None, where a tuple \(delta, message\) belongs"),
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
    shapes = "memory/c/conv.weight of shape [1, 4, 1, 3, 3], where [4, 1, 3, 3] belongs"
    assert f"{shapes}; init_client says what belongs" in said


def raising(self, grads, params, ctx):
    return tree.map(lambda g: g @ torch.ones(2, 3), grads)


def asking_a_value(self, grads, params, ctx):
    return grads if next(iter(grads.values())).sum().item() < 1e9 else params


def by_backward(self, params, loss, batch, ctx):
    loss(params).backward()
    return params


def too_few(self, grads):
    return grads


def raising_later(self, delta, ctx):
    if ctx.round == 1:
        raise KeyError("m")
    return delta, ctx.state


def raising_at_step_1(self, grads, params, ctx):
    """Untraceable, so that workers run it as it is written."""
    if ctx.step.item() == 1:
        raise KeyError("m")
    return grads


@pytest.mark.parametrize(
    ("hook", "code", "engine", "words"),
    [
        ("gradient", raising, "sequential", "RuntimeError: mat1 and mat2 shapes"),
        ("gradient", raising, "workers", "RuntimeError: mat1 and mat2 shapes"),
        (
            "gradient",
            asking_a_value,
            "vectorized",
            r"RuntimeError: numbers are read .* as \.item\(\) or an if does, .*vmap",
        ),
        ("perturb", by_backward, "sequential", r"; take a gradient by torch\.func\.grad\(loss\)\("),
        ("gradient", too_few, "sequential", "TypeError: .* takes 2 positional arguments but 4"),
        ("update", raising_later, "sequential", "KeyError: 'm'"),
        ("gradient", raising_at_step_1, "sequential", "KeyError: 'm'"),
    ],
)
def test_a_hook_that_raises_is_named(make_setup, hook, code, engine, words):
    mine = made(**{hook: code})
    for algorithm in (mine, mine + GCFed()):
        with pytest.raises(InputError, match=words) as error:
            list(simulate(make_setup(algorithm, engine=engine)))
        assert in_sentence(rf"^{hook} of Mine {HERE} raises", str(error.value))
        assert "\n" not in str(error.value)


def test_the_line_is_that_which_raised(make_setup):
    said = refusal(make_setup, made(gradient=raising))
    assert f"line {raising.__code__.co_firstlineno + 1})" in said


def test_a_worker_tells_of_its_hook_without_a_traceback(make_setup):
    setup = make_setup(made(gradient=raising_at_step_1), engine=Workers(processes=1))
    with (
        pytest.warns(UserWarning, match="run each step as it is written"),
        pytest.raises(InputError, match=f"^gradient of Mine {HERE} raises KeyError: 'm'$"),
    ):
        list(simulate(setup))


def drawing(self, delta, ctx):
    return tree.map(lambda d: d + torch.rand_like(d), delta), ctx.state


def drawing_in_receive(self, upload, row, ctx):
    return upload._replace(delta=tree.map(lambda d: d + torch.rand_like(d), upload.delta)), row


def drawing_gradient(self, grads, params, ctx):
    return tree.map(lambda g: g + torch.randn(g.shape), grads)


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "workers"])
@pytest.mark.parametrize(
    ("hook", "code"),
    [("update", drawing), ("receive", drawing_in_receive), ("gradient", drawing_gradient)],
)
def test_global_randomness_is_told_of_the_hook(make_setup, engine, hook, code):
    said = refusal(make_setup, made(**{hook: code}), engine=engine)
    assert in_sentence(f"^{hook} of Mine {HERE} draws from torch's global generator", said)
    assert "ctx.key" in said and "dropout" not in said


def drawing_by_numpy(self, delta, ctx):
    return tree.map(lambda d: d * np.random.rand(), delta), ctx.state


def drawing_by_python(self, delta, ctx):
    return tree.map(lambda d: d * random.random(), delta), ctx.state


@pytest.mark.parametrize("code", [drawing_by_numpy, drawing_by_python])
def test_randomness_that_others_may_draw_is_warned_of(make_setup, code):
    said = rf"^update of Mine {HERE} draws from numpy's or Python's .*keys"
    with pytest.warns(UserWarning, match=said):
        next(simulate(make_setup(made(update=code))))


def by_item(self, params, out, batch, ctx):
    return 0.1 * tree.square_distance(params, ctx.anchor).item()


def detached(self, params, out, batch, ctx):
    return sum((params[name].detach() - ctx.anchor[name]).square().sum() for name in params)


def of_detached_features(self, params, out, batch, ctx):
    return batch.mean(out.need_features().detach().square().mean(1))


def of_features_as_a_number(self, params, out, batch, ctx):
    return batch.mean(out.need_features().square().mean(1)).item()


def of_another_model(self, params, out, batch, ctx):
    return batch.mean(ctx.forward(ctx.anchor, batch.x).logits.square().mean(1))


def of_classes(self, params, out, batch, ctx):
    return batch.mean((out.logits.argmax(1) != batch.y).to(out.logits))


@pytest.mark.parametrize("engine", ["sequential", "workers"])
@pytest.mark.parametrize(
    "code",
    [
        by_item,
        detached,
        of_detached_features,
        of_features_as_a_number,
        of_another_model,
        of_classes,
    ],
)
def test_a_penalty_without_a_gradient_is_named(make_setup, engine, code):
    said = refusal(make_setup, made(penalty=code), engine=engine)
    assert in_sentence(f"^penalty of Mine {HERE} returns a number that has no gradient", said)


def test_a_penalty_may_be_a_constant(make_setup):
    next(simulate(make_setup(made(penalty=lambda self, *arguments: 0.5))))
    nothing = made(penalty=lambda self, params, out, *others: out.logits.new_zeros(()))
    next(simulate(make_setup(nothing, engine="sequential")))
    next(simulate(make_setup(FedProx(mu=0.0), engine="sequential")))


def new_weights(self, delta, ctx):
    return tree.add(ctx.params, delta), ctx.state


def near_the_weights(self, delta, ctx):
    return tree.map(lambda w, d: w - w.sign() * 0.1 * (1 + d.abs()), ctx.params, delta), ctx.state


def test_an_update_is_a_step_and_not_the_new_weights(make_setup):
    said = refusal(make_setup, made(update=new_weights))
    assert in_sentence(f"^update of Mine {HERE} returns new weights, .* leave out ctx.params", said)
    next(simulate(make_setup(made(update=near_the_weights))))


def test_what_a_context_has_is_said(make_setup):
    def of_the_client(self, delta, ctx):
        return Upload(delta, {}, {"id": ctx.anchors})

    said = refusal(make_setup, made(upload=of_the_client))
    assert said.endswith("round, step") and "did you mean 'anchor'? There are anchor," in said


def keeping_in_memory(self, delta, ctx):
    ctx.memory["past"] = delta
    return Upload(delta, {}, ctx.memory)


def keeping_in_state(self, delta, ctx):
    ctx.state["past"] = delta
    return delta, ctx.state


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("hook", "code", "what"),
    [
        ("upload", keeping_in_memory, "ctx/memory/past/conv.bias"),
        ("update", keeping_in_state, "ctx/state/past/conv.bias"),
        ("broadcast", lambda s, params, state: (params, state, params.popitem())[:2], "params/fc"),
        ("upload", lambda s, d, ctx: (Upload(d, {}, {}), d.popitem())[0], "delta/fc2.bias"),
        ("send", lambda s, d, message, ctx: (d, message, d.popitem())[:2], "delta/fc2.bias"),
        ("receive", lambda s, u, row, ctx: (u, row, u.delta.popitem())[:2], "upload/delta/fc2.b"),
        ("update", lambda s, d, ctx: (d, ctx.state, d.popitem())[:2], "delta/fc2.bias"),
    ],
)
def test_a_dict_that_a_hook_is_given_stays_as_it_was(make_setup, engine, hook, code, what):
    for algorithm in (made(**{hook: code}), GCFed() + made(**{hook: code})):
        said = refusal(make_setup, algorithm, engine=engine)
        expected = (
            rf"^{hook} of Mine {HERE} changes the dicts it is given: {what}.* comes or goes; "
        )
        assert in_sentence(expected, said), said


def test_arguments_in_another_order_are_refused():
    """A hook is given them by place, so gradients would be taken for weights."""
    with pytest.raises(InputError, match=r"is given grads, params, ctx in .*; not params, grads"):
        made(gradient=lambda self, params, grads, ctx: grads)
    made(gradient=lambda self, g, w, ctx: g)
    made(gradient=staticmethod(lambda grads, params, ctx: grads))
    made(update=lambda self, delta, ctx, more=1: (delta, ctx.state))


class Dropping(torch.nn.Module):
    """Draws from the global generator by itself."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 5)

    def forward(self, x):
        return self.layer(torch.nn.functional.dropout(x.flatten(1), 0.5, self.training))


class Failing(Dropping):
    def forward(self, x):
        raise IndexError("no such layer")


def test_what_the_model_does_is_not_told_of_a_hook_that_calls_it(make_setup):
    """FedSAM's perturb takes a gradient of its own, through the model."""
    said = refusal(make_setup, FedSAM(), module=Failing(), engine="sequential")
    assert "cannot take a training step: IndexError: no such layer (test_wrong_hooks.py" in said


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "workers"])
def test_gradients_go_to_weights_by_name_in_any_order(run, close, engine):
    def reversed_(self, grads, params, ctx):
        return dict(reversed(grads.items()))

    mine = run(made(gradient=reversed_), engine=engine)
    close(mine.server.params, run(Algorithm(), engine=engine).server.params, tolerance=0)


def test_a_rehearsal_leaves_all_as_it_was(make_setup):
    """Even for an algorithm that changes in place what it is given."""

    def inflating(self, anchor, ctx):
        return tree.map(lambda w: w.mul_(2), anchor)

    setup = make_setup(made(begin=inflating), engine="sequential")
    seen, before = [], tree.map(torch.clone, setup.model.params)
    generators = states()

    def engine(jobs):
        seen.append(tree.map(torch.clone, setup.model.params))
        return replace(setup, engine="sequential").chosen.make()(jobs)

    next(simulate(replace(setup, engine=engine)))
    assert not drawn_since(generators)
    torch.testing.assert_close(seen[0], before, rtol=0, atol=0)


def test_a_resumed_run_is_rehearsed_from_where_it_stands(make_setup):
    setup = make_setup(Scaffold(), engine="sequential")
    first = next(simulate(setup))
    worse = replace(setup, algorithm=made(Scaffold, update=lambda self, delta, ctx: (delta, {})))
    with pytest.raises(
        InputError, match=r"update of Mine .* returns state that lacks c; init_serv"
    ):
        next(simulate(worse, after=first))
    again = next(simulate(setup, after=first))
    assert again.round == 1


def test_checked_hooks_give_the_same(registered, run):
    """Nothing that a registered algorithm returns is refused, nor changed by looking at it."""
    plain, looked_at = run(registered), run(with_checked_hooks(registered))
    torch.testing.assert_close(plain.server, looked_at.server, rtol=0, atol=0)


def test_an_unwritten_hook_is_told_without_a_line(make_setup):
    """A hook may be any callable, such as one of torch's."""
    said = refusal(make_setup, made(begin=staticmethod(torch.add)))
    assert said.startswith("begin of Mine raises TypeError: add()")


def test_a_hook_that_is_no_function_is_named():
    with pytest.raises(InputError, match=f"^gradient of Mine {HERE} is a hook, .*; not 3$"):
        made(gradient=3)


def dividing(self, *arguments):
    return 1 / 0


@pytest.mark.parametrize("hook", [hook for hook in BELONGS if hook != "init_server"])
def test_a_round_by_itself_names_its_hook(make_setup, hook):
    setup = make_setup(made(Keeper, **{hook: dividing}), engine="sequential")
    with pytest.raises(InputError, match=f"^{hook} of Mine {HERE} raises ZeroDivisionError"):
        run_round(setup, *start(setup), 0, [0, 1])


def test_a_check_that_raises_is_named(make_setup):
    with pytest.raises(InputError, match=f"^check of Mine {HERE} raises ZeroDivisionError"):
        make_setup(made(check=dividing) + FedProx())


@pytest.mark.parametrize("hook", ["broadcast", "init_client", "begin", "upload"])
def test_the_cost_of_a_cell_names_its_hook(hook):
    given = Given(algorithm=made(Keeper, **{hook: dividing}))
    with pytest.raises(InputError, match=f"^{hook} of Mine {HERE} raises ZeroDivisionError"):
        bytes_a_client(build(tiny(), given))


def test_a_server_that_cannot_begin_is_not_the_models_fault():
    with pytest.raises(InputError, match=f"^init_server of Mine {HERE} raises ZeroDivisionError"):
        build(tiny(), Given(algorithm=made(init_server=dividing)))


def test_laws_are_not_tried_on_a_wrong_hook():
    with pytest.raises(InputError, match=f"gradient of Mine {HERE} raises"):
        laws.check(made(gradient=raising))
    with pytest.raises(InputError, match=f"gradient of Mine {HERE} raises .*vmap"):
        laws.check(made(gradient=asking_a_value))


def test_the_command_says_it_once(gcfed, tmp_path):
    (tmp_path / "my.py").write_text(
        "import gcfed\n\n\nclass Mine(gcfed.Algorithm):\n"
        "    def gradient(self, grads, params, ctx):\n"
        "        return {name: g[:1] for name, g in grads.items()}\n"
    )
    answer = gcfed("check", f"{tmp_path / 'my.py'}:Mine")
    assert answer.code == 2
    said = " ".join((answer.out + answer.err).split())
    assert (
        said.count("gradient of Mine (my.py, line 5) returns 0.weight of shape [1, 1, 2, 2]") == 1
    )
    assert "Traceback" not in said and "cannot be tried" not in said


class Keeper(Algorithm):
    """Keeps something of every kind, so that all of it can be wrong."""

    def init_server(self, params):
        return {"kept": tree.zeros(params)}

    init_client = init_row = init_server

    def broadcast(self, params, state):
        return params, state

    def upload(self, delta, ctx):
        return Upload(delta, {"sent": delta}, ctx.memory)


def raises(right):
    raise ZeroDivisionError("nothing to divide by")


def changed_in_one(right, change):
    """The same, but for one of its tensors."""
    flat = [x for _, x in tree.leaves(right)]
    return tree.unflatten(right, [change(flat[0]), *flat[1:]])


OF_ANY_HOOK = {
    "None": lambda right: None,
    "a text": lambda right: "text",
    "an object": lambda right: object(),
    "an empty tuple": lambda right: (),
    "a large tensor": lambda right: torch.zeros(7, 7, 7),
    "a list": lambda right: [right],
    "a dict of numbers": lambda right: {1: 2},
    "a dict of None": lambda right: {"kept": {"fc1.weight": None}},
    "it twice": lambda right: (right, right),
    "it three times": lambda right: (right, right, right),
    "an error": raises,
    "random numbers": lambda right: (torch.rand(2), right)[1],
}
OF_TENSORS = {
    "one axis more": lambda right: changed_in_one(right, lambda x: x[None]),
    "numbers alone": lambda right: changed_in_one(right, lambda x: x.sum().item()),
    "whole numbers": lambda right: changed_in_one(right, lambda x: x.long()),
    "no memory": lambda right: changed_in_one(right, lambda x: x.to("meta")),
}
WRONG = {**OF_ANY_HOOK, **OF_TENSORS}
FREE = {"init_server", "init_client", "init_row"}  # what they say belongs, whatever its shape
CASES = [(h, w) for h in BELONGS for w in (OF_ANY_HOOK if h in FREE else WRONG)]
CASES.remove(("penalty", "numbers alone"))  # a number of Python's is one too


@settings(max_examples=len(CASES), derandomize=True, deadline=None, database=None)
@given(
    st.sampled_from(CASES),
    st.sampled_from(["sequential", "vectorized"]),
    st.sampled_from([0, 1, 2]),
)
def test_whatever_is_wrong_with_a_hook_it_is_named(make_setup, case, engine, place):
    hook, wrong = case

    def returning(self, *arguments):
        return WRONG[wrong](getattr(Keeper, hook)(self, *arguments))

    links = [FedProx(), GCFed()]
    links.insert(place, made(Keeper, **{hook: returning}))
    said = refusal(make_setup, links[0] + links[1] + links[2], engine=engine, rounds=1)
    assert in_sentence(f"^{hook} of Mine {HERE} (returns|raises|draws) ", said), said
    assert "\n" not in said
