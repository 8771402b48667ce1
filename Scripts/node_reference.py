"""Writes Docs/User/nodes.md, the table of all node types and their keys, from what the program itself declares.

    python -m Scripts.node_reference           write the file
    python -m Scripts.node_reference --check   only say whether it is current (exit status 1 if not)
"""
from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from Middleware.common.constants import VALID_NODE_TYPES
from Middleware.workflows.handlers.base.base_workflow_node_handler import (
    COMMON_KEYS,
    BaseHandler,
    FamilyHandler,
    NodeKey,
)
from Middleware.workflows.managers.workflow_manager import HANDLER_CLASSES

PATH = Path(__file__).resolve().parents[1] / "Docs" / "User" / "nodes.md"
INTRODUCTION = """\
# Node types

A workflow is a list of nodes, and the `type` of a node says what it does. This page lists every type and its keys as
the program declares them (`python -m Scripts.node_reference` writes it).

*Variables*: **all** means that every variable works in the value, such as `{agent1Output}` or
`{chat_user_prompt_last_one}` ([variables](variables.md)); **early** means those that are known before the node's
endpoint is: custom variables, inputs, and outputs of nodes that are done. Elsewhere braces are ordinary text.
"""
PARALLEL = """\
## Nodes at the same time

With `"parallelNodes": true` at the top of a workflow file, nodes that do not need each other run at the same time. A
node waits for every node whose `{agentNOutput}` its texts name, and for those in its `dependsOn`. Nodes that do
something to the world (files, locks, memories, scripts, tools, other workflows) keep their order, unless
they say `"parallelSafe": true`. A WorkflowLock and an ImageProcessor wait for all before them, and all behind wait for
them. The responder answers when all nodes before it are done. Outputs, their numbers and the summary in the log stay
as in order.
"""


def node_classes() -> Iterable[type[BaseHandler]]:
    """The class behind each type or group of types."""
    for handler in HANDLER_CLASSES:
        yield from handler.NODES if issubclass(handler, FamilyHandler) else (handler,)


def render() -> str:
    """The page."""
    parts = [INTRODUCTION, "## Keys of every node\n", _table(COMMON_KEYS)]
    for node in sorted(node_classes(), key=lambda node: min(map(_position, node.KEYS))):
        for node_type in sorted(node.KEYS, key=_position):
            parts += [f"## {node_type}\n", _summary(node),
                      _table(node.KEYS[node_type])]
    return "\n".join([*parts, PARALLEL])


def _summary(node: type[BaseHandler]) -> str:
    """The first paragraph of a handler's docstring."""
    return inspect.cleandoc(node.__doc__ or "").split("\n\n")[0].replace("``", "`") + "\n"


def _position(node_type: str) -> int:
    return VALID_NODE_TYPES.index(node_type)


def _table(keys: Iterable[NodeKey]) -> str:
    rows = [f"| `{key.name}` | {key.kind} | {_default(key)} | {_variables(key)} | {key.meaning} |" for key in keys]
    if not rows:
        return "It has no keys of its own.\n"
    return "\n".join(["| Key | Type | Default | Variables | Meaning |", "|---|---|---|---|---|", *rows, ""])


def _default(key: NodeKey) -> str:
    if key.required:
        return "required"
    if key.default is None:
        return ""
    default = list(key.default) if isinstance(key.default, tuple) else key.default
    return f"`{json.dumps(default, ensure_ascii=False)}`"


def _variables(key: NodeKey) -> str:
    return {"full": "all", "early": "early"}.get(key.variables, "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    page = render()
    if parser.parse_args().check:
        return int(not PATH.exists() or PATH.read_text(encoding="utf-8") != page)
    PATH.write_text(page, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
