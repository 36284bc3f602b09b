"""What is tried before a run: whether the model, the loss and the metrics can read the data."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gcfed.config.label_checks import (
    check_classes,
    check_labels,
    check_places,
    warn_of_equal_labels,
)
from gcfed.config.side_effects import side_effects_refused
from gcfed.core import keys, tree
from gcfed.core.heads import trace_head
from gcfed.core.lazy import LazyInputs, loaded
from gcfed.core.losses import (
    Loss,
    is_cross_entropy,
    reads_probabilities,
)
from gcfed.core.metrics import AnyMetric, Metric, PerExample
from gcfed.core.mixing import note_mixing
from gcfed.core.model import Model
from gcfed.core.server import Server
from gcfed.core.types import Examples, Inputs
from gcfed.data import Dataset
from gcfed.errors import InputError, reason
from gcfed.simulation import evaluation
from gcfed.simulation.setup import Setup
from gcfed.simulation.snapshot import start

TRIED = 3  # examples, so that a mean over them can be told from a number for each


def try_model(setup: Setup, dataset: Dataset) -> Tensor:
    """Show the model and the loss some examples, of which the outputs are given.

    What fails is refused before a run.
    """
    x, y = loaded(tree.take(dataset.test.x, slice(TRIED))), dataset.test.y[:TRIED]
    x = tree.map(torch.clone, x)  # the model may write into it
    server = start(setup).server
    try:
        with side_effects_refused(setup, server, x):
            logits = evaluation.predict(setup, server, x).logits
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"the model cannot read an example of {_shapes(x)}: {_first_line(error)}"
            f"{_advice(setup, server, x)}"
        ) from error
    _try_extremes(setup, server, dataset)
    classes = is_cross_entropy(setup.loss) and dataset.has_classes and logits.ndim == 2
    if classes and logits.shape[1] < dataset.num_classes:
        given, needed = logits.shape[1], dataset.num_classes
        lowest, highest = (int(each) for each in dataset.train.y.aminmax())
        advice = ""
        if (given, needed) == (1, 2):
            advice = ": loss='bce' reads one logit of two classes"
        elif lowest > 0 and highest - lowest < given:
            advice = f": labels count from 0, and these are from {lowest} to {highest}"
        raise InputError(f"the model gives {given} logits, and there are {needed} classes{advice}")
    check_labels(setup.loss, dataset)
    check_places(setup.loss, dataset, logits)
    _try_function("loss", setup.loss, logits, y)
    _try_training(setup, server, dataset.train)
    return logits


def _try_extremes(setup: Setup, server: Server, dataset: Dataset) -> None:
    """Show the model the examples with the extreme whole numbers: words it may not know."""
    for split, examples in (("train", dataset.train), ("test", dataset.test)):
        if isinstance(examples.x, LazyInputs):
            continue
        for _, part in tree.leaves(examples.x):
            if part.dtype not in (torch.int32, torch.int64) or not part.numel():
                continue
            rows = part.reshape(len(part), -1)
            for i in {int(rows.amax(1).argmax()), int(rows.amin(1).argmin())}:
                try:
                    x = tree.take(examples.x, slice(i, i + 1))
                    evaluation.predict(setup, server, x).logits.tolist()  # a GPU errs late
                except Exception as error:
                    lowest, highest = (int(each) for each in rows[i].aminmax())
                    raise InputError(
                        f"the model cannot read {split} example {i}, whose numbers are from "
                        f"{lowest} to {highest}: {_first_line(error)}"
                    ) from error


def try_metrics(
    metrics: Mapping[str, AnyMetric], setup: Setup, dataset: Dataset, logits: Tensor
) -> None:
    """Show metrics what the model gives of the first test examples; what fails is refused."""
    y = dataset.test.y[:TRIED]
    for name, metric in metrics.items():
        if isinstance(metric, Metric) and metric.of is not None:
            _try_function(f"metric {name}", metric.of, *metric.pair(logits, y, setup.loss))
            if metric.classes:
                one_each = logits.numel() == y.numel()
                check_classes(name, dataset, one_each=one_each)
                if one_each and reads_probabilities(setup.loss):
                    raise InputError(
                        f"metric {name} reads logits, and the loss reads probabilities: leave the "
                        "sigmoid out of the model and give loss='bce'"
                    )
        try:
            _try_metric(metric, setup, logits, y)
        except Exception as error:
            said = f"metric {name} cannot judge outputs of shape {list(logits.shape[1:])}"
            raise InputError(f"{said}: {_first_line(error)}") from error
    warn_of_equal_labels(metrics, dataset.test.y)


def with_head_found(model: Model, dataset: Dataset) -> Model:
    """The model with its head where the first example shows it to be."""
    return trace_head(model, _as_read(dataset, torch.arange(1)))


def with_mixing_found(model: Model, dataset: Dataset, loss: Loss) -> Model:
    """The model, marked if it or the loss looks across a batch, which then cannot be padded."""
    y = dataset.train.y
    others = (y != y[0]).reshape(len(y), -1).any(1).nonzero().flatten()
    chosen = torch.tensor([0, 1 % len(y), int(others[-1]) if len(others) else 2 % len(y)])
    return note_mixing(model, Examples(_as_read(dataset, chosen), y[chosen]), loss)


def _as_read(dataset: Dataset, index: Tensor) -> Inputs:
    """Examples to train on, as the model reads them."""
    x = loaded(dataset.train.take(index).x)
    return x if dataset.transform is None else dataset.transform(x, None)


def _try_training(setup: Setup, server: Server, examples: Examples) -> None:
    """Show the model two and then three examples in training mode, and the loss what it gives."""
    for size in (2, 3):
        x, y = examples.take(torch.arange(size) % len(examples.y))
        try:
            x = loaded(x)
            with side_effects_refused(setup, server, x):
                logits: Any = train_output(setup, server, x)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"the model reads examples in evaluation and not in training: {reason(error)}"
            ) from error
        if logits.ndim == 0 or len(logits) != size:
            raise InputError(
                f"in training the model gives outputs of shape {list(logits.shape)} for {size} "
                "examples: the first axis is theirs"
            )
        _try_function("loss", setup.loss, logits, y)


def train_output(setup: Setup, server: Server, x: Inputs) -> Tensor:
    """What the model gives of a batch in training mode; nothing is kept of it."""
    key = keys.key(0).to(setup.device)
    if setup.transform is not None:
        x = setup.transform(x, key)
    with torch.no_grad(), keys.untouched(), setup.arithmetic():
        out, _ = setup.client_task.forward(
            server.params, x, buffers=server.buffers, train=True, key=key
        )
    return out.logits


def _try_metric(metric: AnyMetric, setup: Setup, logits: Tensor, y: Tensor) -> None:
    if isinstance(metric, Metric):
        columns = metric.columns(logits, y, setup.loss)
        metric.result(torch.stack([column.mean() for column in columns]))
        return
    judgement = metric.begin(y.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are few examples, say
        judgement.add(logits, y)
        judgement.result()


def _try_function(name: str, function: PerExample, logits: Tensor, y: Tensor) -> None:
    """Refuse a loss or a metric that does not give a number, or several, for each example."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch warns of is refused below
            found: Any = function(logits, y)
            again: Any = function(logits, y)
            alone: Any = function(logits[:1], y[:1])
    except Exception as error:
        shapes = f"logits of shape {list(logits.shape[1:])} and labels of {list(y.shape[1:])}"
        raise InputError(
            f"the {name} cannot read {shapes}, {y.dtype}: {_first_line(error)}"
            f"{_advice_on_labels(logits, y)}"
        ) from error
    if not isinstance(found, Tensor) or found.ndim == 0:
        raise InputError(
            f"the {name} gives one value for a batch, where one for each example belongs: "
            "torch's losses do so with reduction='none'"
        )
    if not torch.allclose(found.double(), again.double(), rtol=1e-3, atol=1e-5, equal_nan=True):
        raise InputError(
            f"the {name} gives other values each time for the same outputs and labels, so that no "
            "run could be repeated: have it draw nothing"
        )
    if found.numel() != len(y) * alone.numel():
        raise InputError(
            f"the {name} gives {list(found.shape)} values for {len(y)} examples and "
            f"{list(alone.shape)} for one: outputs of shape {list(logits.shape)} and labels of "
            f"{list(y.shape)} were broadcast against each other, where one shape for both belongs"
        )


def _shapes(x: Inputs) -> str:
    """The shape of an example, or those of its parts by name."""
    if isinstance(x, Tensor):
        return f"shape {list(x.shape[1:])}"
    return " and ".join(f"{name} of shape {list(part.shape[1:])}" for name, part in x.items())


def _first_line(error: Exception) -> str:
    if isinstance(error, InputError):
        return str(error)
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _advice_on_labels(logits: Tensor, y: Tensor) -> str:
    """What to do about labels that are several whole numbers: one for each logit, or each place."""
    if y.is_floating_point() or y.ndim == 1:
        return ""
    if logits.ndim == 3 and logits.shape[:2] == y.shape:
        return (
            ". These look like logits for each place of a text: loss='next_token' reads them where "
            "they are of the token that follows, loss='token' where each place has its own label"
        )
    if logits.shape != y.shape:
        return ""
    if y.ndim == 2 and ((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all():
        return ". Labels look like classes written as a single 1 among zeros: give y.argmax(1)"
    return ". An example has several labels: if each is 0 or 1, loss='bce' reads them"


def _advice(setup: Setup, server: Server, x: Inputs) -> str:
    """What to do about inputs of another dtype than the weights, if nothing else is wrong."""
    wanted = next(iter(server.params.values())).dtype
    if isinstance(x, dict) or x.dtype == wanted:
        return ""
    try:
        evaluation.predict(setup, server, x.to(wanted))
    except Exception:  # then another dtype would not help
        return ""
    given, kept = _name(x.dtype), _name(wanted)
    if wanted not in (torch.float32, torch.float64):  # fit reads numbers as one of these
        return (
            f". Its numbers are {given} and the weights {kept}: give module.float(), and "
            "precision='bf16' to have products computed in bfloat16"
        )
    wants = f"weights are {kept}" if x.is_floating_point() else "features are floats"
    give = f"x.astype('{kept}'), or x.to(torch.{kept}) of a tensor"
    return f". Its numbers are {given}: {wants}, so give {give}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def note_on_reading(dataset: Dataset) -> str:
    """That examples are read when they are needed, and why; nothing where all are in memory."""
    splits = {"train": dataset.train.x, "test": dataset.test.x}
    lazy = {name: x for name, x in splits.items() if isinstance(x, LazyInputs)}
    if not lazy:
        return ""
    why = next(iter(lazy.values())).reader.why
    return f"{' and '.join(lazy)} examples are read anew for every batch ({why})"
