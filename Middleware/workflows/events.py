"""The events of the engine, and its own listeners.

A listener implements the methods of the events that it needs. If a listener raises, the error is logged and the request
goes on. Listeners are called on the thread that does the work, so several threads may call one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from Middleware.exceptions import ConfigurationError
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.models.llm_call import Attempt, LlmCallRecord
from Middleware.models.request_context import RequestContext, SentRequest
from Middleware.models.run_step import Step
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.workflows.models.execution_context import NodeExecutionInfo, RunRequest
from Middleware.workflows.request_line import background_line, log_line, outcome, terminal_line

logger = logging.getLogger(__name__)


@dataclass
class RunRecord:
    """One run as a listener sees it.

    Attributes:
        responder_index: the index of the node that answers; -1 without nodes.
        nodes: those that have delivered, in the order of the file.
        seconds: how long the run took.
        error: name of the exception that ended the run (``GeneratorExit``: it was abandoned); empty while all is well.
    """

    run: RunRequest
    responder_index: int = -1
    nodes: list[NodeExecutionInfo] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""


class EngineListener:
    """The events of the engine; every method does nothing unless overridden."""

    def request_arrived(self, request: RequestContext) -> None:
        """A client's request that runs a workflow was admitted. It may have to wait at the gate."""

    def request_read(self, request: RequestContext, sent: SentRequest) -> None:
        """The user is known, and the route is about to be chosen. ``sent`` is text of the conversation."""

    def wait_started(self, request: RequestContext, what: str, ahead: int) -> None:
        """It waits for a slot (``gate``), the turn of a call (``turn``) or a ``lock``, behind ``ahead`` others."""

    def wait_ended(self, request: RequestContext, what: str, outcome: str) -> None:
        """The wait is over: ``got``, ``late``, ``gone`` (its client) or ``cancelled``."""

    def routing_started(self, request: RequestContext, categories: Sequence[str]) -> None:
        """An LLM is about to choose one of the categories."""

    def routing_finished(self, request: RequestContext, category: str, attempts: int) -> None:
        """It has chosen; "" if it named none in all attempts."""

    def step_started(self, request: RequestContext, step: Step) -> None:
        """A tool is about to be called, or stored data of the conversation to be read or written."""

    def step_finished(self, request: RequestContext, step: Step, error: BaseException | None) -> None:
        """That is over; ``step.texts`` is text of the conversation."""

    def request_failed(self, request: RequestContext, error: BaseException, message: str) -> None:
        """The client gets ``message`` in place of an answer, or of its rest."""

    def request_turned_away(self, request: RequestContext) -> None:
        """A request is over that has not reached the engine; ``request_finished`` does not follow."""

    def configuration_failed(self, error: ConfigurationError) -> None:
        """A mistake in the configuration makes the current request fail."""

    def workflow_loaded(self, loaded: LoadedWorkflow) -> None:
        """A workflow file has been read and is about to run. Its ``nodes`` stay the same object until it changes."""

    def run_started(self, record: RunRecord) -> None:
        """A workflow file begins to run."""

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        """Node ``index`` (1-based) begins."""

    def node_delivered(self, record: RunRecord, index: int, output: object) -> None:
        """Node ``index`` (1-based) has an output, which may contain text of the conversation."""

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        """A node has delivered its output. Nodes that run side by side are reported in their order."""

    def node_failed(self, record: RunRecord, index: int, node_type: str, name: str, error: BaseException) -> None:
        """A node raised an exception. For a node that is abandoned together with its run, no further event follows."""

    def run_finished(self, record: RunRecord) -> None:
        """The run is over, with or without an error."""

    def messages_dropped(self, request: RequestContext, count: int) -> None:
        """So many messages do not fit into the context window of the call that the current node makes next."""

    def llm_call_started(self, call: LlmCallRecord) -> None:
        """A prompt is about to be sent; for a stream, when its first chunk is requested."""

    def attempt_started(self, attempt: Attempt) -> None:
        """A request to a server is about to be sent, for an LLM call or for vectors."""

    def attempt_finished(self, attempt: Attempt) -> None:
        """Its answer was read, or it failed, or it was stopped."""

    def llm_prompt(self, call: LlmCallRecord, prompt: Prompt) -> None:
        """Follows ``llm_call_started``, with the text of the conversation that is sent."""

    def llm_call_finished(self, call: LlmCallRecord) -> None:
        """The answer is complete, or the call was stopped (``call.stopped``)."""

    def llm_call_failed(self, call: LlmCallRecord, error: BaseException) -> None:
        """No endpoint answered, or an answer broke off."""

    def request_finished(self, request: RequestContext) -> None:
        """A client's request is over, with all of its nodes; also emitted if it failed or was cancelled."""


class LogSummary(EngineListener):
    """Writes the execution summary of each run to the log."""

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "Request %s: workflow %s, node %d: %s '%s'",
                record.run.request_id,
                record.run.where,
                index,
                node_type,
                name,
            )

    def run_finished(self, record: RunRecord) -> None:
        if record.nodes and logger.isEnabledFor(logging.INFO):
            name = f"{record.run.where.removesuffix('.json')}.json (request {record.run.request_id})"
            lines = "\n".join(map(str, record.nodes))
            logger.info(
                "=== Workflow Node Execution Summary: %s ===\n%s\n=== End of Summary: %s ===", name, lines, name
            )
        logger.info("Execution time: %.2f seconds", record.seconds)


# The colour of a request's line on a terminal.
_LEVELS = {"answered": logging.INFO, "cancelled": logging.WARNING, "failed": logging.ERROR}


class RequestLine(EngineListener):
    """Writes one line about the outcome of each request to the log."""

    def request_finished(self, request: RequestContext) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        now = time.monotonic()
        # On a terminal, an answer with nodes after it had its line when it was out.
        shown = (terminal_line if request.background_at is None else background_line)(request, now)
        extra = {"terminal": shown, "terminal_level": _LEVELS[outcome(request)]} if shown else None
        logger.info("%s", log_line(request, now), extra=extra)


class Listeners:
    """Emits events to every listener that has the event's method, even if another listener raises.

    A listener is any object with methods of ``EngineListener``; it need not inherit from that class.
    """

    def __init__(self, listeners: Sequence[object] = ()) -> None:
        self.listeners = tuple(listeners)
        # By event; filled when an event is first emitted.
        self._methods: dict[str, list[Callable[..., object]]] = {}

    def emit(self, event: str, *arguments: object) -> None:
        methods = self._methods.get(event)
        for method in self._methods_for(event) if methods is None else methods:
            try:
                method(*arguments)
            # A listener must not break what it observes.
            except (Exception, SystemExit):
                logger.exception("Listener %s failed in %s", type(getattr(method, "__self__", method)).__name__, event)

    def listens_to(self, *events: str) -> bool:
        """Return whether a listener handles one of ``events``."""
        return any(self._methods_for(event) for event in events)

    def _methods_for(self, event: str) -> list[Callable[..., object]]:
        if event not in self._methods:
            self._methods[event] = [
                method for listener in self.listeners if (method := _method(listener, event)) is not None
            ]
        return self._methods[event]


def _method(listener: object, event: str) -> Callable[..., object] | None:
    """Return a listener's method for an event, None if it has none of its own."""
    # Listeners are objects of other programs, whose attributes may be computed.
    try:
        method = getattr(listener, event, None)
    except Exception:
        logger.exception("Listener %s has no usable %s", type(listener).__name__, event)
        return None
    idle = getattr(method, "__func__", method) is getattr(EngineListener, event, None)
    return method if callable(method) and not idle else None


def default_listeners() -> list[EngineListener]:
    """Return the listeners of every request whose starter names no others."""
    return [LogSummary(), RequestLine()]
