r"""Centered kernel alignment (CKA): how alike two models see the same examples.

A model's activations in a layer, a row for each example, give a matrix of similarities between
examples: :math:`K = XX^\top`, or a kernel of the same distances.  Two models are compared by these
matrices, so layers may have any width, and a rotation or a scaling of the activations is no matter.

.. math:: \mathrm{CKA}(K, L) =
    \frac{\mathrm{HSIC}(K, L)}{\sqrt{\mathrm{HSIC}(K, K)\,\mathrm{HSIC}(L, L)}}

Kornblith, Norouzi, Lee and Hinton, "Similarity of Neural Network Representations Revisited", 2019,
https://arxiv.org/abs/1905.00414.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

B = TypeVar("B")
Activate = Callable[[B], Mapping[str, Tensor]]
"""What the layers of a model make of a batch: by name, a matrix with a row for each example."""

Hsic = Callable[[Tensor, Tensor], Tensor]
"""A measure of how two matrices of similarities depend on each other."""


def whole_gram(activate: Activate[B], batches: Sequence[B]) -> dict[str, list[Tensor]]:
    r"""The matrix :math:`XX^\top` of all examples, for each layer.

    It is made block by block, so that activations of two batches are held at a time, and no more;
    the price is that a batch is shown to the model once for each batch before it.
    """
    grams: dict[str, dict[tuple[int, int], Tensor]] = {}
    origin: Mapping[str, Tensor] = {}
    for i, batch in enumerate(batches):
        rows = activate(batch)
        origin = origin or _first(rows)
        for j in range(i, len(batches)):
            blocks = _products(rows, rows if j == i else activate(batches[j]), origin)
            for layer, block in blocks.items():
                grams.setdefault(layer, {}).update({(i, j): block, (j, i): block.T})
    places = range(len(batches))
    return {
        layer: [torch.cat([torch.cat([blocks[i, j] for j in places], 1) for i in places])]
        for layer, blocks in grams.items()
    }


def batch_grams(activate: Activate[B], batches: Sequence[B]) -> dict[str, list[Tensor]]:
    r"""The matrix :math:`XX^\top` of each batch by itself, for each layer."""
    found: dict[str, list[Tensor]] = {}
    for batch in batches:
        rows = activate(batch)
        for layer, gram in _products(rows, rows, _first(rows)).items():
            found.setdefault(layer, []).append(gram)
    return found


def rbf(gram: Tensor, fraction: float) -> Tensor:
    r"""The RBF kernel :math:`\exp(-d^2 / 2\sigma^2)` of the distances d behind :math:`XX^\top`.

    The bandwidth :math:`\sigma` is a fraction of the median distance between two examples.
    """
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp_min(0)
    pairs = torch.ones_like(gram, dtype=torch.bool).triu(1)
    bandwidth = fraction * distances[pairs].sqrt().median()
    return torch.exp(-distances / (2 * bandwidth.square()))


def hsic(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741 (the letters of the papers)
    r""":math:`\mathrm{tr}(KHLH) / (n-1)^2`, where H takes the means of rows and columns away."""
    return (_centred(k) * _centred(l)).sum() / (len(k) - 1) ** 2


def unbiased_hsic(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    r"""An estimate whose expectation does not depend on the number n of examples, from n = 4 on.

    .. math:: \frac{1}{n(n-3)} \Bigl( \mathrm{tr}(\tilde K \tilde L)
        + \frac{1^\top \tilde K 1 \; 1^\top \tilde L 1}{(n-1)(n-2)}
        - \frac{2}{n-2} 1^\top \tilde K \tilde L 1 \Bigr)

    The tilde sets the diagonal to zero.  Song, Smola, Gretton, Bedo and Borgwardt, "Feature
    Selection via Dependence Maximization", 2012.  The mean over minibatches estimates the same
    number, so that CKA can be made of such means: Nguyen, Raghu and Kornblith, "Do Wide and Deep
    Networks Learn the Same Things?", 2021, https://arxiv.org/abs/2010.15327.
    """
    n = len(k)
    if n < 4:
        return k.new_tensor(math.nan)
    k, l = (x - x.diagonal().diag() for x in (k, l))  # noqa: E741
    apart = k.sum() * l.sum() / ((n - 1) * (n - 2))
    return ((k * l).sum() + apart - 2 / (n - 2) * (k.sum(0) @ l.sum(0))) / (n * (n - 3))


def cka(first: Sequence[Tensor], second: Sequence[Tensor], measure: Hsic = hsic) -> Tensor:
    """The alignment of two models by their matrices, one of all examples or one of each batch."""

    def total(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        return torch.stack([measure(x, y) for x, y in zip(a, b, strict=True)]).sum()

    return total(first, second) / (total(first, first) * total(second, second)).sqrt()


def _first(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {layer: x[:1].clone() for layer, x in rows.items()}


def _products(
    rows: Mapping[str, Tensor], columns: Mapping[str, Tensor], origin: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The products of rows with columns, as seen from an origin.

    Any origin gives the same alignment.  From one among the examples less is lost to rounding, and
    what is the same for all of them is exactly zero.
    """
    return {
        layer: ((x - origin[layer]) @ (columns[layer] - origin[layer]).T).double()
        for layer, x in rows.items()
    }


def _centred(gram: Tensor) -> Tensor:
    means = gram.mean(0)
    return gram - means - means[:, None] + means.mean()
