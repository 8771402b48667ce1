"""The command ``check``, and the checks of a server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from Middleware.cli.addon import AddOn, Command, found
from Middleware.cli.launch import Launch

if TYPE_CHECKING:
    from Middleware.addons.check.findings import Finding
    from Middleware.addons.check.load_check import LoadCheck
    from Middleware.exceptions import ConfigurationError
    from Middleware.utilities.config.workflows import LoadedWorkflow

logger = logging.getLogger(__name__)


class TestFiles:
    """The files with tests of workflows, which another add-on reads."""

    def check(self, paths: Iterable[str]) -> list[Finding]:
        """Return what is wrong with them."""
        return []


class BackgroundCheck:
    """A listener in place of a ``LoadCheck``. Importing that one takes a tenth of the time of a start.

    A request that comes before the import has ended waits for it if it runs a workflow.
    """

    def __init__(self) -> None:
        self._check: LoadCheck | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Check in the background. Nothing waits for the check, and no failure in it reaches the server."""
        threading.Thread(target=self._run, name="start-check", daemon=True).start()

    def _run(self) -> None:
        try:
            self._loaded().check_start()
            from Middleware.cli.call_order import log_call_order

            log_call_order()
        # A lack of file descriptors, as in the check itself. The first workflow tries again.
        except OSError as error:
            logger.warning("The configuration could not be checked: %s", error)

    # -- events of the engine ----------------------------------------------------------------------------------------
    def workflow_loaded(self, loaded: LoadedWorkflow) -> None:
        (self._check or self._loaded()).workflow_loaded(loaded)

    def configuration_failed(self, error: ConfigurationError) -> None:
        (self._check or self._loaded()).configuration_failed(error)

    def _loaded(self) -> LoadCheck:
        with self._lock:
            if self._check is None:
                from Middleware.addons.check.load_check import LoadCheck

                self._check = LoadCheck()
            return self._check


class Check(AddOn):
    def commands(self) -> Mapping[str, Command]:
        return {"check": Command("find mistakes in the configuration", _check)}

    def prepare(self, launch: Launch) -> None:
        if not launch.serves:
            return
        check = BackgroundCheck()
        launch.listeners.append(check)
        if launch.is_first:
            launch.on_listening.append(lambda stop: check.begin())


def _check(words: Sequence[str]) -> int:
    from Middleware.addons.check.check_command import main

    return main(words, next(found(TestFiles), TestFiles()).check)


ADDON = Check
