"""The flags of recorded runs. What records is made for the first add-on that asks for it, see ``recorded_runs``."""

from __future__ import annotations

import argparse

from Middleware.cli.addon import AddOn, Flags
from Middleware.cli.arguments import given_directory
from Middleware.common import instance_global_variables as instance


class Records(AddOn):
    def add_flags(self, flags: Flags) -> None:
        flags.add_directory(
            "--ConsoleDirectory",
            metavar="P",
            help="folder of the recorded runs (default: <public directory>/Console)",
        )
        flags.add(
            "--record",
            choices=("off", "facts", "texts"),
            help="what is kept on disk of each run: nothing; times, names and counts; or the conversation, too "
            "(default: what the console's settings say, else facts)",
        )

    def apply(self, flags: argparse.Namespace) -> None:
        if chosen := given_directory(getattr(flags, "ConsoleDirectory", None)):
            instance.CONSOLE_DIRECTORY = chosen


ADDON = Records
