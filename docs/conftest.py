"""The pages' examples run as a reader would run them, whatever the tests before them set."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gcfed import ALGORITHMS, DATASETS, LOSSES, METRICS, MODELS, PARTITIONS


@pytest.fixture(autouse=True)
def as_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, in float32, by a fixed seed; what a page registers is forgotten."""
    monkeypatch.chdir(tmp_path)
    for registry in (ALGORITHMS, DATASETS, LOSSES, METRICS, MODELS, PARTITIONS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(before)
