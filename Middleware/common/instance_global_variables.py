"""Values that the launcher sets once per process, and accessors for request-scoped names.

Users' scripts read and set these names, so none may be renamed or removed.
"""

from __future__ import annotations

import uuid
from typing import Any

from Middleware.common.fair_semaphore import FairSemaphore, Slots
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, current_request, set_current_request

INSTANCE_ID = str(uuid.uuid4())

CONFIG_DIRECTORY: str | None = None
PUBLIC_DIRECTORY: str | None = None
DISCUSSION_DIRECTORY: str | None = None
USER_LEVEL_SQLITE_DIRECTORY: str | None = None
LOGGING_DIRECTORY: str = "logs"
# The folder of recorded runs; None for the default.
CONSOLE_DIRECTORY: str | None = None
USERS: list[str] | None = None
FILE_LOGGING: bool | None = None
PORT: int | None = None
LISTEN_ADDRESS: str = "127.0.0.1"
CONCURRENCY_LIMIT: int = 1
CONCURRENCY_TIMEOUT: float = 900
CONCURRENCY_LEVEL: str = "wilmer"
# In units of 1024 * 1024 bytes; 0 for any size.
MAX_REQUEST_MB: int = 256
# An AccessKeys object: a request needs one of its keys. None: no key is needed.
ACCESS_KEYS: Any = None
# Origins of web pages that may send requests, in addition to those of this computer.
ALLOWED_ORIGINS: tuple[str, ...] = ()
# Clients with public addresses are refused: the server listens on the network, without keys.
PRIVATE_CLIENTS_ONLY: bool = False
# The number of this process among those that one launcher has started, from 1; 0 if there is only this one.
WORKER_NUMBER: int = 0


class Gate:
    """The slots of the concurrency gate, one object per process; ``semaphore`` is None without a gate."""

    semaphore: Slots | None = None


def initialize_request_semaphore(limit: int) -> None:
    """Create the gate's semaphore; a limit of 0 or less means no gate."""
    process().one(Gate).semaphore = FairSemaphore(limit) if limit > 0 else None


def get_request_semaphore() -> Slots | None:
    return process().one(Gate).semaphore


def _context() -> RequestContext:
    context = current_request()
    # Scripts and tests set names outside a request.
    if context is None:
        context = RequestContext()
        set_current_request(context)
    return context


def get_api_type() -> str:
    context = current_request()
    return context.api_type if context else "openai"


def set_api_type(api_type: str) -> None:
    _context().api_type = api_type


def clear_api_type() -> None:
    _context().api_type = "openai"


def get_workflow_override() -> str | None:
    context = current_request()
    return context.workflow_override if context else None


def set_workflow_override(name: str | None) -> None:
    _context().workflow_override = name


def clear_workflow_override() -> None:
    _context().workflow_override = None


def get_request_user() -> str | None:
    context = current_request()
    return context.user if context else None


def set_request_user(user: str | None) -> None:
    _context().user = user


def clear_request_user() -> None:
    _context().user = None
