"""Cleans the stream of an LLM answer on its way to the client, chunk dict by chunk dict."""

from __future__ import annotations

import io
import json
import logging
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import cached_property
from typing import Any

from Middleware.common.constants import COMPLETION_APIS
from Middleware.models.messages import Chunk, ToolCall, Usage
from Middleware.models.request_context import current_request
from Middleware.utilities.answers.text_cleaner import CleaningRules, ResponseCleaner, SurrogateJoiner
from Middleware.utilities.answers.tool_calls import ToolCallAssembler, calls_as_text
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.config.keys.user import LIVENESS_CALL
from Middleware.utilities.streaming_utils import lowercase_tool_call_names, strip_assistant_prefix_enabled

logger = logging.getLogger(__name__)

EndpointConfig = Mapping[str, Any] | None | Callable[[], Mapping[str, Any] | None]

# Keys that only the endpoint that answers can send.
_CONTENT_KEYS = ("token", "tool_calls", "reasoning", "finish_reason")
_READING, _FINAL_DUE, _FINAL_SENT = range(3)


class StreamingResponseHandler:
    """Cleans one stream of chunk dicts and remembers its outcome.

    Attributes:
        finish_reason: why the stream ended, as the final chunk says; None while it runs.
        usage: token counts in the OpenAI shape, if the back-end reported them.
        tool_calls_seen: the back-end sent at least one tool call.
    """

    def __init__(
        self,
        endpoint_config: EndpointConfig,
        workflow_node_config: Mapping[str, object] | None,
        generation_prompt: str | None = None,
        request_id: str | None = None,
        liveness: Mapping[str, object] | None = None,
        has_endpoint: bool = True,
        on_unoffered: Callable[[], object] | None = None,
    ) -> None:
        """
        Args:
            endpoint_config: an endpoint file, or a function that returns the file of the endpoint that answers; the
                function is called at the first chunk with content.
            generation_prompt: the open speaker line ``Name:`` of a group chat, if the speaker rule applies.
            request_id: for the log.
            liveness: the user's ``livenessToolCall``; None on routes that cannot carry tool calls.
            has_endpoint: False for a node without an endpoint, whose text is delivered verbatim.
            on_unoffered: if given, tool calls become text at the end of the answer, and it is called at the first.
        """
        node = workflow_node_config or {}
        self._endpoint_config = endpoint_config
        self._node, self._generation_prompt, self._has_endpoint = node, generation_prompt, has_endpoint
        self._reasoning = SurrogateJoiner()
        self._lowercase_names = NODE.flag(node, "lowercaseToolCallFunctionNames")
        self._liveness = liveness
        self._liveness_wanted = NODE.flag(node, "injectLivenessToolCall")
        self._request_id = request_id
        self._on_unoffered = on_unoffered
        self._unoffered = ToolCallAssembler()
        # The delivered text. In a list, each piece would hold 60 bytes in addition to its text, which is often short.
        self._delivered = io.StringIO()
        self._state = _READING
        self._begun = self._plain = self._calls_withheld = False
        self._clean_ascii: Callable[[str], str] | None = None
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.tool_calls_seen = False

    @cached_property
    def _cleaner(self) -> ResponseCleaner:
        config = self._endpoint_config() if callable(self._endpoint_config) else self._endpoint_config
        strip_assistant = self._has_endpoint and strip_assistant_prefix_enabled()
        return ResponseCleaner(
            CleaningRules.build(
                config, self._node, self._generation_prompt, strip_assistant, has_endpoint=self._has_endpoint
            )
        )

    @property
    def full_response_text(self) -> str:
        """All text delivered so far."""
        return self._delivered.getvalue()

    def process_stream(
        self, chunks: Iterable[Chunk], ending: Callable[[], Iterable[Chunk]] = tuple
    ) -> Generator[Chunk, None, str]:
        """Yield cleaned chunks, at least one per input chunk; closing this closes ``chunks`` at once.

        Exactly one chunk has a finish reason: empty text, or the last tool call if that came with one. It leaves as
        soon as the back-end has nothing more ready; reading then goes on, and token counts that arrive later follow in
        an empty chunk with ``usage``. At the end, ``ending`` is called, and the chunks that it returns are yielded.
        Returns the delivered text.
        """
        deliver = self._delivered.write
        try:
            for chunk in chunks:
                # By far the most chunks of an answer take this path: they bring text and nothing else. See the note on
                # plain chunks in OpenAiApiHandler.read_events.
                if self._plain:
                    token = chunk.get("token")
                    if (
                        token
                        and not chunk.get("finish_reason", True)
                        and (len(chunk) == 2 or (len(chunk) == 3 and "more" in chunk))
                    ):
                        clean = self._clean_ascii
                        if clean is not None and token.isascii():
                            text = clean(token)
                        else:
                            text = self._cleaner.feed(token)
                            self._clean_ascii = self._cleaner.ascii_rest
                        if text is not token:
                            chunk = {**chunk, "token": text}
                        deliver(text)
                        yield chunk
                        continue
                yield from self._step(chunk)
            yield from self._end()
        # Chunks may also come from a list, which has nothing to close.
        finally:
            close = getattr(chunks, "close", None)
            if close:
                close()
        yield from ending()
        return self.full_response_text

    def _step(self, chunk: Chunk) -> list[Chunk]:
        usage = chunk.get("usage")
        if usage:
            self.usage = usage
        if self._state != _READING:
            return [self._after_finish(chunk)]
        # A heartbeat: until there is content, another endpoint may still become the one that answers.
        if not self._begun and not any(chunk.get(key) for key in _CONTENT_KEYS):
            quiet: Chunk = {"token": "", "finish_reason": None, **chunk}
            quiet.pop("usage", None)
            return [quiet]
        self._begun = True
        if self._on_unoffered is not None and (chunk.get("tool_calls") or self._calls_withheld):
            chunk = self._without_calls(chunk, self._on_unoffered)
        out = self._tool_step(chunk) if chunk.get("tool_calls") else self._text_step(chunk)
        self._plain = self._state == _READING and not self._cleaner.finds_reasoning
        self._clean_ascii = self._cleaner.ascii_rest
        return out

    def _text_step(self, chunk: Chunk) -> list[Chunk]:
        token = chunk.get("token") or ""
        text = self._cleaner.feed(token)
        finish = chunk.get("finish_reason")
        if not finish:
            return [self._outgoing(chunk, text)]
        self.finish_reason = str(finish)
        text += self._rest()
        return self._finish(self._outgoing(chunk, text))

    def _tool_step(self, chunk: Chunk) -> list[Chunk]:
        """Return the tool data, preceded by the text held so far. A finish reason on it makes it the final chunk."""
        self.tool_calls_seen = True
        finish = chunk.get("finish_reason")
        text = self._cleaner.feed(chunk.get("token") or "")
        text += self._rest() if finish else self._cleaner.flush()
        out = self._outgoing(chunk, text)
        calls = chunk["tool_calls"]
        out["tool_calls"] = lowercase_tool_call_names(calls) if self._lowercase_names else calls
        if finish:
            self._state = _FINAL_SENT
            self.finish_reason = out["finish_reason"] = str(finish)
            if self.usage:
                out["usage"] = self.usage
        return [out]

    def _without_calls(self, chunk: Chunk, on_unoffered: Callable[[], object]) -> Chunk:
        """Withhold the tool calls of a chunk until the end, when they become text."""
        if not self._calls_withheld:
            self._calls_withheld = True
            on_unoffered()
        chunk = chunk.copy()
        if "tool_calls" in chunk:
            self._unoffered.add(chunk.pop("tool_calls"))
        if chunk.get("finish_reason") == "tool_calls":
            chunk["finish_reason"] = "stop"
        return chunk

    def _after_finish(self, chunk: Chunk) -> Chunk:
        """Handle a chunk after the finish reason, when only token counts matter."""
        # The final chunk follows the last one that is ready, to have the token counts if these are.
        more = bool(chunk.get("more"))
        if self._state == _FINAL_DUE and not more:
            return self._final()
        out: Chunk = {"token": "", "finish_reason": None}
        if self._state == _FINAL_SENT and self.usage and chunk.get("usage"):
            out["usage"] = self.usage
        if more:
            out["more"] = True
        return out

    def _end(self) -> list[Chunk]:
        """Handle the end of the back-end's stream, which may come without a finish reason."""
        if self._state == _READING:
            return self._finish(self._outgoing({"token": "", "finish_reason": None}, self._rest()))
        return [self._final()] if self._state == _FINAL_DUE else []

    def _finish(self, last: Chunk) -> list[Chunk]:
        """Return the last text, the liveness call if one is due, and the final chunk unless more chunks are ready."""
        more = last.pop("more", False)
        half = self._reasoning.finish()
        if half:
            last["reasoning"] = last.get("reasoning", "") + half
        out = [last] if last["token"] or last.get("reasoning") else []
        call = self._liveness_call()
        if call:
            out.append({"token": "", "finish_reason": None, "tool_calls": [call]})
            self.finish_reason = "tool_calls"
        self._state = _FINAL_DUE
        if not more:
            out.append(self._final())
        elif not out:
            out.append({"token": "", "finish_reason": None, "more": True})
        # What "more" marks is written to the client together with the chunk that follows.
        for chunk in out[:-1] if not more else out:
            chunk["more"] = True
        return out

    def _final(self) -> Chunk:
        self._state = _FINAL_SENT
        if not self.finish_reason:
            self.finish_reason = "tool_calls" if self.tool_calls_seen else "stop"
        final: Chunk = {"token": "", "finish_reason": self.finish_reason}
        if self.usage:
            final["usage"] = self.usage
        return final

    def _rest(self) -> str:
        text = self._cleaner.finish(tool_calls_seen=self.tool_calls_seen or self._calls_withheld)
        return (
            text + calls_as_text(self._unoffered.calls(), self.full_response_text + text)
            if self._calls_withheld
            else text
        )

    def _outgoing(self, chunk: Chunk, text: str) -> Chunk:
        """Return a copy of a chunk with the cleaned text, which now counts as delivered."""
        if text:
            self._delivered.write(text)
        out: Chunk = {**chunk, "token": text, "finish_reason": None}
        out.pop("usage", None)
        out.pop("tool_calls", None)
        removed = self._cleaner.take_reasoning()
        reasoning = chunk.get("reasoning")
        if isinstance(reasoning, str):
            out["reasoning"] = removed + self._reasoning.feed(reasoning)
        elif removed:
            out["reasoning"] = removed
        return out

    def _liveness_call(self) -> ToolCall | None:
        """Return the tool call that keeps an agent client going, if this stream is to end with one."""
        if not self._liveness or self.tool_calls_seen or not self._may_inject():
            return None
        if not self._liveness_wanted and self.full_response_text.strip():
            return None
        name = LIVENESS_CALL.value(self._liveness, "toolName") if isinstance(self._liveness, Mapping) else None
        if not isinstance(name, str) or not name.strip():
            logger.warning("livenessToolCall needs a non-blank toolName; it is ignored (request %s).", self._request_id)
            return None
        arguments = LIVENESS_CALL.value(self._liveness, "arguments")
        encoded = json.dumps(dict(arguments) if isinstance(arguments, Mapping) else {}, ensure_ascii=False)
        return {
            "index": 0,
            "id": f"wilmer_liveness_{uuid.uuid4().hex[:8]}",
            "type": "function",
            "function": {"name": name.strip(), "arguments": encoded},
        }

    @staticmethod
    def _may_inject() -> bool:
        request = current_request()
        # The completion APIs have no tool calls.
        return request is None or not (request.cancel_scope.cancelled or request.api_type in COMPLETION_APIS)
