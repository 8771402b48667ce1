"""Configuration is read through its declarations: nobody asks an object of it for a declared key by the bare name."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from Middleware.addons.check.file_check import KINDS
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import NODE
from Middleware.workflows.handlers.registry import node_types

ROOT = Path(__file__).resolve().parents[3]
READERS = frozenset({"get", "pop", "setdefault"})

CONFIGURATION = frozenset(
    {
        "config",
        "node",
        "endpoint",
        "endpoint_config",
        "api_type",
        "settings",
        "setting",
        "liveness",
        "preset",
        "template",
        "routing",
        "workflow_config",
    }
)
"""What variables are called that hold an object of the configuration; underscores before them aside."""

WIRE = frozenset(
    {
        "arguments",
        "assistant",
        "content",
        "count",
        "description",
        "endpoint",
        "field",
        "id",
        "input",
        "keep_alive",
        "limit",
        "location",
        "message",
        "messages",
        "method",
        "mode",
        "model",
        "name",
        "order",
        "prompt",
        "role",
        "server",
        "sources",
        "stream",
        "temperature",
        "thinking",
        "title",
        "tools",
        "top_p",
        "type",
        "url",
        "user",
    }
)
"""Declared keys that requests, answers and stored data have fields of the same name as. They are raw reads only where
the object is called like one of the configuration."""

# The checks look at files as they are written, wrong kinds and misspelt names included, which a reader hides. So do the
# run console's pages of workflows, and tests that are made of recorded files.
AS_WRITTEN = (
    *(
        f"Middleware/addons/check/{name}.py"
        for name in (
            *("endpoint_check", "file_check", "flow", "memory_check", "node_check", "prompt_check", "text_check"),
            *("user_check", "workflow_check"),
        )
    ),
    "Middleware/utilities/config/",
    "Middleware/addons/console/workflow_catalog.py",
    "Middleware/addons/console/exported_test.py",
)

ALLOWED = {
    # Recorded runs and the console's API have fields of these names.
    "Middleware/addons/console/replay_routes.py": {
        "workflow",
        "preset",
        "json_schema",
    },  # the last of OpenAI's payloads
    "Middleware/api/requests/chat_tools.py": {"grammar"},  # of a tool in OpenAI's form
    "Middleware/addons/init/probing.py": {"args"},  # the words of a server that a router starts
    "Middleware/addons/talk/trace.py": {"body"},  # of a tool's request
    "Middleware/addons/records/archive.py": {"workflow"},
    "Middleware/addons/records/queries.py": {"workflow"},
    "Middleware/addons/observability/traces.py": {"workflow"},
    "Middleware/workflows/handlers/impl/specialized/custom_files.py": {"headCount", "tailCount"},  # counts by their key
    "Middleware/workflows/handlers/impl/tool_node_handler.py": {"timeoutSeconds"},  # the declaration itself
}


def declared(keys: Iterable[ConfigKey]) -> Iterator[str]:
    for key in keys:
        yield key.name
        yield from declared(key.keys)


def all_keys() -> frozenset[str]:
    """The keys of all files but tests, and of all nodes."""
    files = [key for kind in KINDS.values() if kind.name != "workflow-test" for key in (*kind.keys, *kind.top)]
    nodes = [key for handler in node_types().values() for keys in handler.KEYS.values() for key in keys]
    return frozenset(declared((*files, *nodes, *NODE.values())))


KEYS = all_keys()


def constants(tree: ast.Module) -> dict[str, str]:
    """The texts that a module gives names."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def raw_reads(path: str, source: str) -> Iterator[str]:
    """Every ``x.get("key")`` and ``x["key"]`` of a declared key where ``x`` is, or may be, configuration."""
    tree = ast.parse(source)
    named = constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READERS:
            if not node.args:
                continue
            owner, argument = node.func.value, node.args[0]
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            owner, argument = node.value, node.slice
        else:
            continue
        key = argument.value if isinstance(argument, ast.Constant) else named.get(getattr(argument, "id", ""))
        by_key = isinstance(argument, ast.Attribute) and argument.attr == "name"  # config.get(TIMEOUT.name)
        name = ast.unparse(owner).rpartition(".")[2].strip("_")
        if by_key and name in CONFIGURATION:
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"
        if key not in KEYS or name.isupper() or key in ALLOWED.get(path, ()):
            continue  # in capitals: a table of declarations
        if key not in WIRE or name in CONFIGURATION:
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_nothing_is_read_past_the_declarations() -> None:
    found = []
    for file in sorted((ROOT / "Middleware").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        if not path.startswith(AS_WRITTEN):
            found += raw_reads(path, file.read_text(encoding="utf-8"))
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        'x = config.get("endpointName")',
        'x = anything["maxContextTokenSize"]',
        'x = self.node.get("prompt")',
        'x = context.config["type"]',
        "x = context.config.get(TIMEOUT.name)",
        'KEY = "jinja2"\nx = whatever.get(KEY)',
        'x = node.pop("title", None)',
    ],
)
def test_a_raw_read_is_found(source: str) -> None:
    assert len(list(raw_reads("x.py", source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'x = message.get("content")',
        'x = NODE.value(config, "endpointName")',
        'x = ENDPOINT["apiKey"].default',
        'config["type"] = "Standard"',
        'x = body["prompt"]',
        'x = config.get("myVariable")',
    ],
)
def test_other_reads_are_not(source: str) -> None:
    assert list(raw_reads("x.py", source)) == []
