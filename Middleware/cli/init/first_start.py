"""What a first start offers: to look for an LLM server before the demo begins."""
from __future__ import annotations

import sys

from Middleware.cli.console import say
from Middleware.cli.signals import INTERRUPTED, end_on_signals, interrupt_on_signals

OFFER = "No LLM is connected yet. Look for one on this computer now?"


def offer() -> None:
    """Ask whether to connect an LLM and do so, if there is a terminal with somebody in front of it.

    Afterwards the start goes on, with the new user or else with the demo. Ctrl-C ends the process.
    """
    from Middleware.cli.init.command import Wishes, run  # only a start without a configuration needs them
    from Middleware.cli.init.questions import Person, Stopped, is_terminal
    if not is_terminal():
        return
    interrupt_on_signals()
    try:
        wanted = Person(takes_defaults=False, answers=True).agrees(OFFER, default=True)
        status = run(Wishes(), then_starts=True) if wanted else None
    except Stopped:
        status = None
    except KeyboardInterrupt:
        say("\nInterrupted; nothing was written.")
        status = INTERRUPTED
    if status == INTERRUPTED:
        sys.exit(INTERRUPTED)
    end_on_signals()
    say("" if status == 0 else "Starting the demo.\n")
