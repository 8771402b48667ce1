"""Record the outputs of the nodes in one test, in an order that does not depend on threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from Middleware.addons.records.payloads import output_text
from Middleware.addons.workflow_tests.suites import is_title, title_of
from Middleware.exceptions import EarlyTerminationException
from Middleware.models.llm_call import current_site
from Middleware.utilities.text_utils import restore_braces
from Middleware.workflows.events import EngineListener, RunRecord
from Middleware.workflows.models.execution_context import NodeExecutionInfo
from Middleware.workflows.processors.workflows_processor import find_responder


@dataclass
class NodeRun:
    """One node that ran.

    Attributes:
        output: None if it delivered none.
        endpoint: its endpoint as the log names it: the last one that answered, or would have; "" for none.
    """

    workflow: str
    title: str
    index: int
    output: str | None = None
    endpoint: str = ""
    runs: list[WorkflowRun] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.workflow}/{self.title}"

    def is_meant_by(self, name: str) -> bool:
        return is_title(name, self.workflow, self.title)


@dataclass
class WorkflowRun:
    """One run of a workflow file, with its nodes as they started."""

    record: RunRecord
    nodes: list[NodeRun] = field(default_factory=list)


class Recorder(EngineListener):
    """Listens to the engine. Thread-safe.

    Attributes:
        late_failures: nodes, as ``Workflow/title``, with the errors that they raised after the answer of their run.
            Only the log shows these.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.late_failures: list[tuple[str, BaseException]] = []
        self._top: list[WorkflowRun] = []
        # By the id of their record, which they keep alive, so that the id is not used again.
        self._runs: dict[int, WorkflowRun] = {}

    # -- events --------------------------------------------------------------------------------------------------
    def run_started(self, record: RunRecord) -> None:
        with self._lock:
            parent = self._current_node()
            run = self._runs[id(record)] = WorkflowRun(record)
            (self._top if parent is None else parent.runs).append(run)

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        title = title_of(record.run.nodes[index - 1], node_type)
        with self._lock:
            self._runs[id(record)].nodes.append(NodeRun(record.run.workflow_name, title, index))

    def node_delivered(self, record: RunRecord, index: int, output: object) -> None:
        with self._lock:
            self._node(record, index).output = text_of(output)

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        with self._lock:
            self._node(record, info.node_index).endpoint = info.endpoint_name

    def node_failed(self, record: RunRecord, index: int, node_type: str, name: str, error: BaseException) -> None:
        # A lock that is held ends the run on purpose.
        is_late = index - 1 > find_responder(record.run.nodes)
        if is_late and not isinstance(error, EarlyTerminationException):
            with self._lock:
                self.late_failures.append((self._node(record, index).name, error))

    # -- afterwards ----------------------------------------------------------------------------------------------
    def nodes(self) -> list[NodeRun]:
        """Return all nodes that ran, in the order of their file, each followed by the nodes that it started."""
        return list(_flat(self._top))

    def caller(self) -> tuple[str, str]:
        """Return workflow and title of the node that this thread runs; two empty strings outside a node."""
        with self._lock:
            node = self._current_node()
        return ("", "") if node is None else (node.workflow, node.title)

    def _node(self, record: RunRecord, index: int) -> NodeRun:
        return next(node for node in self._runs[id(record)].nodes if node.index == index)

    def _current_node(self) -> NodeRun | None:
        site = current_site()
        if site is None:
            return None
        found = [
            node
            for run in self._runs.values()
            if run.record.run.chain == site.chain
            for node in run.nodes
            if node.index == site.node_index
        ]
        # The same workflow may have run before under the same chain.
        return found[-1] if found else None


def text_of(output: object) -> str:
    """Return an output as tests see it: with real braces, and with tool calls as JSON on a separate line."""
    return restore_braces(output_text(output))


def _flat(runs: list[WorkflowRun]) -> Iterator[NodeRun]:
    for run in runs:
        # Nodes that ran in parallel may have started in any order.
        for node in sorted(run.nodes, key=lambda node: node.index):
            yield node
            yield from _flat(node.runs)
