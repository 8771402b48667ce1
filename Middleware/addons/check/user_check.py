"""Checks of the names in a user file, and the workflows that the user's requests reach."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.flow import Flow, Value, check_request_inputs
from Middleware.addons.check.lookups import (
    FOLDER_CUTOFF,
    ConfigFile,
    Lookups,
    Problem,
    files_in,
    folder_exists,
    folder_problem,
    folders_in,
)
from Middleware.addons.check.memory_check import COMPACTOR_KEY, EMBEDDINGS_EXPECTED, HELPERS, MEMORY_KEY
from Middleware.addons.check.node_check import child_folder, child_names, views_of
from Middleware.addons.check.prompt_check import check_category_prompt, odd_block_size
from Middleware.exceptions import ConfigurationError
from Middleware.services.memory.compactor_settings import CompactorSettings
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.prompt_categorization_service import UNKNOWN, match_category
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import Severity, is_meant, meant_key, no_effect, quoted
from Middleware.utilities.config.declarations import settings_keys
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.config.users import (
    CHAT_ONLY_TEMPLATE,
    DEFAULT_WORKFLOW,
    current_snapshot,
    find_user_file,
)
from Middleware.utilities.config.workflows import LoadedWorkflow, user_workflow_folders
from Middleware.utilities.files.path_utils import split_name
from Middleware.utilities.text_utils import nearest

MEMORY_KEYS = (*HELPERS, "fileMemoryToolWorkflow")
STARTING_KEYS = ("routingConfig", "customWorkflow", "workflowConfigsSubDirectoryOverride")
SHARED_FOLDER = "sharedWorkflowsSubDirectoryOverride"


class UserCheck:
    """The check of the current user's file. ``lookups`` belong to the same user."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        self.file: ConfigFile = lookups.user_file()
        self._settings: Mapping[str, object] = self.file.content

    def findings(self) -> Iterator[Finding]:
        """Yield findings about the names in the file, except for those that only memory nodes need."""
        yield from self._folders()
        yield from self._workflows()
        yield from self._template()
        yield from self._block_size()
        yield from self._embeddings()

    def startable(self) -> Iterator[Finding]:
        """Yield what prevents every request from starting although no name in the file is wrong."""
        if not self._has_workflows():
            yield from self._no_workflows()
        elif misspelt := self._misspelt():
            yield self._at(
                "error",
                misspelt,
                f"{no_effect(misspelt)}, so that there is no workflow to run",
                suggestion=meant_key(misspelt, STARTING_KEYS),
            )
        elif not self._name("routingConfig") and not USER.flag(self._settings, "customWorkflowOverride"):
            yield from self._default()

    def category_prompt(self) -> Iterator[Finding]:
        """Yield a finding if no prompt shows the categories to the LLM that chooses one of them."""
        routing = self._lookups.routing(self._name("routingConfig")) if self._name("routingConfig") else {}
        chooser = self._lookups.own_workflow(self._name("categorizationWorkflow") or DEFAULT_WORKFLOW)
        if (
            routing
            and isinstance(routing, Mapping)
            and chooser is not None
            and not USER.flag(self._settings, "customWorkflowOverride")
        ):
            yield from check_category_prompt(chooser, routing, self._lookups)

    def memory(self, known: Collection[str]) -> Iterator[Finding]:
        """Yield what concerns memory nodes only. ``known``: JSON paths that have a finding already."""
        if not self._has_workflows():
            return
        for key in (*MEMORY_KEYS, MEMORY_KEY, COMPACTOR_KEY):
            name = self._name(key)
            if name and key not in known:
                look_up = self._lookups.user_workflow if key in MEMORY_KEYS else self._lookups.settings_file
                found = look_up(name)
                yield from self._problem(key, found if isinstance(found, Problem) else None, in_use=False)

    def workflow_names(self) -> list[str]:
        """Return the workflows that the file names, and those of its routing file."""
        names = [
            DEFAULT_WORKFLOW,
            *(
                self._name(key)
                for key in ("customWorkflow", "categorizationWorkflow", "backgroundTaskWorkflow", *MEMORY_KEYS)
            ),
        ]
        routing = self._lookups.routing(self._name("routingConfig")) if self._name("routingConfig") else {}
        if isinstance(routing, Mapping):
            names += [entry["workflow"] for entry in routing.values()]
        return [name for name in dict.fromkeys(names) if name]

    def chooses_shared(self) -> bool:
        """Return whether clients of the user are meant to choose shared workflows: they see them, or have no other
        choice.

        All can be chosen by name at any time. But the usual folder belongs to other users, whose endpoints these
        workflows name, where the file neither lists nor names it.
        """
        if USER.flag(self._settings, "allowSharedWorkflows") or not self._has_workflows():
            return True
        if self._name(SHARED_FOLDER) not in ("", USER[SHARED_FOLDER].default):
            return True
        always = self._name("routingConfig") or USER.flag(self._settings, "customWorkflowOverride")
        return not always and self._lookups.user_workflow(DEFAULT_WORKFLOW) is not None

    # -- folders -----------------------------------------------------------------------------------------------------
    def _folders(self) -> Iterator[Finding]:
        yield from self._folder("endpointConfigsSubDirectory", "error", "Endpoints")
        types = folders_in("Presets")
        yield from self._folder(
            "presetConfigsSubDirectoryOverride", "note", *(f"Presets/{preset_type}" for preset_type in types)
        )
        yield from self._folder("workflowConfigsSubDirectoryOverride", "error", "Workflows/_overrides", "Workflows")
        shared: Severity = "warning" if USER.flag(self._settings, "allowSharedWorkflows") else "note"
        # The default folder need not exist: not every configuration shares workflows.
        if self._name(SHARED_FOLDER) != USER[SHARED_FOLDER].default:
            yield from self._folder(SHARED_FOLDER, shared, "Workflows")
        yield from self._folder("structuredOutputConfigsSubDirectory", "note", "StructuredOutputs")

    def _folder(self, key: str, severity: Severity, *parents: str) -> Iterator[Finding]:
        """Yield a finding if a folder exists in none of ``parents``. An optional one is mentioned only if misspelt."""
        name = self._name(key)
        problem = folder_problem(name, *parents) if name else None
        if problem is None:
            return
        if severity == "note":
            # An optional folder may be made later, unless no folder can have this name.
            if not problem.suggestion and not problem.is_invalid:
                return
            severity = "warning"
        yield self._at("error" if problem.is_invalid else severity, key, problem.message, suggestion=problem.suggestion)

    def _has_workflows(self) -> bool:
        """Return whether the user has a folder of workflows. If not, the folder is reported instead of each name."""
        try:
            return any(folder_exists("Workflows", *split_name(folder)) for folder in user_workflow_folders())
        # Reported with the key.
        except ConfigurationError:
            return False

    def _no_workflows(self) -> Iterator[Finding]:
        """Yield one finding about all names of workflows that cannot be found without their folder."""
        wanted = USER.flag(self._settings, "customWorkflowOverride") or any(
            self._name(key) for key in ("routingConfig", "backgroundTaskWorkflow")
        )
        if not self._name("workflowConfigsSubDirectoryOverride") and (wanted or not self._shares()):
            name = current_snapshot().name
            yield self._at(
                "error",
                "",
                f"there is no folder {quoted(name)} in Workflows, and "
                "'workflowConfigsSubDirectoryOverride' names no other; this user has no workflows",
                "",
                nearest(name, folders_in("Workflows"), FOLDER_CUTOFF),
            )

    # -- workflows ---------------------------------------------------------------------------------------------------
    def _workflows(self) -> Iterator[Finding]:
        custom = USER.flag(self._settings, "customWorkflowOverride")
        routing = self._name("routingConfig")
        yield from self._inputs()
        if custom and not self._name("customWorkflow"):
            yield self._at(
                "error",
                "customWorkflowOverride",
                "'customWorkflowOverride' is true, but 'customWorkflow' names no workflow",
                "the name of a workflow",
            )
        if not self._has_workflows():
            return
        yield from self._workflow("customWorkflow", in_use=custom)
        yield from self._workflow("backgroundTaskWorkflow", in_use=True)
        if routing and not custom:
            yield from self._workflow("categorizationWorkflow", in_use=True)
            if not self._name("categorizationWorkflow") and self._lookups.user_workflow(DEFAULT_WORKFLOW) is None:
                yield self._at(
                    "warning",
                    "categorizationWorkflow",
                    f"'categorizationWorkflow' is not set, so that {DEFAULT_WORKFLOW} chooses the category",
                    "the name of a workflow",
                )
        if routing:
            yield from self._routing(routing, in_use=not custom)
        elif not custom:
            yield from self._workflow("categorizationWorkflow", in_use=False)

    def _inputs(self) -> Iterator[Finding]:
        """Yield the inputs that workflows use which this file, or its routing, runs without any."""
        routing = self._lookups.routing(self._name("routingConfig")) if self._name("routingConfig") else {}
        if USER.flag(self._settings, "customWorkflowOverride"):
            names = [self._name("customWorkflow")]
        else:
            entries = routing.values() if isinstance(routing, Mapping) else ()
            names = [self._name("categorizationWorkflow") if routing else "", *(entry["workflow"] for entry in entries)]
        callers = {
            **dict.fromkeys((self._name(key) for key in HELPERS), "a memory node"),
            **dict.fromkeys((*names, self._name("backgroundTaskWorkflow")), "a request"),
        }
        for name, caller in callers.items():
            loaded = self._lookups.own_workflow(name) if name else None
            # That one reports it itself.
            if loaded is not None and loaded.name != DEFAULT_WORKFLOW:
                yield from check_request_inputs(loaded, self._lookups, caller)

    def _workflow(self, key: str, in_use: bool) -> Iterator[Finding]:
        if self._name(key):
            yield from self._problem(key, self._lookups.user_workflow(self._name(key)), in_use)

    def _routing(self, name: str, in_use: bool) -> Iterator[Finding]:
        found = self._lookups.routing(name)
        if isinstance(found, Problem):
            yield from self._problem("routingConfig", found, in_use)
            return
        display = next((file for file, kind in self._lookups.named.items() if kind == "routing"), "")
        if in_use:
            yield from self._unmatched(name, found)
        for category, entry in found.items() if in_use else ():
            problem = self._lookups.user_workflow(entry["workflow"])
            if problem is not None:
                yield Finding(
                    "error",
                    display,
                    child(child("", category), "workflow"),
                    None,
                    problem.message,
                    "",
                    problem.suggestion,
                    about=problem.file,
                )

    def _unmatched(self, name: str, routing: Mapping[str, object]) -> Iterator[Finding]:
        """Yield a finding if an answer may name no category, and there is no workflow for that."""
        problem = self._lookups.user_workflow(DEFAULT_WORKFLOW)
        # Without a category, the engine looks for the one with this name first.
        if problem is None or problem.file or UNKNOWN in routing:
            return
        chooser = self._name("categorizationWorkflow")
        if not chooser:
            yield self._at(
                "error",
                "routingConfig",
                f"no workflow chooses a category of the routing {quoted(name)}: "
                f"there is neither 'categorizationWorkflow' nor a workflow {DEFAULT_WORKFLOW}",
                "'categorizationWorkflow' with the name of a workflow",
                problem.suggestion,
            )
            return
        loaded = self._lookups.own_workflow(chooser)
        said = Flow(loaded, self._lookups).result() if loaded is not None else Value()
        if said.is_open or any(match_category(text, list(routing)) is None for text in (said.texts or {}).values()):
            yield self._at(
                "warning",
                "routingConfig",
                f"the answer of workflow {quoted(chooser)} may name no category "
                f"of the routing {quoted(name)} ({', '.join(routing)}), and there is no workflow "
                f"{DEFAULT_WORKFLOW}, which would run then; the request fails",
                f"a workflow {DEFAULT_WORKFLOW} for every other answer",
                problem.suggestion,
            )

    def _default(self) -> Iterator[Finding]:
        """Yield a finding if a request without routing has neither ``_DefaultWorkflow`` nor a shared workflow."""
        problem = self._lookups.user_workflow(DEFAULT_WORKFLOW)
        if problem is not None and not problem.file and not self._shares():
            yield self._at(
                "error",
                "",
                f"the file names no routing and no workflow that always runs, and {problem.message}",
                f"a workflow {DEFAULT_WORKFLOW}, 'routingConfig', or 'customWorkflow' with 'customWorkflowOverride'",
            )

    def _misspelt(self) -> str:
        """Return the misspelt key because of which the user has no workflow to run; empty without one."""
        if (
            any(self._name(key) for key in ("routingConfig", "customWorkflow"))
            or self._shares()
            or (self._lookups.user_workflow(DEFAULT_WORKFLOW) is None)
        ):
            return ""
        return next(
            (name for name in self._settings if any(is_meant(name, key, self._settings) for key in STARTING_KEYS)), ""
        )

    def _shares(self) -> bool:
        try:
            return bool(config_utils.list_shared_workflows())
        # Reported with the folder.
        except ConfigurationError:
            return True

    # -- other names -------------------------------------------------------------------------------------------------
    def _block_size(self) -> Iterator[Finding]:
        for message, expected in odd_block_size(self._settings.get("messageBlockSize")):
            yield self._at("note", "messageBlockSize", message, expected)

    def _template(self) -> Iterator[Finding]:
        name = self._name("chatPromptTemplateName")
        if name and name != CHAT_ONLY_TEMPLATE:
            yield from self._problem("chatPromptTemplateName", self._lookups.prompt_template(name), in_use=True)

    def _embeddings(self) -> Iterator[Finding]:
        key = "embeddingEndpointName"
        value = self._settings.get(key)
        entries = enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]
        for index, name in entries:
            # Values of other types are reported with the keys; numbers count as strings there.
            text = str(name).strip() if isinstance(name, (str, int, float)) else ""
            problem = self._lookups.embeddings_endpoint(text) if text else None
            if problem is not None:
                path = key if index is None else child(key, index)
                yield Finding(
                    "error",
                    self.file.display,
                    path,
                    None,
                    problem.message,
                    EMBEDDINGS_EXPECTED,
                    problem.suggestion,
                    about=problem.file,
                )

    def _name(self, key: str) -> str:
        value = self._settings.get(key)
        return value.strip() if isinstance(value, str) else ""

    def _problem(self, key: str, problem: Problem | None, in_use: bool) -> Iterator[Finding]:
        if problem is not None:
            message = problem.message + ("" if in_use else " (not in use at present)")
            finding = self._at("error" if in_use else "note", key, message, suggestion=problem.suggestion)
            yield replace(finding, about=problem.file)

    def _at(self, severity: Severity, key: str, message: str, expected: str = "", suggestion: str = "") -> Finding:
        path = child("", key) if key and key in self._settings else ""
        return Finding(severity, self.file.display, path, None, message, expected, suggestion)


def allowed_folders(settings: Mapping[str, object], display: str) -> Iterator[Finding]:
    """Yield entries of ``allowedFileDirectories`` that are not folders at present."""
    value = settings.get("allowedFileDirectories")
    root = config_utils.get_root_public_directory()
    for index, entry in enumerate(value if isinstance(value, (list, tuple)) else ()):
        path = child("allowedFileDirectories", index)
        if isinstance(entry, str) and not entry.strip():
            yield Finding(
                "error",
                display,
                path,
                None,
                "an entry of 'allowedFileDirectories' is blank, so that no file can be used",
                "the path of a directory",
            )
        elif isinstance(entry, str) and not os.path.isdir(os.path.join(root, os.path.expanduser(entry.strip()))):
            yield Finding("note", display, path, None, f"there is no directory {quoted(entry)} yet")


def check_current_user(content: Mapping[str, object], display: str, users: Collection[str]) -> Iterator[Finding]:
    """Yield a finding if the current user does not exist. ``users``: the names of all users."""
    name = content.get("currentUser")
    # Reported with the keys.
    if not isinstance(name, str) or not name.strip():
        return
    try:
        if find_user_file(name) is None:
            yield Finding(
                "error",
                display,
                "currentUser",
                None,
                f"user {quoted(name)} does not exist",
                "",
                nearest(name, users, FOLDER_CUTOFF),
            )
    except ConfigurationError as error:
        yield Finding("error", display, "currentUser", None, str(error))


# -- workflows that are reached ----------------------------------------------------------------------------------------

SETTINGS_WORKFLOWS = tuple(
    key.name
    for cls in (MemorySettings, CompactorSettings)
    for key in settings_keys(cls).values()
    if key.names == "workflow"
)


@dataclass(frozen=True)
class WorkflowReference:
    """A workflow to find: by name alone, in one folder, or as the child of another."""

    name: str
    folder: str | None = None
    calling_folder: str | None = None
    calling_name: str | None = None

    def load(self, lookups: Lookups) -> LoadedWorkflow | None:
        """Return the workflow; None if none can be read: ``lookups`` then know the file, if there is one."""
        try:
            return config_utils.load_workflow(self.name, self.folder, self.calling_folder, self.calling_name)
        except ConfigurationError as error:
            if error.file:
                lookups.named[error.file] = "workflow"
            return None


def reached_workflows(user: UserCheck, lookups: Lookups, workflows: Collection[str]) -> Iterator[LoadedWorkflow]:
    """Yield every workflow that a request of the user, or a node of another workflow, can lead to, each file once.

    Shared workflows that no list shows to a client are left out (``UserCheck.chooses_shared``).
    ``workflows``: all workflow files, relative to the config root. Those in the user's own folders belong to the user.
    """
    return followed([*_of_user(user, workflows), *(_shared() if user.chooses_shared() else ())], lookups)


def followed(first: Iterable[WorkflowReference], lookups: Lookups) -> Iterator[LoadedWorkflow]:
    """Yield these workflows, and every workflow that a node of them can lead to, each file once."""
    waiting = [*first]
    known: set[str] = set()
    asked: set[WorkflowReference] = set()
    while waiting:
        wanted = waiting.pop(0)
        loaded = None if wanted in asked else wanted.load(lookups)
        asked.add(wanted)
        if loaded is None or loaded.display in known:
            continue
        known.add(loaded.display)
        yield loaded
        waiting += _children(loaded)
        # The check of the workflow just yielded may have looked up settings files, which name workflows too.
        waiting += [
            WorkflowReference(str(file.content[key]))
            for file in lookups.settings_files()
            for key in SETTINGS_WORKFLOWS
            if isinstance(file.content.get(key), str) and file.content[key].strip()
        ]


def _of_user(user: UserCheck, workflows: Collection[str]) -> Iterator[WorkflowReference]:
    yield from map(WorkflowReference, user.workflow_names())
    try:
        folders = user_workflow_folders()
    # Reported at the user's file.
    except ConfigurationError:
        return
    for folder in folders:
        prefix = f"Workflows/{folder}/".casefold()
        yield from (
            WorkflowReference(file[len(prefix) : -len(".json")])
            for file in workflows
            if file.casefold().startswith(prefix)
        )


def _shared() -> Iterator[WorkflowReference]:
    try:
        shared = config_utils.shared_workflow_folder()
        names = [*folders_in("Workflows", *shared.split("/")), *files_in("Workflows", *shared.split("/"))]
        selections = [config_utils.shared_selection(name) for name in names]
    # Reported at the user's file.
    except ConfigurationError:
        return
    for selection in selections:
        if selection is not None:
            yield WorkflowReference(*selection)


def _children(loaded: LoadedWorkflow) -> Iterator[WorkflowReference]:
    for view in views_of(loaded):
        folder = child_folder(view)
        if folder is None:
            continue
        for _, name in child_names(view):
            if "{" not in name:
                yield WorkflowReference(name, folder or None, loaded.folder, loaded.name)
