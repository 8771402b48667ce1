"""The base of all generation back-ends: one call, its request and its answer.

A handler determines the URL, headers and payload of a call and parses the answer; the transport sends and receives. One
handler serves one call of one endpoint.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Required, TypedDict

from Middleware.exceptions import (
    BackendError,
    BackendResponseError,
    ClientError,
    EarlyTerminationException,
    InvalidLlmResponseError,
)
from Middleware.llmapis.addresses import API_PATH, compose, key_headers
from Middleware.llmapis.backend_errors import (
    loop_error,
    said_in,
    says_loop,
    secrets_of,
    sentence,
    short_body,
    too_long_hint,
)
from Middleware.llmapis.finish_reasons import FAILED, finish_reason, with_calls
from Middleware.llmapis.handlers.base.image_sources import base64_data
from Middleware.llmapis.keepsakes import KeptMembers, for_the_log, origin_of, remember
from Middleware.llmapis.refusals import Changes
from Middleware.llmapis.repeats import Repeats
from Middleware.llmapis.transport import BackendRequest, BackendStream, Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import AnswerParts, LlmOutcome
from Middleware.models.messages import Answer, Chunk, Keepsake, Message, ToolCall, Usage
from Middleware.models.process import process
from Middleware.utilities import config_utils
from Middleware.utilities.answers.stream_parsers import LineTooLongError, NDJSONParser, SSEEvent, SSEParser
from Middleware.utilities.answers.tool_calls import ToolCallReader, assembled, whole_call
from Middleware.utilities.config.keys.api_type import API_TYPE, STRUCTURED_OUTPUT
from Middleware.utilities.http.connect import HEARTBEAT_SECONDS
from Middleware.utilities.http.connection import SLICE_SECONDS
from Middleware.utilities.http.wire import parse_target
from Middleware.utilities.once import MAX_REMEMBERED, BoundedCache
from Middleware.utilities.sensitive_logging_utils import is_encryption_active

if TYPE_CHECKING:
    from Middleware.llmapis.call_watch import CallWatch

logger = logging.getLogger(__name__)

DONE = "[DONE]"


def _marked() -> BoundedCache[str, bool]:
    """Return the endpoints whose streams have had an end, and as False those that were logged because they had none."""
    return BoundedCache(MAX_REMEMBERED)


_decoder = json.JSONDecoder()

# How long a stream is read after a finish reason without an event that carries something; servers whose reason comes
# together with text write it on every event.
DRAIN_SECONDS = 1.0
REPEATED_REASON_SECONDS = 10.0
# How long the connection may take to end after the last event.
CLOSING_SECONDS = 0.1
_SLICES_PER_HEARTBEAT = round(HEARTBEAT_SECONDS / SLICE_SECONDS)
# Bytes that are read after a finish reason without an event that carries something.
DRAIN_BYTES = 65536
# Bytes kept of a stream without events, which may be one complete JSON answer.
WHOLE_LIMIT = 16 * 1024 * 1024


def decode_json(text: str) -> Any:
    """Return the value of a JSON text without white space around it. Raises ValueError, RecursionError."""
    # ``decode`` does the same, and looks for white space with two regular expressions.
    value, end = _decoder.raw_decode(text)
    return value if end == len(text) else _decoder.decode(text)


Block = dict[str, object]
"""A part of a message, such as a content block or a tool call, in the form of a dialect."""


class BackendMessage(TypedDict, total=False):
    """A message of a payload. Each dialect keeps only the keys that its back-ends know."""

    role: Required[str]
    content: str | list[Block] | None
    images: list[str]
    tool_calls: list[Block]
    tool_call_id: str
    name: str
    tool_name: str
    extra: list[Keepsake]


@dataclass(frozen=True)
class BackendSettings:
    """The settings of an endpoint for its handler.

    Attributes:
        base_url: the endpoint's ``endpoint`` key.
        file: path of the endpoint's file, relative to the config root, for messages.
        model: value of the payload's ``model``; None leaves the key out.
        samplers: final sampler fields, sent as they are.
        endpoint: the endpoint file.
        connect_timeout: seconds.
        single_attempt: neither retry nor reconnect, because there is a backup.
        local_only: refuse to connect to a machine outside the local network.
        remedy: returns the file and the key that a field of the payload comes from, as advice; "" if none is known.
    """

    endpoint_name: str
    base_url: str
    # Excluded from repr because it contains the key.
    endpoint: Mapping[str, object] = field(repr=False)
    api_type: Mapping[str, object]
    samplers: Mapping[str, object] = field(default_factory=dict)
    model: str | None = None
    api_key: str = field(default="", repr=False)
    connect_timeout: float = 30
    single_attempt: bool = False
    local_only: bool = False
    file: str = ""
    remedy: Callable[[str], str] = field(default=lambda _: "", repr=False, compare=False)

    @property
    def api_path(self) -> str | None:
        """The endpoint's ``apiPath``; None without one."""
        found = self.endpoint.get(*API_PATH)
        return found if isinstance(found, str) else None


def bearer_headers(settings: BackendSettings, kind: str = "") -> dict[str, str]:
    """Return the headers of a dialect: JSON, and the key if there is one."""
    keyed = key_headers(settings.base_url, settings.api_path, settings.api_key, kind)
    return {"Content-Type": "application/json", **keyed}


@dataclass(frozen=True)
class Prompt:
    """The content to send: a list of messages, or two texts. Handlers never change it.

    Attributes:
        schema: the JSON schema of the answer.
        choices: the only texts that the answer may be; ``schema`` does not count then.
        watch: what reports the call to listeners; None without any.
        verbatim: the texts of the endpoint are in it already, and it is sent as it is.
        conversation_of: the node whose conversation it is, which has to have something in it; "" for other prompts.
        textless: of that, there is nothing in the texts.
    """

    conversation: Sequence[Message] | None = None
    system_prompt: str | None = None
    prompt: str | None = None
    tools: Sequence[Mapping[str, object]] | None = None
    tool_choice: object = None
    schema: Mapping[str, object] | None = None
    choices: Sequence[str] = ()
    watch: CallWatch | None = field(default=None, repr=False, compare=False)
    verbatim: bool = False
    conversation_of: str = ""
    textless: bool = False


class BaseLlmApiHandler(ABC):
    """Base of the back-end dialects.

    Subclasses set ``PATH`` (or override ``path``) and ``FRAMER``, and implement ``payload``, ``read_event`` and
    ``read_response``.
    """

    PATH = ""
    FRAMER: type[SSEParser] | type[NDJSONParser] = SSEParser
    # OpenTelemetry's name for what the calls do.
    OPERATION = "chat"

    def __init__(self, settings: BackendSettings, transport: Transport, scope: CancelScope | None = None) -> None:
        self.settings = settings
        self._transport = transport
        self._scope = scope
        self._connection: BackendStream | None = None
        # Whether there has been a call, and whether another thread has ended its stream.
        self._began = self._aborted = False
        self.changes = Changes(settings)
        self._repeats: Repeats | None = None
        # When a streamed call began.
        self._streams_since: float | None = None
        self._reset()

    def _begin(self, is_streamed: bool) -> None:
        """Begin a call, of one attempt or several."""
        if self._began:
            self._reset()
        self._began, self._aborted, self._repeats = True, False, None
        self._streams_since = time.monotonic() if is_streamed else None
        self.changes.begin()

    def _reset(self) -> None:
        self.outcome = LlmOutcome(endpoint_config=self.settings.endpoint, endpoint_name=self.settings.endpoint_name)
        self.ended = self.closed = self.understood = False
        # What came with or after the finish reason without carrying anything: it waits for the end.
        self._held: list[Chunk] = []
        self._reason_comes_with_content = False
        # Whether anything had the form of an answer of this dialect, and whether a tool call has come.
        self.formed = self.called = False
        self._reader: ToolCallReader | None = None
        # The tool calls of a stream, in pieces, and what the answer has in addition to its text and calls.
        self._fragments: list[ToolCall] = []
        self.kept = KeptMembers()
        # An object that had not the form of an answer.
        self._strange: Mapping[str, object] | None = None
        # What the server said of a failure in the current event; None without one.
        self.reported: object = None
        # Whether an event has brought text or a tool call, and whether one has brought reasoning.
        self.flowing = self.reasoned = False
        # The server's words in place of an answer that it refuses.
        self.refusal = ""
        # What arrives is kept for listeners. None without any.
        self.parts: AnswerParts | None = None
        self.failure: BackendError | None = None
        # The number of skipped parts of each kind.
        self._skipped: dict[str, int] = {}

    # -- the dialect ---------------------------------------------------------------------------------------------
    def path(self, stream: bool) -> str:
        """Return the path that is appended to the base URL."""
        return self.PATH

    def headers(self) -> dict[str, str]:
        return bearer_headers(self.settings)

    @abstractmethod
    def payload(self, prompt: Prompt) -> dict[str, object]:
        """Return the JSON body of the call."""

    def has_content(self, prompt: Prompt, payload: Mapping[str, object]) -> bool:
        """Return whether a payload has a text, an image or a tool call. Servers make up an answer to nothing."""
        return not prompt.textless or bool(payload.get("images"))

    def read_events(self, events: Sequence[SSEEvent | str]) -> list[Chunk]:
        """Return the chunks of events that have arrived, in order.

        Unreadable events are logged and skipped, ``[DONE]`` sets ``self.closed``. An error object raises
        BackendResponseError; after events with content it is stored in ``self.failure`` instead, so that these are not
        lost.
        """
        chunks: list[Chunk] = []
        for event in events:
            name, data = (None, event) if isinstance(event, str) else event
            if data == DONE:
                self.closed = self.understood = True
                continue
            try:
                body = decode_json(data)
            except (ValueError, RecursionError):
                if name != "error":
                    self.unreadable("an event that is not JSON")
                    continue
                body = data
            self.read_body(body, name, chunks)
            if self.failure is not None:
                break
        return chunks

    def read_body(self, body: object, name: str | None, chunks: list[Chunk]) -> None:
        """Add the chunk of a decoded event to ``chunks``; see ``read_events``."""
        if not isinstance(body, dict):
            # In an event of this name, text is an error.
            body = unlisted(body)
            body = {"error": body} if name == "error" and not isinstance(body, dict) else body
            if not isinstance(body, dict):
                self.unreadable("an event that is not an object")
                return
        self.understood = True
        chunk = failure = None
        try:
            chunk = self.read_event(body, name)
            if chunk is not None:
                if "tool_calls" in chunk:
                    self._read_calls(chunk)
                failure = self._translate_end(chunk) if chunk["finish_reason"] is not None else None
        except BackendResponseError as error:
            chunk, failure = None, error
        brings = chunk is not None and (bool(chunk["token"]) or carries(chunk))
        if failure is not None and not brings and not chunks:
            raise failure
        # It is raised after the chunks before it have been delivered.
        self.failure = failure
        # The last one, unless another has shown whose answer it is.
        if not self.formed and not dialect_of(self._strange):
            self._strange = body
        if chunk is None or (failure is not None and not brings):
            return
        chunks.append(chunk)
        token, parts = chunk["token"], self.parts
        if not self.flowing and brings:
            if parts is not None and not self.reasoned:
                parts.first_at = time.perf_counter()
            self.flowing, self.reasoned = bool(token or chunk.get("tool_calls")), True
            if self.changes.new:
                self.changes.answered()
        if parts is not None:
            if token:
                parts.texts.append(token)
            # Every chunk has two keys.
            if len(chunk) > 2:
                parts.others.append(chunk)

    def _read_calls(self, chunk: Chunk) -> None:
        """Give the tool calls of a chunk the form that clients know. A call that waits for its id leaves the chunk."""
        self.called = True
        if self._reader is None:
            self._reader = ToolCallReader()
        calls = self._reader.read(chunk.pop("tool_calls"))
        if calls:
            chunk["tool_calls"] = calls
            self._fragments += calls
            for call in calls:
                self.kept.read_call(call, call["index"])

    def _translate_end(self, chunk: Chunk) -> BackendResponseError | None:
        """Translate the finish reason of a chunk; return the error if it says that the answer has failed."""
        sent, chunk["finish_reason"] = chunk["finish_reason"], None
        reason = finish_reason(sent, self.settings.endpoint_name)
        if reason is None:
            return None
        self.ended, self.outcome.sent_reason = True, str(sent)
        if reason == FAILED:
            return self.error_of(self.reported or f'the finish reason "{sent}"')
        chunk["finish_reason"] = self.outcome.finish_reason = self._ended_as(reason)
        return None

    def _ended_as(self, reason: str | None) -> str | None:
        """Return the finish reason of an answer so far, for which the server's is ``reason``."""
        return "content_filter" if self.refusal else with_calls(reason, self.called)

    def refused(self, words: str) -> str:
        """Return the words with which the server refuses an answer, which are its text if there is no other."""
        if not words or (self.flowing and not self.refusal):
            return ""
        self.refusal += words
        return words

    @abstractmethod
    def read_event(self, body: dict[str, object], name: str | None) -> Chunk | None:
        """Return the chunk of one event, None for an event without content; its finish reason in the server's word.

        ``name`` is the event's name in the SSE framing, if it has one. Sets ``self.formed`` for an event of the form
        of an answer, and ``self.closed`` at the last event of the dialect. After ``ended`` only token counts are used.
        Raises BackendResponseError for an error object.
        """

    @abstractmethod
    def read_response(self, body: Mapping[str, object]) -> Answer:
        """Return the answer in a complete JSON object, and store its finish reason in the server's word.

        Raises BackendResponseError for an error object, and for one without the form of an answer of this dialect.
        """

    def read_whole(self, body: object) -> Answer:
        """Return the answer in a complete JSON body. Raises BackendResponseError if it holds none, or a failure."""
        # The back-end has finished, whatever its answer contains.
        self.ended, body = True, unlisted(body)
        if not isinstance(body, dict):
            raise self.no_answer(body)
        answer, outcome = self.read_response(body), self.outcome
        reason = finish_reason(outcome.finish_reason, self.settings.endpoint_name)
        outcome.sent_reason = outcome.finish_reason if reason is not None else None
        if reason == FAILED:
            raise self.error_of(self.reported or f'the finish reason "{outcome.sent_reason}"')
        outcome.finish_reason = with_calls(reason, not isinstance(answer, str))
        calls = [] if isinstance(answer, str) else answer["tool_calls"]
        for index, call in enumerate(calls):
            self.kept.read_call(call, index)
        if not isinstance(answer, str):
            answer["finish_reason"] = outcome.finish_reason or "tool_calls"
        elif not answer and self.refusal:
            answer, outcome.finish_reason = self.refusal, "content_filter"
        self._note_answer(bool(answer))
        if calls or self.kept:
            self._keep(calls)
        return answer

    def _keep(self, calls: Sequence[ToolCall]) -> None:
        """Keep what the answer has in addition to its text and calls for the next request of the client."""
        # Calls without any are kept as well, as another answer with the same calls may have some.
        origin = origin_of(self.settings)
        remember(origin, self.kept.finish(origin), calls)

    # -- the call ------------------------------------------------------------------------------------------------
    def request(self, prompt: Prompt, stream: bool) -> BackendRequest:
        settings = self.settings
        payload = self.payload(prompt)
        if prompt.conversation_of and not self.has_content(prompt, payload):
            raise ClientError(
                f"The conversation has no text: node '{prompt.conversation_of}' has nothing to send to endpoint "
                f"'{settings.endpoint_name}'."
            )
        sent = self.changes.apply(payload)
        self.outcome.left_out = self.changes.effective
        if logger.isEnabledFor(logging.DEBUG) and not is_encryption_active():
            # The transport reports a payload that is nested too deeply.
            with contextlib.suppress(RecursionError):
                shown = json.dumps(for_the_log(sent), default=str)
                logger.debug("Payload for endpoint '%s': %s", settings.endpoint_name, shown)
        watch = prompt.watch
        address = compose(settings.base_url, self.path(stream), settings.api_path)
        return BackendRequest(
            endpoint_name=settings.endpoint_name,
            url=address.url,
            other_url=address.other,
            file=settings.file,
            payload=sent,
            headers=self.headers(),
            connect_timeout=settings.connect_timeout,
            single_attempt=settings.single_attempt,
            local_only=settings.local_only,
            watch=None if watch is None else watch.attempts(settings, self.OPERATION, self.outcome),
        )

    def handle_non_streaming(self, prompt: Prompt) -> Answer:
        """Return the complete answer: a string, or a dict with tool calls; ``""`` for a cancelled call."""
        self._begin(False)
        while not self.is_cancelled:
            request = self.request(prompt, False)
            try:
                body = self._transport.post_json(request, self._scope)
                return "" if self.is_cancelled else self.read_whole(body)
            except EarlyTerminationException:
                return ""
            except BackendError as error:
                wait = self._wait_after(error, prompt, request)
            finally:
                self._log_skipped()
            for _ in self._waiting(wait):
                pass
        return ""

    def handle_streaming(self, prompt: Prompt) -> Generator[Chunk, None, None]:
        """Yield the answer chunk by chunk; sends the request at the first ``next`` and ends when cancelled."""
        self._begin(True)
        scope = self._scope
        while not self.is_cancelled and not self._aborted:
            if prompt.watch is not None:
                self.parts = prompt.watch.parts()
            request = self.request(prompt, True)
            connection = self._connection = self._transport.open_stream(request, scope)
            # ``start``: the beginning of an answer of which no event has been understood.
            framer, start = self.FRAMER(), bytearray()
            try:
                for block in connection:
                    if not block:
                        yield {"token": "", "finish_reason": None}
                        continue
                    chunks = self.read_events(framer.feed(block))
                    if self.ended:
                        chunks = self._before_end(chunks)
                    if not self.understood and not chunks:
                        start += block[: max(WHOLE_LIMIT - len(start), 0)]
                    # Comments or an incomplete event prove that the server is alive, so they become a heartbeat.
                    if len(chunks) == 1:
                        yield chunks[0]
                    elif not chunks and not self.ended:
                        yield {"token": "", "finish_reason": None}
                    else:
                        yield from self._batch(chunks)
                    if self.failure is not None:
                        raise self.failure
                    if self.ended or self.closed:
                        break
                    if scope is not None and scope.cancelled:
                        return
                if not self.is_cancelled:
                    yield from self._rest(connection, framer, start)
                return
            except (EarlyTerminationException, LineTooLongError, BackendError) as error:
                wait = self._wait_after(error, prompt, request)
            finally:
                self._connection = None
                connection.close()
                self._log_skipped()
            yield from self._waiting(wait)

    def _wait_after(self, error: Exception, prompt: Prompt, request: BackendRequest) -> float | None:
        """Return the seconds until the call is sent again, None for a stopped one. Raises the error if it is final."""
        if self.is_cancelled or self._aborted or isinstance(error, EarlyTerminationException):
            return None
        if isinstance(error, LineTooLongError):
            reason = f"{self._endpoint_label()}: the answer is too large ({error})."
            raise BackendResponseError(reason, endpoint=self.settings.endpoint_name) from None
        if not isinstance(error, BackendError):
            raise error
        # The client has a part of the answer.
        if self.flowing or (self.reasoned and shows_reasoning()):
            raise error
        if self.changes.learn(error) and self.changes.apply(self.payload(prompt)) != request.payload:
            return 0.0
        self._repeats = self._repeats or Repeats(self.settings, self._streams_since)
        wait = self._repeats.wait_after(error)
        if wait is None:
            self.changes.explain(error)
            raise error
        return wait

    def _waiting(self, seconds: float | None) -> Iterator[Chunk]:
        """Wait before another attempt, with heartbeats; a stop ends the wait."""
        end, scope, slices = time.monotonic() + (seconds or 0.0), self._scope or CancelScope(), 0
        while (left := end - time.monotonic()) > 0 and not self._aborted and not scope.wait(min(left, SLICE_SECONDS)):
            slices += 1
            if slices % _SLICES_PER_HEARTBEAT == 0:
                yield {"token": "", "finish_reason": None}
        if not self.is_cancelled and not self._aborted:
            self._reset()

    def _note_answer(self, has_content: bool) -> None:
        """Note at the end of an answer which changes have helped, and whether it is empty.

        Raises BackendResponseError if the server has only loaded the model, as Ollama does for an empty prompt.
        """
        if self.changes.new:
            self.changes.answered()
        outcome, name = self.outcome, self.settings.endpoint_name
        if has_content or outcome.finish_reason == "content_filter":
            return
        if outcome.sent_reason == "load":
            text = f"{self._endpoint_label()}: the model was only loaded: the prompt was empty."
            raise BackendResponseError(text, endpoint=name)
        outcome.empty = "reasoning" if self.reasoned or outcome.reasoning else "nothing"
        spent = f"all {(outcome.usage or {}).get('completion_tokens') or 'its'} tokens were reasoning"
        advice = "raise 'maxResponseSizeInTokens' of the node, or switch thinking off ('thinkingMode')"
        text = f"{spent}; {advice}" if outcome.empty == "reasoning" else "an empty answer"
        logger.info("Endpoint '%s': %s.", name, text)

    def abort(self) -> None:
        """End a stream that another thread is reading."""
        connection, self._aborted = self._connection, True
        if connection is not None:
            connection.abort()

    def _rest(self, connection: BackendStream, framer: SSEParser | NDJSONParser, start: bytearray) -> Iterator[Chunk]:
        """Yield what follows the last event, or the answer in a body that has begun with ``start`` and has no event."""
        if self.ended or self.closed:
            yield from self._after_reason(connection, framer)
        begun, skipped, last = framer.is_inside_event, sum(self._skipped.values()), framer.finish()
        if last:
            yield from self._batch(self._before_end(self.read_events(last)))
        if self.failure is not None:
            raise self.failure
        is_half = begun and (not last or sum(self._skipped.values()) > skipped)
        if start and not self.understood:
            yield from self._unframed(bytes(start))
            return
        stopped = self.is_cancelled or self._aborted
        if not stopped and not self.formed and self._strange is not None:
            # The only event may be a whole answer.
            yield from self._whole(self._strange)
            return
        if not stopped:
            self._check_end(is_half)
        self._note_answer(self.flowing or self.called)
        calls = self._reader.finish() if self._reader is not None else []
        if calls:
            self._fragments += calls
            yield {"token": "", "finish_reason": None, "tool_calls": calls}
        if self.refusal and not self.ended:
            self._held.append({"token": "", "finish_reason": "content_filter"})
        if self.understood and (self._fragments or self.kept):
            self._keep(assembled(self._fragments))
        for chunk in self._held:
            if chunk["finish_reason"] is not None and (self.called or self.refusal):
                # They may have come after the reason.
                chunk["finish_reason"] = self.outcome.finish_reason = self._ended_as(chunk["finish_reason"])
        yield from self._batch(self._held)

    def _after_reason(self, connection: BackendStream, framer: SSEParser | NDJSONParser) -> Iterator[Chunk]:
        """Yield what a server sends after a finish reason, as it comes, up to the real end of the answer."""
        useful_at, noise = time.monotonic(), 0
        for block in connection.rest():
            chunks = self._before_end(self.read_events(framer.feed(block))) if block else []
            now = time.monotonic()
            if chunks:
                useful_at, noise = now, 0
            else:
                noise += len(block)
            yield from self._batch(chunks)
            if self.failure is not None:
                raise self.failure
            most = REPEATED_REASON_SECONDS if self._reason_comes_with_content else DRAIN_SECONDS
            most = CLOSING_SECONDS if self.closed else most
            if now - useful_at >= most or noise >= DRAIN_BYTES or self.is_cancelled:
                return

    def _before_end(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the chunks that go on at once; the finish reason, and what follows it and carries nothing, waits."""
        if not self.ended:
            return chunks
        passed: list[Chunk] = []
        for chunk in chunks:
            if not carries(chunk) and (chunk["finish_reason"] is not None or self._held):
                self._hold(chunk)
                continue
            if chunk["finish_reason"] is not None:
                self._reason_comes_with_content = True
                self._hold({"token": "", "finish_reason": chunk["finish_reason"]})
                chunk["finish_reason"] = None
            passed.append(chunk)
        return passed

    def _hold(self, chunk: Chunk) -> None:
        """Keep a chunk for the end; of several finish reasons, the last is the answer's."""
        if chunk["finish_reason"] is not None:
            for held in self._held:
                held["finish_reason"] = None
            self._held = [held for held in self._held if len(held) > 2]
        self._held.append(chunk)

    def _check_end(self, is_half: bool) -> None:
        """Look how a stream has ended; ``is_half``: in the middle of an event.

        A proxy ends the body properly although the server behind it has died. So an endpoint that has sent the mark of
        an end once must send it always. Raises BackendResponseError.
        """
        if not self.formed:
            raise self.no_answer(None)
        name, marked = self.settings.endpoint_name, process().one(_marked)
        known = marked.get(name)
        if self.ended or self.closed:
            if not known:
                marked.put(name, True)
        elif is_half or known:
            raise BackendResponseError(f"{self._endpoint_label()}: the stream ended without its end.", endpoint=name)
        else:
            self.outcome.is_unmarked = True
            if known is None:
                marked.put(name, False)
                logger.info(
                    "Endpoint '%s' sends no end of its streams: a broken one cannot be told from a whole one.", name
                )

    def _batch(self, chunks: list[Chunk]) -> Iterator[Chunk]:
        """Yield chunks that arrived together; each but the last is marked as followed by another one."""
        if not chunks:
            return
        last = chunks.pop()
        for chunk in chunks:
            if self.is_cancelled:
                return
            chunk["more"] = True
            yield chunk
        yield last

    def _unframed(self, data: bytes) -> Iterator[Chunk]:
        """Yield the chunk of a plain JSON body that a back-end sent instead of a stream: an answer or an error."""
        if all(not line.strip() or line.startswith(b":") for line in data.splitlines()):
            # Only comments.
            raise self.no_answer(None)
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            raise BackendResponseError(
                f"{self._endpoint_label()}: the answer to a streaming call holds no event. Is the URL that of the API, "
                "and the ApiType the right one?",
                endpoint=self.settings.endpoint_name,
            ) from None
        yield from self._whole(body)

    def _whole(self, body: object) -> Iterator[Chunk]:
        """Yield the chunk of a whole answer in a stream. Raises BackendResponseError for anything else."""
        result = self.read_whole(body)
        content, calls = (result, None) if isinstance(result, str) else (result["content"], result["tool_calls"])
        chunk: Chunk = {"token": content, "finish_reason": self.outcome.finish_reason or "stop"}
        if calls:
            chunk["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
        if self.outcome.usage:
            chunk["usage"] = self.outcome.usage
        if self.outcome.reasoning:
            chunk["reasoning"] = self.outcome.reasoning
        yield chunk

    # -- helpers of the dialects ---------------------------------------------------------------------------------
    def add_schema(self, body: dict[str, Any], prompt: Prompt) -> None:
        """Insert the constraint on the answer, if there is one: a grammar or a JSON schema, as the API type defines."""
        if prompt.schema is None and not prompt.choices:
            return
        grammar = grammar_field(self.settings.api_type) if prompt.choices else ""
        descriptor = API_TYPE.value(self.settings.api_type, "structuredOutput")
        descriptor = descriptor if isinstance(descriptor, Mapping) else {}
        field, raw = usable_field(descriptor), STRUCTURED_OUTPUT.value(descriptor, "style") == "raw"
        if grammar:
            self._put(body, grammar, choices_grammar(prompt.choices))
        elif field is not None and raw:
            self._put(body, field, choices_schema(prompt.choices) if prompt.choices else prompt.schema)
        elif field is not None:
            if prompt.choices:
                self._leave_room(body)
            self._put(
                body,
                field,
                {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "wilmer_structured_output",
                        "strict": STRUCTURED_OUTPUT.flag(descriptor, "strict"),
                        "schema": choice_object(prompt.choices) if prompt.choices else prompt.schema,
                    },
                },
            )
        # A prompt that offers choices asks for one of them in words as well.
        elif not prompt.choices:
            logger.warning(
                "Endpoint '%s': its API type declares no usable structuredOutput; the answer is not constrained.",
                self.settings.endpoint_name,
            )

    def _leave_room(self, body: dict[str, Any]) -> None:
        """Raise the response limit by what stands around a choice, which is not part of the node's answer."""
        key = API_TYPE.value(self.settings.api_type, "maxNewTokensPropertyName")
        if key and type(body.get(key)) is int:
            body[key] += TOKENS_AROUND_CHOICE

    def _put(self, body: dict[str, Any], field: str, constraint: object) -> None:
        """Set a field of the payload, whose dots separate nested objects."""
        *parents, leaf = field.split(".")
        for parent in parents:
            known = body.get(parent)
            # The object may belong to a configuration file, so the schema goes into a copy.
            body[parent] = dict(known) if isinstance(known, Mapping) else {}
            body = body[parent]
        if leaf in body:
            logger.warning("Endpoint '%s': the schema replaces the value of '%s'.", self.settings.endpoint_name, field)
        body[leaf] = constraint

    def base64_images(self, sources: Sequence[object], server: str) -> list[str]:
        """Return the images as plain base64. Web addresses and other entries are skipped with a warning."""
        images = [image for image in map(base64_data, sources) if image]
        if len(images) < len(sources):
            self.unreadable(f"{len(sources) - len(images)} image(s): {server} takes base64 data only, no addresses")
        return images

    def raise_error_object(self, error: object, body: Mapping[str, object] | None = None) -> None:
        """Raise the error in an error object of the back-end; ``body``: the object around it, which may have a code."""
        raise self.error_of(error, body)

    def error_of(self, error: object, body: Mapping[str, object] | None = None) -> BackendResponseError:
        """Return the error in an error object of the back-end, without the key that some servers repeat in it."""
        text = short_body(json.dumps({"error": error}, default=str).encode(), self._secrets())
        if says_loop(text):
            return loop_error(self.settings.endpoint_name, parse_target(self.settings.base_url))
        message, hint = f"{self._endpoint_label()}: an error instead of an answer: {text}", too_long_hint(text)
        found = BackendResponseError(
            f"{sentence(message)} {hint}" if hint else message, endpoint=self.settings.endpoint_name, body=text
        )
        found.data = {**(body or {}), "error": error}
        return found

    def no_answer(self, body: object) -> InvalidLlmResponseError:
        """Return the error for what has not the form of an answer of this dialect; ``body``: None if nothing came."""
        said = said_in(body, self._secrets())
        text = f"{self._endpoint_label()}: an answer without a message: {said or keys_of(body)}"
        if other := dialect_of(body):
            text = f"{sentence(text)} Is it the right ApiType? '{other}' has answers of this form."
        return InvalidLlmResponseError(text, endpoint=self.settings.endpoint_name, body=said)

    def _secrets(self) -> tuple[str, ...]:
        return secrets_of(self.headers(), parse_target(self.settings.base_url))

    def _endpoint_label(self) -> str:
        return f"Endpoint '{self.settings.endpoint_name}' ({parse_target(self.settings.base_url).display})"

    def unreadable(self, what: str) -> None:
        """Log that a part of an answer was skipped, without its content and once per kind and call."""
        self._skipped[what] = self._skipped.get(what, 0) + 1
        if self._skipped[what] == 1:
            logger.warning("Endpoint '%s': skipped %s.", self.settings.endpoint_name, what)

    def _log_skipped(self) -> None:
        """Log the number of skipped parts of each kind that was logged once."""
        skipped, self._skipped = self._skipped, {}
        for what, count in skipped.items():
            if count > 1:
                logger.warning("Endpoint '%s': skipped %s %d times in all.", self.settings.endpoint_name, what, count)

    @property
    def is_cancelled(self) -> bool:
        return self._scope is not None and self._scope.cancelled


def usable_field(descriptor: Mapping[str, object]) -> str | None:
    """Return the field of the schema by an API type's ``structuredOutput``; None for an invalid descriptor."""
    field, style = STRUCTURED_OUTPUT.value(descriptor, "field"), STRUCTURED_OUTPUT.value(descriptor, "style")
    return field if isinstance(field, str) and field and style in STRUCTURED_OUTPUT["style"].choices else None


def grammar_field(api_type: Mapping[str, object]) -> str:
    """Return the field that takes a grammar in llama.cpp's format; "" if the server takes none."""
    fields = API_TYPE.value(api_type, "samplerFieldMap")
    return text_in(fields, "grammar") if isinstance(fields, Mapping) else ""


# The field of the object around a choice.
CHOICE_FIELD = "answer"
# A model of 0.5B filled up to 15 tokens with this object, its line breaks and indentation.
TOKENS_AROUND_CHOICE = 20
# The first token of many models begins with a space.
_GRAMMAR = 'root ::= " "? '


def choices_grammar(choices: Sequence[str]) -> str:
    """Return the grammar, in llama.cpp's format, of an answer that is one of the texts."""
    texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return f"{_GRAMMAR}({texts})"


def choices_in(grammar: str) -> list[str]:
    """Return the texts of a grammar that ``choices_grammar`` has made; none of any other."""
    found = list[str]()
    if grammar.startswith(f"{_GRAMMAR}(") and grammar.endswith(")"):
        position, end = len(_GRAMMAR) + 1, len(grammar) - 1
        while position < end:
            choice, position = json.JSONDecoder().raw_decode(grammar, position)
            found.append(choice)
            position += len(" | ")
    return found


def choices_schema(choices: Sequence[str]) -> dict[str, object]:
    """Return the JSON schema of one of the texts."""
    return {"type": "string", "enum": list(choices)}


def choice_object(choices: Sequence[str]) -> dict[str, object]:
    """Return the JSON schema of an object with one of the texts, as OpenAI's own servers accept only objects."""
    return {
        "type": "object",
        "properties": {CHOICE_FIELD: choices_schema(choices)},
        "required": [CHOICE_FIELD],
        "additionalProperties": False,
    }


def usage_of(prompt: int | None, completion: int | None, cached: int | None = None) -> Usage | None:
    """Return token counts in OpenAI's form, without those that the back-end does not report; None without any.

    ``cached`` is the number of cached prompt tokens.
    """
    usage: Usage = {}
    if prompt is not None:
        usage["prompt_tokens"] = prompt
    if completion is not None:
        usage["completion_tokens"] = completion
    if prompt is not None and completion is not None:
        usage["total_tokens"] = prompt + completion
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return usage or None


def shows_reasoning() -> bool:
    """Return whether the client is sent the reasoning of the model."""
    return config_utils.user_flag("sendReasoningToClient")


def carries(chunk: Chunk) -> bool:
    """Return whether a chunk has text, reasoning or a tool call."""
    return bool(chunk["token"] or chunk.get("reasoning") or chunk.get("tool_calls"))


def with_tool_calls(text: str, calls: list[ToolCall]) -> Answer:
    """Return a complete answer, with its calls in the form that clients know.

    Its finish reason is filled in when the server's word for it is translated.
    """
    return {"content": text, "tool_calls": [whole_call(call) for call in calls]} if calls else text


def keys_of(body: object) -> str:
    """Return what an answer without the expected form shows: its keys, or its type."""
    if isinstance(body, Mapping):
        return f"only {', '.join(map(repr, list(body)[:12]))}" if body else "an empty object"
    return "nothing" if body is None else f"JSON of the type {type(body).__name__}"


def dialect_of(body: object) -> str:
    """Return the shipped ApiType whose answers have the form of ``body``; "" for none."""
    if not isinstance(body, Mapping):
        return ""
    choice, kind = first_object(body.get("choices")), str(body.get("type"))
    if isinstance(choice.get("message", choice.get("delta")), Mapping):
        return "Open-AI-API"
    if isinstance(choice.get("text"), str):
        return "OpenAI-Compatible-Completions"
    if isinstance(body.get("content"), list) or kind.startswith(("message_", "content_block_")):
        return "Claude"
    if "done" in body:
        return "OllamaApiChat" if "message" in body else "OllamaApiGenerate"
    return "KoboldCpp" if "token" in body or isinstance(first_object(body.get("results")).get("text"), str) else ""


def unlisted(body: object) -> object:
    """Return the only element of a list, as Google's servers send errors; anything else as it is."""
    return body[0] if isinstance(body, list) and len(body) == 1 else body


def first_object(value: object) -> Mapping[str, object]:
    """Return the first element of a list if it is an object, else an empty one."""
    first = value[0] if isinstance(value, list) and value else None
    return first if isinstance(first, Mapping) else {}


def text_in(fields: Mapping[str, object], key: str) -> str:
    """Return the string under a key, ``""`` for any other value."""
    text = fields.get(key)
    return text if isinstance(text, str) else ""
