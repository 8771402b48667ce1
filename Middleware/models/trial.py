"""What a request that only tries a workflow out gets in place of the world outside."""
from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from Middleware.llmapis.transport import Transport
    from Middleware.workflows.events import RunRecord
    from Middleware.workflows.models.execution_context import ExecutionContext


class Trial(Protocol):
    """Stands between one request and everything that it would reach or change. See ``RequestContext.trial``.

    Attributes:
        discussions: the folder of its conversations.
        locks: the folder of its lock database.
        transport: what its LLM calls are sent with, a ``llmapis.transport.Transport``.
    """

    discussions: str
    locks: str
    transport: Transport

    def stand_in(self, context: ExecutionContext) -> str | None:
        """The output of the node of an ``ExecutionContext``, which is not run then; None: it runs."""

    def delivered(self, record: RunRecord, index: int, output: object) -> None:
        """Node ``index`` (from 1) of the run of a ``RunRecord`` has its output."""

    def file_path(self, path: str) -> str:
        """The file to open for one that a workflow names."""
