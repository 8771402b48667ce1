"""What the engine tells about its work, and to whom.

A listener implements the methods it cares about. The engine knows none of them by name; a listener that raises is
logged and the run goes on.
"""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from Middleware.workflows.models.execution_context import NodeExecutionInfo, RunRequest

logger = logging.getLogger(__name__)


@dataclass
class RunRecord:
    """One run as a listener sees it. Times are seconds; ``error`` is empty while all is well."""

    run: RunRequest
    nodes: list[NodeExecutionInfo] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""


class EngineListener:
    """The events of the engine; every method does nothing unless overridden."""

    def run_started(self, record: RunRecord) -> None:
        """A workflow file begins to run."""

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        """Node ``index`` (1-based) begins."""

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        """A node has delivered its output."""

    def node_failed(self, record: RunRecord, index: int, node_type: str, name: str, error: Exception) -> None:
        """A node raised."""

    def run_finished(self, record: RunRecord) -> None:
        """The run is over, whatever way it ended."""


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


class Listeners:
    """Tells every listener, whatever one of them does."""

    def __init__(self, listeners: Sequence[EngineListener] = ()) -> None:
        self.listeners = list(listeners)

    def tell(self, event: str, *arguments: object) -> None:
        for listener in self.listeners:
            try:
                getattr(listener, event)(*arguments)
            except Exception:  # an observer must not break what it observes
                logger.exception("Listener %s failed in %s", type(listener).__name__, event)
