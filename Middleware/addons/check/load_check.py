"""The checks of a running server: of all that its users reach at the start, and of each workflow when it first runs.

Both only log. If a request fails before it reaches a workflow, the user's file and all files that it names are checked.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from Middleware.addons.check.directory_check import check_data_folders
from Middleware.addons.check.endpoint_check import check_endpoint_presets, check_key
from Middleware.addons.check.file_check import KINDS, check_content, kind_of, syntax_finding
from Middleware.addons.check.findings import Finding, count_of, distinct, report, with_excerpts
from Middleware.addons.check.lookups import Lookups, path_of
from Middleware.addons.check.tree_check import TreeCheck
from Middleware.addons.check.user_check import UserCheck, allowed_folders, check_current_user
from Middleware.addons.check.workflow_check import all_located, check_workflow
from Middleware.cli import served_users
from Middleware.cli.program import program_name, same_configuration
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigSyntaxError, ConfigurationError, WilmerError
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.node import WORKFLOW_FILE
from Middleware.utilities.config.store import REVALIDATE_SECONDS, config_store
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.text_utils import counted
from Middleware.workflows.events import EngineListener

logger = logging.getLogger(__name__)

CURRENT_USER = KINDS["current-user"]
_TYPE_OF_NODE = re.compile(r"(nodes)?\[\d+\]\.type")
# The log of a start must stay readable; the command prints the rest.
MAX_LINES = 10
# A pause between files leaves the interpreter to requests that arrive in the meantime.
PAUSE_SECONDS = 0.002


@dataclass
class _Checked:
    """What was checked: the workflow ``display``; if that is empty, the way to a workflow."""

    display: str = ""
    # Kept alive, so that the id of the nodes is not used again.
    nodes: object = None
    lookups: Lookups = field(default_factory=Lookups)
    # The versions of the other files.
    versions: dict[str, object] = field(default_factory=dict)
    compared_at: float = field(default_factory=lambda: config_store().clock())

    def holds(self) -> bool:
        """Return whether nothing has changed since. Compares no more often than the configuration store does."""
        now = config_store().clock()
        if now - self.compared_at < REVALIDATE_SECONDS:
            return True
        self.compared_at = now
        try:
            return not self.lookups.changed() and all(
                _is_same(_version(file), version) for file, version in self.versions.items()
            )
        except Exception:
            # Without lookups nothing is compared again, so that the log does not fill up with the same failure.
            self.lookups, self.versions = Lookups(), {}
            raise


@dataclass
class _Reported:
    """The texts of the findings that were logged for one version of a file."""

    version: object
    texts: set[str] = field(default_factory=set)


class LoadCheck(EngineListener):
    """Logs findings once per user and version of the files involved; never stops a run."""

    def __init__(self, size: int = 256) -> None:
        self._checked: BoundedCache[tuple[str, object], _Checked] = BoundedCache(size)
        # Not ``Once``: what was reported is forgotten together with the version of the file, which is compared by
        # identity.
        self._reported: BoundedCache[tuple[str, str], _Reported] = BoundedCache(size)
        self._lock = threading.Lock()

    # -- at the start ------------------------------------------------------------------------------------------------
    def check_start(self) -> None:
        """Log the errors in the files that the served users reach, and in the directories of their data."""
        try:
            users, pause = served_users.served_users(), lambda: time.sleep(PAUSE_SECONDS)
            result = TreeCheck(users, pause, at_start=True, port=instance.PORT).run()
            folders = [finding for finding in check_data_folders(result.users) if finding.severity == "error"]
            text, shown = short_form([*folders, *result.findings])
            if text:
                logger.warning("%s", text)
            for user in result.users:
                self.remember(user, shown, result.workflows.get(user, {}))
        except OSError as error:
            # Often a lack of file descriptors, which connections cause and a traceback does not explain.
            logger.warning("The configuration could not be checked: %s", error)
        # The server runs, whatever the check runs into.
        except Exception:
            logger.warning("The configuration could not be checked", exc_info=True)

    def remember(self, user: str, findings: Iterable[Finding], workflows: Mapping[str, LoadedWorkflow]) -> None:
        """Record that these findings were logged. ``workflows``: the checked ones by their files."""
        with self._lock:
            for finding in findings:
                loaded = workflows.get(finding.file)
                version = loaded.nodes if loaded is not None else _version(finding.file)
                self._is_news(user, finding, version)

    # -- at a request ------------------------------------------------------------------------------------------------
    def workflow_loaded(self, loaded: LoadedWorkflow) -> None:
        """Check ``loaded`` unless that was done. Call it inside the request, whose user's settings apply."""
        self._check(
            id(loaded.nodes),
            lambda: _Checked(loaded.display, loaded.nodes),
            lambda lookups: [finding for finding in check_workflow(loaded, lookups) if not _is_logged_by_run(finding)],
        )

    def configuration_failed(self, error: ConfigurationError) -> None:
        """Check the file that the error names, if any, and the way to a workflow. Call it inside the request."""
        file = error.file

        def find(lookups: Lookups) -> list[Finding]:
            kind = kind_of(file) if file else None
            if kind is not None:
                lookups.named[file] = kind.name
            # Only without users on the command line does this file decide who is served.
            if not config_utils.configured_users():
                lookups.named[CURRENT_USER.pattern] = CURRENT_USER.name
            return _check_way_to_workflow(lookups)

        self._check(file, _Checked, find)

    def _check(self, key: object, begin: Callable[[], _Checked], find: Callable[[Lookups], list[Finding]]) -> None:
        """Report the findings of ``find``, and the mistakes in the files that its lookups find."""
        user = _user()
        known = self._checked.get((user, key))
        display = known.display if known else ""
        try:
            if known is not None and known.holds():
                return
            with self._lock:
                # Another thread was faster.
                if self._checked.get((user, key)) is not known:
                    return
                checked = begin()
                display = checked.display
                self._checked.put((user, key), checked)
            self._report(user, [*find(checked.lookups), *_named(checked)], checked)
        # A workflow that would run must run, whatever its check runs into.
        except Exception:
            logger.warning(
                "%s could not be checked", f"Workflow {display}" if display else "The configuration", exc_info=True
            )

    def _report(self, user: str, found: list[Finding], checked: _Checked) -> None:
        found = [finding for finding in found if not finding.is_hint]
        bad = {finding.file for finding in found if not finding.about and finding.severity != "note"}
        with self._lock:
            # A file or folder that was reported itself is not reported again at each name of it.
            bad |= {finding.about for finding in found if finding.about and self._was_reported(user, finding.about)}
            news = [
                finding
                for finding in distinct(found, bad - {checked.display})
                if self._is_news(
                    user, finding, checked.nodes if finding.file == checked.display else _version(finding.file)
                )
            ]
        if news:
            whose = f"With the settings of user {user}:\n" if len(config_utils.configured_users()) > 1 else ""
            level = logging.INFO if all(finding.severity == "note" for finding in news) else logging.WARNING
            logger.log(level, "%s%s", whose, report(news))

    def _was_reported(self, user: str, file: str) -> bool:
        """Return whether something was logged about a file as it is now."""
        reported = self._reported.get((user, file))
        return reported is not None and _is_same(reported.version, _version(file))

    def _is_news(self, user: str, finding: Finding, version: object) -> bool:
        """Note a finding; return whether it was not logged before about this version of its file."""
        reported = self._reported.get((user, finding.file))
        # A finding that still applies after an edit is reported again: the edit may have been meant to fix it.
        if reported is None or not _is_same(reported.version, version):
            reported = _Reported(version)
            self._reported.put((user, finding.file), reported)
        text = f"{finding.json_path}: {finding.text}"
        is_new = text not in reported.texts
        reported.texts.add(text)
        return is_new


def short_form(findings: Sequence[Finding]) -> tuple[str, list[Finding]]:
    """Return a line for each error up to MAX_LINES, the number of the rest, and the findings with a line of their own.

    Empty if there is nothing worse than a note.
    """
    # A file that cannot be read at all comes first: nothing else in it counts.
    errors = sorted(
        (finding for finding in findings if finding.severity == "error"), key=lambda finding: bool(finding.json_path)
    )
    counts = [
        counted(count, severity)
        for severity, count in (("error", len(errors)), ("warning", count_of(findings, "warning")))
        if count
    ]
    if not counts:
        return "", []
    shown = errors[:MAX_LINES]
    rest = [f"  ... and {counted(len(errors) - len(shown), 'error')} more"] if len(errors) > len(shown) else []
    first = (
        f"In the configuration there {'is' if counts[0].startswith('1 ') else 'are'} {' and '.join(counts)} "
        f"(for all run: {program_name('check', *same_configuration())}){':' if shown else ''}"
    )
    return "\n".join([first, *(f"  {line}" for line in with_excerpts(shown)), *rest]), shown


# -- files that are named ----------------------------------------------------------------------------------------------


def _named(checked: _Checked) -> Iterator[Finding]:
    """Yield findings about the user's file and all files that are named, directly or by those files."""
    lookups, done = checked.lookups, {checked.display}
    try:
        waiting = [(lookups.user_file().display, "user"), *lookups.named.items()]
    # Without a user, the request reports the error.
    except WilmerError:
        waiting = [*lookups.named.items()]
    while waiting:
        for display, kind in waiting:
            done.add(display)
            checked.versions[display] = _version(display)
            yield from check_named(display, kind, lookups, checked.display)
        # Looking up an endpoint names its API type, its template and its backup.
        waiting = [(display, kind) for display, kind in lookups.named.items() if display not in done]


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


def _check_way_to_workflow(lookups: Lookups) -> list[Finding]:
    """Return what keeps the current user's requests from reaching a workflow although no name is wrong."""
    try:
        check = UserCheck(lookups)
    # There is no user, or the user's file cannot be read.
    except WilmerError:
        return []
    return all_located([*check.startable()], lookups)


def _is_logged_by_run(finding: Finding) -> bool:
    """Return whether the finding is about the type of a node that runs all the same: the run itself logs a warning."""
    return finding.severity == "warning" and _TYPE_OF_NODE.fullmatch(finding.json_path) is not None


def _version(display: str) -> object:
    """Return an object that stays the same as long as a file does; the text of the error if it cannot be read.

    For a workflow these are its nodes, which the loader passes on.
    """
    try:
        content: object = config_store().read_json(path_of(display), display=display)
    except ConfigurationError as error:
        return str(error)
    nodes = WORKFLOW_FILE.value(content, "nodes") if isinstance(content, dict) and "nodes" in content else None
    # Anything else may be a constant, which is the same object after each edit.
    return nodes if isinstance(nodes, (list, tuple)) else content


def _is_same(first: object, second: object) -> bool:
    """Return whether two versions of a file are the same; unreadable ones are compared by their error texts."""
    return first is second or (isinstance(first, str) and first == second)


def _user() -> str:
    try:
        return config_utils.current_snapshot().name
    # The user's file cannot be read, which the check reports.
    except WilmerError:
        pass
    try:
        return config_utils.get_current_username()
    except WilmerError:
        return ""
