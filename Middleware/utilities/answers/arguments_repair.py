"""Make JSON objects of the arguments of tool calls in a history: models write other texts, and servers refuse them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from Middleware.models.messages import Message, ToolCall
from Middleware.utilities.answers.tool_calls import calls_among

_FENCE = "```"
_CLOSING = {"{": "}", "[": "]"}
# A string with what ends it, or what has a meaning outside of strings.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*("|\\?\Z)|[{}\[\],]', re.DOTALL)
# Longer texts and those with more mistakes were not written by a model; each mistake costs another look at the text.
_LONGEST = 2**20
_MOST_MISTAKES = 8
# Models write line breaks into strings, and NaN, which is not JSON.
_LENIENT = json.JSONDecoder(strict=False, parse_constant=lambda _: None)


def with_object_arguments(message: Message) -> Message:
    """Return the message; a copy, if the arguments of one of its calls are not the JSON text of an object."""
    calls = calls_among(message.get("tool_calls"))
    repaired = {number: made for number, call in enumerate(calls) if (made := _repaired_call(call)) is not call}
    if not repaired:
        return message
    return {**message, "tool_calls": [repaired.get(number, call) for number, call in enumerate(calls)]}


def _repaired_call(call: ToolCall) -> ToolCall:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    text = repaired_arguments(arguments)
    return call if text == arguments else {**call, "function": {**function, "arguments": text}}


def repaired_arguments(arguments: object) -> str:
    """Return arguments as the JSON text of an object: as they are if they are one, else what can be saved of them.

    A code fence and what stands around the first object are left out; a text that ends too early is completed, without
    a last member that has no value. ``{}`` for anything else.
    """
    if isinstance(arguments, str):
        try:
            if isinstance(json.loads(arguments, parse_constant=_refuse), dict):
                return arguments
        except (ValueError, RecursionError):
            pass
        arguments = _saved(arguments)
    return json.dumps(arguments if isinstance(arguments, Mapping) else {}, ensure_ascii=False)


def _refuse(name: str) -> None:
    raise ValueError(name)


def _saved(text: str) -> object:
    """Return what can be read of a text that is not a JSON object."""
    text = text.strip()
    if text.startswith(_FENCE):
        text = text.removesuffix(_FENCE)
    try:
        # Some models encode the object twice.
        if text.startswith('"') and isinstance(inner := _LENIENT.decode(text), str):
            text = inner
        start = text.find("{")
        return _read(text[start:]) if start >= 0 and len(text) <= _LONGEST else None
    except (ValueError, RecursionError):
        return None


def _read(text: str) -> object:
    """Return the object at the beginning of a text, up to its first mistake. Raises ValueError for too many of them."""
    for _ in range(_MOST_MISTAKES):
        try:
            return _LENIENT.raw_decode(text)[0]
        except json.JSONDecodeError as error:
            closed = _closed(text)
            # Python 3.13 and later report a comma too many where it is, older versions what follows it.
            mistake = error.pos + error.msg.startswith("Illegal trailing comma")
            # Closing helps only once; after that, the member with the mistake goes.
            text = closed if closed != text else _closed(_up_to(text, mistake))
    raise ValueError


def _closed(text: str) -> str:
    """Return a text with its open string and brackets closed."""
    open_: list[str] = []
    end = ""
    for token in _TOKENS.finditer(text):
        if (sign := token[0]) in _CLOSING:
            open_.append(_CLOSING[sign])
        elif sign in _CLOSING.values() and open_:
            open_.pop()
        elif token[1] is not None and token[1] != '"':
            end = '"'
            text = text.removesuffix(token[1])
    return text + end + "".join(reversed(open_))


def _up_to(text: str, mistake: int) -> str:
    """Return a text up to the last comma or opening bracket before a mistake; of these, a bracket is kept."""
    ends = (token for token in _TOKENS.finditer(text, 0, mistake) if token[0] in "{[,")
    last = max((token.start() + (token[0] != ",") for token in ends), default=1)
    return text[:last]
