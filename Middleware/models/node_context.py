"""What services need to know about the node that calls them."""

from __future__ import annotations

from dataclasses import Field
from typing import Any, ClassVar, Protocol

from Middleware.models.llm_handler import LlmHandler
from Middleware.models.messages import Message
from Middleware.models.request_context import RequestContext


class NodeRun(Protocol):
    """The run of a workflow that a node belongs to (``RunRequest``)."""

    @property
    def where(self) -> str: ...

    @property
    def non_responder(self) -> bool | None: ...


class NodeContext(Protocol):
    """A node and its run, with the meaning that the attributes have in ``ExecutionContext``."""

    # A copy with other messages is made by ``dataclasses.replace``.
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    request: RequestContext
    request_id: str
    discussion_id: str | None
    config: dict[str, Any]
    messages: list[Message]
    stream: bool
    is_responder: bool
    api_key_hash: str | None
    llm_handler: LlmHandler | None
    tools: list[dict[str, object]] | None
    tool_choice: object

    @property
    def node_name(self) -> str: ...

    @property
    def run(self) -> NodeRun | None: ...

    def substitute(self, value: object, *, restore: bool = True) -> str: ...
