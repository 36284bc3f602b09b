"""``python -m gcfed`` is ``gcfed``."""

from gcfed.cli import main

main()
