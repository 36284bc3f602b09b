"""The partition of a run: what divides, among how many, drawn by which seed."""

from gcfed import random
from gcfed.data.partition import Partition, Pool
from gcfed.data.partitions import PARTITIONS, by
from gcfed.errors import InputError

NUM_CLIENTS = 100
"""Where nobody says how many."""


def divide(text: str, pool: Pool, num_clients: int | None, seed: int) -> Partition:
    """Divide as ``text`` says: the same for the same seed, whatever else is drawn by it."""
    partition = PARTITIONS.parse(text)
    if num_clients is None and partition.func is not by:  # which finds its clients in the data
        num_clients = NUM_CLIENTS
    drawn = partition(pool, num_clients, random.generator("partition", seed))
    if not isinstance(drawn, Partition):
        raise InputError(
            f"partition {text} gave a {type(drawn).__name__}, where a Partition belongs"
        )
    return drawn
