"""The run console, at ``/console/``, and the command ``console``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from Middleware.cli.addon import AddOn, Command, Flags
from Middleware.cli.launch import Launch
from Middleware.common import instance_global_variables as instance

if TYPE_CHECKING:
    from Middleware.addons.console.application import ConsoleApplication
    from Middleware.addons.records.records import RunRecords
    from Middleware.api.app import Mount, Site


class Console(AddOn):
    def add_flags(self, flags: Flags) -> None:
        flags.add(
            "--console",
            choices=("off", "on", "edit"),
            default="on",
            help="the run console, at /console/: off, on, or edit: also change the configuration with it "
            "(default: %(default)s)",
        )

    def commands(self) -> Mapping[str, Command]:
        return {"console": Command("print a link to the run console of the running server", _console)}

    def prepare(self, launch: Launch) -> None:
        mode = getattr(launch.arguments.flags, "console", "off")
        if mode == "off" or launch.bound is None:
            return
        # Imported here: without a console, nothing of it is needed.
        from Middleware.addons.console.sign_in import PATH
        from Middleware.addons.records.records import recorded_runs

        records = recorded_runs(launch, mode)
        launch.mounts[PATH.rstrip("/")] = mount(records)
        if launch.announces:
            launch.lines.append(f"  Console:        {_address(launch.url, records)}")


def mount(records: RunRecords) -> Mount:
    """Return what makes the console of a server."""

    def make(site: Site) -> ConsoleApplication:
        from Middleware.addons.console.application import ConsoleApplication

        return ConsoleApplication(
            records,
            instance.ACCESS_KEYS,
            site.browsers,
            site.gated,
            site.gate,
            site.listeners,
            instance.MAX_REQUEST_MB,
        )

    return make


def _address(url: str, records: RunRecords) -> str:
    """Return the address of the console: on a terminal a link that signs in, which must not get into a log file."""
    from Middleware.addons.console.sign_in import PATH, sign_in_link

    if sys.stdout.isatty():
        # Without its folder, no user can be signed in; the page says how to go on.
        with contextlib.suppress(OSError):
            return sign_in_link(url, records.folder)
    return f"{url}{PATH}"


def _console(words: Sequence[str]) -> int:
    from Middleware.addons.console.console_link import main

    return main(words)


ADDON = Console
