"""Checks a workflow when a user first runs it, and after every change, and logs the findings.

If a request fails before it reaches a workflow, the user's file and all files that it names are checked.
"""
from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from Middleware.cli.check.endpoint_checks import check_endpoint_presets, check_key
from Middleware.cli.check.file_checks import check_content, syntax_finding
from Middleware.cli.check.file_kinds import KINDS, kind_of
from Middleware.cli.check.findings import Finding, distinct, only_notes, report
from Middleware.cli.check.lookups import Lookups, path_of
from Middleware.cli.check.user_checks import UserCheck, allowed_folders, check_current_user
from Middleware.cli.check.workflow_checks import all_located, check_workflow
from Middleware.exceptions import ConfigSyntaxError, ConfigurationError, WilmerError
from Middleware.utilities import config_utils
from Middleware.utilities.config.store import REVALIDATE_SECONDS, config_store
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.workflows.events import EngineListener

logger = logging.getLogger(__name__)

CURRENT_USER = KINDS["current-user"]
_TYPE_OF_NODE = re.compile(r"(nodes)?\[\d+\]\.type")


@dataclass(frozen=True)
class _Subject:
    """The subject of a check: the nodes of the file ``display``; with neither, the way to a workflow.

    Attributes:
        key: the key of the remembered result.
    """

    key: object
    display: str = ""
    # Kept alive, so that the id of the nodes is not used again.
    nodes: object = None


@dataclass
class _Checked:
    """A checked subject: the lookups in other files, last compared at ``at``."""

    subject: _Subject
    lookups: Lookups
    at: float
    # The versions of the other files.
    versions: dict[str, object] = field(default_factory=dict)

    def holds(self) -> bool:
        """Return whether nothing has changed since. Compares no more often than the configuration store does."""
        now = config_utils.config_store().clock()
        if now - self.at < REVALIDATE_SECONDS:
            return True
        self.at = now
        try:
            return not self.lookups.changed() and all(
                _is_same(_version(file), version) for file, version in self.versions.items())
        except Exception:
            # Without lookups nothing is compared again, so that the log does not fill up with the same failure.
            self.lookups, self.versions = Lookups(), {}
            raise


@dataclass
class _Told:
    """The findings that were logged for one version of a file. ``is_checked``: the file was checked by itself."""

    version: object
    texts: set[str] = field(default_factory=set)
    is_checked: bool = False


class LoadCheck(EngineListener):
    """Logs findings once per user and version of the files involved; never stops a run."""

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._checked: dict[tuple[str, object], _Checked] = {}
        self._told: dict[tuple[str, str], _Told] = {}
        self._lock = threading.Lock()

    def workflow_loaded(self, loaded: LoadedWorkflow) -> None:
        """Check ``loaded`` unless that was done. Call it inside the request, whose user's settings apply."""
        self._look(_Subject(id(loaded.nodes), loaded.display, loaded.nodes),
                   lambda lookups: [finding for finding in check_workflow(loaded, lookups)
                                    if not _is_told_by_run(finding)])

    def configuration_failed(self, error: ConfigurationError) -> None:
        """Check the file that the error names, if any, and the way to a workflow. Call it inside the request."""
        file = error.file

        def name_files(lookups: Lookups) -> list[Finding]:
            kind = kind_of(file) if file else None
            if kind is not None:
                lookups.named[file] = kind.name
            if not config_utils.configured_users():
                lookups.named[CURRENT_USER.pattern] = CURRENT_USER.name
            return check_start(lookups)

        self._look(_Subject(file), name_files)

    def _look(self, subject: _Subject, find: Callable[[Lookups], list[Finding]]) -> None:
        """Report the findings of ``find``, and the mistakes in the files that its lookups find."""
        user = _user()
        known = self._checked.get((user, subject.key))
        try:
            if known is not None and known.holds():
                return
            lookups = self._claim(user, subject, known)
            if lookups is not None:
                self._report(user, find(lookups), subject, lookups, again=known is not None)
        # A workflow that would run must run, whatever its check runs into.
        except Exception:
            logger.warning("%s could not be checked", f"Workflow {subject.display}" if subject.display else
                           "The configuration", exc_info=True)

    def remember(self, user: str, findings: Iterable[Finding], workflows: Mapping[str, LoadedWorkflow]) -> None:
        """Record that these findings were shown to the operator, so that they are not repeated while the files stay.

        ``workflows``: the checked workflows, by the names of their files in messages.
        """
        with self._lock:
            for finding in findings:
                loaded = workflows.get(finding.file)
                version = loaded.nodes if loaded is not None else _version(finding.file)
                self._told_of(user, finding.file, version).texts.add(_mark(finding))

    def _claim(self, user: str, subject: _Subject, known: _Checked | None) -> Lookups | None:
        """Return new lookups for the one thread that does the check; None for the others."""
        key = user, subject.key
        with self._lock:
            if self._checked.get(key) is not known:
                # Another thread was faster.
                return None
            _make_room(self._checked, self._size)
            lookups = Lookups()
            self._checked[key] = _Checked(subject, lookups, config_utils.config_store().clock())
            return lookups

    def _report(self, user: str, found: list[Finding], subject: _Subject, lookups: Lookups, again: bool) -> None:
        with self._lock:
            found += self._named(user, subject, lookups, again)
            bad = {finding.file for finding in found if not finding.about and finding.severity != "note"}
            bad.update(file for (whose, file), told in self._told.items() if whose == user and told.texts)
            news = [*self._news(user, distinct(found, bad - {subject.display}), subject)]
        if news:
            whose = f"With the settings of user {user}:\n" if len(config_utils.configured_users()) > 1 else ""
            logger.log(logging.INFO if only_notes(news) else logging.WARNING, "%s%s", whose, report(news))

    def _named(self, user: str, subject: _Subject, lookups: Lookups, again: bool) -> Iterator[Finding]:
        """Yield findings about the user's file and all files that are named, directly or by those files.

        ``again``: one of them has changed, and with it perhaps the findings in the others.
        """
        checked = self._checked.get((user, subject.key))
        waiting = [*_user_file(lookups), *lookups.named.items()]
        done = {subject.display}
        while waiting:
            for display, kind in waiting:
                done.add(display)
                version = _version(display)
                told = self._told_of(user, display, version)
                if checked is not None:
                    checked.versions[display] = version
                if again or not told.is_checked:
                    told.is_checked = True
                    yield from check_named(display, kind, lookups, subject.display)
            waiting = [(display, kind) for display, kind in lookups.named.items() if display not in done]

    def _news(self, user: str, findings: list[Finding], subject: _Subject) -> Iterator[Finding]:
        """Yield the findings that were not logged before about these versions of the files."""
        for finding in findings:
            version = subject.nodes if finding.file == subject.display else _version(finding.file)
            told = self._told_of(user, finding.file, version)
            if _mark(finding) not in told.texts:
                told.texts.add(_mark(finding))
                yield finding

    def _told_of(self, user: str, file: str, version: object) -> _Told:
        told = self._told.get((user, file))
        if told is None or not _is_same(told.version, version):
            _make_room(self._told, self._size)
            told = self._told[user, file] = _Told(version)
        return told


def _is_told_by_run(finding: Finding) -> bool:
    """Return whether the finding is about the type of a node that runs all the same: the run itself logs a warning."""
    return finding.severity == "warning" and _TYPE_OF_NODE.fullmatch(finding.json_path) is not None


def _version(display: str) -> object:
    """Return the version of a file; for a workflow that of its nodes, which the loader passes on."""
    content = file_version(display)
    return content["nodes"] if isinstance(content, dict) and "nodes" in content else content


def _is_same(first: object, second: object) -> bool:
    """Return whether two versions of a file are the same; unreadable ones are compared by their error texts."""
    return first is second or (isinstance(first, str) and first == second)


def _mark(finding: Finding) -> str:
    return f"{finding.json_path}: {finding.text}"


def _user_file(lookups: Lookups) -> list[tuple[str, str]]:
    try:
        return [(lookups.user_file().display, "user")]
    # Without a user, the request reports the error.
    except WilmerError:
        return []


def _user() -> str:
    try:
        return config_utils.current_snapshot().name
    # The check reports the error.
    except WilmerError:
        pass
    try:
        # The file of this user cannot be read.
        return config_utils.get_current_username()
    except WilmerError:
        return ""


def _make_room(known: dict[Any, Any], size: int) -> None:
    if len(known) >= size:
        known.clear()


def file_version(display: str) -> object:
    """Return an object that stays the same as long as a file does; the text of the error if it cannot be read."""
    try:
        return config_store().read_json(path_of(display), display=display)
    except ConfigurationError as error:
        return str(error)


def check_named(display: str, kind: str, lookups: Lookups, asked_by: str) -> list[Finding]:
    """Return findings worse than notes in a file that the current user's workflow ``asked_by`` (none: "") names.

    ``kind``: a key of ``KINDS``.
    """
    try:
        content = config_store().read_json(path_of(display), display=display)
    except ConfigSyntaxError as error:
        return [replace(syntax_finding(display, error), asked_by=asked_by)]
    # The file cannot be opened; the node that needs it reports that.
    except ConfigurationError:
        return []
    found = [*check_content(display, KINDS[kind], content)]
    if kind == "user" and isinstance(content, dict):
        found += [*UserCheck(lookups).findings(), *allowed_folders(content, display)]
    elif kind == "current-user" and isinstance(content, dict):
        found += check_current_user(content, display, config_utils.existing_users())
    elif kind == "endpoint" and isinstance(content, dict):
        found += [*check_endpoint_presets(display, content), *check_key(display, content)]
    found = [replace(finding, asked_by=asked_by) for finding in found if finding.severity != "note"]
    return all_located(found, lookups)


def check_start(lookups: Lookups) -> list[Finding]:
    """Return what keeps the current user's requests from reaching a workflow although no name is wrong."""
    try:
        check = UserCheck(lookups)
    # There is no user, or the user's file cannot be read.
    except WilmerError:
        return []
    return all_located([*check.startable()], lookups)
