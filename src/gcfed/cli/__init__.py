"""The command line: ``gcfed demo``, ``gcfed run``, ...

What needs torch is imported inside functions: torch takes seconds, and help, the version and
messages about typing errors do without it.
"""

import sys
import warnings

from gcfed.cli.exits import INTERRUPTED

try:
    with warnings.catch_warnings():  # typer < 0.21 imports names that click 8.5 deprecates
        warnings.simplefilter("ignore", DeprecationWarning)
        import typer as _typer  # noqa: F401

    from gcfed.cli.app import main as main
except KeyboardInterrupt:  # Ctrl-C before there is a command that could catch it
    sys.exit(INTERRUPTED)
