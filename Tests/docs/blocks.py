"""What the code blocks of a page say they are, and their JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from Middleware.addons.check.file_check import KINDS, kind_of
from Middleware.workflows.handlers.registry import node_types
from Tests.docs.markdown import Fence, Page

_NODES = re.compile(r'"nodes"\s*:|\A\s*\[')
EXPECTED = "```json with file=..., node, node=..., part=..., wire or other"
ALONE = ("node", "wire", "other")
TRY = "try:"
TRY_KEYS = frozenset(
    {
        "messages",
        "replies",
        "expect",
        "lacks",
        "sent",
        "tools",
        "body",
        "stream",
        "model",
        "requests",
        "files",
        "writes",
        "discussion",
        "web",
        "mcp",
        "researcher",
        "user",
        "variables",
        "log",
        "note",
        "needs",
    }
)


class BlockError(AssertionError):
    """A block that is not as it must be; the text says where."""


@dataclass(frozen=True)
class Block:
    """A JSON or Python block.

    Attributes:
        mark: ``file``, ``part``, ``node``, ``wire``, ``other``, or nothing.
        value: what stands behind ``file=``, ``part=`` or ``node=``.
        how: what the comment above says about trying it; None without one.
    """

    page: Page
    fence: Fence
    mark: str = ""
    value: str = ""
    how: Mapping[str, Any] | None = field(default=None, compare=False)

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.fence.line}"

    @property
    def is_workflow(self) -> bool:
        """Whether it is a whole workflow. Settings that lie among workflows may have any name, but have no nodes."""
        kind = kind_of(self.value) if self.mark == "file" and self.fence.language == "json" else None
        return kind is not None and kind.name == "workflow" and bool(_NODES.search(self.fence.text))

    def error(self, message: str, line: int = 0) -> BlockError:
        """``line``: within the block, from 1; 0: about all of it."""
        return BlockError(f"{self.page.name}:{self.fence.line + line}: {message}")

    def json(self) -> Any:
        """The content. Braces around keys, brackets around nodes and a comma at the end may be missing.

        Raises BlockError.
        """
        try:
            return json.loads(self.fence.text)
        except ValueError as error:
            beginning, around = ('"', "{}") if self.value else ("{", "[]")
            around = around if self.mark in ("part", "node") else ""
            if not around or not self.fence.text.lstrip().startswith(beginning):
                raise self._syntax(error) from error
        try:
            return json.loads(around[0] + self.fence.text.rstrip().rstrip(",") + around[1])
        except ValueError as error:
            raise self._syntax(error) from error

    def _syntax(self, error: ValueError) -> BlockError:
        assert isinstance(error, json.JSONDecodeError)
        return self.error(f"not valid JSON: {error.msg}", error.lineno)


def blocks(page: Page, language: str = "json") -> Iterator[Block]:
    """The blocks of a language, whose marks are not judged yet."""
    for fence in page.fences:
        if fence.language == language:
            mark, _, value = (fence.marks or [""])[0].partition("=")
            yield Block(page, fence, mark, value)


def whole_files(page: Page) -> list[Block]:
    """The configuration files of a page, without blocks that are not what they must be."""
    found = []
    for block in blocks(page):
        with suppress(BlockError):
            found.append(judged(block))
    return [block for block in found if block.mark == "file"]


def judged(block: Block) -> Block:
    """The block with what is said about trying it. Raises BlockError if it does not say what it is."""
    words = block.fence.marks
    if not words:
        raise block.error(f"the block does not say what it is: expected {EXPECTED}")
    if len(words) > 1:
        raise block.error(f"one mark is enough, not {' '.join(words)}")
    if "=" in words[0] and block.mark in ("file", "part", "node"):
        _check_value(block)
    elif words[0] not in ALONE:
        raise block.error(f"'{words[0]}' is no mark; expected {EXPECTED}")
    return Block(block.page, block.fence, block.mark, block.value, _how(block))


def _check_value(block: Block) -> None:
    if block.mark == "part" and block.value not in KINDS:
        raise block.error(f"part={block.value} is no kind of file; expected: {', '.join(KINDS)}")
    if block.mark == "node" and block.value not in node_types():
        raise block.error(f"node={block.value} is no type of nodes")
    if block.mark == "file" and kind_of(block.value) is None:
        raise block.error(f"file={block.value} is no path of a configuration file below Public/Configs")


def _how(block: Block) -> Mapping[str, Any] | None:
    found = [comment.removeprefix(TRY) for comment in block.fence.comments if comment.startswith(TRY)]
    if not found:
        return None
    try:
        how = json.loads(found[-1])
    except ValueError as error:
        raise block.error(f"the comment 'try' above the block is no JSON: {error}") from error
    requests = how.get("requests", ()) if isinstance(how, dict) else ()
    for part in (how, *requests):
        unknown = sorted(part.keys() - TRY_KEYS) if isinstance(part, dict) else ["which is no object"]
        if unknown:
            raise block.error(
                f"the comment 'try' above the block has unknown keys: {', '.join(unknown)}; "
                f"known: {', '.join(sorted(TRY_KEYS))}"
            )
    return dict(how)
