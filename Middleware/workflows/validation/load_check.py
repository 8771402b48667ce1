"""Checks a workflow when a user first runs it, and after every change, and logs what there is to look at."""
from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from Middleware.exceptions import WilmerError
from Middleware.utilities import config_utils
from Middleware.utilities.config_store import REVALIDATE_SECONDS
from Middleware.utilities.config_workflows import LoadedWorkflow
from Middleware.workflows.validation.findings import Finding, only_notes, report
from Middleware.workflows.validation.lookups import Lookups
from Middleware.workflows.validation.workflow_checks import Registry, check_workflow

logger = logging.getLogger(__name__)


@dataclass
class _Checked:
    """A workflow as it was checked: its nodes, and what was asked about other files, last compared at ``at``."""

    nodes: list[dict[str, Any]]  # kept alive, so that their id is not used again
    lookups: Lookups
    at: float

    def holds(self) -> bool:
        """Whether nothing has changed since. Asks again no more often than the configuration is looked at again."""
        now = config_utils.config_store().clock()
        if now - self.at < REVALIDATE_SECONDS:
            return True
        self.at = now
        try:
            return not self.lookups.changed()
        except Exception:
            self.lookups = Lookups(())  # nothing is asked again, so that the log does not fill up
            raise


@dataclass
class _Told:
    """What the log already says about one version of a file that several workflows may need."""

    content: Mapping[str, Any]
    texts: set[str] = field(default_factory=set)


class LoadCheck:
    """Logs what there is to look at, once per user and version of the files looked at; never stops a run."""

    def __init__(self, built_in: Collection[str], size: int = 256) -> None:
        """``built_in``: the names of variables that every workflow may use."""
        self._built_in, self._size = built_in, size
        self._checked: dict[tuple[str, int], _Checked] = {}
        self._told: dict[tuple[str, str], _Told] = {}
        self._lock = threading.Lock()

    def check(self, loaded: LoadedWorkflow, registry: Registry) -> None:
        """Check ``loaded`` unless that was done. Belongs inside the request: the user's settings count."""
        user = _user()
        known = self._checked.get((user, id(loaded.nodes)))
        try:
            if known is not None and known.holds():
                return
            lookups = self._claim(user, loaded, known)
            if lookups is not None:
                self._report(user, check_workflow(loaded, registry, lookups), loaded, lookups)
        except Exception:  # a workflow that would run must run, whatever its check comes across
            logger.warning("Workflow %s could not be checked", loaded.display, exc_info=True)

    def _claim(self, user: str, loaded: LoadedWorkflow, known: _Checked | None) -> Lookups | None:
        """New lookups for the one thread that is to check; None for the others."""
        key = user, id(loaded.nodes)
        with self._lock:
            if self._checked.get(key) is not known:
                return None  # another thread was faster
            _make_room(self._checked, self._size)
            lookups = Lookups(self._built_in)
            self._checked[key] = _Checked(loaded.nodes, lookups, config_utils.config_store().clock())
            return lookups

    def _report(self, user: str, findings: list[Finding], loaded: LoadedWorkflow, lookups: Lookups) -> None:
        news = [finding for finding in findings if finding.file == loaded.display]
        if len(news) < len(findings):
            with self._lock:
                news.extend(self._news(user, findings, lookups))
        if news:
            whose = f"With the settings of user {user}:\n" if len(config_utils.configured_users()) > 1 else ""
            logger.log(logging.INFO if only_notes(news) else logging.WARNING, "%s%s", whose, report(news))

    def _news(self, user: str, findings: list[Finding], lookups: Lookups) -> Iterator[Finding]:
        """The findings about other files that no other workflow of the user brought up."""
        files = lookups.files()
        for finding in findings:
            file = files.get(finding.file)
            if not finding.asked_by or file is None:
                continue
            told = self._told.get((user, finding.file))
            if told is None or told.content is not file.content:
                _make_room(self._told, self._size)
                told = self._told[user, finding.file] = _Told(file.content)
            if str(finding) not in told.texts:
                told.texts.add(str(finding))
                yield finding


def _user() -> str:
    try:
        return config_utils.current_snapshot().name
    except WilmerError:  # the check says so
        return ""


def _make_room(known: dict[Any, Any], size: int) -> None:
    if len(known) >= size:
        known.clear()
