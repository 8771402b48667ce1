"""Starts WilmerAI on Waitress, the recommended server on every operating system."""

from Middleware.cli import prerequisites

if __name__ == "__main__":
    prerequisites.require_python()  # before a line that an old Python does not understand

import gc

from Middleware.cli.signals import end_on_signals

if __name__ == "__main__":
    end_on_signals()  # the other imports take a moment
    gc.disable()  # they leave nothing to collect; run() turns it on again
    prerequisites.require_packages("waitress")

import sys
from collections.abc import Sequence

from Middleware import addons
from Middleware.cli.serving import limits
from Middleware.cli.serving.serve_waitress import serve
from Middleware.cli.startup import run


def main(argv: Sequence[str] | None = None) -> int:
    addons.load()
    return run(serve, argv, limits.WORKER_THREADS, several=True)


if __name__ == "__main__":
    sys.exit(main())
