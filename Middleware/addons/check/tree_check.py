"""The check of a whole configuration, or of the files that some users reach, with the settings of each user."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from Middleware.addons.check.endpoint_check import (
    check_endpoint_presets,
    check_key,
    check_own_port,
    check_preset_folder,
    check_presets_anywhere,
)
from Middleware.addons.check.file_check import SETTINGS, SourceCheck, check_source
from Middleware.addons.check.findings import Finding, distinct, in_order
from Middleware.addons.check.flow import Inputs
from Middleware.addons.check.lookups import Lookups
from Middleware.addons.check.prompt_check import Beginnings
from Middleware.addons.check.tree import EVERYTHING, Scope, Tree, TreeFile, read_tree, settings_like
from Middleware.addons.check.user_check import UserCheck, allowed_folders, check_current_user, reached_workflows
from Middleware.addons.check.workflow_check import check_workflow
from Middleware.exceptions import ConfigurationError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.config.lookup import FORBIDDEN_FOLDER
from Middleware.utilities.config.paths import meant_folder, missing_folder
from Middleware.utilities.config.users import find_user_file
from Middleware.utilities.config.workflows import (
    TEST_SUFFIX,
    LoadedWorkflow,
    load_workflow,
    user_workflow_folders,
)
from Middleware.utilities.config_utils import endpoint_candidate
from Middleware.utilities.files.file_access import is_forbidden

_EXPECTED = {
    "--ConfigDirectory": "--ConfigDirectory with the path of the folder Configs",
    "--PublicDirectory": "--PublicDirectory with the path of the folder that holds Configs",
}


@dataclass
class CheckResult:
    """The result of a check.

    Attributes:
        findings: in the order of ``in_order``.
        files: how many files were read.
        users: the users whose settings were used.
        workflows: the workflows that each of them reaches, by how messages name their files.
        paths: of all files that were read, by how messages name them.
        endpoints: the content of all endpoint files that were read.
        used_endpoints: that of those which each of the users can name.
    """

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    users: list[str] = field(default_factory=list)
    workflows: dict[str, dict[str, LoadedWorkflow]] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    endpoints: dict[str, object] = field(default_factory=dict)
    used_endpoints: dict[str, dict[str, object]] = field(default_factory=dict)

    def add(self, findings: Iterable[Finding]) -> None:
        """Add the findings of other checks, which have positions."""
        self.findings = in_order([*self.findings, *findings])


# What the settings of a user choose the folder of, or allow.
OF_USER = ("endpoint", "preset", "structured-output", "file directories", "fills partially")


class FileOnlyLookups(Lookups):
    """Lookups for a workflow that no user reaches: whatever depends on a user is assumed to exist.

    ``variables``: the names of the variables of all users.
    """

    has_user = False

    def __init__(self, variables: Iterable[str] = ()) -> None:
        super().__init__()
        self._variables = dict.fromkeys(variables, "")

    def _answer(self, key: tuple[object, ...], find: Callable[[], Any]) -> Any:
        kind = key[0]
        if kind == "user variables":
            return self._variables
        # Without a folder, a name of a workflow means one in the folder of the user.
        by_user = kind in OF_USER or (kind in ("workflow", "child") and not key[2])
        return None if by_user else super()._answer(key, find)


class TreeCheck:
    """One check.

    Args:
        users: the users whose files are checked, with all that they reach; None: all users, and all other files too.
        pause: called between files, so that other threads can run.
        scope: the files to report about. The others are read all the same: what is wrong in a file depends on them.
        at_start: leave out what need not concern those who start a server: advice, tests of workflows, inputs,
            prompts for a category (a model may have been trained for them), folders of presets.
        port: the one that the server listens on; None for the port in the file of each user.
    """

    def __init__(
        self,
        users: Sequence[str] | None = None,
        pause: Callable[[], None] = lambda: None,
        scope: Scope = EVERYTHING,
        at_start: bool = False,
        port: int | None = None,
    ) -> None:
        self._pause, self._scope, self._at_start = pause, scope, at_start
        self._port = port
        self._only = None if users is None else list(users)
        self._sources: dict[str, SourceCheck] = {}
        # File -> the users that reach it.
        self._users: dict[str, set[str]] = {}
        self._tree = Tree({}, [])
        self._inputs = Inputs()
        # Each with the user whose settings applied, "" for all.
        self._found: list[tuple[str, Finding]] = []
        self.result = CheckResult()

    def run(self) -> CheckResult:
        root = config_utils.get_root_config_directory()
        if is_forbidden(root):
            self.result.findings = [Finding("error", os.path.abspath(root), "", None, FORBIDDEN_FOLDER)]
            return self.result
        meant = meant_folder(root)
        if meant or not os.path.isdir(root):
            self.result.findings = [_no_configuration(root, meant)]
            return self.result
        tree = self._tree = read_tree(root, self._only)
        self._known_users = tree.users()
        self.result.users = self._known_users if self._only is None else self._only
        for file in tree.files.values():
            # What the command line names is checked by itself even where none of its users reaches it.
            if self._only is None or (self._scope.names and self._scope.holds(file.display)):
                self._source(file)
        for file in tree.of_kind("current-user"):
            self._add(self._current_user(file))
        for user in self.result.users:
            with request_scope(RequestContext(request_id=f"check {user}", user=user)):
                self._user(user, tree)
        # Without the users' variables nearly every text would look wrong.
        if self._only is None and not any(finding.file == "Users" for finding in tree.findings):
            self._unreached(tree)
        if not self._at_start:
            self._add(self._locate(self._unpassed_inputs()))
        self._add(finding for finding in tree.findings if self._concerns(finding.file))
        self.result.findings = _merged(
            [(user, finding) for user, finding in self._found if self._scope.holds(finding.file)], self._users
        )
        self.result.files = sum(map(self._scope.holds, self._sources))
        return self.result

    # -- files -------------------------------------------------------------------------------------------------------
    def _source(self, file: TreeFile) -> SourceCheck:
        """Check a file by itself, once."""
        known = self._sources.get(file.display)
        if known is None:
            self._pause()
            known = self._sources[file.display] = check_source(file.path, file.display, file.kind)
            self._add(known.findings)
            self.result.paths[file.display] = file.path
            kind = file.kind.name if file.kind is not None else ""
            if kind == "endpoint":
                self.result.endpoints[file.display] = known.content
            if kind == "api-type" and isinstance(known.content, dict) and not self._at_start:
                self._add(self._locate(check_preset_folder(file.display, known.content)))
        return known

    def _add(self, findings: Iterable[Finding], user: str = "") -> None:
        self._found += [(user, finding) for finding in findings]

    def _concerns(self, file: str) -> bool:
        """Return whether the name of a file may matter to one of the users who are checked."""
        if self._only is None:
            return True
        own = {user.casefold() for user in self._only}
        if file.startswith("Users/"):
            return file.removeprefix("Users/").partition(".")[0].casefold() in own
        others = {user.casefold() for user in self._known_users} - own
        folders = file.casefold().split("/")
        # A folder named like another user is that user's, unless these users' files are in it too.
        return others.isdisjoint(folders) or any(
            known.rpartition("/")[0] == file.rpartition("/")[0] for known in self._sources
        )

    def _locate(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Return the findings with positions; for a broken file, further findings are left out."""
        for finding in findings:
            file = self._tree.files.get(finding.file)
            source = self._sources.get(finding.file) if file is None else self._source(file)
            if finding.line is not None or source is None:
                yield finding
            elif source.source is not None:
                yield finding.located(source.source)

    def _current_user(self, file: TreeFile) -> Iterator[Finding]:
        content = self._source(file).content
        if isinstance(content, dict):
            yield from self._locate(check_current_user(content, file.display, self._known_users))

    # -- users -------------------------------------------------------------------------------------------------------
    def _user(self, user: str, tree: Tree) -> None:
        found = find_user_file(user)
        if found is None:
            return
        file = tree.files.get(found.display) or TreeFile(found.display, found.path, None)
        self._users.setdefault(file.display, set()).add(user)
        # The names in a file that cannot be read are not known.
        if self._source(file).is_broken or not isinstance(self._sources[file.display].content, dict):
            return
        lookups = Lookups()
        check = UserCheck(lookups)
        about_file = [
            *check.findings(),
            *check.startable(),
            *allowed_folders(check.file.content, file.display),
            *(() if self._at_start else check.category_prompt()),
        ]
        self._add(self._locate(about_file), user)
        self._workflows(user, check, lookups, tree)
        known = {finding.json_path for _, finding in self._found if finding.file == file.display}
        self._add(self._locate(check.memory(known)), user)
        self._named(user, lookups, tree)
        self.result.used_endpoints[user] = dict(self._used_endpoints())
        self._add(self._locate(check_own_port(self.result.used_endpoints[user], self._port)), user)

    def _used_endpoints(self) -> Iterator[tuple[str, Any]]:
        """Yield the endpoints in the current user's folder; the texts of workflows may name any of them."""
        try:
            folder = endpoint_candidate("x")[:-1]
        # Reported at the user's file.
        except ConfigurationError:
            return
        for file in self._endpoints.get("/".join(folder).casefold(), ()):
            yield file.display, self._source(file).content

    @cached_property
    def _endpoints(self) -> Mapping[str, Sequence[TreeFile]]:
        """The endpoint files by their folders, in lower case: with many users, a search for each of them takes long."""
        found: dict[str, list[TreeFile]] = {}
        for file in self._tree.of_kind("endpoint"):
            found.setdefault(file.display.rpartition("/")[0].casefold(), []).append(file)
        return found

    @cached_property
    def _workflow_files(self) -> Sequence[str]:
        return [file.display for file in self._tree.of_kind("workflow")]

    @cached_property
    def _settings(self) -> frozenset[str]:
        return frozenset(file.display for file in self._tree.of_kind(*SETTINGS))

    def _workflows(self, user: str, check: UserCheck, lookups: Lookups, tree: Tree) -> None:
        reached = self.result.workflows[user] = {}
        beginnings = Beginnings(lookups)
        for loaded in reached_workflows(check, lookups, self._workflow_files):
            if loaded.display in self._settings or (not loaded.nodes and settings_like(loaded.variables)):
                # The file can be selected because it is in the shared folder, but it is not a workflow.
                continue
            self._pause()
            reached[loaded.display] = loaded
            self._users.setdefault(loaded.display, set()).add(user)
            if loaded.display in tree.files:
                self._source(tree.files[loaded.display])
            self._add(check_workflow(loaded, lookups), user)
            self._inputs.add(loaded, lookups)
            beginnings.add(loaded)
        if not self._at_start:
            self._add(self._locate(beginnings.findings()), user)
            self._tests(user, reached, tree)

    def _tests(self, user: str, reached: Collection[str], tree: Tree) -> None:
        """Check the files with tests of the workflows that a user reaches, and those in the user's own folders."""
        try:
            own = tuple(f"workflows/{folder}/".casefold() for folder in user_workflow_folders())
        # Reported at the user's file.
        except ConfigurationError:
            own = ()
        for file in tree.of_kind("workflow-test"):
            workflow = f"{file.display.removesuffix(TEST_SUFFIX)}.json"
            if workflow in reached or (own and file.display.casefold().startswith(own)):
                self._users.setdefault(file.display, set()).add(user)
                self._source(file)

    def _named(self, user: str, lookups: Lookups, tree: Tree) -> None:
        """Check the files that the user's workflows name, and those that these name in turn."""
        for display in [*lookups.named, *(file.display for file in lookups.settings_files())]:
            file = tree.files.get(display)
            if file is None:
                continue
            self._users.setdefault(display, set()).add(user)
            content = self._source(file).content
            if lookups.named.get(display) == "endpoint" and isinstance(content, dict):
                self._add(self._locate([*check_endpoint_presets(display, content), *check_key(display, content)]), user)

    # -- the rest ----------------------------------------------------------------------------------------------------
    def _unreached(self, tree: Tree) -> None:
        variables = {name for file in tree.of_kind("user") for name in _variables(self._sources[file.display].content)}
        lookups = FileOnlyLookups(variables)
        beginnings = Beginnings(lookups)
        for file in tree.of_kind("workflow"):
            if file.display not in self._users:
                self._pause()
                self._add(self._alone(file, lookups, beginnings))
        self._add(self._locate(beginnings.findings()))
        for file in tree.of_kind("endpoint"):
            content = self._sources[file.display].content
            if file.display not in self._users and isinstance(content, dict):
                self._add(self._locate(check_presets_anywhere(file.display, content)))

    def _alone(self, file: TreeFile, lookups: Lookups, beginnings: Beginnings) -> Iterator[Finding]:
        folder, _, name = file.display[len("Workflows/") : -len(".json")].rpartition("/")
        try:
            loaded = load_workflow(name, folder or ".")
        # Reported at the file.
        except ConfigurationError:
            return
        yield from check_workflow(loaded, lookups)
        self._inputs.add(loaded, lookups)
        beginnings.add(loaded)

    def _unpassed_inputs(self) -> Iterator[Finding]:
        """Yield the inputs of workflows that callers do not pass; all callers of the checked users are known."""
        for file in self._tree.of_kind("user", *SETTINGS):
            content = self._sources[file.display].content if file.display in self._sources else None
            names = content.values() if isinstance(content, dict) else ()
            self._inputs.named(name for name in names if isinstance(name, str))
        return self._inputs.findings()


def _no_configuration(root: str, meant: str) -> Finding:
    """Return the error for a missing folder. ``meant``: the nearby folder that was probably meant, if there is one."""
    missing, flag = missing_folder(root)
    message = "the folder holds no folder 'Users'" if os.path.isdir(missing) else "there is no such folder"
    return Finding("error", missing, "", None, message, _EXPECTED[flag], meant)


def _variables(content: object) -> Iterator[str]:
    variables = USER.value(content, "userWideWorkflowVariables") if isinstance(content, dict) else None
    yield from variables if isinstance(variables, dict) else ()


# -- one mistake, one message ------------------------------------------------------------------------------------------


def _merged(found: Sequence[tuple[str, Finding]], users: dict[str, set[str]]) -> list[Finding]:
    """Return the sorted findings, each once with the users it applies to, without those that follow from others."""
    # A note does not keep a file from being used.
    bad = {finding.file for _, finding in found if not finding.about and finding.severity != "note"}
    together: dict[tuple[object, ...], tuple[Finding, set[str]]] = {}
    for user, finding in found:
        # The paths that were tried differ between users; the mistake does not.
        key = (finding.file, finding.json_path, finding.severity, finding.message.partition(" Looked for:")[0])
        together.setdefault(key, (finding, set()))[1].add(user)
    return in_order(distinct((_for_users(finding, whose, users) for finding, whose in together.values()), bad))


def _for_users(finding: Finding, whose: set[str], users: dict[str, set[str]]) -> Finding:
    everybody = "" in whose or whose >= users.get(finding.file, set())
    return replace(finding, asked_by="", users=() if everybody else tuple(sorted(whose)))
