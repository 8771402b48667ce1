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
from collections.abc import Generator, Iterator, Mapping, Sequence

from Middleware.exceptions import (
    BackendError,
    BackendResponseError,
    ClientError,
    EarlyTerminationException,
    InvalidLlmResponseError,
)
from Middleware.llmapis.addresses import compose
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
from Middleware.llmapis.handlers.base.answer_forms import (
    DONE,
    carries,
    decode_json,
    dialect_of,
    keys_of,
    telling_event,
    unlisted,
)
from Middleware.llmapis.handlers.base.backend_call import BackendSettings, Prompt, bearer_headers
from Middleware.llmapis.handlers.base.image_sources import base64_data
from Middleware.llmapis.handlers.base.stream_ends import HeldEnd, may_be_whole
from Middleware.llmapis.keepsakes import KeptMembers, for_the_log, origin_of, remember
from Middleware.llmapis.refusals import Changes
from Middleware.llmapis.repeats import Repeats
from Middleware.llmapis.transport import BackendRequest, BackendStream, Transport
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_call import AnswerParts, LlmOutcome
from Middleware.models.messages import Answer, Chunk, ToolCall
from Middleware.utilities import config_utils
from Middleware.utilities.answers.stream_parsers import LineTooLongError, NDJSONParser, SSEEvent, SSEParser
from Middleware.utilities.answers.tool_calls import ToolCallReader, assembled
from Middleware.utilities.http.connect import HEARTBEAT_SECONDS
from Middleware.utilities.http.connection import SLICE_SECONDS
from Middleware.utilities.http.wire import parse_target
from Middleware.utilities.sensitive_logging_utils import is_encryption_active

logger = logging.getLogger(__name__)

_SLICES_PER_HEARTBEAT = round(HEARTBEAT_SECONDS / SLICE_SECONDS)
# Bytes kept of a stream without events, which may be one complete JSON answer.
WHOLE_LIMIT = 16 * 1024 * 1024


class BaseLlmApiHandler(ABC):
    """Base of the back-end dialects.

    Subclasses set ``PATH`` (or override ``path``) and ``FRAMER``, and implement ``payload``, ``read_event`` and
    ``read_response``.
    """

    PATH = ""
    FRAMER: type[SSEParser] | type[NDJSONParser] = SSEParser
    # OpenTelemetry's name for what the calls do.
    OPERATION = "chat"
    # Whether some servers of the dialect begin the arguments of a call with ``{}``, and the real ones follow.
    empty_first = False

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
        self._held = HeldEnd()
        # Whether anything had the form of an answer of this dialect, whether that was a whole one, and whether a tool
        # call has come.
        self.formed = self.whole = self.called = False
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
            if parts is not None and parts.first_at is None:
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
        # A call that waits has arrived all the same.
        if self.parts is not None and self.parts.first_at is None:
            self.parts.first_at = time.perf_counter()
        is_final = not self.empty_first or chunk["finish_reason"] is not None
        calls = self._reader.read(chunk.pop("tool_calls"), is_final)
        if calls:
            chunk["tool_calls"] = calls
            self._note_calls(calls)

    def _note_calls(self, calls: list[ToolCall]) -> None:
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
            self._note_calls(calls)
            chunk: Chunk = {"token": "", "finish_reason": None, "tool_calls": calls}
            if self.parts is not None:
                self.parts.others.append(chunk)
            yield chunk
        if self.refusal and not self.ended:
            self._held.chunks.append({"token": "", "finish_reason": "content_filter"})
        if self.understood and (self._fragments or self.kept):
            self._keep(assembled(self._fragments))
        for chunk in self._held.chunks:
            if chunk["finish_reason"] is not None and (self.called or self.refusal):
                # They may have come after the reason.
                chunk["finish_reason"] = self.outcome.finish_reason = self._ended_as(chunk["finish_reason"])
        yield from self._batch(self._held.chunks)

    def _after_reason(self, connection: BackendStream, framer: SSEParser | NDJSONParser) -> Iterator[Chunk]:
        """Yield what a server sends after a finish reason, as it comes, up to the real end of the answer."""
        self._held.begin_waiting()
        for block in connection.rest():
            chunks = self._before_end(self.read_events(framer.feed(block))) if block else []
            yield from self._batch(list(chunks))
            if self.failure is not None:
                raise self.failure
            if self._held.is_over(len(block), bool(chunks), self.closed) or self.is_cancelled:
                return

    def _before_end(self, chunks: list[Chunk]) -> list[Chunk]:
        """Return the chunks that go on at once; the finish reason, and what follows it and carries nothing, waits."""
        return self._held.passed(chunks) if self.ended else chunks

    def _check_end(self, is_half: bool) -> None:
        """Look how a stream has ended; ``is_half``: in the middle of an event. Raises BackendResponseError."""
        if not self.formed:
            raise self.no_answer(None)
        name, is_marked = self.settings.endpoint_name, self.ended or self.closed
        if not self.whole and not may_be_whole(self.settings.file or name, name, is_marked, is_half):
            raise BackendResponseError(f"{self._endpoint_label()}: the stream ended without its end.", endpoint=name)
        self.outcome.is_unmarked = not is_marked

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
            # The framing may be that of another dialect.
            if (event := telling_event(data)) is not None:
                raise self.no_answer(event) from None
            raise BackendResponseError(
                f"{self._endpoint_label()}: the answer to a streaming call holds no event. Is the URL that of the API, "
                "and the ApiType the right one?",
                endpoint=self.settings.endpoint_name,
            ) from None
        yield from self._whole(body)

    def _whole(self, body: object) -> Iterator[Chunk]:
        """Yield the chunk of a whole answer in a stream. Raises BackendResponseError for anything else."""
        result = self.read_whole(body)
        if self.parts is not None:
            self.parts.take(result, self.outcome.reasoning)
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


def shows_reasoning() -> bool:
    """Return whether the client is sent the reasoning of the model."""
    return config_utils.user_flag("sendReasoningToClient")
