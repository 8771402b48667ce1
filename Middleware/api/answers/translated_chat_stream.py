"""Streams of chat completions whose client knows its tools in another form than the LLM."""

from __future__ import annotations

from Middleware.api.answers.stream_renderers import OpenAIChatStream
from Middleware.api.requests.chat_tools import ChatTools
from Middleware.models.messages import ToolCall
from Middleware.utilities.answers.tool_calls import ToolCallAssembler, calls_among, read_fragment


class TranslatedChatStream(OpenAIChatStream):
    """A stream to a client with custom tools or functions.

    Calls of custom tools go out whole at the end of the answer, since their input is a part of the arguments. So do the
    calls behind them, as packages rely on the order.
    """

    def __init__(self, model: str, include_usage: bool, request_id: str, tools: ChatTools) -> None:
        super().__init__(model, include_usage, request_id)
        self.legacy = tools.legacy
        self._tools = tools
        # By the number of each call, whether it waits for the end; a client with functions does not get these at all.
        self._waits: dict[int, bool] = {}
        self._held = ToolCallAssembler()

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        ready = [fragment for fragment in self._numbers.numbered(calls_among(calls)) if not self._holds(fragment)]
        if finish_reason:
            ready += self._released()
        if not (ready or token or finish_reason):
            return b""
        return self._event(self._chunk(token, finish_reason, tool_calls=ready))

    def final(self, finish_reason: str) -> bytes:
        held = self._released()
        return (self._event(self._chunk("", tool_calls=held)) if held else b"") + super().final(finish_reason)

    def _holds(self, fragment: ToolCall) -> bool:
        """Return whether a fragment waits; then it is kept."""
        waits = any(self._waits.values()) or (self.legacy and bool(self._waits))
        waits = self._waits.setdefault(
            fragment["index"], waits or self._tools.called(read_fragment(fragment)[1]).kind == "custom"
        )
        if waits:
            self._held.add([fragment])
        return waits

    def _released(self) -> list[ToolCall]:
        held, self._held = self._held.calls(), ToolCallAssembler()
        if self.legacy:
            self._tools.warn_of(len(held))
            return []
        first = len(self._waits) - len(held)
        return [{**call, "index": first + number} for number, call in enumerate(self._tools.client_calls(held))]
