"""The listener that records runs.

Its methods are those of ``EngineListener``. They run on the threads of requests, so they do no more than keep
references and read a clock: no I/O, no JSON, no copy of a text, no lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol, cast

from Middleware.addons.records.live_run import GATE, MESSAGE_BYTES, LiveRun
from Middleware.addons.records.model import MICROSECONDS, Attribute, RunDocument, Span, SpanStatus
from Middleware.addons.records.ring import RunRing
from Middleware.addons.records.settings import RecordSettings
from Middleware.exceptions import EarlyTerminationException
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.llmapis.handlers.base.base_chat_completions_handler import text_of
from Middleware.models.llm_call import Attempt, LlmCallRecord, NodeSite, current_site
from Middleware.models.request_context import RequestContext, SentRequest, current_request
from Middleware.models.run_step import Step
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.node import NODE, WORKFLOW_FILE
from Middleware.utilities.discussions.client_keys import key_name
from Middleware.utilities.once import BoundedCache

if TYPE_CHECKING:
    from Middleware.workflows.events import RunRecord
    from Middleware.workflows.models.execution_context import NodeExecutionInfo

logger = logging.getLogger(__name__)

UNNAMED = "N/A"
# Read by name and default: each node is asked for them, and a call would take longer than all else that is noted of it.
_ENDPOINT, _PRESET, _PRESET_NAME = map(NODE.lookup, ("endpointName", "preset", "presetName"))
# Characters that are compared together: a hash for each would take more memory than the text.
PIECE = 256
# Nodes of discussions; a prompt of 100,000 characters takes about 50 KB.
MAX_NODES = 200

# The hash and the length of a piece.
Piece = tuple[int, int]


class RunSink(Protocol):
    """Takes the runs that are over, to keep them on the disk. Neither method may wait for anything."""

    def began(self) -> None:
        """A run has begun."""

    def finished(self, document: RunDocument) -> None:
        """A run is over; its document changes no more."""


class RunRecorder:
    """Records each run in the ring, from its arrival to its end, and hands it to a sink then.

    Args:
        sink: None: nothing is kept on the disk.
        settings: say whether runs that begin now keep their texts; None: they do.
        secret: returns the key of the hashes of conversations; None: conversations are not recognised.
    """

    def __init__(
        self,
        ring: RunRing,
        sink: RunSink | None = None,
        settings: RecordSettings | None = None,
        secret: Callable[[], bytes] | None = None,
    ) -> None:
        self.ring, self.sink, self._settings, self._secret = ring, sink, settings, secret
        # Those at work, by request id. Single operations of a dict are atomic.
        self._runs: dict[str, LiveRun] = {}
        self._beginnings = PromptBeginnings()

    # -- the request ---------------------------------------------------------------------------------------------
    def request_arrived(self, request: RequestContext) -> None:
        run = self._runs[request.request_id] = LiveRun(
            request, self.ring.counter, self._settings is None or self._settings.known_mode != "off", self._secret
        )
        # Not when the facts are made: a thread of the system does that too, and under Eventlet it must not wait for the
        # lock of the configuration.
        run.key_hash = key_name(request.api_key, None)
        self.ring.add(run)
        if self.sink is not None:
            self.sink.began()

    def request_read(self, request: RequestContext, sent: SentRequest) -> None:
        run = self._runs.get(request.request_id)
        if run is not None:
            user = config_utils.get_current_username()
            run.read(request, sent, user, key_name(request.api_key, user))

    def request_failed(self, request: RequestContext, error: BaseException, message: str) -> None:
        run = self._runs.get(request.request_id)
        if run is not None and run.error_type is None:
            run.error_type, run.error = type(error).__name__, message

    def request_turned_away(self, request: RequestContext) -> None:
        self.request_finished(request)

    def request_finished(self, request: RequestContext) -> None:
        run = self._runs.pop(request.request_id, None)
        if run is None:
            return
        run.finish()
        self.ring.end(run)
        if self.sink is not None:
            self.sink.finished(run)

    # -- waits and the route -------------------------------------------------------------------------------------
    def wait_started(self, request: RequestContext, what: str, ahead: int) -> None:
        run = self._runs.get(request.request_id)
        if run is None:
            return
        if what == GATE and run.queued is None:
            run.queued = run.moment()
        run.waits[_place(what)] = run.begin("wait", what, self._around(run), {"for": what, "ahead": ahead})

    def wait_ended(self, request: RequestContext, what: str, outcome: str) -> None:
        run = self._runs.get(request.request_id)
        if run is None:
            return
        span = run.waits.pop(_place(what), None)
        if span is not None:
            run.end(span, "ok" if outcome == "got" else "error" if outcome == "late" else "cancelled")
        if what == GATE:
            run.refused, run.gone = run.refused or outcome == "late", run.gone or outcome == "gone"

    def routing_started(self, request: RequestContext, categories: Sequence[str]) -> None:
        run = self._runs.get(request.request_id)
        if run is not None:
            run.routing = run.begin("route", "route", None, {"candidates": list(categories)})
            run.keep_request(run.routing)

    def routing_finished(self, request: RequestContext, category: str, attempts: int) -> None:
        run = self._runs.get(request.request_id)
        if run is not None and run.routing is not None:
            run.chosen = category
            run.routing.attributes.update(chosen=category or None, attempts=attempts)
            run.end(run.routing)

    # -- workflows and nodes -------------------------------------------------------------------------------------
    def run_started(self, record: RunRecord) -> None:
        work = record.run
        run = self._runs.get(work.request.request_id)
        if run is None:
            return
        parent = self._around(run)
        if parent is None and work.category_variables:
            parent = run.routing
        attributes: dict[str, Attribute] = {
            "workflow.name": work.workflow_name,
            "folder": work.folder,
            "responder": record.responder_index + 1 or None,
            "nested": len(work.chain) > 1,
            "parallel": WORKFLOW_FILE.flag(work.variables, "parallelNodes"),
        }
        span = run.workflows[work.workflow_id] = run.begin("workflow", work.workflow_name, parent, attributes)
        if parent is None:
            run.workflow, run.discussion = work.workflow_name, work.discussion_id
            run.encryption_key = None if work.encryption_key is None else bytes(work.encryption_key)
            run.keep_request(span)
        if work.scoped_inputs:
            run.text(span, "inputs", work.scoped_inputs)

    def run_finished(self, record: RunRecord) -> None:
        run = self._runs.get(record.run.request.request_id)
        span = run.workflows.pop(record.run.workflow_id, None) if run is not None else None
        if run is None or span is None:
            return
        stopped = record.error in ("GeneratorExit", EarlyTerminationException.__name__)
        status: SpanStatus = "ok" if not record.error else "cancelled" if stopped else "error"
        if status != "ok":
            run.close_below(span, "cancelled")
        run.end(span, status)

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        work = record.run
        run = self._runs.get(work.request.request_id)
        if run is None:
            return
        node = work.nodes[index - 1]
        title = node_type if name == UNNAMED else name
        responder = index - 1 == record.responder_index
        endpoint, preset = node.get(*_ENDPOINT), node.get(*_PRESET) or node.get(*_PRESET_NAME)
        run.node_count += 1
        run.nodes[work.workflow_id, index] = run.begin(
            "node",
            title,
            run.workflows.get(work.workflow_id),
            {
                "node.index": index,
                "node.type": node_type,
                "node.title": title,
                "responder": responder,
                "after_answer": work.request.answered_at is not None,
                "endpoint": endpoint if isinstance(endpoint, str) and endpoint else None,
                "preset": preset if isinstance(preset, str) and preset else None,
            },
        )

    def node_delivered(self, record: RunRecord, index: int, output: object) -> None:
        work = record.run
        run = self._runs.get(work.request.request_id)
        span = run.nodes.get((work.workflow_id, index)) if run is not None else None
        if run is None or span is None:
            return
        if run.keeps_texts:
            span.texts["output"] = output
        if index - 1 == record.responder_index and work.non_responder is None and len(work.chain) == 1:
            run.answer = output
        run.end(span)

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        run = self._runs.get(record.run.request.request_id)
        if run is None:
            return
        span = run.nodes.pop((record.run.workflow_id, info.node_index), None)
        if span is not None:
            if info.endpoint_name:
                span.attributes["endpoint"] = info.endpoint_name
            if info.replaced:
                span.status = "stand-in"

    def node_failed(self, record: RunRecord, index: int, node_type: str, name: str, error: BaseException) -> None:
        run = self._runs.get(record.run.request.request_id)
        span = run.nodes.pop((record.run.workflow_id, index), None) if run is not None else None
        if run is not None and span is not None:
            stopped = isinstance(error, EarlyTerminationException)
            run.end(span, "cancelled" if stopped else "error", None if stopped else error)

    # -- calls ---------------------------------------------------------------------------------------------------
    def llm_call_started(self, call: LlmCallRecord) -> None:
        run = self._runs.get(call.request_id)
        if run is None:
            return
        run.call_count += 1
        run.last_call = call
        span = run.begin(
            "llm",
            call.endpoint,
            run.nodes.get((call.run_id, call.node_index)) or run.routing,
            {"endpoint": call.endpoint, "streamed": call.streamed},
        )
        run.calls[id(call)] = (span, call)
        dropped = run.dropped.pop((call.run_id, call.node_index), None)
        if dropped:
            run.dropped_by_call[id(call)] = dropped

    def llm_prompt(self, call: LlmCallRecord, prompt: Prompt) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            self._beginnings.look(current_site(), prompt)

    def llm_call_finished(self, call: LlmCallRecord) -> None:
        self._end_call(call, None)

    def llm_call_failed(self, call: LlmCallRecord, error: BaseException) -> None:
        self._end_call(call, error)

    def _end_call(self, call: LlmCallRecord, error: BaseException | None) -> None:
        run = self._runs.get(call.request_id)
        found = run.calls.pop(id(call), None) if run is not None else None
        if run is None or found is None:
            return
        span, answer, attributes = found[0], call.answer, found[0].attributes
        span.name = attributes["endpoint"] = call.endpoint
        if call.failed_endpoints:
            attributes["failed_endpoints"] = list(call.failed_endpoints)
        if call.seconds_to_first_token is not None:
            attributes["time_to_first_token"] = int(call.seconds_to_first_token * MICROSECONDS)
        attributes["chunks"] = call.chunks if call.streamed else None
        if run.keeps_texts:
            # The lists belong to the call, which adds nothing any more.
            span.texts["answer"] = answer
        if error is None and not call.stopped:
            run.answered(call)
        run.end(span, "error" if error is not None else "cancelled" if call.stopped else "ok", error)

    def messages_dropped(self, request: RequestContext, count: int) -> None:
        run, site = self._runs.get(request.request_id), current_site()
        if run is not None and site is not None:
            run.dropped[site.run_id, site.node_index] = count

    def attempt_started(self, attempt: Attempt) -> None:
        call, run = attempt.call, self._run_of(attempt)
        if run is None:
            return
        found = run.calls.get(id(call)) if call is not None else None
        parent = found[0] if found is not None else self._around(run)
        span = run.begin("embedding" if call is None else "attempt", attempt.endpoint, parent)
        span.attributes["dropped_messages"] = run.dropped_by_call.get(id(call)) if call is not None else None
        run.attempts.append((span, attempt))
        payload = attempt.payload
        run.text(span, "inputs" if call is None else "payload", payload.get("input") if call is None else payload)
        messages, prompt = payload.get("messages"), payload.get("prompt")
        run.size += MESSAGE_BYTES * len(messages) if isinstance(messages, list) else 0
        run.size += len(prompt) if isinstance(prompt, str) else 0

    def attempt_finished(self, attempt: Attempt) -> None:
        run = self._run_of(attempt)
        if run is None:
            return
        for span, known in reversed(run.attempts):
            if known is attempt:
                run.end(
                    span,
                    "error" if attempt.error is not None else "cancelled" if attempt.stopped else "ok",
                    attempt.error,
                )
                return

    def _run_of(self, attempt: Attempt) -> LiveRun | None:
        """Return the run of a request to a server; a call for vectors belongs to the thread's request."""
        if attempt.call is not None:
            return self._runs.get(attempt.call.request_id)
        request = current_request()
        return self._runs.get(request.request_id) if request is not None else None

    # -- other work ----------------------------------------------------------------------------------------------
    def step_started(self, request: RequestContext, step: Step) -> None:
        run = self._runs.get(request.request_id)
        if run is not None:
            span = run.steps[id(step)] = run.begin(
                step.kind, step.name, self._around(run), cast(dict[str, Attribute], step.attributes)
            )
            run.texts(span, step.texts)

    def step_finished(self, request: RequestContext, step: Step, error: BaseException | None) -> None:
        run = self._runs.get(request.request_id)
        span = run.steps.pop(id(step), None) if run is not None else None
        if run is None or span is None:
            return
        run.texts(span, step.texts)
        stopped = isinstance(error, (EarlyTerminationException, GeneratorExit))
        run.end(span, "ok" if error is None else "cancelled" if stopped else "error", None if stopped else error)

    def noted(self, record: logging.LogRecord) -> None:
        """Keep a warning of the log with the request for which it was written."""
        request = current_request()
        run = self._runs.get(request.request_id) if request is not None else None
        if run is None:
            return
        span = run.begin(
            "note",
            record.levelname.lower(),
            self._around(run),
            {"level": record.levelname.lower(), "logger": record.name},
        )
        run.text(span, "message", record.getMessage())
        run.end(span)

    @staticmethod
    def _around(run: LiveRun) -> Span | None:
        """Return the span of the node for which this thread works, if any."""
        site = current_site()
        return run.nodes.get((site.run_id, site.node_index)) if site is not None else None


def _place(what: str) -> tuple[str, str, int]:
    """Return what tells a wait from others of the same run: a node waits for one thing at a time."""
    site = current_site()
    return (what, "", 0) if site is None or what == GATE else (what, site.run_id, site.node_index)


# -- the beginnings of prompts -----------------------------------------------------------------------------------------


class PromptBeginnings:
    """The hashes of each node's last prompt, in memory only, for a line of the log at level DEBUG.

    What is the same from the first character on can be in the back-end's cache; what follows is read again.
    """

    def __init__(self) -> None:
        self._last: BoundedCache[tuple[str, str, int], tuple[Piece, ...]] = BoundedCache(MAX_NODES)

    def look(self, site: NodeSite | None, prompt: Prompt) -> None:
        """Log the comparison for a call of a node in a discussion, and keep its prompt for the next one."""
        if site is None or not site.discussion_id:
            return
        where = site.chain[-1] if site.chain else site.workflow_name
        key = (site.discussion_id, where, site.node_index)
        last, parts = self._last.get(key), list(_parts(prompt))
        self._last.put(key, tuple(piece for _, pieces in parts for piece in pieces))
        if last is not None:
            logger.debug(
                "Workflow %s, node %d '%s': %s", where, site.node_index, site.node_name, difference(last, parts)
            )


def difference(last: Sequence[Piece], parts: Sequence[tuple[str, Sequence[Piece]]]) -> str:
    """Return where a prompt in named parts begins to differ from the pieces of the last one, without any text."""
    new = [(name, piece) for name, pieces in parts for piece in pieces]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1][1], zip(last, new, strict=False)))
    unchanged, total = (sum(length for _, (_, length) in pairs) for pairs in (new[:same], new))
    differs = f", then differs in {new[same][0]}" if same < len(new) else ""
    return f"beginning unchanged for {unchanged} of {total} characters{differs}"


def _parts(prompt: Prompt) -> Iterator[tuple[str, list[Piece]]]:
    if prompt.system_prompt:
        yield "the system prompt", _pieces("system", prompt.system_prompt)
    for number, message in enumerate(prompt.conversation or (), 1):
        role, content = str(message.get("role")), message.get("content")
        name = "the system prompt" if number == 1 and role == "system" else f"message {number} ({role})"
        yield name, _pieces(role, content if isinstance(content, str) else text_of(content))
    if prompt.prompt:
        yield "the prompt", _pieces("prompt", prompt.prompt)


def _pieces(role: str, text: str) -> list[Piece]:
    """Return the pieces of a part. The first one also stands for the role, so an empty part has one, too."""
    return [
        (hash((role, text[start : start + PIECE])), len(text[start : start + PIECE]))
        for start in range(0, max(len(text), 1), PIECE)
    ]
