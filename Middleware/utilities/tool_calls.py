"""Tool calls in OpenAI's shapes: whole calls, and the fragments of a stream."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class ToolCallAssembler:
    """Puts the fragments of streamed tool calls together, by their ``index`` (absent: 0)."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, fragments: Iterable[Any]) -> None:
        """Take the ``tool_calls`` of one chunk. A name or id replaces, argument texts append, an object replaces."""
        for fragment in fragments:
            if isinstance(fragment, Mapping):
                index = fragment.get("index")
                self._merge(self._calls.setdefault(index if isinstance(index, int) else 0, {}), fragment)

    def calls(self) -> list[dict[str, Any]]:
        """The calls so far, whole, by ascending index."""
        return [{"id": call.get("id", ""), "type": "function",
                 "function": {"name": call.get("name", ""), "arguments": call.get("arguments", "")}}
                for _, call in sorted(self._calls.items())]

    @staticmethod
    def _merge(call: dict[str, Any], fragment: Mapping[str, Any]) -> None:
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else {}
        for key, value in (("id", fragment.get("id")), ("name", function.get("name"))):
            if isinstance(value, str) and value:
                call[key] = value
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            known = call.get("arguments", "")
            call["arguments"] = (known if isinstance(known, str) else "") + arguments
        elif isinstance(arguments, Mapping):
            call["arguments"] = dict(arguments)
