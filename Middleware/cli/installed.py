"""The command ``wilmerai`` of an installed wheel: what ``run_waitress.py`` is in a clone."""

from __future__ import annotations

import gc

from Middleware.cli.prerequisites import require_packages
from Middleware.cli.signals import end_on_signals


def main() -> int:
    """Run the launcher with the words of the command line; return the exit status."""
    # The other imports take a moment, and leave nothing to collect; run() turns the collector on again.
    end_on_signals()
    gc.disable()
    require_packages("waitress")
    import run_waitress

    return run_waitress.main()
