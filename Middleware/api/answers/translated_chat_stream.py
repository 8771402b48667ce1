"""Streams of chat completions whose client knows its tools in another form than the LLM."""

from __future__ import annotations

from Middleware.api.answers.stream_renderers import OpenAIChatStream
from Middleware.api.requests.chat_tools import ChatTools
from Middleware.models.messages import ToolCall
from Middleware.utilities.answers.tool_calls import ToolCallAssembler, arguments_object, calls_among, read_fragment


class TranslatedChatStream(OpenAIChatStream):
    """A stream to a client with custom tools or functions.

    A call of a custom tool goes out whole, since its input is a part of the arguments: when they are complete and
    another call begins, or at the end. Calls behind it wait, as packages rely on the order.
    """

    def __init__(self, model: str, include_usage: bool, request_id: str, tools: ChatTools) -> None:
        super().__init__(model, include_usage, request_id)
        self.legacy = tools.legacy
        self._tools = tools
        # By number: the calls whose fragments go out as they are, those that wait, and those that went out whole.
        self._passed: set[int] = set()
        self._held: dict[int, ToolCallAssembler] = {}
        self._done: set[int] = set()

    def tool_calls(self, token: str, calls: list[ToolCall], finish_reason: str | None) -> bytes:
        ready = [piece for fragment in self._numbers.numbered(calls_among(calls)) for piece in self._take(fragment)]
        if finish_reason:
            ready += self._released()
        if not (ready or token or finish_reason):
            return b""
        return self._event(self._chunk(token, finish_reason, tool_calls=ready))

    def final(self, finish_reason: str) -> bytes:
        held = self._released()
        return (self._event(self._chunk("", tool_calls=held)) if held else b"") + super().final(finish_reason)

    def _take(self, fragment: ToolCall) -> list[ToolCall]:
        """Return what can go out now."""
        number = fragment["index"]
        ready = self._released(number)
        waits = bool(self._held) or self._tools.called(read_fragment(fragment)[1]).kind == "custom"
        if number in self._passed or not (waits or number in self._done or (self.legacy and self._passed)):
            self._passed.add(number)
            ready.append(fragment)
        elif number not in self._done:
            self._held.setdefault(number, ToolCallAssembler()).add([fragment])
        return ready

    def _released(self, following: int | None = None) -> list[ToolCall]:
        """Return the calls that need not wait any more: all at the end, those that are complete before another call."""
        ready: list[ToolCall] = []
        for number, assembler in [*self._held.items()] if not self.legacy else ():
            (call,) = assembler.calls()
            if following is not None and (following == number or arguments_object(read_fragment(call)[2]) is None):
                break
            del self._held[number]
            self._done.add(number)
            ready += [{**made, "index": number} for made in self._tools.client_calls([call])]
        if self.legacy and following is None:
            self._tools.warn_of(len(self._held))
        return ready
