"""What the memory nodes read from their context alike."""
from __future__ import annotations

from typing import Any

from Middleware.utilities import config_utils
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import run_helper_workflow


def keys_of(context: ExecutionContext) -> dict[str, Any]:
    """What the methods of MemoryService want to know of the client's API key."""
    return {"encryption_key": context.encryption_key, "api_key_hash": context.api_key_hash}


def helper_result(context: ExecutionContext, user_key: str) -> str | None:
    """The result of the workflow that the user's file names under ``user_key``; None if it names none."""
    name = config_utils.user_name_setting(user_key)
    return run_helper_workflow(context, name) if name else None
