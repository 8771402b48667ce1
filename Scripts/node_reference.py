"""Writes Docs/User/nodes.md, the table of all node types and their keys, from what the program itself declares.

    python -m Scripts.node_reference           write the file
    python -m Scripts.node_reference --check   only say whether it is current (exit status 1 if not)
"""
from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable

from Middleware.common.constants import VALID_NODE_TYPES
from Middleware.models.config_key import ConfigKey
from Middleware.workflows.handlers.base.base_workflow_node_handler import COMMON_KEYS, BaseHandler, FamilyHandler
from Middleware.workflows.managers.workflow_manager import HANDLER_CLASSES
from Scripts import generated_files, key_tables

PATH = generated_files.ROOT / "Docs" / "User" / "nodes.md"
INTRODUCTION = """\
# Node types

A workflow is a list of nodes, and the `type` of a node says what it does. This page lists every type and its keys as
the program declares them (`python -m Scripts.node_reference` writes it).

*Variables*: **all** means that every variable works in the value, such as `{agent1Output}` or
`{chat_user_prompt_last_one}` ([variables](variables.md)); **early** means those that are known before the node's
endpoint is: custom variables, inputs, and outputs of nodes that are done. Elsewhere braces are ordinary text. *Values*
are the only ones that mean something, or what a name stands for.
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
    parts = [INTRODUCTION, "## Keys of every node\n", key_tables.table(COMMON_KEYS, COLUMNS)]
    for node in sorted(node_classes(), key=lambda node: min(map(_position, node.KEYS))):
        for node_type in sorted(node.KEYS, key=_position):
            parts += [f"## {node_type}\n", summary(node) + "\n", key_tables.table(node.KEYS[node_type], COLUMNS)]
    return "\n".join([*parts, PARALLEL])


def summary(node: type[BaseHandler]) -> str:
    """The first paragraph of a handler's docstring."""
    return inspect.cleandoc(node.__doc__ or "").split("\n\n")[0].replace("``", "`")


def _position(node_type: str) -> int:
    return VALID_NODE_TYPES.index(node_type)


def _variables(key: ConfigKey) -> str:
    return {"full": "all", "early": "early"}.get(getattr(key, "variables", ""), "")


COLUMNS = {"Key": key_tables.name, "Type": lambda key: key.kind, "Default": key_tables.default,
           "Variables": _variables, "Values": key_tables.values, "Meaning": key_tables.meaning}


def main() -> int:
    """Write the page or check it."""
    return generated_files.run(__doc__, {PATH: render()})


if __name__ == "__main__":
    sys.exit(main())
