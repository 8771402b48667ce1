"""The nodes of one test, out of the recorded run, in an order that does not depend on threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.model import Span, number
from Middleware.addons.records.payloads import output_text
from Middleware.addons.records.recorder import UNNAMED, RunRecorder
from Middleware.addons.records.ring import RunRing
from Middleware.addons.workflow_tests.suites import is_title
from Middleware.exceptions import EarlyTerminationException
from Middleware.models.llm_call import current_site
from Middleware.utilities.text_utils import restore_braces
from Middleware.workflows.events import RunRecord
from Middleware.workflows.models.execution_context import NodeExecutionInfo
from Middleware.workflows.processors.workflows_processor import find_responder


@dataclass(frozen=True)
class NodeRun:
    """One node that ran.

    Attributes:
        output: None if it delivered none.
        endpoint: its endpoint as the log names it: the last one that answered, or would have; "" for none.
    """

    workflow: str
    title: str
    output: str | None
    endpoint: str

    @property
    def name(self) -> str:
        return f"{self.workflow}/{self.title}"

    def is_meant_by(self, name: str) -> bool:
        return is_title(name, self.workflow, self.title)


class Recorder(RunRecorder):
    """Records the run of one test.

    Attributes:
        late_failures: nodes, as ``Workflow/title``, with the errors that they raised after the answer of their run.
            Only the log shows these.
    """

    def __init__(self) -> None:
        super().__init__(RunRing())
        self.late_failures: list[tuple[str, BaseException]] = []
        # By the id of the node's span.
        self._endpoints: dict[int, str] = {}

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        span = self._runs[record.run.request_id].nodes[record.run.workflow_id, info.node_index]
        self._endpoints[span.id] = info.endpoint_name
        super().node_finished(record, info)

    def node_failed(self, record: RunRecord, index: int, node_type: str, name: str, error: BaseException) -> None:
        # A lock that is held ends the run on purpose.
        if index - 1 > find_responder(record.run.nodes) and not isinstance(error, EarlyTerminationException):
            title = node_type if name == UNNAMED else name
            self.late_failures.append((f"{record.run.workflow_name}/{title}", error))
        super().node_failed(record, index, node_type, name, error)

    def nodes(self) -> list[NodeRun]:
        """Return all nodes that ran, in the order of their file, each followed by the nodes that it started."""
        return [node for run in self._runs.values() for node in self._below(SpanTree(run.spans), None)]

    def _below(self, tree: SpanTree, around: Span | None) -> Iterator[NodeRun]:
        # Nodes that ran in parallel may have started in any order.
        for span in sorted(tree.children(around), key=lambda span: number(span.attributes.get("node.index")) or 0):
            if span.kind == "node" and around is not None:
                output = text_of(span.texts["output"]) if "output" in span.texts else None
                yield NodeRun(around.name, span.name, output, self._endpoints.get(span.id, ""))
            yield from self._below(tree, span)

    def caller(self) -> tuple[str, str]:
        """Return workflow and title of the node that this thread runs; two empty strings outside a node."""
        site = current_site()
        if site is None:
            return "", ""
        # A thread that a script has left behind may call after its node.
        node = self._around(self._runs[site.request_id])
        return site.workflow_name, site.node_name if node is None else node.name


def text_of(output: object) -> str:
    """Return an output as tests see it: with real braces, and with tool calls as JSON on a separate line."""
    return restore_braces(output_text(output))
