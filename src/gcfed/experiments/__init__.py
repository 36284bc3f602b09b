"""Runs as a user asks for them: a config, a run directory, tables and plots."""
