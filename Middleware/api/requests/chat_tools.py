"""The tools of one request for a chat completion, in whichever of their forms the client has sent them.

Source: OpenAI's reference of ``POST /v1/chat/completions``, with the ``functions`` that came before tools. Clients also
send the flat tools of the Responses API here, and the types of tools that only that has.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import cast

from Middleware.api.requests.offered_tools import custom_input
from Middleware.api.requests.responses_tools import Choice, ResponsesTools
from Middleware.models.messages import ToolCall
from Middleware.utilities.answers.tool_calls import read_fragment, whole_call

logger = logging.getLogger(__name__)

Fields = Mapping[str, object]
TOOL_FIELDS = frozenset({"tools", "functions", "tool_choice", "function_call"})
"""The fields of a request that tools may be in, or that choose one."""
_FLAT = ("name", "description", "parameters", "strict")


class ChatTools(ResponsesTools):
    """The tools of one request. Those in the form of this API go to the LLM as the client has sent them.

    Attributes:
        legacy: the client knows functions, and no tools.
        translated: the LLM is offered something else than what the client has sent.
    """

    def __init__(self, body: Fields) -> None:
        tools, functions = body.get("tools"), body.get("functions")
        self.translated = False
        self.legacy = isinstance(functions, list) and bool(functions) and not tools
        if isinstance(functions, list) and self.legacy:
            tools = [{"type": "function", "function": function} for function in functions]
        self._choice = _legacy_choice(body.get("function_call")) if self.legacy else body.get("tool_choice")
        super().__init__(tools if isinstance(tools, list) else None)

    def _add(self, tool: object, path: str, namespace: str, hosted: list[str]) -> list[str]:
        kind = str(tool.get("type") or "function").lower() if isinstance(tool, Mapping) else None
        if (
            not isinstance(tool, Mapping)
            or isinstance(tool.get("function"), Mapping)
            or (kind == "function" and "name" not in tool)
        ):
            # The back-end validates it.
            self.functions.append(cast(dict[str, object], tool))
            return []
        self.translated = True
        if isinstance(custom := tool.get("custom"), Mapping) or kind == "custom":
            custom = custom if isinstance(custom, Mapping) else tool
            tool = {**custom, "type": "custom", "format": _grammar(custom.get("format"))}
        elif not namespace and isinstance(tool.get("name"), str) and kind == "function":
            # Anthropic's tools have a schema of another name.
            tool = {"parameters": tool.get("input_schema") or {"type": "object", "properties": {}}, **tool}
            function = {key: tool[key] for key in _FLAT if tool.get(key) is not None}
            self.functions.append({"type": "function", "function": function})
            return [str(tool["name"])]
        return super()._add(tool, path, namespace, hosted)

    def offer(self) -> Choice:
        """Return the functions to offer, and the engine's ``tool_choice``."""
        choice, functions = self._choice, self._offered.functions
        if choice is None or not isinstance(choice, Mapping):
            # Without a tool there is nothing to require, and some back-ends refuse a choice without tools.
            return functions, None if self.translated and not functions else choice
        allowed = choice.get("allowed_tools")
        if isinstance(choice.get("function"), Mapping) or (isinstance(allowed, Mapping) and not self.translated):
            return self.functions, choice
        if choice.get("type") == "allowed_tools":
            given = allowed if isinstance(allowed, Mapping) else choice
            tools = given.get("tools")
            names = {self._name(tool) for tool in tools if isinstance(tool, Mapping)} if isinstance(tools, list) else {}
            functions = [tool for tool in functions if isinstance(tool, Mapping) and self._name(tool) in names]
            return functions, given.get("mode") if functions else None
        name = self._name(choice)
        return self.functions, {"type": "function", "function": {"name": name}} if name else None

    def client_calls(self, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Return whole calls as the client knows them: with a text as arguments, or as the input of a custom tool."""
        if self.legacy:
            self.warn_of(len(calls) - 1)
        return [self._client_call(call) for call in (calls[:1] if self.legacy else calls)]

    @staticmethod
    def warn_of(count: int) -> None:
        """Log how many calls a client that can read only one does not get."""
        if count > 0:
            logger.warning("The client knows functions, and no tools: it gets the first call only, and not %d.", count)

    def _client_call(self, call: ToolCall) -> ToolCall:
        _, name, arguments = read_fragment(call)
        tool = self.called(name)
        if tool.kind != "custom":
            # Scripts give objects, or nothing.
            return call if isinstance(arguments, str) and arguments.strip() else whole_call(call)
        custom = {"name": tool.name, "input": custom_input(arguments)}
        return cast(ToolCall, {"id": call.get("id"), "type": "custom", "custom": custom})

    def _name(self, tool: Fields) -> str:
        """Return the function's name at the LLM for an object that names one of the client's tools; "" for none."""
        fields = next((nested for key in ("function", "custom") if isinstance(nested := tool.get(key), Mapping)), tool)
        name = fields.get("name")
        return self.offered_name(name) if isinstance(name, str) else ""


def _legacy_choice(choice: object) -> object:
    return {"type": "function", "function": {"name": choice.get("name")}} if isinstance(choice, Mapping) else choice


def _grammar(form: object) -> object:
    """Return the format of a custom tool as the Responses API has it: without a ``grammar`` around syntax and text."""
    grammar = form.get("grammar") if isinstance(form, Mapping) else None
    return grammar if isinstance(grammar, Mapping) else form
