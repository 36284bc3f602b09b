"""Data sets, who holds which of their examples, and the batches clients train on."""
