"""The substitutes for everything outside a request that only tests a workflow, or replays a run."""
from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from Middleware.llmapis.transport import Transport
    from Middleware.workflows.models.execution_context import ExecutionContext


class Trial(Protocol):
    """Replaces everything that one request would access or change. See ``RequestContext.trial``.

    Attributes:
        discussions: the folder of its conversations.
        locks: the folder of its lock database.
        transport: the transport for its LLM calls; None if these are real.
    """

    discussions: str
    locks: str
    transport: Transport | None

    def stub(self, context: ExecutionContext) -> object | None:
        """Return the output for a node that is not to be run; None to run the node."""

    def file_path(self, path: str) -> str:
        """Return the path to open for a path that a workflow contains."""
