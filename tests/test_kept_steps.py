"""Compiled steps that are kept on the disk, and what they are known by."""

import json
import subprocess
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from test_recorded import on_cpu
from torch import Tensor
from torch.func import vmap
from torch.utils.checkpoint import checkpoint

from gcfed import parse
from gcfed.core import torch_compiler, torch_internals
from gcfed.core.compiled_code import (
    CompiledStep,
    KernelCode,
    StepCode,
    are_aligned,
    as_plain,
    from_plain,
    loaded,
)
from gcfed.core.torch_compiler import compiler_settings
from gcfed.core.torch_internals import _grad
from gcfed.engines import kept_steps
from gcfed.engines.any_number import InParts
from gcfed.engines.kept_steps import KeptStep, what_it_does
from gcfed.engines.vectorized import Vectorized
from gcfed.errors import reason
from gcfed.simulation.loop import simulate

CODE = StepCode(
    source="from torch._inductor.async_compile import AsyncCompile\n"
    "async_compile = AsyncCompile()\n"
    "async_compile.wait(globals())\n"
    "def call(args):\n"
    "    x, y = args\n"
    "    args.clear()\n"
    "    with maybe_profile(False):\n"
    "        x.copy_(extern_kernels.mm(x, y))\n"
    "    return ()\n",
    kernels={},
)


def scaled(number):
    """A step that multiplies the clients' rows by shared weights and by a number."""

    def step(x, w):
        x.copy_(vmap(lambda row: (row @ w) * number)(x))

    return step


@pytest.fixture
def arguments():
    torch.manual_seed(0)
    return torch.randn(3, 4), torch.randn(4, 4)


MAPPED = [True, False]


class TestWhatAStepIsKnownBy:
    def test_the_same_step_twice(self, arguments):
        one, other = (what_it_does(scaled(2.0), arguments, MAPPED) for _ in range(2))
        assert one == other

    def test_a_number_in_it(self, arguments):
        one, other = (what_it_does(scaled(x), arguments, MAPPED) for x in (2.0, 2.0000001))
        assert one != other

    def test_a_constant_in_it(self, arguments):
        one, other = (
            what_it_does(scaled(torch.tensor([1.0, 2.0, 3.0, x])), arguments, MAPPED)
            for x in (4.0, 5.0)
        )
        assert one != other

    @pytest.mark.parametrize("piece", [Tensor.detach, lambda c: c.view(-1), lambda c: c[None]])
    def test_constants_in_one_memory(self, arguments, piece):
        def step(number):
            one, other = torch.tensor([1.5, number]).unbind()
            return lambda x, w: x.copy_(vmap(lambda row: row * piece(one) + other)(x))

        one, other = (what_it_does(step(x), arguments, MAPPED) for x in (2.25, 3.25))
        assert one != other

    def test_what_is_made_of_a_constant(self, arguments):
        def step(number):
            constant = torch.tensor([1.5, number])
            return lambda x, w: x.copy_(x * constant.flip(0)[0] + constant.flip(0)[1])

        one, other = (what_it_does(step(x), arguments, MAPPED) for x in (2.25, 3.25))
        assert one != other

    def test_nothing_is_known_of_large_constants(self, arguments):
        large = torch.zeros(2000)
        with pytest.raises(ValueError, match="so many numbers"):
            what_it_does(lambda x, w: x.copy_(x + large.sum()), arguments, MAPPED)

    def test_which_tensors_are_the_clients(self):
        x, y = torch.ones(3, 4), torch.ones(2, 4)
        one, other = (
            what_it_does(lambda x, y: x.copy_(x + 1), (x, y), [True, own]) for own in (True, False)
        )
        assert one != other

    def test_memory_of_what_is_needed_no_more_is_let_go(self, arguments):
        """And what comes to lie there is told from it."""
        kept = []

        def step(x, w):
            for _ in range(20):
                y = x + 1
                kept.append(weakref.ref(y.untyped_storage()))
                x.copy_(y * 2)

        assert what_it_does(step, arguments, MAPPED) == what_it_does(step, arguments, MAPPED)
        assert sum(ref() is not None for ref in kept) <= 1

    def test_another_operation(self, arguments):
        other = lambda x, w: x.copy_(vmap(lambda row: (row @ w) + 2.0)(x))  # noqa: E731
        assert what_it_does(scaled(2.0), arguments, MAPPED) != what_it_does(
            other, arguments, MAPPED
        )

    def test_which_tensor_is_written(self):
        x, y = torch.ones(3, 4), torch.ones(3, 4)
        one = what_it_does(lambda x, y: x.copy_(y), (x, y), [True, True])
        other = what_it_does(lambda x, y: y.copy_(x), (x, y), [True, True])
        assert one != other

    def test_how_its_tensors_are(self, arguments):
        x, w = arguments
        known = what_it_does(scaled(2.0), (x, w), MAPPED)
        assert known != what_it_does(scaled(2.0), (x.bfloat16(), w.bfloat16()), MAPPED)
        assert known != what_it_does(scaled(2.0), (x[:, :2], w[:2, :2]), MAPPED)

    @pytest.mark.parametrize("twin", [Tensor.conj, torch._neg_view])
    def test_whether_a_view_is_read_as_it_lies_there(self, twin):
        x, w = torch.ones(3, 4, dtype=torch.complex64), torch.ones(4, 4, dtype=torch.complex64)

        def step(which):
            return lambda x, w: x.copy_((w, twin(w))[which][0])

        one, other = (what_it_does(step(which), (x, w), MAPPED) for which in (0, 1))
        assert one != other

    def test_not_how_many_clients_there_are(self, arguments):
        x, w = arguments
        known = what_it_does(scaled(2.0), (x, w), MAPPED)
        assert known == what_it_does(scaled(2.0), (x[:1], w), MAPPED)
        assert known == what_it_does(scaled(2.0), (x.repeat(4, 1), w), MAPPED)

    def test_not_the_numbers_in_its_tensors(self, arguments):
        x, w = arguments
        known = what_it_does(scaled(2.0), (x, w), MAPPED)
        assert known == what_it_does(scaled(2.0), (x + 1, w * 3), MAPPED)

    def test_its_tensors_are_left_alone(self, arguments):
        before = [x.clone() for x in arguments]
        what_it_does(scaled(2.0), arguments, MAPPED)
        assert all(map(torch.equal, arguments, before))


class TestThePlaceOfAStep:
    @pytest.fixture(autouse=True)
    def on_a_card(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")

    def place(self, arguments, number=2.0):
        return KeptStep.of(scaled(number), arguments, MAPPED)

    def find(self, arguments, number=2.0):
        return self.place(arguments, number).find([x.clone() for x in arguments])

    def compiled(self, code=CODE, most=8):
        step = CompiledStep(lambda tensors: tensors[0].mul_(2))
        step.code = lambda: code
        return InParts(step, MAPPED, most)

    def keep(self, arguments, code=CODE):
        """A step that ran as often as it does before it is recorded."""
        step = self.place(arguments).kept(self.compiled(code))
        for _ in range(2):
            step(torch.ones(3, 4), torch.ones(4, 4))
        return step

    def test_found_once_it_ran_as_it_will_be_found(self, arguments):
        x, w = arguments
        step, ones = self.place(arguments).kept(self.compiled()), torch.ones(3, 4)
        step(ones, w)
        assert torch.equal(ones, torch.full((3, 4), 2.0)) and self.find(arguments) is None
        step(ones, w)
        assert torch.equal(ones, torch.full((3, 4), 2.0) @ w)
        found, expected = self.find(arguments), x @ w
        found(x, w)
        assert torch.equal(x, expected)
        step(ones.fill_(1.0), w)
        assert torch.equal(ones, torch.full((3, 4), 2.0))

    def test_as_many_clients_at_a_time_as_were_compiled_for(self, arguments):
        step = self.place(arguments).kept(self.compiled(most=2))
        step(torch.ones(3, 4), arguments[1])  # in two parts: it runs twice
        assert self.find(arguments).most == 2

    def test_another_step_has_another(self, arguments):
        self.keep(arguments)
        assert self.find(arguments, number=3.0) is None

    @pytest.mark.parametrize(
        "change",
        [
            lambda patch: patch.setattr(torch.cuda, "get_device_name", lambda device: "other"),
            lambda patch: patch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
            lambda patch: patch.setattr(torch, "__version__", "2.99"),
            lambda patch: patch.setattr(kept_steps, "hash_of_package", lambda: ""),
            lambda patch: patch.setattr(torch, "get_float32_matmul_precision", lambda: "medium"),
            lambda patch: patch.setattr(kept_steps, "compiler_settings", lambda: "a = 1"),
        ],
        ids=["card", "environment", "version", "package", "precision", "compiler"],
    )
    def test_other_surroundings_have_others(self, arguments, monkeypatch, change):
        self.keep(arguments)
        assert self.find(arguments) is not None
        change(monkeypatch)
        assert self.find(arguments) is None

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"source": "1/0", "kernels": {}}'])
    def test_a_broken_file_is_as_none(self, arguments, tmp_path, text):
        self.keep(arguments)
        (file,) = (tmp_path / "gcfed").iterdir()
        file.write_text(text)
        assert self.find(arguments) is None

    def test_a_kernel_that_is_gone(self, arguments):
        gone = KernelCode("/nowhere/kernel.cubin", "kernel", 0, "def run(): pass")
        self.keep(arguments, CODE._replace(kernels={"kernel": gone}))
        assert self.find(arguments) is None

    @pytest.mark.parametrize("code", [None, CODE._replace(source="def call(args):\n    1 / 0")])
    def test_what_cannot_be_kept_runs_all_the_same(self, arguments, code):
        step, x = self.place(arguments).kept(self.compiled(code)), torch.ones(2)
        step(x, arguments[1])
        assert self.place(arguments).is_new
        step(x, arguments[1])
        assert x.tolist() == [4.0, 4.0]
        assert self.find(arguments) is None and not self.place(arguments).is_new

    def test_a_step_is_new_until_it_was_compiled(self, arguments):
        assert self.place(arguments).is_new
        self.keep(arguments)
        assert not self.place(arguments).is_new and self.place(arguments, number=3.0).is_new

    def test_a_disk_that_takes_nothing(self, arguments, tmp_path):
        (tmp_path / "gcfed").write_text("in the way")
        self.keep(arguments)
        assert self.find(arguments) is None

    def test_what_torch_compiles_later_is_left_to_it(self, arguments):
        step = InParts(abs, MAPPED, 8)
        assert self.place(arguments).kept(step) is step and not self.place(arguments).is_new

    def test_kernels_take_no_crooked_tensors(self, arguments):
        x, w = arguments
        crooked = torch.zeros(13)[1:].view(3, 4)
        assert are_aligned([x, w]) and not are_aligned([crooked])
        assert self.place((crooked, w)) is None

    def test_a_step_that_fails_has_none(self, arguments):
        assert KeptStep.of(lambda x, w: 1 / 0, arguments, MAPPED) is None


def test_code_as_plain_data():
    kernel = KernelCode("folder/k.cubin", "k", 16, "def run(x, stream):\n    pass")
    code = StepCode("def call(args):\n    return ()", {"k": kernel})
    assert from_plain(json.loads(json.dumps(as_plain(code)))) == code


def test_code_runs_without_the_compiler(arguments):
    x, w = arguments
    expected = x @ w
    loaded(CODE, device=0)(x, w)
    assert torch.equal(x, expected)


@pytest.mark.parametrize(
    ("source", "constants"),
    [("extern_kernels.convolution(x, w)", None), ("", {"constant": torch.ones(1)})],
)
def test_code_that_needs_the_compiler(source, constants):
    step = CompiledStep(SimpleNamespace(source_code=source, constants=constants))
    with pytest.raises(ValueError, match="only the compiler knows"):
        step.code()


def test_a_compiler_that_knows_nothing_of_determinism(monkeypatch):
    """Before torch 2.10."""
    from torch._inductor import config

    monkeypatch.delitem(config._config, "deterministic")
    assert compiler_settings() == ""
    torch_compiler._tell_compiler()


def test_settings_of_the_compiler():
    assert compiler_settings() == ""
    from torch._inductor import config

    assert compiler_settings() == ""
    with config.patch(dynamic_scale_rblock=False):
        pass  # as it was, and so nobody's setting
    with config.patch(deterministic=True):  # which is torch's own setting
        assert compiler_settings() == ""
    with config.patch(max_autotune=not config.max_autotune):
        assert "max_autotune" in compiler_settings()


@pytest.mark.parametrize("aux", [False, True])
def test_gradients_are_torchs(aux):
    torch.manual_seed(0)
    tree = {"a": torch.randn(5, 3), "b": [torch.randn(5, 3)], "unused": torch.randn(5)}

    def loss(tree):
        value = (tree["a"].sin() * tree["b"][0].exp()).sum()
        return (value, tree["a"] * 2) if aux else value

    expected = torch.func.grad(loss, has_aux=aux)
    torch.testing.assert_close(_grad(loss, tree, aux), expected(tree), rtol=0, atol=0)
    found = vmap(lambda one: _grad(loss, one, aux))(tree)
    torch.testing.assert_close(found, vmap(expected)(tree), rtol=0, atol=0)


def test_gradients_of_gradients_are_torchs():
    x = torch.randn(4)

    def loss(x):
        return (x**4).sum()

    found = _grad(lambda x: (_grad(loss, x, False) ** 2).sum(), x, False)
    expected = torch.func.grad(lambda x: (torch.func.grad(loss)(x) ** 2).sum())(x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("aux", [False, True])
@pytest.mark.parametrize(
    "given", [lambda x: x, lambda x: x[:1], lambda x: 1.0, lambda x: [x.sum(), x], lambda x: None]
)
def test_what_is_no_number_is_refused_in_torchs_words(given, aux, monkeypatch):
    x, errors = torch.ones(3), []
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    for gradient in (torch_internals.grad(given, has_aux=aux), torch.func.grad(given, has_aux=aux)):
        with pytest.raises(RuntimeError) as error:
            gradient(x)
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_gradient_checkpointing_is_refused_in_plain_words():
    """As by torch.func.grad, which other tests see."""

    def saving(x):
        return checkpoint(torch.sin, x, use_reentrant=False).sum()

    with pytest.raises(RuntimeError) as error:
        _grad(saving, torch.ones(3), False)
    assert "checkpointing: switch it off" in reason(error.value)


def test_a_constant_has_no_gradient():
    found = _grad(lambda tree: torch.tensor(3.0), {"a": torch.ones(2)}, False)
    assert found["a"].tolist() == [0.0, 0.0]


def test_a_found_step_is_neither_traced_nor_compiled(make_setup, monkeypatch, close):
    """The program of a second engine finds what the first one compiled."""
    kept = []

    class Place:
        def find(self, tensors):
            if not kept:
                return None
            with torch.no_grad():  # which writes into them, as the true one does
                kept[0](*tensors)
            return kept[0]

        def kept(self, compiled):
            kept.append(compiled)
            return compiled

    def last(engine):
        monkeypatch.setattr(engine.recorder, "place", lambda *_: Place())
        *_, result = simulate(make_setup(parse("gcfed"), engine=engine))
        return result

    first, second = on_cpu(Vectorized), on_cpu(Vectorized)
    one, other = last(first), last(second)
    assert first.recorder.compiled == 1 and second.recorder.compiled == 0
    close(one.server, other.server, tolerance=0)


def test_a_run_on_a_cpu_imports_no_compiler(tmp_path):
    """It would make a start by a second longer."""
    code = (
        "import sys\n"
        "from gcfed.cli.app import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    wanted = 'torch._dynamo', 'torch._inductor', 'sympy', 'triton'\n"
        "    print('imported:', [name for name in wanted if name in sys.modules])\n"
    )
    words = ["run", "--rounds", "1", "--dataset", "fashion10k", "--model", "mlp"]
    words += ["--set", "engine=sequential", "--device", "cpu", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "imported: []" in done.stdout
