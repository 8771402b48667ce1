"""Calls the tool that a model has chosen: the second of the two scripts of a tool loop.

    {"type": "PythonModule", "module_path": "Public/Scripts/mcpo/call_tool.py",
     "args": ["{agent1Output}", "{agent1Input}", "{agent2Input}"]}

The arguments are the model's reply, the output of list_tools.py, and what the tools have said so far. The output is to
be added to the latter; it is empty if nothing is left to be done. Whatever goes wrong becomes a text for the model.
"""
from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from Public.Scripts.mcpo.server import ToolError, ask

logger = logging.getLogger("mcpo.call_tool")

CALL_SECONDS = 60.0  # longest silence of a tool
MAX_CALLS = 3  # that one reply may ask for
MAX_RESULT = 6000  # characters of a result that the model gets to read

# the names that models have learned for the parts of a call
NAME_KEYS = ("tool", "name", "tool_name", "function")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
NO_NAMES = ("", "none", "null", "no tool", "no_tool")

UNREADABLE = ('Error: the reply was no valid JSON. Reply with nothing but an object such as '
              '{"tool": "name", "arguments": {}}.\n\n')


class Call(NamedTuple):
    """What the model wants; ``arguments`` are what it wrote, which may be no object."""

    name: str
    arguments: Any


def Invoke(reply: str, tools: str, results: str = "") -> str:  # noqa: N802
    """What the tools said, each call with its result; an empty text if the reply asks for no call, or for no new one.

    Only tools with a heading in ``tools`` are called. A call that is in ``results`` is not made again, so that a model
    that repeats itself ends the loop.
    """
    calls = calls_in(reply)
    if calls is None:
        return UNREADABLE if UNREADABLE not in results else ""
    names = re.findall(r"^### (\S+)$", tools, re.MULTILINE)
    entries: list[str] = []
    for wanted in calls[:MAX_CALLS]:
        call = Call(full_name(wanted.name, names), wanted.arguments)
        heading = f"Call: {call.name} {json.dumps(call.arguments, ensure_ascii=False)}\n"
        if heading not in results and not any(entry.startswith(heading) for entry in entries):
            entries.append(f"{heading}Result: {result_of(call, names)}\n\n")
    return "".join(entries)


# -- what does the model want? -----------------------------------------------------------------------------------------

def calls_in(reply: str) -> list[Call] | None:
    """The calls of the first JSON in a reply that asks for any; None if there is a call that cannot be read.

    Prose and fences around the JSON do not matter.
    """
    reply = re.sub(r"<think>.*?</think>", "", reply, flags=re.DOTALL).rstrip("` \r\n")
    readable = False
    for start in (match.start() for match in re.finditer(r"[{\[]", reply)):
        value = read_json(reply[start:])
        if calls := read_calls(value):
            return calls
        readable = readable or isinstance(value, dict)
    return [] if readable or not looks_like_a_call(reply) else None


def read_json(text: str) -> Any:
    """The JSON that a text begins with, or None. Small models forget to close what they have opened."""
    for missing in ("", "}", "}}"):
        try:
            return json.JSONDecoder(strict=False).raw_decode(text + missing)[0]
        except (ValueError, RecursionError):
            pass
    return None


def read_calls(value: Any) -> list[Call]:
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    items = value if isinstance(value, list) else [value]
    return [call for call in map(read_call, items) if call is not None]


def read_call(item: Any) -> Call | None:
    """The call, or None for what names no tool."""
    if isinstance(item, dict) and isinstance(item.get("function"), dict):
        item = item["function"]
    if not isinstance(item, dict):
        return None
    name = next((item[key] for key in NAME_KEYS if key in item), None)
    if not isinstance(name, str) or name.strip().lower() in NO_NAMES:
        return None
    arguments = next((item[key] for key in ARGUMENT_KEYS if key in item), None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            pass  # no object: the model gets it as it is
    return Call(name.strip(), {} if arguments is None else arguments)


def looks_like_a_call(reply: str) -> bool:
    return "{" in reply and re.search(rf"\b(?:{'|'.join(NAME_KEYS)})\W{{0,3}}:", reply) is not None


def full_name(wanted: str, names: Sequence[str]) -> str:
    """The tool that is meant: exactly, else the only one that differs in its signs, or in its folder; else as written.
    """
    def plain(name: str) -> str:
        return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")

    if wanted in names:
        return wanted
    for form in (plain, lambda name: plain(name.rpartition("/")[2])):
        fitting = [name for name in names if form(name) == plain(wanted)]
        if len(fitting) == 1:
            return fitting[0]
    return wanted


# -- what does the tool say? -------------------------------------------------------------------------------------------

def result_of(call: Call, names: Sequence[str]) -> str:
    """What the tool answers, or what is wrong with the call."""
    if call.name not in names:
        return f"Error: there is no tool '{call.name}'. The tools are: {', '.join(names)}"
    if not isinstance(call.arguments, dict):
        return "Error: the arguments must be a JSON object"
    logger.info("Calling the tool %s", call.name)
    try:
        status, answer = ask("POST", call.name, call.arguments, CALL_SECONDS)
    except ToolError as error:
        logger.warning("The tool %s failed: %s", call.name, error)
        return f"Error: {error}"
    if status >= 400:
        return f"Error: {shortened(failure_text(answer, status))}"
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return shortened(text) or "(done; the tool answered nothing)"


def failure_text(answer: Any, status: int) -> str:
    """What the body of an error says."""
    detail = answer.get("detail", answer) if isinstance(answer, dict) else answer
    if isinstance(detail, list):  # one entry for each wrong argument
        return "; ".join(f"argument {'.'.join(map(str, item.get('loc', ())[1:]))}: {item.get('msg')}"
                         for item in detail if isinstance(item, dict))
    if isinstance(detail, dict):
        detail = detail.get("error") or detail.get("message") or json.dumps(detail, ensure_ascii=False)
    return str(detail or f"HTTP status {status}")


def shortened(text: str) -> str:
    return text if len(text) <= MAX_RESULT else f"{text[:MAX_RESULT]}\n(the rest of the result is left out)"
