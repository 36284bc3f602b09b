"""What must hold on a GPU: `pytest -m gpu`.  An engine that falls back warns, and so fails."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from running import lines, tiny
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from gcfed import (
    ALGORITHMS,
    MODELS,
    Streams,
    Vectorized,
    resume,
    run,
    simulate,
    simulate_together,
    sweep,
    verify,
)
from gcfed.core import tree
from gcfed.core.precision import arithmetic
from gcfed.core.torch_compiler import make_core_fx
from gcfed.data import Lazy, dataset_from
from gcfed.engines import any_number, kept_steps
from gcfed.runs.train import run_together
from gcfed.simulation.loop import _Rounds
from gcfed.simulation.server_half import RecordedStep, ServerHalf
from gcfed.simulation.side_stream import AT_ONCE, SideStream

pytest_plugins = ["running"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator"),
    pytest.mark.filterwarnings("default"),  # Inductor's own
    pytest.mark.filterwarnings("error:the step is not compiled"),
    pytest.mark.filterwarnings("error:no CUDA graph"),
]

ENGINES = [Vectorized, Streams]


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop, self.fc = nn.Conv2d(1, 4, 3), nn.Dropout(0.5), nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(self.drop(torch.relu(self.conv(x)).flatten(1)))


@pytest.fixture
def on_gpu(make_setup):
    """A setup whose model and data are on the card."""

    def make(algorithm, **changes):
        engine = changes.pop("engine")
        setup = make_setup(algorithm, **changes)
        model, data = (value.to(torch.device("cuda")) for value in (setup.model, setup.data))
        return replace(setup, model=model, data=data, engine=engine)

    return make


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["gcfed", "scaffold", "fedsol"])
def test_engines_agree_with_the_cpu(name, engine, on_gpu, make_setup, close):
    changes, engine = {"rounds": 2, "module": Dropping()}, engine()
    rounds = simulate(on_gpu(ALGORITHMS[name](), engine=engine, **changes))
    next(rounds)
    assert engine._program.is_compiled
    (there,) = rounds
    assert engine._program is None  # and with it its graphs are gone
    *_, here = simulate(make_setup(ALGORITHMS[name](), engine="sequential", **changes))
    close({k: v.cpu() for k, v in there.server.params.items()}, here.server.params)
    close(there.losses.cpu(), here.losses)


def test_seeds_together_agree_with_each_alone(on_gpu, close):
    setup = on_gpu(ALGORITHMS["gcfed"](), engine=Vectorized(), rounds=2)
    other = replace(setup, schedule=replace(setup.schedule, seed=1))
    *_, together = simulate_together([setup, other])
    *_, alone = simulate(replace(other, engine=Vectorized()))
    close(together[1].server, alone.server)


class Attending(nn.Module):
    """Draws by functions: dropout of its own, and that of attention."""

    def __init__(self):
        super().__init__()
        self.q, self.fc = nn.Linear(4, 8), nn.Linear(32, 5)

    def forward(self, x):
        q = self.q(x[:, 0]).unflatten(2, (2, 4)).transpose(1, 2)
        seen = functional.scaled_dot_product_attention(q, q, q, dropout_p=0.3)
        return self.fc(functional.dropout(seen.flatten(1), 0.5, self.training))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_functions_draw_is_the_same_on_a_cpu(engine, on_gpu, make_setup, close):
    changes = {"rounds": 2, "module": Attending()}
    *_, there = simulate(on_gpu(ALGORITHMS["gcfed"](), engine=engine(), **changes))
    *_, here = simulate(make_setup(ALGORITHMS["gcfed"](), engine="sequential", **changes))
    close({k: v.cpu() for k, v in there.server.params.items()}, here.server.params)


@pytest.mark.parametrize("engine", ENGINES)
def test_examples_that_are_read_when_they_are_needed(engine, on_gpu, make_setup, data, close):
    pairs = list(zip(data.x, data.y.tolist(), strict=True))
    lazy = dataset_from(Lazy(pairs, processes=0), (data.x, data.y), dtype=torch.float64).train.x
    read = replace(data, x=lazy)
    *_, there = simulate(on_gpu(ALGORITHMS["gcfed"](), engine=engine(), data=read, rounds=2))
    *_, here = simulate(make_setup(ALGORITHMS["gcfed"](), engine="sequential", rounds=2))
    close({k: v.cpu() for k, v in there.server.params.items()}, here.server.params)


def test_clients_in_parts_have_the_bits_of_all_at_once(on_gpu, monkeypatch, close):
    """As where code that counts in 32 bits could not count them all."""
    changes = {"rounds": 2, "module": Dropping(), "cohort_size": 5, "batch_size": 8}
    *_, whole = simulate(on_gpu(ALGORITHMS["gcfed"](), engine=Vectorized(), **changes))
    monkeypatch.setattr(any_number, "MOST_NUMBERS", 4_000)
    monkeypatch.setattr(kept_steps.KeptStep, "find", lambda *_: None)  # it is for all at once
    monkeypatch.setattr(kept_steps.KeptStep, "kept", lambda _, step: step)
    *_, parts = simulate(on_gpu(ALGORITHMS["gcfed"](), engine=Vectorized(), **changes))
    close(parts.server, whole.server, tolerance=0)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.fc = kind(4, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, x):
        return self.fc(self.rnn(x[:, 0])[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_train_as_on_a_cpu(kind, on_gpu, make_setup, close):
    changes = {"rounds": 2, "module": Recurrent(kind), "engine": "sequential"}
    *_, there = simulate(on_gpu(ALGORITHMS["gcfed"](), **changes))
    *_, here = simulate(make_setup(ALGORITHMS["gcfed"](), **changes))
    close({k: v.cpu() for k, v in there.server.params.items()}, here.server.params)


class Asking(nn.Module):
    """Reads a number out of a tensor, which no map over clients allows."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        x = x.flatten(1)
        return self.fc(x if x.sum().item() > 1e9 else x + 1)


def test_a_model_that_no_map_can_run_is_trained_one_client_after_another(on_gpu, make_setup, close):
    changes = {"rounds": 2, "module": Asking()}
    with pytest.warns(UserWarning, match="sequential"):
        *_, there = simulate(on_gpu(ALGORITHMS["fedavg"](), engine="auto", **changes))
    *_, here = simulate(make_setup(ALGORITHMS["fedavg"](), engine="sequential", **changes))
    close({k: v.cpu() for k, v in there.server.params.items()}, here.server.params)


class StopError(Exception):
    pass


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("engine", ["vectorized", "streams"])
def test_a_resumed_run_ends_with_the_same_bits(engine, tmp_path):
    config = tiny(algorithm="scaffold", rounds=5, engine=engine, device="cuda", checkpoint_every=2)
    run(config, tmp_path / "whole")

    def stop(records):
        if records[0]["round"] == 3:
            raise StopError

    with pytest.raises(StopError):
        run(config, tmp_path / "stopped", stop)
    resume(tmp_path / "stopped")
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")
    assert verify(tmp_path / "whole").holds


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("engine", ["vectorized", "fused", "streams"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_convolutions_twice_give_the_same_bits(engine, precision, tmp_path):
    config = tiny(
        dataset="fashion10k",
        model="cnn",
        steps=4,
        epochs=None,
        engine=engine,
        precision=precision,
        device="cuda",
    )
    run(config, tmp_path / "a")
    assert verify(tmp_path / "a").holds


class Photographs(nn.Module):
    """The network of pfl-research's benchmark, with fewer numbers in its first linear layer."""

    def __init__(self, shape, num_classes):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(shape[0], 32, 3), nn.Conv2d(32, 64, 3)
        self.drop1, self.drop2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64 * 14 * 14, 32), nn.Linear(32, num_classes)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        x = self.drop1(functional.max_pool2d(x, 2)).flatten(1)
        return self.fc2(self.drop2(torch.relu(self.fc1(x))))


@pytest.mark.usefixtures("float32", "registries")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_hundreds_of_rounds_twice_give_the_same_bits(precision, tmp_path):
    """What goes wrong once in a thousand rounds does not show in four."""
    MODELS.register("photographs")(Photographs)
    config = tiny(
        dataset="synthetic(train=5000, test=2000, shape=(3, 32, 32))",
        model="photographs",
        partition="iid",
        clients=100,
        cohort=50,
        batch_size=10,
        rounds=600,
        evaluate_every=10,
        engine="fused",
        precision=precision,
        device="cuda",
    )
    for name in "ab":
        run(config, tmp_path / name)
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("algorithm", ["gcfed", "fedadam", "clip_update(norm=1) + noise"])
def test_rounds_told_early_are_those_told_one_by_one(algorithm, tmp_path, monkeypatch):
    """Of equal clients, so that the server's half is recorded; models are judged by replays too."""
    config = tiny(
        algorithm=algorithm, model="cnn", engine="vectorized", device="cuda", partition="iid",
        rounds=8,
    )  # fmt: skip
    replays, real = [], RecordedStep.__call__
    monkeypatch.setattr(RecordedStep, "__call__", lambda *a: replays.append(1) or real(*a))
    run(config, tmp_path / "early")
    assert len(replays) == 7
    monkeypatch.setattr(_Rounds, "_begin_early", lambda self, now: None)
    monkeypatch.setattr(ServerHalf, "_record", lambda self, *given: None)
    monkeypatch.setattr(SideStream, "_has_room", lambda self: False)
    run(config, tmp_path / "one by one")
    for name in ("rounds.jsonl", "summary.json", "model.safetensors"):
        early, later = ((tmp_path / kind / name).read_bytes() for kind in ("early", "one by one"))
        assert early == later, name


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("engine", ["vectorized", "streams"])
def test_lines_made_beside_the_next_round_are_those_made_at_once(engine, tmp_path, monkeypatch):
    config = tiny(engine=engine, device="cuda", model="cnn", rounds=6, checkpoint_every=4)
    run(config, tmp_path / "beside")
    monkeypatch.setattr("gcfed.runs.scribe.SideStream", lambda device: AT_ONCE)
    run(config, tmp_path / "at once")
    for name in ("rounds.jsonl", "summary.json", "model.safetensors"):
        assert (tmp_path / "beside" / name).read_bytes() == (
            tmp_path / "at once" / name
        ).read_bytes()


def test_cells_that_share_the_card_end_with_the_bits_they_have_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = tiny(rounds=6, device="cuda", model="cnn").model_dump(exclude_unset=True)
    grid = {"algorithm": ["fedavg", "gcfed", "scaffold"], "engine": ["vectorized"]}
    values = {key: value for key, value in values.items() if key not in (*grid, "device")}
    found = [
        sweep({**values, "grid": grid}, store, "cuda", per_device=n)
        for store, n in (("shared", 3), ("alone", 1))
    ]
    shared, alone = ([lines(run.path) for run in made.runs] for made in found)
    assert len(shared) == 3 and shared == alone
    assert found[0].devices == ["cuda"] * 3


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 3e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(
    ("plain", "shape"),
    [
        (nn.Conv2d(3, 32, 5, padding=2), (8, 3, 32, 32)),
        (nn.Conv2d(64, 128, 3, stride=2, padding=1, bias=False), (4, 64, 8, 8)),
        (nn.Conv2d(64, 64, 3, padding=1), (8, 64, 16, 16)),
        (nn.Conv2d(128, 256, 5, padding=2), (8, 128, 7, 7)),
        (nn.Linear(600, 70), (50, 600)),
        (nn.GroupNorm(8, 32), (4, 32, 8, 8)),
        (nn.GroupNorm(32, 64), (4, 64, 32, 32)),
        (nn.GroupNorm(4, 32), (4, 32, 40, 40)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_operators_agree_with_the_layers(plain, shape, dtype, error):
    """Operands are rounded to TF32 or bfloat16, sums are float32; a second call gives its bits.

    What goes in has the digits of bfloat16, and the gradient that comes back does not depend on the
    output: else the output's rounding, which is larger where sums are long, would be in it too.
    """
    from gcfed.kernels.fusing import fuse_layers  # needs Triton

    layers, _ = fuse_layers(nn.ModuleDict({"layer": plain}))
    torch.manual_seed(0)
    weights = {n: torch.randn(3, *p.shape, device="cuda") for n, p in plain.named_parameters()}
    weights, x = tree.map(
        lambda v: v.bfloat16().float(), (weights, torch.randn(3, *shape, device="cuda"))
    )

    def results(layer, x):
        def score(p, x):
            y = functional_call(layer, p, (x,)).to(torch.float64)
            back = 1 + torch.cos(torch.arange(y.numel(), device="cuda")) / 2
            return (y * back.reshape(y.shape)).sum(), y

        return vmap(grad(score, argnums=(0, 1), has_aux=True))(weights, x)

    found, again = (results(layers["layer"], x.to(dtype)) for _ in range(2))
    with arithmetic("float32"):
        expected = results(plain, x)
    pairs = zip(tree.leaves(found), tree.leaves(again), tree.leaves(expected), strict=True)
    for (path, a), (_, b), (_, c) in pairs:
        assert torch.equal(a, b)
        assert (a.double() - c.double()).norm() <= error * c.double().norm(), path


@pytest.mark.parametrize(
    ("plain", "shape"),
    [
        (nn.Conv2d(32, 64, 5, padding=2), (8, 32, 16, 16)),
        (nn.Conv2d(128, 128, 3, padding=1), (8, 128, 8, 8)),
        (nn.Linear(600, 70), (50, 600)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_gradients_of_weights_are_nearer_than_tf32(plain, shape):
    """Compiled, as steps are.  Operands cut off at TF32's bits would be off by 7e-4."""
    from gcfed.kernels.fused import FusedConv2d, FusedLinear  # needs Triton

    layer = (FusedConv2d if isinstance(plain, nn.Conv2d) else FusedLinear)(plain)
    weights = {n: p.detach().float().cuda() for n, p in plain.named_parameters()}
    x = torch.rand(*shape, device="cuda", dtype=torch.float32)

    def score(layer, p, x):
        y = functional_call(layer, p, (x,))
        back = 1 + torch.cos(torch.arange(y.numel(), device="cuda", dtype=torch.float64)) / 2
        return (y * back.reshape(y.shape).to(y.dtype)).sum()

    trace = make_core_fx(grad(partial(score, layer)))(weights, x)  # Dynamo would lose gradients
    found = torch.compile(trace)(weights, x)["weight"]
    doubles = {n: w.double() for n, w in weights.items()}
    expected = grad(partial(score, plain))(doubles, x.double())["weight"]
    assert (found - expected).norm() <= 2e-5 * expected.norm()


@pytest.mark.parametrize("side", [8, 32, 40])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
def test_a_group_norm_adds_its_residual_before_the_relu(dtype, error, side):
    from gcfed.kernels.fused import FusedGroupNorm  # needs Triton

    norm = nn.GroupNorm(8, 32, device="cuda", dtype=torch.float32)
    x, residual = torch.randn(2, 3, 4, 32, side, side, device="cuda").to(dtype).float()

    def results(layer, *inputs):
        def score(p, x, residual):
            y = layer(p, x, residual).double()
            back = 1 + torch.cos(torch.arange(y.numel(), device="cuda")) / 2
            return (y * back.reshape(y.shape)).sum(), y

        found = vmap(grad(score, argnums=(0, 1, 2), has_aux=True), in_dims=(None, 0, 0))
        return found(dict(norm.named_parameters()), *inputs)

    fused = partial(functional_call, FusedGroupNorm(norm, relu=True))
    found = results(lambda p, *xs: fused(p, xs), x.to(dtype), residual.to(dtype))
    expected = results(lambda p, x, r: torch.relu(functional_call(norm, p, (x,)) + r), x, residual)
    for (path, a), (_, b) in zip(tree.leaves(found), tree.leaves(expected), strict=True):
        assert (a.double() - b.double()).norm() <= error * b.double().norm(), path


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_seeds_by_operators_together_have_the_bits_of_each_alone(precision, tmp_path):
    settings = {"model": "cnn", "device": "cuda", "precision": precision, "rounds": 3}
    settings |= {"engine": "fused"}
    configs = [tiny(**settings, seed=seed) for seed in (0, 1)]
    run(configs[0], tmp_path / "alone")
    run_together(configs, [tmp_path / "a", tmp_path / "b"])
    assert lines(tmp_path / "a") == lines(tmp_path / "alone")


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_operators_learn_as_the_layers_do(precision, tmp_path):
    """Forty rounds from the same weights: the accuracy is the same but for noise."""
    settings = {"dataset": "fashion10k", "model": "cnn", "device": "cuda", "precision": precision}
    settings |= {"rounds": 40, "steps": 20, "epochs": None, "lr": 0.02, "cohort": 10}
    found = {}
    for engine in ("fused", "streams"):
        run(tiny(**settings, engine=engine), tmp_path / engine)
        found[engine] = [line["test_accuracy"] for line in lines(tmp_path / engine)]
    last = {engine: sum(values[-5:]) / 5 for engine, values in found.items()}
    assert last["fused"] > 0.5 and abs(last["fused"] - last["streams"]) < 0.03


KEPT = """
import sys
from gcfed import Config, run
run(Config(**{settings}), {folder!r})
print("compiler:", "torch._dynamo" in sys.modules or "torch._inductor" in sys.modules)
"""


@pytest.mark.parametrize("algorithm", ["gcfed", "moon", "fedsam + scaffold"])
def test_a_step_is_found_again_by_another_process(algorithm, tmp_path):
    """The first one compiles it; the second has the same bits, without torch's compiler."""
    config = tiny(algorithm=algorithm, model="cnn", device="cuda", precision="bf16", engine="fused")
    settings, found = config.model_dump(exclude_unset=True), []
    for folder in (tmp_path / "first", tmp_path / "second"):
        done = subprocess.run(
            [sys.executable, "-c", KEPT.format(settings=settings, folder=str(folder))],
            env={**os.environ, "GCFED_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(done.stdout)
    assert "compiler: True" in found[0] and "compiler: False" in found[1]
    assert lines(tmp_path / "first") == lines(tmp_path / "second")
