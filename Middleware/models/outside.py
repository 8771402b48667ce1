"""Everything outside of the program that the engine reaches for a request, and what else may take its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

Context = TypeVar("Context")
Handler = TypeVar("Handler")
Stored = TypeVar("Stored")


class Outside:
    """The outside as it is. A subclass replaces parts of it for single requests, see ``RequestContext.outside``.

    Attributes:
        discussions_root, locks_root: the folders of conversations and of the lock database; "" for the configured ones.
        calls_servers: LLM calls need the key of a server, wait for it and look up its address.
        remembers: what one request has learned may serve others: choices, descriptions of images, places of texts.
        paced: a client reads the answer, so that fixed texts come in words at the pace of a reader.
    """

    discussions_root: str = ""
    locks_root: str = ""
    calls_servers: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    paced: ClassVar[bool] = True

    def run_node(self, handle: Callable[[Context], object], context: Context) -> object:
        """Return the output of a node, which ``handle`` runs."""
        return handle(context)

    def caller(self, handler: Handler) -> Handler:
        """Return the object that makes the LLM calls of a back-end handler."""
        return handler

    def discussions(self, stored: Stored) -> Stored:
        """Return the conversations that nodes read and change; ``stored`` are those of the process."""
        return stored

    def path(self, path: str) -> str:
        """Return the path to open for a file that a workflow names."""
        return path


REAL = Outside()
"""What requests of clients reach."""
