"""A node as its checks see it, the workflows that it runs, and checks of single nodes.

These are about the files that a node names, its limit on the response, and CurlCommand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from Middleware.addons.check.findings import Finding
from Middleware.addons.check.lookups import Lookups, Problem
from Middleware.utilities.config.check import Severity, is_meant, quoted, shortened
from Middleware.utilities.config.declarations import MOST_TOKENS, ConfigKey, as_flag, number_from
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import COMMON_KEYS, NODE
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.text_utils import nearest
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.tools.curl.options import Argument, may_name_file, names_option, read_arguments, refusal

NO_ENDPOINT = "the node calls an LLM but names no endpoint"
ONE_ENDPOINT = "'endpointName' with the name of a file in Endpoints"
COMMON: Mapping[str, ConfigKey] = {key.name: key for key in COMMON_KEYS}


@dataclass(frozen=True)
class NodeView:
    """A node with the declarations of its type.

    Attributes:
        index: from 0.
        runs_as: the type that runs; Standard for an unknown type.
        keys: the declared keys of that type by name, common ones included.
        is_misread: the type is unknown, and the keys are those of the probable type.
    """

    loaded: LoadedWorkflow
    index: int
    node: Mapping[str, Any]
    runs_as: str
    keys: Mapping[str, ConfigKey]
    is_misread: bool = False

    @property
    def needs_endpoint(self) -> bool:
        """Whether the node fails unless it names an endpoint."""
        return node_types()[self.runs_as].needs_endpoint and not self.is_misread

    def finding(
        self, severity: Severity, key: str, message: str, *, expected: str = "", suggestion: str = "", path: str = ""
    ) -> Finding:
        """Return a finding at ``key`` of this node ("": the node), or at ``path`` inside it."""
        where = path or (child(self.path, key) if key else self.path)
        return Finding(severity, self.loaded.display, where, None, f"{self.label}: {message}", expected, suggestion)

    def advice(self, key: str, message: str, expected: str) -> Finding:
        """Return a note about what a server reads again because of ``key`` ("": the node)."""
        return replace(self.finding("note", key, message, expected=expected), is_advice=True)

    def at(self, severity: Severity, path: str, message: str, expected: str, suggestion: str) -> Finding:
        """Return a finding at ``path``, with the arguments of ``KeyCheck``."""
        return self.finding(severity, "", message, expected=expected, suggestion=suggestion, path=path)

    @property
    def path(self) -> str:
        return f"nodes[{self.index}]"

    @property
    def label(self) -> str:
        """How a message names this node."""
        return node_label(self.index, self.node)

    def values(self) -> Iterator[tuple[ConfigKey, Any]]:
        """Yield the declared keys that the node gives a value, with these values."""
        for name, value in self.node.items():
            key = self.keys.get(name)
            if key is not None and value is not None:
                yield key, value


def node_label(index: int, node: Mapping[str, object]) -> str:
    """Return how a message names a node of a workflow, which has the number ``index``, from 0."""
    name = node.get("title") or node.get("agentName")
    return f"node {index + 1}" + (f" '{shortened(name, 40)}'" if isinstance(name, str) else "")


def views_of(loaded: LoadedWorkflow) -> list[NodeView]:
    """Return the nodes of a workflow with the declarations of their types."""
    return [_view(loaded, index, node) for index, node in enumerate(loaded.nodes)]


def _view(loaded: LoadedWorkflow, index: int, node: Mapping[str, Any]) -> NodeView:
    written = node.get("type", "Standard")
    known = isinstance(written, str) and written in node_types()
    runs_as = written if known else "Standard"
    # A misspelt type runs as Standard, but its author wrote the keys of the type that was meant.
    meant = runs_as if known else nearest_type(written) or "Standard"
    return NodeView(loaded, index, node, runs_as, keys_of(meant, node_types()[meant]), not known)


@cache
def keys_of(node_type: str, handler: type[BaseHandler]) -> Mapping[str, ConfigKey]:
    """Return the keys of a node type, common ones included, by name."""
    return {**COMMON, **{key.name: key for key in handler.KEYS[node_type]}}


def nearest_type(written: object) -> str:
    """Return the node type that was probably meant; empty if none is near."""
    return nearest(written, node_types(), 0.6) if isinstance(written, str) else ""


# -- names -------------------------------------------------------------------------------------------------------------

# The keys of each type whose paths must be in the directories that the user allows.
FILE_KEYS = {
    "GetCustomFile": ("filepath",),
    "SaveCustomFile": ("filepath",),
    "ConversationChunkProcessor": ("cursorDirectory", "returnFile"),
}
RISKY_KEYS = {"PythonModule": ("module_path",), "MCPToolCall": ("server", "tool")}
_PATH_PLACEHOLDER = re.compile(r"\{+\s*([^\W\d]\w{0,99})")
_FOREIGN_IN_PATH = re.compile(r"agent\d+Output|chat_user_prompt_|templated_user_prompt_|messages")
CHILD_KEYS = ("workflowName", "fileMemoryWorkflowName")


def check_targets(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield findings about all files that the node names. Names with a placeholder are not looked up."""
    yield from _endpoints(view, lookups)
    yield from _children(view, lookups)
    yield from _risky_names(view, lookups)
    for key, look_up in (
        ("structuredOutputFile", lookups.structured_output),
        ("module_path", lookups.script),
        ("server", lookups.mcp_server),
    ):
        name = view.node.get(key)
        if key in view.keys and isinstance(name, str) and name.strip() and "{" not in name:
            yield from _problem(view, key, look_up(name))
    for key in FILE_KEYS.get(view.runs_as, ()):
        path = view.node.get(key)
        if isinstance(path, str) and path.strip():
            # Of a folder, the files in it must be allowed.
            path = os.path.join(path, "x") if key == "cursorDirectory" else path
            yield from _problem(view, key, lookups.file_path(path, reading=view.runs_as == "GetCustomFile"))


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
            yield view.finding("error", "", NO_ENDPOINT, expected=ONE_ENDPOINT)
    elif preset and not view.is_misread:
        yield view.finding("note", preset, f"'{preset}' has no effect without 'endpointName'")


def _models(view: NodeView, models: Any, lookups: Lookups) -> Iterator[Finding]:
    for index, entry in enumerate(models):
        path = child(child(view.path, "multiModelList"), index)
        name = entry.get("endpointName") if isinstance(entry, Mapping) else None
        if isinstance(name, str) and name.strip():
            yield from _endpoint(view, name, lookups, child(path, "endpointName"))
        else:
            yield view.finding(
                "error",
                "",
                "an entry of multiModelList names no endpoint",
                path=path,
                expected="an object with 'endpointName', the name of a file in Endpoints",
            )


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


def check_response_limit(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the longest answer fills the context window of the endpoint, so that no prompt fits."""
    key, endpoint = "maxResponseSizeInTokens", view.node.get("endpointName")
    if isinstance(endpoint, str) and endpoint and "{" not in endpoint:
        for message, expected in limit_problems(key, view.node.get(key), endpoint, lookups):
            yield view.finding("warning", key, message, expected=expected)


def check_answer_choices(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield findings for a node with two constraints on its answer, or with none to remember."""
    if view.node.get("answerChoices"):
        for key, given in (
            ("structuredOutputFile", view.node.get("structuredOutputFile")),
            ("allowTools", as_flag(view.node.get("allowTools"))),
        ):
            if given and key in view.keys:
                yield view.finding(
                    "error", key, f"the node has both 'answerChoices' and '{key}'", expected="one of the two"
                )
    elif "rememberChoice" in view.keys and as_flag(view.node.get("rememberChoice")):
        yield view.finding("note", "rememberChoice", "'rememberChoice' has no effect without 'answerChoices'")


def limit_problems(key: str, value: object, endpoint: str, lookups: Lookups) -> Iterator[tuple[str, str]]:
    """Yield message and expectation if the response limit ``value`` fills the context window of ``endpoint``."""
    limit = number_from(value, whole=False)
    # A limit above MOST_TOKENS is reported as out of range.
    if limit is None or limit > MOST_TOKENS:
        return
    window = lookups.context_window(endpoint)
    if window is not None and limit >= window:
        yield (
            f"'{key}' is {limit:.15g}, but the context window of endpoint {quoted(endpoint)} has {window} tokens "
            "for the prompt and the answer together; no room is left for the prompt",
            f"a number well below {window}",
        )


def _preset_key(node: Mapping[str, object]) -> str:
    """Return the key that names the preset, empty if none does."""
    key = "preset" if "preset" in node else "presetName"
    return key if node.get(key) else ""


# -- child workflows ---------------------------------------------------------------------------------------------------


def _children(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    folder = child_folder(view)
    if folder is None:
        return
    problem = lookups.workflow_folder(folder) if folder else None
    if problem is not None:
        yield from _problem(view, "workflowUserFolderOverride", problem)
        return
    for path, name in child_names(view):
        if "{" not in name:
            yield from _problem(view, "", lookups.workflow(name, folder or None, view.loaded), path)


def child_folder(view: NodeView) -> str | None:
    """Return the folder that the node names for its workflows, or ""; None if only the run of the node shows it."""
    folder = view.node.get("workflowUserFolderOverride") if "workflowUserFolderOverride" in view.keys else None
    if not folder:
        return ""
    return folder if isinstance(folder, str) and "{" not in folder else None


def child_workflows(view: NodeView, lookups: Lookups) -> list[LoadedWorkflow] | None:
    """Return all workflows that the node may run; None if one of them is not known."""
    folder = child_folder(view)
    if folder is None:
        return None
    found = [
        lookups.child(name, folder or None, view.loaded) if "{" not in name else None for _, name in child_names(view)
    ]
    known = [loaded for loaded in found if loaded is not None]
    return known if len(known) == len(found) else None


def child_names(view: NodeView) -> Iterator[tuple[str, str]]:
    """Yield paths and names of the workflows that the node may run."""
    for key in CHILD_KEYS:
        if key in view.keys and view.node.get(key):
            yield child(view.path, key), str(view.node[key])
    table = view.node.get("conditionalWorkflows") if "conditionalWorkflows" in view.keys else None
    for value, name in table.items() if isinstance(table, Mapping) else ():
        # With default content the node answers itself instead of running this workflow.
        unused = value.strip().lower() == "default" and view.node.get("UseDefaultContentInsteadOfWorkflow") is not None
        if name and not unused:
            yield child(child(view.path, "conditionalWorkflows"), value), str(name)


# -- names that models or clients could choose -------------------------------------------------------------------------


def _risky_names(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield names of what is run that contain an LLM's output or a user's words."""
    for key in RISKY_KEYS.get(view.runs_as, ()):
        text = view.node.get(key)
        if not isinstance(text, str):
            continue
        variables = {**lookups.user_variables(), **view.loaded.variables}
        # The output may also come through a variable of the file or the user.
        through = [str(variables[name]) for name in _PATH_PLACEHOLDER.findall(text) if name in variables]
        names = [name for name in _PATH_PLACEHOLDER.findall(" ".join((text, *through))) if _FOREIGN_IN_PATH.match(name)]
        if names:
            yield view.finding(
                "warning",
                key,
                f"{{{names[0]}}} stands in '{key}', so that what an LLM or a client wrote decides what is run",
                expected="a name that is written here, or chosen by nodes such as ConditionalCustomWorkflow",
            )


def _problem(view: NodeView, key: str, problem: Problem | None, path: str = "") -> Iterator[Finding]:
    if problem is not None:
        yield replace(
            view.finding("error", key, problem.message, suggestion=problem.suggestion, path=path), about=problem.file
        )


_INSTEAD = {
    "form": "--form-string, which takes a text as it is",
    "header": "-H 'X-Name: ...', with the header's name written here",
    "proxy-header": "--proxy-header 'X-Name: ...', with the header's name written here",
    "data-urlencode": "--data-urlencode 'name=...', with the field's name written here",
    "url-query": "--url-query 'name=...', with the field's name written here",
    "json": "--data-raw with -H 'Content-Type: application/json', which takes a text as it is",
}
_DATA_INSTEAD = "--data-raw, which takes a text as it is"
_PLACEHOLDER = re.compile(r"\{[^{}]+\}")
_JINJA_PLACEHOLDER = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_NAME = re.compile(r"[^\W\d]\w{0,99}")
_FOREIGN = re.compile(r"agent\d+(Output|Input)|chat_user_prompt_|templated_user_prompt_|messages$")


def check_curl_node(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield texts of a model or a client that may name a file, which curl then sends."""
    items = view.node.get("args")
    if view.runs_as != "CurlCommand" or not isinstance(items, (list, tuple)):
        return
    texts = [item if isinstance(item, str) else "" for item in items]
    variables = {**lookups.user_variables(), **view.loaded.variables}
    for argument in read_arguments(texts):
        if not argument.allowed and names_option(texts[argument.index], argument.name):
            yield view.finding(
                "error", "args", refusal(argument.name), path=child(child(view.path, "args"), argument.index)
            )
        placeholder = _risky_placeholder(argument, view.node, variables)
        if placeholder:
            mark = (
                "with '=@' in it"
                if argument.name == "form" and "=" not in (argument.value or "")
                else ("beginning with '@'")
            )
            yield view.finding(
                "warning",
                "args",
                f"{placeholder} is the text of a model or a client; {mark}, it makes curl send a file of this computer",
                expected=_INSTEAD.get(argument.name, _DATA_INSTEAD),
                path=child(child(view.path, "args"), argument.value_index or 0),
            )


def _risky_placeholder(argument: Argument, node: Mapping[str, object], variables: Mapping[str, Any]) -> str:
    """Return the first foreign placeholder that may make a file name of the argument's value; empty without one.

    Cookie files are left out: curl sends none of the cookies in them that are for another server.
    """
    if argument.name == "cookie":
        return ""
    jinja = NODE.flag(node, "jinja2")
    value = (argument.value or "") if jinja else _with_own_texts(argument.value or "", variables)
    pattern = _JINJA_PLACEHOLDER if jinja else _PLACEHOLDER
    refused = as_flag(node.get("blockOptionInjection")) and argument.index != argument.value_index
    for found in pattern.finditer(value):
        before, after = (pattern.sub("", text) for text in (value[: found.start()], value[found.end() :]))
        if refused and not before:
            # The node refuses an item that begins with '@'.
            continue
        if may_name_file(argument.name, before, after) and _is_foreign(found[0], variables):
            return found[0]
    return ""


def _with_own_texts(value: str, variables: Mapping[str, Any]) -> str:
    """Return the value with the author's own texts in place of their names, and without literal braces."""

    def text(match: re.Match[str]) -> str:
        found = variables.get(match[0][1:-1])
        return _without_literal_braces(found) if isinstance(found, str) else match[0]

    return _PLACEHOLDER.sub(text, _without_literal_braces(value))


def _without_literal_braces(text: str) -> str:
    return text.replace("{{", "((").replace("}}", "))")


def _is_foreign(placeholder: str, variables: Mapping[str, Any]) -> bool:
    return any(_FOREIGN.match(name) for name in _NAME.findall(placeholder) if name not in variables)
