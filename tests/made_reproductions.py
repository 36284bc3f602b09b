"""Reproductions of the paper made by hand, so that what should come out of them is known."""

from gcfed.paper.agreement import OurNumber
from gcfed.paper.item import Column, paper_item
from gcfed.paper.reproduction import Circumstances, Reproduction

CELL = "cifar10 5/100 0.1"


def made(finals, *, seeds=3, item="small-scale", cell=CELL, quantity="accuracy", **how):
    """A reproduction with these numbers, by method."""
    numbers = {m: OurNumber(tuple(values), seeds, 10.0) for m, values in finals.items()}
    curves = {cell: {m: [[(1, 0.1), (2, 0.2)]] for m in finals}}
    made = Circumstances("gcfed reproduce", seeds, **how)
    return Reproduction(paper_item(item), {Column(cell, quantity): numbers}, curves, made)
