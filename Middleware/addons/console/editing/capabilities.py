"""What a configuration file lets the server run or reach, and what a new text of it adds to that.

Keys say it in their declarations (``ConfigKey.capability``). A value stands together with the variables of its own file
that it names, because a changed variable changes a command as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.addons.check.file_check import FileKind
from Middleware.addons.check.node_check import node_label
from Middleware.addons.check.text_check import variables_in
from Middleware.utilities.config.check import shortened
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import NODE, WORKFLOW_FILE
from Middleware.utilities.json_data import strings_in
from Middleware.utilities.sensitive_logging_utils import SECRET_KEYS
from Middleware.workflows.handlers.registry import node_types

# A line of a dialog.
MAX_SHOWN = 300
REFERENCES = ("env:", "file:")
DIRECTORIES, USER_VARIABLES = "allowedFileDirectories", "userWideWorkflowVariables"
EVERYWHERE = "every directory"
# Variables that name each other in a circle are followed so far.
MAX_DEPTH = 8


@dataclass(frozen=True)
class Capability:
    """One thing that a file lets the server do.

    Attributes:
        json_path: where the file says so.
        identity: equal for the same capability, wherever the file says it.
        sentence: such as ``node 2 'Look it up' runs the script /home/me/look.py``; without secrets.
    """

    json_path: str
    identity: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Contents:
    """A file's content, as it is and without its secrets. Both have the same shape."""

    full: object
    shown: object


def capabilities_of(
    kind: FileKind, contents: Contents, is_used: Callable[[str], bool] = lambda name: True
) -> list[Capability]:
    """Return what a file of this kind lets the server do.

    ``is_used`` returns whether commands, paths or addresses in workflows name a user-wide variable.
    """
    if kind.name == "workflow":
        return [*_of_workflow(contents)]
    if kind.entries or not isinstance(contents.full, Mapping):
        return []
    return [
        capability
        for name, key in kind.key.items()
        if key.capability
        for capability in _of_key(key, _below(contents, name), child("", name), is_used)
    ]


def gained(before: Sequence[Capability], after: Sequence[Capability]) -> list[Capability]:
    """Return what ``after`` has and ``before`` has not."""
    known = {capability.identity for capability in before}
    # A list of directories takes something away where all were allowed.
    all_allowed = (DIRECTORIES, "", _identity(EVERYWHERE)) in known
    return [
        capability
        for capability in after
        if capability.identity not in known and not (all_allowed and capability.identity[0] == DIRECTORIES)
    ]


def acting_names(content: object) -> set[str]:
    """Return the variables in the commands, paths and addresses of a workflow."""
    return {
        name
        for node in _nodes(content)
        for key in _node_keys(node)
        for _, text in strings_in(_entry(node, key.name))
        for name in variables_in(text, NODE.flag(node, "jinja2"))
    }


# -- files with keys of their own --------------------------------------------------------------------------------------


def _of_key(key: ConfigKey, value: Contents, path: str, is_used: Callable[[str], bool]) -> Iterator[Capability]:
    if key.name == DIRECTORIES:
        yield from _directories(key, value, path)
    elif key.name == USER_VARIABLES:
        for name in _keys(value.full):
            if is_used(name):
                one = _below(value, name)
                yield _capability(key, child(path, name), one, f"{{{name}}}: {_text(one.shown)}", name)
    elif value.full in (None, "", [], {}):
        return
    elif key.name.lower() in SECRET_KEYS:
        # Another key lets the server do nothing else; where a key is read is another matter.
        if isinstance(value.full, str) and value.full.strip().startswith(REFERENCES):
            yield _capability(key, path, value, value.full)
    elif key.kind == "object":
        yield _capability(key, path, value, ", ".join(_keys(value.full)))
    else:
        yield _capability(key, path, value, _text(value.shown))


def _directories(key: ConfigKey, value: Contents, path: str) -> Iterator[Capability]:
    if not isinstance(value.full, (list, tuple)):
        yield _capability(key, path, Contents(EVERYWHERE, EVERYWHERE), EVERYWHERE)
        return
    for index in range(len(value.full)):
        entry = _below(value, index)
        yield _capability(key, child(path, index), entry, _text(entry.shown))


def _capability(key: ConfigKey, path: str, value: Contents, shown: str, part: str = "") -> Capability:
    return Capability(path, (key.name, part, _identity(value.full)), f"{key.capability} {shortened(shown, MAX_SHOWN)}")


# -- workflows ---------------------------------------------------------------------------------------------------------


def _of_workflow(contents: Contents) -> Iterator[Capability]:
    is_list = isinstance(contents.full, (list, tuple))
    nodes = contents if is_list else _below(contents, "nodes")
    variables = Contents({}, {}) if is_list else contents
    for index, node in enumerate(nodes.full if isinstance(nodes.full, (list, tuple)) else ()):
        if not isinstance(node, Mapping):
            continue
        for key in _node_keys(node):
            value = _below(_below(nodes, index), key.name)
            if value.full in (None, "", [], {}):
                continue
            named = _named(value, variables, NODE.flag(node, "jinja2"))
            through = "".join(f", where {{{name}}} is {_text(one.shown)}" for name, one in named.items())
            shown = shortened(_text(value.shown) + through, MAX_SHOWN)
            yield Capability(
                child(child("nodes", index), key.name),
                (
                    key.capability,
                    _identity(value.full),
                    *(f"{name}={_identity(one.full)}" for name, one in sorted(named.items())),
                ),
                f"{node_label(index, node)} {key.capability} {shown}",
            )


def _node_keys(node: Mapping[str, object]) -> Iterator[ConfigKey]:
    written = NODE.value(node, "type")
    handler = node_types().get(written) if isinstance(written, str) else None
    for key in handler.KEYS[str(written)] if handler is not None else ():
        if key.capability:
            yield key


def _nodes(content: object) -> Iterator[Mapping[str, object]]:
    nodes = WORKFLOW_FILE.value(content, "nodes") if isinstance(content, Mapping) else content
    for node in nodes if isinstance(nodes, (list, tuple)) else ():
        if isinstance(node, Mapping):
            yield node


def _named(value: Contents, variables: Contents, jinja: bool) -> dict[str, Contents]:
    """Return the variables of the file that a value names, and those that these name in turn."""
    found: dict[str, Contents] = {}
    waiting = [value]
    for _ in range(MAX_DEPTH):
        names = {
            name for one in waiting for _, text in strings_in(one.full) for name in variables_in(text, jinja)
        } - found.keys()
        known = variables.full if isinstance(variables.full, Mapping) else {}
        waiting = [_below(variables, name) for name in sorted(names) if name in known]
        found.update((name, _below(variables, name)) for name in sorted(names) if name in known)
        # Values of variables are filled in as plain texts, whatever the node says.
        jinja = False
    return found


# -- values ------------------------------------------------------------------------------------------------------------


def _below(contents: Contents, key: str | int) -> Contents:
    return Contents(_entry(contents.full, key), _entry(contents.shown, key))


def _entry(value: object, key: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, (list, tuple)) and isinstance(key, int) and key < len(value):
        entry: object = value[key]
        return entry
    return None


def _keys(value: object) -> list[str]:
    return [*map(str, value)] if isinstance(value, Mapping) else []


def _identity(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)) and all(isinstance(entry, (str, int, float)) for entry in value):
        return " ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
