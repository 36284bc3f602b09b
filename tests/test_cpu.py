"""What the CPU says of itself, and how threads wait on it."""

import os
import subprocess
import sys

import pytest
import torch

from gcfed import cpu

INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R): Platinum
flags\t\t: fpu vme
power management:

processor\t: 1
vendor_id\t: another
"""


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Writes what the system says of its CPU."""

    def tell(text):
        if text is not None:
            (tmp_path / "cpuinfo").write_text(text)
        cpu._told.cache_clear()

    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    yield tell
    cpu._told.cache_clear()


@pytest.mark.parametrize(
    ("text", "vendor", "processor"),
    [
        (INTEL, "GenuineIntel", "Intel(R) Xeon(R): Platinum (family 6, model 143, AVX2)"),
        ("processor : 0\nBogoMIPS : 50\n", "", "arm64 (AVX2)"),
        ("", "", "arm64 (AVX2)"),
        (None, "", "arm64 (AVX2)"),
    ],
    ids=["Intel", "ARM", "empty", "none"],
)
def test_what_a_cpu_says(told, text, vendor, processor):
    told(text)
    assert (cpu.cpu_vendor(), cpu.processor()) == (vendor, processor)


def test_a_name_that_is_no_utf8(told, tmp_path):
    (tmp_path / "cpuinfo").write_bytes(b"vendor_id : X\nmodel name : Virtual\xae\n")
    told(None)
    assert cpu.processor() == "Virtual\N{REPLACEMENT CHARACTER} (AVX2)"


@pytest.mark.parametrize(
    ("set_before", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_threads_spin_briefly_unless_the_user_says_otherwise(set_before, spins):
    """A command settles it before torch is imported, which is when OpenMP looks."""
    env = {k: v for k, v in os.environ.items() if k not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    program = """
import os, sys
from gcfed.cli import app, main

app.app = lambda **_: print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
main()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=env | set_before, capture_output=True, text=True)
    assert done.stdout.split() == [spins, "False"], done.stderr
