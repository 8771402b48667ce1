"""The command ``check``, and the checks of a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from Middleware.cli.addon import AddOn, Command, found
from Middleware.cli.launch import Launch

if TYPE_CHECKING:
    from Middleware.addons.check.findings import Finding


class TestFiles:
    """The files with tests of workflows, which another add-on reads."""

    def check(self, paths: Iterable[str]) -> list[Finding]:
        """Return what is wrong with them."""
        return []


class Check(AddOn):
    def commands(self) -> Mapping[str, Command]:
        return {"check": Command("find mistakes in the configuration", _check)}

    def prepare(self, launch: Launch) -> None:
        if not launch.serves:
            return
        from Middleware.addons.check.background_check import BackgroundCheck

        check = BackgroundCheck()
        launch.listeners.append(check)
        if launch.is_first:
            launch.on_listening.append(lambda stop: check.begin())


def _check(words: Sequence[str]) -> int:
    from Middleware.addons.check.command import main

    return main(words, next(found(TestFiles), TestFiles()).check)


ADDON = Check
