"""The pieces of a node's work that are not LLM calls, as listeners see them."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, TypeAlias

from Middleware.models.llm_call import Observer
from Middleware.models.request_context import RequestContext, current_request

StepKind: TypeAlias = Literal["tool", "memory"]
Store: TypeAlias = Literal["file", "summary", "vector", "state", "compactor", "messages"]


class Step:
    """A tool that is called, or stored data of the conversation that are read or written. To be used by ``with``.

    Attributes:
        name: of the tool, or of the store.
        attributes: what is not text of the conversation.
        texts: the text that goes in and comes out. Both may be changed until the end of the block.
    """

    __slots__ = ("_observer", "_request", "attributes", "kind", "name", "texts")

    def __init__(self, kind: StepKind, name: str, attributes: dict[str, object], texts: dict[str, object]) -> None:
        self.kind, self.name, self.attributes, self.texts = kind, name, attributes, texts
        self._request: RequestContext | None = None
        self._observer: Observer | None = None

    def __enter__(self) -> Step:
        request = self._request = current_request()
        if request is not None and request.listeners is not None:
            self._observer = request.listeners
            self._observer.emit("step_started", request, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._observer is not None:
            self._observer.emit("step_finished", self._request, self, error)


def tool(name: str, kind: str, arguments: object, **attributes: object) -> Step:
    """Return the step of a call of a tool; ``kind``: ``web``, ``curl``, ``mcp``, ``script`` or ``encyclopedia``.

    Name and attributes are as the file of the workflow has them: what its variables make of them may be words of the
    conversation, and belongs to the arguments.
    """
    return Step("tool", name, {"tool.name": name, "tool.type": kind, **attributes}, {"arguments": arguments})


def reading(store: Store) -> Step:
    """Return the step of a read of stored data, which notes later how much it has ``found``."""
    return Step("memory", store, {"store": store, "action": "read", "found": None}, {})


def writing(store: Store, written: object, items: int = 1, last_message: str | None = None) -> Step:
    """Return the step of a write of stored data.

    Args:
        items: the number of memories.
        last_message: the hash of the last message that they are about.
    """
    messages = None if last_message is None else [last_message]
    return Step(
        "memory", store, {"store": store, "action": "write", "items": items, "messages": messages}, {"written": written}
    )
