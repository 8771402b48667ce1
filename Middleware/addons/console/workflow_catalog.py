"""The workflows as they are connected: who uses each, what its nodes do and name, and what the check says about them.

For the console's pages. Everything is read from the files when it is asked for, with the settings of each user.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from Middleware.addons.check.file_check import KINDS, check_source
from Middleware.addons.check.findings import Finding
from Middleware.addons.check.lookups import ConfigFile, Lookups
from Middleware.addons.check.memory_check import COMPACTOR_KEY, MEMORY_KEY
from Middleware.addons.check.node_check import NodeView, child_folder, child_names, views_of
from Middleware.addons.check.text_check import variables_in
from Middleware.addons.check.tree import read_tree, settings_like
from Middleware.addons.check.tree_check import FileOnlyLookups
from Middleware.addons.check.user_check import MEMORY_KEYS, SETTINGS_WORKFLOWS, UserCheck, reached_workflows
from Middleware.addons.check.workflow_check import check_workflow
from Middleware.addons.records.completion import ConfigVersions
from Middleware.exceptions import ConfigurationError, WilmerError
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.node import NODE, is_responder
from Middleware.utilities.config.users import DEFAULT_WORKFLOW
from Middleware.utilities.config.workflows import LoadedWorkflow, workflow_at
from Middleware.utilities.json_data import strings_in

FOLDER = "Workflows/"
USER_KEYS = ("customWorkflow", "categorizationWorkflow", "backgroundTaskWorkflow", *MEMORY_KEYS)
_OUTPUT = re.compile(r"agent([1-9][0-9]{0,5})Output")
_NODE = re.compile(r"(?:nodes)?\[(\d+)\]")


# -- the fields of the console's API -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkflowUse:
    """One thing that uses a workflow.

    Attributes:
        kind: ``category`` (of a routing), ``model`` (that clients choose), ``default`` (of a user), ``key`` (of a
            user's file), ``settings`` (of memories) or ``workflow`` (with a node that runs it).
        name: of the category, the model, the user, the key or the workflow.
        path: of the file that says so, below the config root; "" if no file does.
        node: the number of the node, from 1; 0 for the others.
    """

    kind: str
    name: str
    path: str = ""
    node: int = 0


@dataclass
class WorkflowSummary:
    """A workflow in a list.

    Attributes:
        path: of the file, below the config root.
        nodes: how many it has.
        endpoints: those that its nodes name.
        children: the paths of the workflows that its nodes run.
        users: those who reach it.
    """

    path: str
    folder: str
    name: str
    nodes: int = 0
    endpoints: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    used_by: list[WorkflowUse] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True)
class Child:
    """A workflow that a node runs; ``path`` is "" if its name has a variable, or there is no such file."""

    name: str
    path: str


@dataclass(frozen=True)
class WorkflowFinding:
    """A finding of the check about a workflow, in words."""

    severity: str
    text: str
    line: int | None
    column: int | None


@dataclass
class Node:
    """A node of a workflow.

    Attributes:
        index: from 1.
        type: what it runs as.
        uses: the numbers of the nodes whose outputs its texts contain.
        after_answer: it runs when the answer is out.
        line: of its beginning in the file.
        json: as it is written, without secrets; None if that cannot be read.
    """

    index: int
    title: str
    type: str
    endpoints: list[str]
    preset: str
    responder: bool
    after_answer: bool
    uses: list[int]
    children: list[Child]
    line: int | None
    json: object = None
    findings: list[WorkflowFinding] = field(default_factory=list)


@dataclass
class Workflow:
    """A workflow with its nodes.

    Attributes:
        findings: those about the file as a whole.
        hash: of the file's text without secrets, as recorded runs have it.
    """

    summary: WorkflowSummary
    nodes: list[Node]
    findings: list[WorkflowFinding]
    hash: str = ""


# -- reading them ------------------------------------------------------------------------------------------------------


class WorkflowCatalog:
    """Answers for some users, or for all and for the files that no user uses."""

    def __init__(self, users: Iterable[str] | None = None) -> None:
        self._known = list(config_utils.configured_users() or [config_utils.get_current_username()])
        self._all = users is None
        self._users = self._known if users is None else [user for user in self._known if user in frozenset(users)]
        self._summaries: dict[str, WorkflowSummary] = {}
        self._loaded: dict[str, LoadedWorkflow] = {}

    def workflows(self) -> list[WorkflowSummary]:
        """Return all workflows by folder and name, as they were when this was asked first."""
        if not self._summaries:
            self._read()
        return sorted(self._summaries.values(), key=lambda one: (one.folder.casefold(), one.name.casefold()))

    def _read(self) -> None:
        tree = read_tree(config_utils.get_root_config_directory(), self._users)
        files = {file.display: file.path for file in tree.of_kind("workflow")}
        for user in self._users:
            with _as_user(user):
                self._add_user(user, [*files])
        for display, path in files.items() if self._all else ():
            if display not in self._summaries:
                self._add_unused(display, path)

    def workflow(self, path: str) -> Workflow | None:
        """Return one of them by its path below ``Workflows``, without ``.json``; None if it is not there."""
        display = f"{FOLDER}{path}.json"
        summary = next((one for one in self.workflows() if one.path == display), None)
        if summary is None:
            return None
        if display not in self._loaded:
            file = os.path.join(config_utils.get_root_config_directory(), *display.split("/"))
            broken = check_source(file, display, KINDS["workflow"])
            return Workflow(summary, [], [_found(finding) for finding in broken.findings])
        loaded = self._loaded[display]
        if not summary.users:
            return _described(summary, loaded, FileOnlyLookups())
        with _as_user(summary.users[0]):
            return _described(summary, loaded, Lookups())

    # -- what there is -----------------------------------------------------------------------------------------------
    def _add_user(self, user: str, files: Sequence[str]) -> None:
        lookups = Lookups()
        try:
            check = UserCheck(lookups)
            reached = list(reached_workflows(check, lookups, files))
        # A user whose file is broken has no workflows; the others have theirs.
        except WilmerError:
            return
        for loaded in reached:
            summary = self._add(loaded, lookups)
            summary.users.append(user)
        for loaded in reached:
            self._add_children(loaded, lookups)
        for use, target in _uses_of_user(user, check, lookups):
            self._use(target, use)

    def _add(self, loaded: LoadedWorkflow, lookups: Lookups) -> WorkflowSummary:
        known = self._summaries.get(loaded.display)
        if known is not None:
            return known
        folder, _, name = loaded.display.removeprefix(FOLDER).removesuffix(".json").rpartition("/")
        # A name with a variable is chosen by the workflow that runs this one.
        endpoints = dict.fromkeys(name for view in views_of(loaded) for name in _endpoints(view) if "{" not in name)
        self._loaded[loaded.display] = loaded
        summary = self._summaries[loaded.display] = WorkflowSummary(
            loaded.display, folder, name, len(loaded.nodes), [*endpoints]
        )
        return summary

    def _add_children(self, loaded: LoadedWorkflow, lookups: Lookups) -> None:
        summary = self._summaries[loaded.display]
        for view in views_of(loaded):
            for child in _children(view, lookups):
                if child.path and child.path not in summary.children:
                    summary.children.append(child.path)
                self._use(child.path, WorkflowUse("workflow", _short(loaded.display), loaded.display, view.index + 1))

    def _add_unused(self, display: str, path: str) -> None:
        try:
            loaded = workflow_at(display.rpartition("/")[2].removesuffix(".json"), path)
        except ConfigurationError as error:
            folder, _, name = display.removeprefix(FOLDER).removesuffix(".json").rpartition("/")
            self._summaries[display] = WorkflowSummary(display, folder, name, problem=str(error))
            return
        # Settings that only a user names who is not served.
        if loaded.nodes or not settings_like(loaded.variables):
            self._add(loaded, FileOnlyLookups())

    def _use(self, display: str, use: WorkflowUse) -> None:
        summary = self._summaries.get(display)
        if summary is not None and use not in summary.used_by:
            summary.used_by.append(use)


def _as_user(user: str) -> contextlib.AbstractContextManager[RequestContext]:
    return request_scope(RequestContext(user=user))


# -- what leads to a workflow ------------------------------------------------------------------------------------------


def _uses_of_user(user: str, check: UserCheck, lookups: Lookups) -> Iterator[tuple[WorkflowUse, str]]:
    """Yield what the files of the current user lead to, each with the path of the workflow's file."""
    file = check.file

    def own(name: object) -> str:
        loaded = lookups.own_workflow(name) if isinstance(name, str) and name.strip() else None
        return loaded.display if loaded is not None else ""

    for key in USER_KEYS:
        yield WorkflowUse("key", key, file.display), own(file.content.get(key))
    yield WorkflowUse("default", user), own(DEFAULT_WORKFLOW)
    routing = file.content.get("routingConfig")
    if isinstance(routing, str) and routing.strip():
        categories = lookups.routing(routing)
        display = next((name for name, kind in lookups.named.items() if kind == "routing"), "")
        for category, entry in categories.items() if isinstance(categories, Mapping) else ():
            yield WorkflowUse("category", category, display), own(entry["workflow"])
    for key in (MEMORY_KEY, COMPACTOR_KEY):
        name = file.content.get(key)
        settings = lookups.settings_file(name) if isinstance(name, str) and name.strip() else None
        if isinstance(settings, ConfigFile):
            for one in SETTINGS_WORKFLOWS:
                yield WorkflowUse("settings", one, settings.display), own(settings.content.get(one))
    if check.chooses_shared():
        yield from _models(user)


def _models(user: str) -> Iterator[tuple[WorkflowUse, str]]:
    """Yield the shared workflows that clients of the user may choose."""
    try:
        for name in config_utils.list_shared_workflows():
            selection = config_utils.shared_selection(name)
            if selection is not None:
                yield WorkflowUse("model", f"{user}:{name}"), config_utils.load_workflow(*selection).display
    # The check reports it at the user's file, or at the workflow's.
    except ConfigurationError:
        return


# -- nodes -------------------------------------------------------------------------------------------------------------


def _described(summary: WorkflowSummary, loaded: LoadedWorkflow, lookups: Lookups) -> Workflow:
    views = views_of(loaded)
    source = lookups.source(loaded.path)
    answering = next((view.index for view in views if is_responder(view.node)), len(views) - 1)
    nodes = []
    for view in views:
        position = source.position(view.path)
        nodes.append(
            Node(
                view.index + 1,
                _title(view.node),
                view.runs_as,
                _endpoints(view),
                _preset(view.node),
                view.index == answering,
                view.index > answering,
                _uses(view),
                [*_children(view, lookups)],
                position.line if position else None,
            )
        )
    about_file = []
    for finding in check_workflow(loaded, lookups):
        place = _NODE.match(finding.json_path) if finding.file == loaded.display else None
        if place is not None and int(place[1]) < len(nodes):
            nodes[int(place[1])].findings.append(_found(finding))
        elif finding.file == loaded.display:
            about_file.append(_found(finding))
    return Workflow(summary, nodes, about_file, _add_json(nodes, loaded.path))


def _add_json(nodes: Sequence[Node], path: str) -> str:
    """Give the nodes their JSON without secrets; return the hash of the file."""
    version = process().one(ConfigVersions).version(path)
    if version is None:
        return ""
    try:
        content = json.loads(version.text)
        written = content["nodes"] if isinstance(content, dict) else content
        for node, own in zip(nodes, written, strict=True):
            node.json = own
    # The file has changed since, or its secrets were not strings.
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return version.hash


def _found(finding: Finding) -> WorkflowFinding:
    return WorkflowFinding(finding.severity, finding.text, finding.line, finding.column)


def _title(node: Mapping[str, object]) -> str:
    name = node.get("title") or node.get("agentName")
    return name if isinstance(name, str) else ""


def _endpoints(view: NodeView) -> list[str]:
    models = view.node.get("multiModelList") if "multiModelList" in view.keys else None
    entries = (
        [entry.get("endpointName") for entry in models if isinstance(entry, Mapping)]
        if isinstance(models, (list, tuple))
        else []
    )
    return [str(name) for name in (view.node.get("endpointName"), *entries) if name]


def _preset(node: Mapping[str, object]) -> str:
    return str(node.get("preset") or node.get("presetName") or "")


def _children(view: NodeView, lookups: Lookups) -> Iterator[Child]:
    folder = child_folder(view)
    for _, name in child_names(view):
        found = None if folder is None or "{" in name else lookups.child(name, folder or None, view.loaded)
        yield Child(name, found.display if found is not None else "")


def _uses(view: NodeView) -> list[int]:
    """Return the numbers of the nodes whose outputs a node contains, also through variables of the file."""
    jinja, variables = NODE.flag(view.node, "jinja2"), view.loaded.variables
    names = {name for _, text in strings_in(view.node) for name in variables_in(text, jinja)}
    through = {
        inner for name in names if isinstance(text := variables.get(name), str) for inner in variables_in(text, False)
    }
    numbers = {int(found[1]) for name in names | through if (found := _OUTPUT.fullmatch(name))}
    return sorted(number for number in numbers if number <= len(view.loaded.nodes))


def _short(display: str) -> str:
    return display.removeprefix(FOLDER).removesuffix(".json")
