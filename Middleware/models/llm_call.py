"""What is told about one LLM call, to whom, and for which node the code at hand works."""
from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from Middleware.models.messages import Usage


class Observer(Protocol):
    """Takes events by name. Never raises."""

    def tell(self, event: str, *arguments: object) -> None: ...

    def hears(self, *events: str) -> bool:
        """Whether anybody cares for one of ``events``; if not, they need not be told."""


@dataclass
class LlmCallRecord:
    """One LLM call as a listener sees it; holds no text of the conversation.

    What only the end can tell is there when the call has finished or failed.

    Attributes:
        workflow_name, node_index, node_name: the node that calls, its index counted from 1; "" and 0 outside a node.
        endpoint: that which is asked first; at the end, that which answered or failed last.
        model: the model name that is sent to ``endpoint``, "" for none.
        messages: how many messages are sent; 0 for a prompt of two texts.
        prompt_characters: of all texts that are sent, without tools and images.
        seconds_to_first_token: until text, reasoning or a tool call came; None if none did or the call does not stream.
        prompt_tokens: as the back-end counts, None if it does not say.
        completion_tokens: as the back-end counts, else ``chunks``; None for a whole answer without a count.
        chunks: pieces of text that were streamed.
        answer_characters: of the uncleaned text.
        failed_endpoints: those for which a backup stood in, in the order they were asked.
        stopped: the call was cancelled, or its stream abandoned, before its end.
    """

    request_id: str
    endpoint: str
    streamed: bool
    workflow_name: str = ""
    node_index: int = 0
    node_name: str = ""
    model: str = ""
    messages: int = 0
    prompt_characters: int = 0
    seconds_to_first_token: float | None = None
    seconds: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    chunks: int = 0
    answer_characters: int = 0
    finish_reason: str | None = None
    failed_endpoints: tuple[str, ...] = ()
    stopped: bool = False


@dataclass
class LlmOutcome:
    """What a call said besides its text.

    Attributes:
        usage: OpenAI shape (``prompt_tokens``, ``completion_tokens``, ``total_tokens``); None if it said none.
        fingerprint: the back-end's own name of its build (OpenAI's ``system_fingerprint``), if it said one.
        endpoint_config: the file of the endpoint that answered; its cleaning rules apply.
    """

    finish_reason: str | None = None
    usage: Usage | None = None
    reasoning: str = ""
    fingerprint: str = ""
    endpoint_config: Mapping[str, object] = field(default_factory=dict, repr=False)
    endpoint_name: str = ""


class NodeSite(NamedTuple):
    """The node that runs, and who wants to hear what it does.

    ``chain`` names the workflows from the outermost to that of the node.
    """

    observer: Observer
    request_id: str
    workflow_name: str
    node_index: int
    node_name: str
    chain: tuple[str, ...] = ()


_site: ContextVar[NodeSite | None] = ContextVar("wilmer_node", default=None)


def current_site() -> NodeSite | None:
    """The node that this thread works for, if any."""
    return _site.get()


def enter_node(site: NodeSite) -> NodeSite | None:
    """Make ``site`` the current node; returns the one before, for ``leave_node``.

    A pair of functions, because a context manager would be the larger part of what a trivial node costs.
    """
    before = _site.get()
    _site.set(site)
    return before


def leave_node(site: NodeSite, before: NodeSite | None) -> None:
    """Undo ``enter_node``. Does nothing in a context where ``site`` is not current.

    An abandoned generator is closed wherever the garbage collector happens to run.
    """
    if _site.get() is site:
        _site.set(before)
