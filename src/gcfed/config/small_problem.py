"""A small problem of one's own, on which `gcfed check` tries laws."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gcfed.config.materials import module_for, read_dataset
from gcfed.config.settings import KEYS, make, override, unknown_key
from gcfed.config.targets import loss_text, make_loss
from gcfed.config.trial import with_head_found, with_mixing_found
from gcfed.core import tree
from gcfed.core.lazy import loaded
from gcfed.core.model import Model
from gcfed.core.types import Examples, Inputs, Transform
from gcfed.data import Dataset, FederatedData
from gcfed.errors import InputError
from gcfed.simulation.setup import Setup

TAKEN = (
    *("model", "dataset", "data_dir", "loss", "buffers", "optimizer", "lr", "momentum"),
    *("weight_decay", "lr_schedule", "lr_decay", "server_lr", "weighting", "batch_size", "epochs"),
)
"""The settings that make another problem; the others say how many clients train, and where."""


def small_problem(values: Mapping[str, Any], like: Setup) -> Setup:
    """``like`` with these settings: its clients hold as many examples as there, in float64."""
    for key in values:
        if key not in KEYS:
            raise InputError(unknown_key(key))
        if key not in TAKEN:
            raise InputError(f"check takes no {key}: of the settings there are {', '.join(TAKEN)}")
    short, sgd = like.schedule, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
    usual = {**sgd, "batch_size": short.batch_size, "epochs": short.epochs, "fill": short.fill}
    usual |= {"rounds": short.rounds, "cohort": short.cohort_size}
    config = make(override(usual, values), "--set")
    held = Examples(like.data.x, like.data.y)
    dataset = Dataset(train=held, test=held, num_classes=like.data.num_classes)
    if "dataset" in values:
        whole = read_dataset(config.dataset, config.data_dir)
        count = len(whole.train.y)
        x, y = whole.train.take(torch.arange(len(held.y)) * count // len(held.y))
        some = Examples(_double(loaded(x)), y.double() if y.is_floating_point() else y)
        transform = None if whole.transform is None else partial(_read, whole.transform)
        dataset = replace(whole, train=some, test=some, keys={}, transform=transform)
    loss, model = make_loss(loss_text(config, dataset, None), dataset, None), like.model
    if "model" in values or "dataset" in values:
        model = with_head_found(Model(module_for(config.model, dataset).double()), dataset)
        model = with_mixing_found(model, dataset, loss)
    return replace(
        like,
        model=model,
        data=FederatedData(*dataset.train, like.data.parts, dataset.num_classes),
        optimizer=config.local_optimizer(),
        schedule=config.schedule(),
        loss=loss,
        transform=dataset.transform,
        buffers=config.buffers,
    )


def _read(transform: Transform, x: Inputs, key: Tensor | None) -> Inputs:
    return _double(transform(x, key))


def _double(x: Inputs) -> Inputs:
    def cast(part: Tensor) -> Tensor:
        return part.double() if part.is_floating_point() else part

    return tree.map(cast, x)
