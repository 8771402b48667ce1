"""Checks of what a node names: endpoints, presets, child workflows and other files."""
from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups, Problem
from Middleware.cli.check.node_view import NodeView
from Middleware.utilities.config.check import is_meant
from Middleware.utilities.config.json_source import child

FILE_KEYS = {"GetCustomFile": ("filepath",), "SaveCustomFile": ("filepath",),
             "ConversationChunkProcessor": ("cursorDirectory", "returnFile")}
"""The keys of each type whose paths must lie in the directories that the user allows."""

FOLDERS = frozenset({"cursorDirectory"})

RISKY_KEYS = {"PythonModule": ("module_path",), "MCPToolCall": ("server", "tool")}
_PLACEHOLDER = re.compile(r"\{+\s*([^\W\d]\w{0,99})")
_FOREIGN = re.compile(r"agent\d+Output|chat_user_prompt_|templated_user_prompt_|messages")

CHILD_KEYS = ("workflowName", "fileMemoryWorkflowName")


def check_targets(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Findings about everything that the node names. What holds a placeholder is not looked up."""
    yield from _endpoints(view, lookups)
    yield from _children(view, lookups)
    yield from _risky_names(view, lookups)
    for key, look_up in _files(lookups):
        name = view.node.get(key)
        if key in view.keys and isinstance(name, str) and name.strip() and "{" not in name:
            yield from _problem(view, key, look_up(name))
    for key in FILE_KEYS.get(view.runs_as, ()):
        path = view.node.get(key)
        if isinstance(path, str) and path.strip():  # a folder's path stands for those of its files
            yield from _problem(view, key, lookups.file_path(os.path.join(path, "x") if key in FOLDERS else path,
                                                          reading=view.runs_as == "GetCustomFile"))


# -- endpoint and preset -----------------------------------------------------------------------------------------------

def _endpoints(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    models = view.node.get("multiModelList") if "multiModelList" in view.keys else None
    if isinstance(models, (list, tuple)) and models:
        yield from _models(view, models, lookups)
    endpoint = view.node.get("endpointName")
    if endpoint:
        yield from _endpoint(view, str(endpoint), lookups, child(view.path, "endpointName"))
    elif not models:
        yield from _no_endpoint(view)


def _no_endpoint(view: NodeView) -> Iterator[Finding]:
    preset = _preset_key(view.node)
    if view.needs_endpoint:
        if not any(view.node[name] and is_meant(name, "endpointName", view.node) for name in view.node):
            yield view.finding("error", "", "the node calls an LLM but names no endpoint",
                               expected="'endpointName' with the name of a file in Endpoints")
    elif preset and not view.is_misread:
        yield view.finding("note", preset, f"'{preset}' has no effect without 'endpointName'")


def _models(view: NodeView, models: Any, lookups: Lookups) -> Iterator[Finding]:
    for index, entry in enumerate(models):
        path = child(child(view.path, "multiModelList"), index)
        name = entry.get("endpointName") if isinstance(entry, Mapping) else None
        if isinstance(name, str) and name.strip():
            yield from _endpoint(view, name, lookups, child(path, "endpointName"))
        else:
            yield view.finding("error", "", "an entry of multiModelList names no endpoint", path=path,
                               expected="an object with 'endpointName', the name of a file in Endpoints")


def _endpoint(view: NodeView, name: str, lookups: Lookups, path: str) -> Iterator[Finding]:
    if "{" in name:
        return
    problem = lookups.endpoint(name)
    if problem is not None:
        yield from _problem(view, "", problem, path)
        return
    key = _preset_key(view.node)
    preset = str(view.node[key]) if key else None
    if preset is None or "{" not in preset:
        yield from _problem(view, "", lookups.preset(preset, name), child(view.path, key) if key else path)


def _preset_key(node: Mapping[str, object]) -> str:
    """The key that names the preset, empty if none does."""
    key = "preset" if "preset" in node else "presetName"
    return key if node.get(key) else ""


# -- child workflows ---------------------------------------------------------------------------------------------------

def _children(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    folder = view.node.get("workflowUserFolderOverride") if "workflowUserFolderOverride" in view.keys else None
    if folder and (not isinstance(folder, str) or "{" in folder):
        return
    problem = lookups.workflow_folder(folder) if folder else None
    if problem is not None:
        yield from _problem(view, "workflowUserFolderOverride", problem)
        return
    for path, name in child_names(view):
        if "{" not in name:
            yield from _problem(view, "", lookups.workflow(name, folder or None, view.loaded), path)


def child_names(view: NodeView) -> Iterator[tuple[str, str]]:
    """Paths and names of the workflows that the node may run."""
    for key in CHILD_KEYS:
        if key in view.keys and view.node.get(key):
            yield child(view.path, key), str(view.node[key])
    table = view.node.get("conditionalWorkflows") if "conditionalWorkflows" in view.keys else None
    for value, name in table.items() if isinstance(table, Mapping) else ():
        unused = value.strip().lower() == "default" and view.node.get("UseDefaultContentInsteadOfWorkflow") is not None
        if name and not unused:
            yield child(child(view.path, "conditionalWorkflows"), value), str(name)


# -- other files -------------------------------------------------------------------------------------------------------

def _files(lookups: Lookups) -> tuple[tuple[str, Callable[[str], Problem | None]], ...]:
    return (("structuredOutputFile", lookups.structured_output), ("module_path", lookups.script),
            ("server", lookups.mcp_server))


# -- names that others could choose ------------------------------------------------------------------------------------

def _risky_names(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Names of what is run, in which an LLM's output or a user's words stand."""
    for key in RISKY_KEYS.get(view.runs_as, ()):
        text = view.node.get(key)
        if not isinstance(text, str):
            continue
        variables = {**lookups.user_variables(), **view.loaded.variables}
        through = [str(variables[name]) for name in _PLACEHOLDER.findall(text) if name in variables]
        names = [name for name in _PLACEHOLDER.findall(" ".join((text, *through))) if _FOREIGN.match(name)]
        if names:
            yield view.finding("warning", key, f"{{{names[0]}}} stands in '{key}', so that what an LLM or a client "
                               "wrote decides what is run", expected="a name that is written here, or chosen by nodes "
                                                                     "such as ConditionalCustomWorkflow")


def _problem(view: NodeView, key: str, problem: Problem | None, path: str = "") -> Iterator[Finding]:
    if problem is not None:
        yield replace(view.finding("error", key, problem.message, suggestion=problem.suggestion, path=path),
                      about=problem.file)

