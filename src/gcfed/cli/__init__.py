"""The command line: ``gcfed demo``, ``gcfed run``, ..."""

from gcfed.cli.app import main as main
