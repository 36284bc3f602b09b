"""Doctests are not looked for in modules that need what is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["gcfed/deploy/*"]
