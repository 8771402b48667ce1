"""The trial of a replay: LLM calls are real, and what would read or change something answers from a recording."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from Middleware.addons.console.replay_recording import RecordedNode, Recording
from Middleware.addons.workflow_tests.sandbox import FolderTrial
from Middleware.exceptions import WilmerError
from Middleware.models.llm_call import current_site
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext

# What a node of a replay would do, for the message about one that was not recorded.
_ACTS = {"reads": "reads data", "writes": "writes data", "outside": "may act outside of this program"}


class NotRecordedError(WilmerError):
    """A node that acts has no recorded output."""


class ReplayTrial(FolderTrial):
    """The replacement for the outside world in a replay.

    Args:
        start: the node with which the replay begins; those before it answer from the recording. None: the beginning.
        also: the names of nodes that act after all, as ``name_of_node`` gives them.
    """

    def __init__(
        self,
        recording: Recording,
        folder: Path,
        user: str,
        start: RecordedNode | None = None,
        also: Collection[str] = (),
    ) -> None:
        super().__init__(folder, user)
        self._recording = recording
        self._start = start
        self._also = frozenset(also)

    def stub(self, context: ExecutionContext) -> object | None:
        """Return the recorded output of a node before the start, or of one that acts; None for any other.

        Raises NotRecordedError for a node that acts and has none.
        """
        site = current_site()
        assert site is not None
        handler = context.node_handlers[context.node_type]
        title = context.node_name if context.node_name != "N/A" else context.node_type
        recorded = self._recording.take(site.chain, site.node_index, title, context.node_type)
        if recorded is not None and recorded.delivered and self._is_before(recorded):
            return self._output(recorded)
        if not is_replaced(handler) or name_of_node(site.workflow_name, title) in self._also:
            return None
        if recorded is None or not recorded.delivered:
            raise NotRecordedError(
                f"the replay stops at node '{site.workflow_name}/{title}' ({context.node_type}): it "
                f"{_ACTS.get(handler.acts, 'acts')}, and the run has no output of it. 'Also run' lets it act"
            )
        return self._output(recorded)

    def _output(self, recorded: RecordedNode) -> object:
        self._recording.pass_over(recorded)
        output = recorded.output
        return "" if output is None else output

    def _is_before(self, recorded: RecordedNode) -> bool:
        start = self._start
        return start is not None and recorded.span.id < start.span.id and recorded.span.id not in start.inside


def is_replaced(handler: type[BaseHandler] | BaseHandler) -> bool:
    """Return whether a node of this type does not run in a replay: it reads or changes something beyond the run."""
    return handler.acts != "no" and not handler.runs_workflow


def name_of_node(workflow: str, title: str) -> str:
    """Return the name by which ``also`` calls a node."""
    return f"{workflow}/{title}"
