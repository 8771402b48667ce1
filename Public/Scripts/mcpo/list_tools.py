"""Tells a model which tools a server offers: the first of the two scripts of a tool loop.

    {"type": "PythonModule", "module_path": "Public/Scripts/mcpo/list_tools.py"}

The output is the system prompt for the node that chooses a tool; it is empty if there are no tools. The prompt is the
file default_tool_prompt.txt in the folder Configs, in which {{TOOLS}} stands for the list. The server is one that
offers tools as web addresses (MCPO, the MCP-to-OpenAPI proxy); server.py says where it is found.
"""
from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from Middleware.utilities.config_utils import get_default_tool_prompt_path
from Public.Scripts.mcpo.server import ToolError, ask, server_name

logger = logging.getLogger("mcpo.list_tools")

LIST_SECONDS = 5.0  # longest silence of the server
MAX_DESCRIPTION = 300  # characters of a description of a tool or an argument
MAX_NESTING = 3  # of types that are listed within types

TOOLS_MARKER = "{{TOOLS}}"
PLAIN_PROMPT = """You choose tools. These are the tools:

{{TOOLS}}

If a tool helps with the newest message, reply with {"tool": "name", "arguments": {...}}, else with NO TOOL."""


class Tool(NamedTuple):
    """A tool as its server describes it; ``name`` is its path below the server's URL."""

    name: str
    operation: dict[str, Any]
    document: dict[str, Any]


def Invoke() -> str:  # noqa: N802
    """The prompt for the node that chooses; an empty text if there are no tools."""
    try:
        tools = [describe(tool) for tool in find_tools()]
    except ToolError as error:
        logger.warning("No tools for this request: %s. MCPO_URL in the user file says where they are", error)
        return ""
    if not tools:
        logger.warning("No tools for this request: the server at %s offers none", server_name())
        return ""
    prompt = prompt_text()
    if TOOLS_MARKER not in prompt:
        prompt += "\n\n" + TOOLS_MARKER
    return prompt.replace(TOOLS_MARKER, "\n\n".join(tools))


def prompt_text() -> str:
    """What stands in default_tool_prompt.txt, or a short prompt if there is no such file."""
    try:
        with open(get_default_tool_prompt_path(), encoding="utf-8-sig", errors="replace") as file:
            return file.read().strip() or PLAIN_PROMPT
    except OSError:
        return PLAIN_PROMPT


# -- what the server offers --------------------------------------------------------------------------------------------

def find_tools() -> list[Tool]:
    """All tools of the server.

    One that stands for a single MCP server describes its tools itself. One that stands for several names these in its
    own description, each with a link, and each of them has a description of its own.
    """
    document = read_description("")
    found = list(tools_in(document, ""))
    for folder in re.findall(r"\]\(/([\w.~-]+)/docs\)", str(part(document, "info").get("description"))):
        try:
            found += tools_in(read_description(f"{folder}/"), f"{folder}/")
        except ToolError as error:  # the others may still be of use
            logger.warning("The tools of '%s' are left out: %s", folder, error)
    return found


def read_description(prefix: str) -> dict[str, Any]:
    status, answer = ask("GET", f"{prefix}openapi.json", None, LIST_SECONDS)
    if status != 200 or not isinstance(answer, dict):
        raise ToolError(f"the server at {server_name()} does not describe its tools (HTTP status {status})")
    return answer


def tools_in(document: dict[str, Any], prefix: str) -> Iterator[Tool]:
    for path, methods in part(document, "paths").items():
        operation = part(methods, "post")
        if operation and re.fullmatch(r"(/[\w~-][\w.~-]*)+", path):
            yield Tool(prefix + path[1:], operation, document)


# -- what the model gets to see ----------------------------------------------------------------------------------------

def describe(tool: Tool) -> str:
    """A heading with the tool's name, what it does, and a line for each argument."""
    body = part(tool.operation, "requestBody", "content", "application/json", "schema")
    schema = resolve(body, tool.document)
    required = schema.get("required")
    arguments = [describe_argument(name, resolve(value, tool.document), name in (required or ()), tool.document)
                 for name, value in part(schema, "properties").items()]
    text = one_line(tool.operation.get("description") or tool.operation.get("summary"))
    lines = [f"### {tool.name}", text, *(["Arguments:", *arguments] if arguments else ["Arguments: none"])]
    return "\n".join(line for line in lines if line)


def describe_argument(name: str, schema: dict[str, Any], required: bool, document: dict[str, Any]) -> str:
    notes = [type_name(schema, document), "required" if required else "optional"]
    if isinstance(schema.get("enum"), list):
        notes.append("one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"]))
    if schema.get("default") is not None:
        notes.append("default " + json.dumps(schema["default"], ensure_ascii=False))
    text = one_line(schema.get("description"))
    return one_line(f"- {name} ({', '.join(note for note in notes if note)})") + (f": {text}" if text else "")


def type_name(schema: dict[str, Any], document: dict[str, Any], depth: int = 0) -> str:
    """Such as ``string``, ``string or integer``, ``list of object with name, age``."""
    kind = schema.get("type")
    choices = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(choices, list) and depth < MAX_NESTING:
        names = [type_name(resolve(choice, document), document, depth + 1) for choice in choices]
        return " or ".join(dict.fromkeys(name for name in names if name not in ("", "null")))
    if isinstance(kind, list):
        return " or ".join(str(item) for item in kind if item != "null")
    if kind == "array" and depth < MAX_NESTING:
        items = type_name(resolve(schema.get("items"), document), document, depth + 1)
        return f"list of {items}" if items else "list"
    if kind == "object" and part(schema, "properties"):
        return "object with " + ", ".join(part(schema, "properties"))
    return str(kind or "")


def resolve(schema: Any, document: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, or the one in the same document that its ``$ref`` points to."""
    for _ in range(10):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = part(document, *reference[2:].split("/"))
    return schema if isinstance(schema, dict) else {}


def part(value: Any, *keys: str) -> dict[str, Any]:
    """The object inside nested objects; an empty one where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def one_line(text: Any) -> str:
    """A text without line breaks, so that no description can pass for the heading of another tool."""
    line = " ".join(str(text or "").split())
    return line if len(line) <= MAX_DESCRIPTION else line[:MAX_DESCRIPTION].rstrip() + "..."
