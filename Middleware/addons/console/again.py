"""One recorded call, edited, sent once more straight to an endpoint. No workflow runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from Middleware.addons.console.calls import Call, Event
from Middleware.addons.console.replays import repeating_request
from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.analysis.prefix import payload_of
from Middleware.addons.records.model import RunDocument, Span
from Middleware.api.running.running_requests import running_requests
from Middleware.exceptions import EarlyTerminationException
from Middleware.llmapis.handlers.base.base_llm_api_handler import choices_in
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.messages import Chunk, Message
from Middleware.models.request_context import RequestContext, SentRequest

# The default of a node.
MOST_TOKENS = 400


def again_events(
    call: Call,
    document: RunDocument,
    span: Span,
    messages: Sequence[Message],
    endpoint: str,
    preset: str | None,
    max_tokens: int | None,
    times: int,
) -> Iterator[Event | None]:
    """Return the events of a call that is sent ``times`` times: its run, pieces of text, and the run again at the end.

    Raises ConfigurationError for an endpoint or preset that cannot be used.
    """
    request = repeating_request(call, document, "again", span.id)
    request.stream = True
    # Made before the answer begins, so that a mistake in the configuration has a status of its own.
    services = [
        LlmApiService(endpoint, preset, max_tokens or _limit(document, span), True, scope=request.cancel_scope)
        for _ in range(times)
    ]
    tools, choice = _tools(document, span)
    shape = _shape(document, span)
    request.endpoint = endpoint
    request.report("request_arrived", request)
    request.report("request_read", request, SentRequest(messages, tools))
    return _Events(request, services, partial(_stream, messages, tools, choice, *shape))


def _stream(
    messages: Sequence[Message],
    tools: list[Mapping[str, object]] | None,
    choice: object,
    schema: Mapping[str, object] | None,
    answers: Sequence[str],
    service: LlmApiService,
) -> Generator[Chunk, None, None]:
    return service.stream_verbatim(messages, tools, choice, schema, answers)


class _Events:
    """The events of a request; closing them ends it as a run, also before the first of them was read."""

    def __init__(
        self,
        request: RequestContext,
        services: Sequence[LlmApiService],
        send: Callable[[LlmApiService], Generator[Chunk, None, None]],
    ) -> None:
        self._request, self._send = request, send
        self._events = self._all(services)
        self._ended = False

    def __iter__(self) -> Iterator[Event | None]:
        return self

    def __next__(self) -> Event | None:
        return next(self._events)

    def close(self) -> None:
        self._events.close()
        self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            running_requests().end(self._request)
            self._request.report("request_finished", self._request)

    def _all(self, services: Sequence[LlmApiService]) -> Generator[Event | None, None, None]:
        request = self._request
        yield Event("message", {"run": request.request_id, "time": time.time_ns() // 1000})
        try:
            for number, service in enumerate(services, 1):
                yield from self._one(service, number)
        except EarlyTerminationException:
            pass
        except Exception:
            request.failed = True
            raise
        else:
            running_requests().answered(request)
        # Before the last event, with which the console shows the run and may send the call again.
        self._end()
        yield Event("run", {"run": request.request_id})

    def _one(self, service: LlmApiService, number: int) -> Iterator[Event | None]:
        request = self._request
        with contextlib.closing(self._send(service)) as chunks:
            for chunk in chunks:
                value: dict[str, object] = {
                    name: chunk[name] for name in ("reasoning", "tool_calls") if chunk.get(name)
                }
                if not (value or chunk["token"]):
                    # Nothing is sent yet.
                    yield None
                    continue
                if request.first_token_at is None:
                    request.first_token_at = time.monotonic()
                yield Event("message", {"n": number, "text": chunk["token"], **value})


def _limit(document: RunDocument, span: Span) -> int:
    tree = SpanTree(document.spans)
    for attempt in [span, *tree.children(span)]:
        found = attempt.attributes.get("request.max_tokens")
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    return MOST_TOKENS


def _payload(document: RunDocument, span: Span) -> Mapping[str, Any]:
    payload = span.texts.get("payload") if span.kind == "attempt" else payload_of(SpanTree(document.spans), span)
    return payload if isinstance(payload, Mapping) else {}


def _shape(document: RunDocument, span: Span) -> tuple[Mapping[str, object] | None, Sequence[str]]:
    """Return the JSON schema to which the recorded answer was held, and the texts to which a grammar held it."""
    for name, value in _payload(document, span).items():
        if isinstance(value, str) and (answers := choices_in(value)):
            return None, answers
        if isinstance(value, Mapping):
            # As OpenAI has it, or as Ollama.
            inner = value.get("json_schema")
            schema = inner.get("schema") if isinstance(inner, Mapping) else value if name == "format" else None
            if isinstance(schema, Mapping):
                return schema, ()
    return None, ()


def _tools(document: RunDocument, span: Span) -> tuple[list[Mapping[str, object]] | None, object]:
    """Return the tools of the recorded call in OpenAI's form, and which of them it was to call."""
    payload = _payload(document, span)
    if not isinstance(payload.get("tools"), list):
        return None, None
    tools = [_openai_tool(tool) for tool in payload["tools"] if isinstance(tool, Mapping)]
    choice = payload.get("tool_choice")
    # Claude's form of a choice is an object with a type of its own.
    return tools or None, choice if isinstance(choice, str) else None


def _openai_tool(tool: Mapping[str, object]) -> Mapping[str, object]:
    if "input_schema" not in tool:
        return tool
    return {
        "type": "function",
        "function": {
            "name": tool.get("name"),
            "description": tool.get("description", ""),
            "parameters": tool["input_schema"],
        },
    }
