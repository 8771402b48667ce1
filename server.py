"""Starts WilmerAI on Waitress, like ``run_waitress.py``, and is the module that other WSGI servers import.

Importing it builds the app: ``server:application`` works under any WSGI server. No command line is read then; the
user is the one in ``Public/Configs/Users/_current-user.json``, else ``demo``.
"""

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
from collections.abc import Callable, Sequence
from typing import Any

from Middleware import addons
from Middleware.cli.addon import addons as all_addons
from Middleware.cli.arguments import parse_arguments
from Middleware.cli.launch import Launch
from Middleware.cli.preparation import build_application, configure
from Middleware.cli.running_server import announce_until_exit
from Middleware.cli.startup import run


def main(argv: Sequence[str] | None = None) -> int:
    addons.load()
    # imported here because a WSGI host brings its own server and may not have Waitress
    from Middleware.cli.serving import limits, serve_waitress

    return run(serve_waitress.serve, argv, limits.WORKER_THREADS)


def get_application() -> Callable[..., Any]:
    """The WSGI callable: the app behind the concurrency gate."""
    return application


if __name__ == "__main__":
    sys.exit(main())

from Middleware.cli import shipped_configuration  # noqa: E402  - of no use to the launcher, which has ended above

addons.load()
launch = Launch(parse_arguments([]))
shipped_configuration.provide()
for addon in all_addons():
    addon.check(launch)
configure(launch)
announce_until_exit()

from Middleware.api.api_server import ApiServer  # noqa: E402  - after the settings are in place
from Middleware.cli.call_order import log_call_order  # noqa: E402

server = ApiServer()
application: Callable[..., Any] = build_application(launch, server.app)
log_call_order()
