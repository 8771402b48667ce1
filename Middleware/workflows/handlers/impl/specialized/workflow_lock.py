"""WorkflowLock: lets only one run at a time continue."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from Middleware.exceptions import ConfigValueError, EarlyTerminationException
from Middleware.exceptions.early_termination_exception import LOCKED
from Middleware.services.locking_service import get_locking_service
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config_utils import user_flag
from Middleware.utilities.hashing_utils import hash_content
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext


class WorkflowLockHandler(BaseHandler):
    """Takes the lock for this run, or ends the run if another run holds it; the lock is released at the end of the run.
    """

    # The nodes after the lock must not start before it is held.
    acts = "writes"
    barrier = True

    KEYS: ClassVar[Mapping[str, tuple[ConfigKey, ...]]] = {
        "WorkflowLock": (ConfigKey("workflowLockId", "str", None, "Name of the lock, one per user.", "full",
                                   required=True),)}

    def handle(self, context: ExecutionContext) -> object:
        lock_id = self.text(context, "workflowLockId")
        if not lock_id.strip():
            raise ConfigValueError(f"WorkflowLock node '{context.node_name}' needs a workflowLockId",
                                   json_path="workflowLockId", expected="the name of a lock")
        if lock_id != self.value(context, "workflowLockId") and user_flag("encryptUsingApiKey"):
            # The values of variables may come from a conversation, and the id is stored.
            lock_id = hash_content(lock_id)
        if not get_locking_service().acquire(lock_id, context.workflow_id, scope=context.request.cancel_scope):
            raise EarlyTerminationException(f"The workflow lock of node '{context.node_name}' is held by another run",
                                            LOCKED)
        return ""
