"""What the configuration lets the server run or reach, and what a new text of a file adds to that.

Keys say it in their declarations (``ConfigKey.capability``). A value of a node counts together with all that flows into
it, whatever the file is called and wherever that text is written, and with the other values of its node. A guard counts
where it does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.addons.check.file_check import FileKind
from Middleware.addons.check.flow import CATEGORY_VARIABLES
from Middleware.addons.check.node_check import NodeView
from Middleware.addons.console.editing.flows import (
    ANSWER,
    PASSED,
    TEMPLATED,
    Contents,
    Feed,
    Flows,
    WorkflowFlow,
    as_text,
    declared,
    identity,
)
from Middleware.utilities.config.check import shortened
from Middleware.utilities.config.declarations import ConfigKey, as_flag
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.sensitive_logging_utils import is_secret_name

# A line of a dialog.
MAX_SHOWN = 300
REFERENCES = ("env:", "file:")
USER_VARIABLES = "userWideWorkflowVariables"
EVERYTHING = {"allowedFileDirectories": "every directory", "allowedHosts": "any host"}
CARRIES = ConfigKey("", "any", None, "", capability="changes what workflows run or reach, through")
_SEPARATOR = "conversationSeparationDelimiter"
_BETWEEN_MESSAGES = re.compile(r"chat_user_prompt_(?!last_one$|without_system$)")
# What else comes into texts, by the kind of its file and its key, "" for all keys: the variables that bring it.
CARRIED: Mapping[str, Mapping[str, re.Pattern[str]]] = {
    "routing": {"": CATEGORY_VARIABLES},
    "prompt-template": {"": TEMPLATED},
    "endpoint": {"promptTemplate": TEMPLATED},
    "user": {
        "routingConfig": CATEGORY_VARIABLES,
        "chatPromptTemplateName": TEMPLATED,
        _SEPARATOR: _BETWEEN_MESSAGES,
    },
}


@dataclass(frozen=True)
class Capability:
    """One thing that a file lets the server do.

    Attributes:
        file: its name in messages.
        json_path: where the file says so.
        identity: equal for the same capability, wherever the file says it.
        sentence: such as ``node 2 'Look it up' runs the script /home/me/look.py``; without secrets.
        action: equal for the same values of one node: a known value in other company is another action.
        guard: what would keep the server from it, the file and its key; empty if nothing would.
        holds: the guard does so, and this is nothing that the server may do.
        usual: the guard does not hold unless the file says so.
        everything: there is no list of what is allowed.
    """

    file: str
    json_path: str
    identity: tuple[str, ...]
    sentence: str
    action: str = ""
    guard: tuple[str, ...] = ()
    holds: bool = False
    usual: bool = False
    everything: bool = False


def gained(before: Sequence[Capability], after: Sequence[Capability]) -> list[Capability]:
    """Return what ``after`` has and ``before`` has not."""
    known = {capability.identity for capability in before}
    actions = {capability.action for capability in before if not capability.guard}
    held = {capability.identity: capability.guard for capability in before if capability.holds}
    lost = {guard for one, guard in held.items() if one not in {capability.identity for capability in after}}
    # A second node that does the same is not guarded by the first.
    guarded = {(capability.guard, capability.action) for capability in before if capability.holds}
    # A list takes something away where everything was allowed.
    everything = {(capability.guard, capability.action) for capability in before if capability.everything}
    new = {capability.action for capability in after if capability.identity not in known and not capability.guard}

    def is_new(one: Capability) -> bool:
        if one.guard:
            place = (one.guard, one.action)
            is_open = place in everything or (one.usual and one.guard not in lost and place not in guarded)
            return not one.holds and not is_open and one.identity not in known
        # Of known values in other company, all are named.
        return one.action not in actions and (one.identity not in known or one.action not in new)

    return [one for one in after if is_new(one)]


def capabilities_of(file: str, kind: FileKind | None, contents: Contents, flows: Flows) -> list[Capability]:
    """Return what a file lets the server do by itself; for workflows, see ``capabilities_in``."""
    if not isinstance(contents.full, Mapping) or kind is None:
        return []
    carried = [*_carried(file, kind, contents.full, contents, flows.names)]
    return carried + [
        capability
        for name, key in (() if kind.entries else kind.key.items())
        if key.capability
        for capability in (
            _guarded(file, key, contents.below(name), child("", name))
            if key.guard
            else _of_key(file, key, contents.below(name), child("", name), flows.names)
        )
    ]


def capabilities_in(flows: Flows) -> list[Capability]:
    """Return what all workflows let the server do, in the order of files and nodes."""
    return [capability for flow in flows.workflows.values() for capability in _of_workflow(flow, flows)]


# -- files with keys of their own --------------------------------------------------------------------------------------


def _of_key(file: str, key: ConfigKey, value: Contents, path: str, used: set[str]) -> Iterator[Capability]:
    if key.name == USER_VARIABLES:
        for name in value.full if isinstance(value.full, Mapping) else ():
            if name in used:
                one = value.below(name)
                yield _capability(file, key, child(path, name), one, f"{{{name}}}: {as_text(one.shown)}", name)
    elif value.full in (None, "", [], {}):
        return
    elif is_secret_name(key.name):
        # Another key lets the server do nothing else; where a key is read is another matter.
        if isinstance(value.full, str) and value.full.strip().startswith(REFERENCES):
            yield _capability(file, key, path, value, value.full)
    elif key.kind == "object":
        yield _capability(file, key, path, value, ", ".join(value.full) if isinstance(value.full, Mapping) else "")
    else:
        yield _capability(file, key, path, value, as_text(value.shown))


def _capability(file: str, key: ConfigKey, path: str, value: Contents, shown: str, part: str = "") -> Capability:
    names = (file, key.name, part, identity(value.full))
    return Capability(file, path, names, f"{key.capability} {shortened(shown, MAX_SHOWN)}", identity(names))


def _carried(
    file: str, kind: FileKind, full: Mapping[str, object], contents: Contents, used: set[str]
) -> Iterator[Capability]:
    for key, variables in CARRIED.get(kind.name, {}).items():
        # Without it, there are line breaks between messages.
        is_off = key == _SEPARATOR and not USER.flag(full, "separateConversationInVariables")
        if not is_off and any(map(variables.match, used)):
            for name in [key] if key else full:
                value = contents.below(name)
                yield _capability(file, CARRIES, child("", name), value, f"{name}: {as_text(value.shown)}", name)


def _guarded(
    file: str, key: ConfigKey, value: Contents, path: str, label: str = "", action: str = "", feed: Feed | None = None
) -> Iterator[Capability]:
    """Yield what the guard allows, and the guard if it holds. ``feed``: what flows into a list of a node."""
    guard, full = (file, key.name), value.full
    flag = as_flag(key.default if full is None else full, key.true_texts)
    forms, through = (feed.form, feed.through) if feed else ("", "")
    entries = full if isinstance(full, (list, tuple)) else None
    if flag == as_flag(key.guard) if key.kind == "bool" else entries is not None:
        yield Capability(file, path, (*guard, "holds", identity([full, forms]), action), "", action, guard, holds=True)
    elif key.kind == "bool":
        usual = bool(key.default) != as_flag(key.guard)
        yield Capability(file, path, (*guard, "", action), f"{label}{key.capability}", action, guard, usual=usual)
    else:
        sentence = f"{label}{key.capability.removesuffix(' the host')} {EVERYTHING[key.name]}"
        everything = (*guard, "", action)
        yield Capability(file, path, everything, sentence, action, guard, usual=bool(label), everything=True)
    for index, entry in enumerate(entries or ()) if key.kind == "list" else ():
        shown = shortened(as_text(value.below(index).shown) + through, MAX_SHOWN)
        names = (*guard, "entry", identity([entry, feed.reached.forms if feed else ""]), action)
        sentence = f"{label}{key.capability} {shown}"
        yield Capability(file, child(path, index), names, sentence, action, guard, usual=bool(label))


# -- workflows ---------------------------------------------------------------------------------------------------------


def _of_workflow(flow: WorkflowFlow, flows: Flows) -> Iterator[Capability]:
    by_node: dict[int, list[Feed]] = {}
    for feed in flows.feeds[flow.loaded.display]:
        by_node.setdefault(feed.index, []).append(feed)
    for view in flow.views:
        feeds = by_node.get(view.index, [])
        yield from _of_node(flow, view, {feed.key.name: feed for feed in feeds if feed.key not in (PASSED, ANSWER)})
        for feed in feeds:
            if feed.key in (PASSED, ANSWER):
                yield _of_feed(view, feed)


def _of_node(flow: WorkflowFlow, view: NodeView, own: Mapping[str, Feed]) -> Iterator[Capability]:
    """Yield what a node does with its own values, in the order of its keys, and what its guards allow."""
    file, keys = view.loaded.display, [key for key in declared(view) if key.capability]
    acting = [key for key in keys if not key.guard and key.name in own]
    # Of a node that only has guards, such as a condition, all values make the action.
    others = {key.name: key.of(view.node) for key in declared(view) if not key.guard and (key in keys or not own)}
    action = identity([file, view.runs_as, {**others, **{key.name: own[key.name].form for key in acting}}])
    for key in acting:
        yield _of_feed(view, own[key.name], action)
    for key in keys:
        if key.guard:
            value, path = flow.value(view.index, key.name), child(view.path, key.name)
            yield from _guarded(file, key, value, path, f"{view.label} ", action, own.get(key.name))


def _of_feed(view: NodeView, feed: Feed, action: str = "") -> Capability:
    file, key = view.loaded.display, feed.key
    target = [
        NODE.value(view.node, name) for name in ("workflowName", "conditionalWorkflows", "workflowUserFolderOverride")
    ]
    # An input that becomes another one is used for something else.
    names = (file, key.capability, feed.form, identity([target, feed.path] if key is PASSED else None))
    shown = as_text(feed.value.shown) or ("what an LLM writes" if key is ANSWER else "''")
    return Capability(
        file,
        child(view.path, *feed.path) if feed.path else view.path,
        names,
        f"{view.label} {key.capability} {shortened(shown + feed.through, MAX_SHOWN)}",
        action or identity(names),
    )
