"""Which data a run is of: a hash of its examples."""

import hashlib
import json
from contextlib import suppress
from functools import cached_property
from threading import Thread

import numpy as np
import torch

from gcfed.core import tree
from gcfed.core.lazy import LazyInputs, Stored, loaded
from gcfed.data import Dataset
from gcfed.simulation.lines import weights_sha256

SAMPLE = 2**28  # bytes of a tensor that a fingerprint looks at
READ = 8  # inputs that it reads, where they are read when they are needed


class Fingerprint:
    """The hash of a data set, made once for all who ask.

    If ``ahead``, a thread makes it beside what is done until it is asked for.  Inputs that are read
    when they are needed are read by who asks: that runs code of the user's.
    """

    def __init__(self, dataset: Dataset, *, ahead: bool = False) -> None:
        self._dataset = dataset
        self._thread: Thread | None = None
        if ahead and not any(isinstance(x, LazyInputs) for x in (dataset.train.x, dataset.test.x)):
            self._thread = Thread(target=self._make, daemon=True)
            self._thread.start()

    def sha256(self) -> str:
        if self._thread is not None:
            self._thread.join()
        return self._found

    def _make(self) -> None:
        with suppress(Exception):  # it shows where the hash is asked for
            self._found  # noqa: B018

    @cached_property
    def _found(self) -> str:
        found = fingerprint(self._dataset)
        del self._dataset  # a run may hold it on another device alone
        return found


def fingerprint(dataset: Dataset) -> str:
    """A hash of the examples, or where there are many of evenly spaced ones.

    Of inputs that are read when they are needed a few count, beside the labels of all.
    """
    given = [part._replace(x=_in_memory(part.x)) for part in (dataset.train, dataset.test)]
    examples = dict(tree.leaves(tuple(given)))
    shapes = [list(x.shape) for x in examples.values()]
    found = hashlib.sha256(json.dumps([shapes, dataset.num_classes]).encode())
    found.update(weights_sha256(tree.map(_sample, examples)).encode())
    for name, values in sorted(dataset.keys.items()):
        found.update(f"{name} {values.dtype}".encode())
        found.update(_bytes(values))
    return found.hexdigest()


def _in_memory(x: Stored) -> Stored:
    return loaded(x[:: -(-len(x) // READ)]) if isinstance(x, LazyInputs) else x


def _sample(x: torch.Tensor) -> torch.Tensor:
    return x[:: max(1, -(-x.numel() * x.element_size() // SAMPLE))]


def _bytes(values: np.ndarray) -> bytes:
    return "\n".join(map(str, values)).encode() if values.dtype == object else values.tobytes()
