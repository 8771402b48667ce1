"""Log at level DEBUG how far the prompt of a node is the same as at its last call for the same discussion.

What is the same from the first character on can be in the back-end's cache; what follows is read again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import takewhile

from Middleware.llmapis.handlers.base.base_chat_completions_handler import text_of
from Middleware.llmapis.handlers.base.base_llm_api_handler import Prompt
from Middleware.models.llm_call import NodeSite
from Middleware.utilities.once import BoundedCache

logger = logging.getLogger(__name__)

# Characters that are compared together: a hash for each would take more memory than the text.
PIECE = 256
# Nodes of discussions; a prompt of 100,000 characters takes about 50 KB.
MAX_NODES = 200

# The hash and the length of a piece.
Piece = tuple[int, int]


class PromptBeginnings:
    """The hashes of each node's last prompt, in memory only."""

    def __init__(self) -> None:
        self._last: BoundedCache[tuple[str, str, int], tuple[Piece, ...]] = BoundedCache(MAX_NODES)

    def look(self, site: NodeSite | None, prompt: Prompt) -> None:
        """Log the comparison for a call of a node in a discussion, and keep its prompt for the next one."""
        if site is None or not site.discussion_id:
            return
        where = site.chain[-1] if site.chain else site.workflow_name
        key = (site.discussion_id, where, site.node_index)
        last, parts = self._last.get(key), list(_parts(prompt))
        self._last.put(key, tuple(piece for _, pieces in parts for piece in pieces))
        if last is not None:
            logger.debug(
                "Workflow %s, node %d '%s': %s", where, site.node_index, site.node_name, difference(last, parts)
            )


def difference(last: Sequence[Piece], parts: Sequence[tuple[str, Sequence[Piece]]]) -> str:
    """Return where a prompt in named parts begins to differ from the pieces of the last one, without any text."""
    new = [(name, piece) for name, pieces in parts for piece in pieces]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1][1], zip(last, new, strict=False)))
    unchanged, total = (sum(length for _, (_, length) in pairs) for pairs in (new[:same], new))
    differs = f", then differs in {new[same][0]}" if same < len(new) else ""
    return f"beginning unchanged for {unchanged} of {total} characters{differs}"


def _parts(prompt: Prompt) -> Iterator[tuple[str, list[Piece]]]:
    if prompt.system_prompt:
        yield "the system prompt", _pieces("system", prompt.system_prompt)
    for number, message in enumerate(prompt.conversation or (), 1):
        role, content = str(message.get("role")), message.get("content")
        name = "the system prompt" if number == 1 and role == "system" else f"message {number} ({role})"
        yield name, _pieces(role, content if isinstance(content, str) else text_of(content))
    if prompt.prompt:
        yield "the prompt", _pieces("prompt", prompt.prompt)


def _pieces(role: str, text: str) -> list[Piece]:
    """Return the pieces of a part. The first one also stands for the role, so an empty part has one, too."""
    return [
        (hash((role, text[start : start + PIECE])), len(text[start : start + PIECE]))
        for start in range(0, max(len(text), 1), PIECE)
    ]
