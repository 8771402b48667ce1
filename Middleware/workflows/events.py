"""What the engine tells about its work, and to whom.

A listener implements the methods it cares about. The engine knows none of them by name; a listener that raises is
logged and the request goes on. Listeners are called on the thread that does the work, so several threads may call one.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from Middleware.exceptions import ConfigurationError
from Middleware.models.llm_call import LlmCallRecord
from Middleware.models.request_context import RequestContext
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.workflows.models.execution_context import NodeExecutionInfo, RunRequest

logger = logging.getLogger(__name__)


@dataclass
class RunRecord:
    """One run as a listener sees it.

    Attributes:
        nodes: those that have delivered, in the order of the file.
        seconds: how long the run took.
        error: name of the exception that ended the run (``GeneratorExit``: it was abandoned); empty while all is well.
    """

    run: RunRequest
    nodes: list[NodeExecutionInfo] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""


class EngineListener:
    """The events of the engine; every method does nothing unless overridden."""

    def configuration_failed(self, error: ConfigurationError) -> None:
        """A mistake in the configuration makes the current request fail."""

    def workflow_loaded(self, loaded: LoadedWorkflow) -> None:
        """A workflow file has been read and is about to run. Its ``nodes`` stay the same object until it changes."""

    def run_started(self, record: RunRecord) -> None:
        """A workflow file begins to run."""

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        """Node ``index`` (1-based) begins."""

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        """A node has delivered its output."""

    def node_failed(self, record: RunRecord, index: int, node_type: str, name: str, error: BaseException) -> None:
        """A node raised. Of a node that is abandoned together with its run, nothing more is told."""

    def run_finished(self, record: RunRecord) -> None:
        """The run is over, whatever way it ended."""

    def llm_call_started(self, call: LlmCallRecord) -> None:
        """A prompt is about to be sent; for a stream, when its first chunk is asked for."""

    def llm_call_finished(self, call: LlmCallRecord) -> None:
        """The answer is there, or nobody wants it any more (``call.stopped``)."""

    def llm_call_failed(self, call: LlmCallRecord, error: BaseException) -> None:
        """No endpoint gave an answer, or one broke off in the middle of its own."""

    def request_finished(self, request: RequestContext) -> None:
        """A client's request is over: its answer, and the nodes after it. Told of failed and cancelled ones too."""


class LogSummary(EngineListener):
    """Writes the execution summary of each run to the log."""

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        logger.debug("Workflow %s, node %d: %s '%s'", record.run.workflow_name, index, node_type, name)

    def run_finished(self, record: RunRecord) -> None:
        if record.nodes and logger.isEnabledFor(logging.INFO):
            name = record.run.workflow_name
            lines = "\n".join(map(str, record.nodes))
            logger.info("=== Workflow Node Execution Summary: %s ===\n%s\n=== End of Summary: %s ===",
                        name, lines, name)
        logger.info("Execution time: %.2f seconds", record.seconds)


class RequestLine(EngineListener):
    """Writes one line to the log that says how a request went."""

    def request_finished(self, request: RequestContext) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        now = time.monotonic()
        cancelled, cut_short = request.cancel_scope.cancelled, _was_cut_short(request)
        first, answered = request.first_token_at, request.answered_at or now
        if cut_short:
            answered = request.cancelled_at or now
        speed = ""
        if first is not None and answered > first:
            rate = request.tokens / (answered - first)
            speed = f", first token after {first - request.started:.2f} s, {rate:.1f} tokens/s"
        background = ""
        if request.background_at is not None:
            background = f", nodes after the answer {now - request.background_at:.2f} s"
        logger.info("Request %s: route %s, endpoint %s%s, %s after %.2f s%s, done after %.2f s%s",
                    request.request_id, request.route or "-", request.endpoint or "-", speed,
                    _outcome(request, cut_short), answered - request.started, background,
                    now - request.started, ", cancelled" if cancelled and not cut_short else "")


def _outcome(request: RequestContext, cut_short: bool) -> str:
    return "cancelled" if cut_short else "failed" if request.failed else "answered"


def _was_cut_short(request: RequestContext) -> bool:
    """Whether the request was cancelled before its answer was complete."""
    if not request.cancel_scope.cancelled:
        return False
    answered, cancelled = request.answered_at, request.cancelled_at
    return answered is None or (cancelled is not None and cancelled <= answered)


class Listeners:
    """Tells every listener that has the event's method, whatever one of them does.

    A listener is any object with methods of ``EngineListener``; it need not be one.
    """

    def __init__(self, listeners: Sequence[object] = ()) -> None:
        self.listeners = tuple(listeners)
        self._methods: dict[str, list[Callable[..., object]]] = {}  # by event, found when it is first told

    def tell(self, event: str, *arguments: object) -> None:
        for method in self._methods_for(event):
            try:
                method(*arguments)
            except (Exception, SystemExit):  # an observer must not break what it observes
                logger.exception("Listener %s failed in %s", _name_of(method), event)

    def hears(self, *events: str) -> bool:
        """Whether a listener does something at one of ``events``."""
        return any(self._methods_for(event) for event in events)

    def _methods_for(self, event: str) -> list[Callable[..., object]]:
        methods = self._methods.get(event)
        if methods is None:
            methods = self._methods[event] = [
                method for listener in self.listeners if (method := _method(listener, event)) is not None]
        return methods


def _method(listener: object, event: str) -> Callable[..., object] | None:
    """What a listener does at an event, None for nothing."""
    try:
        method = getattr(listener, event, None)
    except Exception:
        logger.exception("Listener %s has no usable %s", type(listener).__name__, event)
        return None
    idle = getattr(method, "__func__", method) is getattr(EngineListener, event, None)
    return method if callable(method) and not idle else None


def _name_of(method: Callable[..., object]) -> str:
    return type(getattr(method, "__self__", method)).__name__


def default_listeners() -> list[EngineListener]:
    """Those who are told about every request unless its starter names others."""
    return [LogSummary(), RequestLine()]
