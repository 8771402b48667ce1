"""The check of one configuration file with a text that is not saved yet.

The other files are those on the disk. What only the whole tree shows, such as inputs that no caller passes, is left to
the check of everything.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from Middleware.addons.check.endpoint_check import (
    check_endpoint_presets,
    check_key,
    check_preset_folder,
    check_presets_anywhere,
)
from Middleware.addons.check.file_check import (
    KINDS,
    SETTINGS,
    FileKind,
    check_content,
    duplicate_keys,
    kind_of,
    syntax_finding,
)
from Middleware.addons.check.findings import Finding, distinct
from Middleware.addons.check.lookups import ConfigFile, Lookups, Problem
from Middleware.addons.check.memory_check import check_settings_file
from Middleware.addons.check.tree import SETTINGS_KEYS, settings_like
from Middleware.addons.check.tree_check import FileOnlyLookups
from Middleware.addons.check.user_check import SHARED_FOLDER, UserCheck, allowed_folders, check_current_user
from Middleware.addons.check.workflow_check import all_located, check_workflow
from Middleware.addons.workflow_tests.suite_reader import read_tests
from Middleware.exceptions import ConfigSyntaxError, ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.json_source import JsonSource
from Middleware.utilities.config.keys.user import ROUTING, USER
from Middleware.utilities.config.paths import get_root_config_directory
from Middleware.utilities.config.store import FoundFile
from Middleware.utilities.config.users import existing_users, find_user_file, use_settings
from Middleware.utilities.config.workflows import LoadedWorkflow, workflow_in
from Middleware.utilities.json_data import freeze

# With more users of one file, the check would be felt at each key stroke; they differ in their folders only.
MAX_USERS = 4


@dataclass(frozen=True)
class Unsaved:
    """A text of a configuration file.

    Attributes:
        display: the file, relative to the config root.
        source: the text as the author sees it, to which positions refer.
        content: its data, read-only, with the secrets that the text does not show; None if it is not JSON.
    """

    display: str
    source: JsonSource
    content: object

    @property
    def path(self) -> str:
        return os.path.join(get_root_config_directory(), *self.display.split("/"))

    @cached_property
    def kind(self) -> FileKind | None:
        return kind_in(self.display, self.content)

    @cached_property
    def loaded(self) -> LoadedWorkflow | None:
        """The workflow that the file would be; None if it would be none."""
        if self.kind is not KINDS["workflow"]:
            return None
        folder, _, name = self.display[len("Workflows/") : -len(".json")].rpartition("/")
        try:
            return workflow_in(self.content, name, folder or ".", FoundFile(self.path, self.display))
        # Reported at the file.
        except ConfigurationError:
            return None


def kind_in(display: str, content: object) -> FileKind | None:
    """Return the kind of a file: settings among workflows are known by their users, or by their keys."""
    kind = kind_of(display)
    if kind is not KINDS["workflow"]:
        return kind
    name = _settings_named(display) or (settings_like(content) if isinstance(content, dict) else "")
    return KINDS[name] if name else kind


def _settings_named(display: str) -> str:
    """Return the kind of settings that a user file names this file as; empty if none does."""
    for user in existing_users():
        for key, kind in SETTINGS_KEYS.items():
            if _folds(display) in (
                _folds(f"Workflows/{folder}/{setting_of(user, key)}.json") for folder in folders_of(user)
            ):
                return kind
    return ""


def parse_unsaved(display: str, text: str, full_text: str) -> tuple[Unsaved, ConfigSyntaxError | None]:
    """Return a text with its content, and its syntax error if it has none. ``full_text`` has its secrets, too."""
    source = JsonSource(text, display)
    try:
        source.parse()
        return Unsaved(display, source, freeze(JsonSource(full_text, display).parse())), None
    except ConfigSyntaxError as error:
        return Unsaved(display, source, None), error


def check_unsaved(display: str, text: str, full_text: str) -> list[Finding]:
    """Return the findings about a text, each at its line; the worst are those that keep it from being read at all."""
    unsaved, error = parse_unsaved(display, text, full_text)
    if error is not None:
        return [syntax_finding(display, error)]
    # The reader of tests finds repeated keys itself.
    repeated = [] if unsaved.kind is KINDS["workflow-test"] else [*duplicate_keys(unsaved.source)]
    found = [*repeated, *_located(unsaved, _by_kind(unsaved))]
    return sorted(
        distinct(finding for finding in found if finding.file == display),
        key=lambda finding: (finding.line or 0, finding.column or 0),
    )


def _by_kind(unsaved: Unsaved) -> Iterator[Finding]:
    kind, content = unsaved.kind, unsaved.content
    if kind is None:
        return
    if kind.name == "workflow-test":
        yield from read_tests([unsaved.path], {unsaved.path: unsaved.source.text.encode("utf-8", "replace")})[1]
        return
    yield from check_content(unsaved.display, kind, content)
    if kind.name == "current-user" and isinstance(content, dict):
        yield from check_current_user(content, unsaved.display, existing_users())
    elif kind.name == "workflow" and unsaved.loaded is not None:
        yield from _workflow(unsaved, unsaved.loaded)
    elif kind.name == "api-type" and isinstance(content, dict):
        yield from check_preset_folder(unsaved.display, content)
    elif kind.name == "endpoint" and isinstance(content, dict):
        yield from _endpoint(unsaved, content)
    elif isinstance(content, dict) and kind.name in ("user", "routing", *SETTINGS):
        for user in users_of(unsaved.display, kind):
            with _settings_of(user, unsaved):
                yield from _for_user(unsaved, kind)


def _located(unsaved: Unsaved, findings: Iterator[Finding]) -> Iterator[Finding]:
    for finding in findings:
        # Lines of a workflow's other files are not known here, and were not asked for.
        if finding.file == unsaved.display:
            yield finding if finding.line is not None else finding.located(unsaved.source)


# -- with the settings of users ----------------------------------------------------------------------------------------


class UnsavedLookups(Lookups):
    """Lookups that find the unsaved text in place of its file."""

    def __init__(self, unsaved: Unsaved) -> None:
        super().__init__()
        self._unsaved = unsaved

    def source(self, path: str) -> JsonSource:
        return (
            self._unsaved.source
            if os.path.abspath(path) == os.path.abspath(self._unsaved.path)
            else (super().source(path))
        )

    def child(self, name: str, folder: str | None, parent: LoadedWorkflow) -> LoadedWorkflow | None:
        return self._newest(super().child(name, folder, parent))

    def own_workflow(self, name: str) -> LoadedWorkflow | None:
        return self._newest(super().own_workflow(name))

    def routing(self, name: str) -> Mapping[str, Mapping[str, str]] | Problem:
        found = super().routing(name)
        is_this = self._unsaved.kind is KINDS["routing"] and self._unsaved.display in self.named
        entries = self._unsaved.content if is_this else None
        # Entries without a workflow are reported with the keys.
        return (
            {
                category: entry
                for category, entry in entries.items()
                if isinstance(entry, dict)
                and ROUTING.has(entry, "workflow")
                and isinstance(ROUTING.value(entry, "workflow"), str)
            }
            if isinstance(entries, dict)
            else found
        )

    def settings_file(self, name: str) -> ConfigFile | Problem:
        found = super().settings_file(name)
        content = self._unsaved.content
        if isinstance(found, ConfigFile) and found.display == self._unsaved.display and isinstance(content, dict):
            return ConfigFile(content, found.display)
        return found

    def _newest(self, found: LoadedWorkflow | None) -> LoadedWorkflow | None:
        loaded = self._unsaved.loaded
        return loaded if found is not None and loaded is not None and found.display == loaded.display else found


class _UnownedLookups(FileOnlyLookups):
    """Lookups for a workflow that is in no user's folder."""

    def __init__(self, unsaved: Unsaved, variables: Sequence[str]) -> None:
        super().__init__(variables)
        self._unsaved = unsaved

    def source(self, path: str) -> JsonSource:
        return self._unsaved.source


def _workflow(unsaved: Unsaved, loaded: LoadedWorkflow) -> Iterator[Finding]:
    users = users_of(unsaved.display, KINDS["workflow"])
    found: list[Finding] = []
    for user in users:
        with _settings_of(user, unsaved):
            found += check_workflow(loaded, UnsavedLookups(unsaved))
    if not users:
        variables = [name for user in existing_users() for name in variables_of(user)]
        found += check_workflow(loaded, _UnownedLookups(unsaved, variables))
    yield from dict.fromkeys(replace(finding, asked_by="") for finding in found)


def _endpoint(unsaved: Unsaved, content: Mapping[str, object]) -> Iterator[Finding]:
    display = unsaved.display
    users = users_of(display, KINDS["endpoint"])
    for user in users:
        with _settings_of(user, unsaved):
            yield from [*check_endpoint_presets(display, content), *check_key(display, content)]
    if not users:
        yield from check_presets_anywhere(display, content)


def _for_user(unsaved: Unsaved, kind: FileKind) -> list[Finding]:
    """Return the findings with the settings of the current user, whose file or named file this is."""
    lookups = UnsavedLookups(unsaved)
    if kind.name in SETTINGS:
        return [*check_settings_file(kind.name, lookups)]
    check = UserCheck(lookups)
    found = [*check.findings(), *check.startable()]
    if kind.name == "user":
        found += allowed_folders(check.file.content, unsaved.display)
        found += check.memory({finding.json_path for finding in found})
    return all_located(found, lookups)


@contextlib.contextmanager
def _settings_of(user: str, unsaved: Unsaved) -> Iterator[None]:
    """Run a block as a request of ``user``, with the unsaved text as settings if it is the user's own file."""
    with request_scope(RequestContext(request_id=f"check {user}", user=user)):
        if unsaved.kind is KINDS["user"] and isinstance(unsaved.content, dict):
            use_settings(user, unsaved.content)
        yield


def users_of(display: str, kind: FileKind) -> list[str]:
    """Return the users with whose settings a file is checked, at most ``MAX_USERS``, those that are served first."""
    served = [name.casefold() for name in config_utils.configured_users()]
    users = sorted(existing_users(), key=lambda name: name.casefold() not in served)
    found = [user for user in users if _uses(user, display, kind.name)]
    if not found and kind is KINDS["workflow"]:
        found = [
            user
            for user in users
            if _is_below(display, [setting_of(user, SHARED_FOLDER) or "_shared"])
            and USER.flag(_settings(user), "allowSharedWorkflows")
        ]
    return found[:MAX_USERS]


def _uses(user: str, display: str, kind: str) -> bool:
    """Return whether a file is a user's: its own, one in the user's folders, or one that the user's file names."""
    if kind == "user":
        found = find_user_file(user)
        return found is not None and found.display == display
    if kind == "routing":
        return _folds(display) == _folds(f"Routing/{setting_of(user, 'routingConfig')}.json")
    if kind == "endpoint":
        folder = setting_of(user, "endpointConfigsSubDirectory")
        return _folds(display.rpartition("/")[0]) == _folds("/".join(filter(None, ("Endpoints", folder))))
    if kind in SETTINGS:
        key = next(key for key, name in SETTINGS_KEYS.items() if name == kind)
        return any(
            _folds(display) == _folds(f"Workflows/{folder}/{setting_of(user, key)}.json") for folder in folders_of(user)
        )
    return _is_below(display, folders_of(user))


def folders_of(user: str) -> list[str]:
    """Return the folders below ``Workflows`` with the workflows of a user."""
    override = setting_of(user, "workflowConfigsSubDirectoryOverride")
    return [f"_overrides/{override}", override] if override else [user]


def _is_below(display: str, folders: Sequence[str]) -> bool:
    return any(_folds(display).startswith(_folds(f"Workflows/{folder}/")) for folder in folders)


def _folds(path: str) -> str:
    return path.replace("\\", "/").casefold()


def setting_of(user: str, key: str) -> str:
    """Return a string in a user's file; empty if it has none."""
    value = _settings(user).get(key)
    return value.strip() if isinstance(value, str) else ""


def _settings(user: str) -> Mapping[str, object]:
    try:
        return config_utils.settings_for(user)
    # The check of the user's file reports it.
    except ConfigurationError:
        return {}


def variables_of(user: str) -> list[str]:
    """Return the names of a user's variables for all workflows."""
    table = USER.value(_settings(user), "userWideWorkflowVariables")
    return [*map(str, table)] if isinstance(table, Mapping) else []
