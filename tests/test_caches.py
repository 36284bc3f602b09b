"""Where data and compiled code are kept, and what a start does not import for nothing."""

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gcfed.caches import CompiledNote, cache_dir, keep_compiled_code, nothing_is_compiled
from gcfed.data import data_dir

COMPILED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    keep_compiled_code.cache_clear()
    for name in ("GCFED_CACHE", "GCFED_DATA", "XDG_CACHE_HOME", *COMPILED):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other places")
def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_dir() == data_dir() == Path("/home/me/.cache/gcfed")
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    assert cache_dir() == data_dir() == Path("/fast/gcfed")
    monkeypatch.setenv("GCFED_CACHE", "~/mine")
    assert cache_dir() == data_dir() == Path("/home/me/mine")
    monkeypatch.setenv("GCFED_DATA", "/data")
    assert cache_dir() == Path("/home/me/mine") and data_dir() == Path("/data")


def test_compiled_code_is_kept_by_version_and_device(monkeypatch, tmp_path):
    monkeypatch.setenv("GCFED_CACHE", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/as/the/user/says")
    keep_compiled_code("2.13.0+cu130", "NVIDIA H200 / 141 GB")
    folder = tmp_path / "compiled" / "torch-2.13.0+cu130-NVIDIA-H200-141-GB"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "inductor")
    assert os.environ["TRITON_CACHE_DIR"] == "/as/the/user/says"


def test_torchs_own_folder_is_nobodys_choice(tmp_path):
    """The import of its compiler names it, so what is kept would be gone with the next restart."""
    code = (
        "import os\n"
        "import torch._dynamo\n"
        "from gcfed.caches import keep_compiled_code\n"
        "print(os.environ['TORCHINDUCTOR_CACHE_DIR'])\n"
        "keep_compiled_code('2', 'a card')\n"
        "print(os.environ['TORCHINDUCTOR_CACHE_DIR'])\n"
    )
    env = {**os.environ, "GCFED_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    torchs, ours = done.stdout.splitlines()
    assert Path(torchs).name.startswith("torchinductor_")
    assert ours == str(tmp_path / "compiled" / "torch-2-a-card" / "inductor")


def test_a_folder_like_torchs_own_is_somebodys_choice(monkeypatch, tmp_path):
    monkeypatch.setenv("GCFED_CACHE", str(tmp_path))
    mine = f"{tempfile.gettempdir()}/torchinductor_of_mine"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", mine)
    torchs = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}/triton/0"
    monkeypatch.setenv("TRITON_CACHE_DIR", torchs)
    keep_compiled_code("2", "a card")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == mine
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "compiled/torch-2-a-card/triton")


def test_what_was_compiled_is_noted_beside_it(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "code"))
    assert not CompiledNote("a step").is_there() and nothing_is_compiled()
    CompiledNote("a step").write()
    CompiledNote("a step").write("its code")
    assert CompiledNote("a step").read() == "its code"
    assert not nothing_is_compiled()
    assert CompiledNote("a step").is_there() and not CompiledNote("another").is_there()
    shutil.rmtree(tmp_path / "code")
    assert not CompiledNote("a step").is_there()
    (tmp_path / "code").write_text("a file, where the folder should be")
    CompiledNote("a step").write()
    assert not CompiledNote("a step").is_there()


def test_a_run_imports_nothing_that_it_does_not_use(tmp_path):
    """Each of these takes a tenth of a second or more: fetching, figures, tests of significance."""
    code = (
        "import sys\n"
        "from gcfed.cli import training\n"
        "from gcfed.config.settings import Config\n"
        "config = Config(dataset='synthetic(train=40, test=10)', model='mlp(hidden=(4,))', "
        "clients=4, cohort=2, rounds=1, engine='sequential', precision='float32')\n"
        "training.run_one(config, __import__('pathlib').Path('a'), quiet=True)\n"
        "heavy = {'matplotlib', 'pandas', 'scipy', 'pooch', 'requests', 'mlflow', 'wandb'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"
