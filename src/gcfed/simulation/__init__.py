"""Runs in one process: what is fixed, where a run stands, the round, the loop, evaluation."""
