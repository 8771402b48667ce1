"""A conversation on disk, in whose name memory passes can be run against a scripted LLM."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.utilities.config.declarations import read_settings
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.workflows.events import EngineListener
from Middleware.workflows.models.execution_context import ExecutionContext
from Tests.backend_dialects import embed
from Tests.stub_backend import Reply, chat_reply
from Tests.workflows.engine_lab import EngineLab, Message, Probe, last_text, start, user

PROBE = "GetCustomFile"


def memory(summary: Any, **more: Any) -> dict[str, Any]:
    return {"title": "t", "summary": summary, "entities": ["Mara"], "key_phrases": ["ledger"], **more}


def numbered(count: int, start_at: int = 0) -> list[Message]:
    """Messages ``m0``, ``m1``, ... of one token each."""
    return [user(f"m{number}") for number in range(start_at, start_at + count)]


class MemoryChat:
    """Chunks hold four messages of one token; each answer is one memory, ``about <chunk>``, unless told otherwise.

    Attributes:
        answers: the LLM's answer for a chunk.
        raw: the settings file.
    """

    def __init__(self, lab: EngineLab, discussion_id: str = "k1", encryption_key: bytes | None = None) -> None:
        self.lab = lab
        lab.user(discussionDirectory=str(lab.root / "data"))
        lab.workflow("Main", [{"type": PROBE}])
        self.answers: Callable[[str], str] = lambda chunk: json.dumps(memory(f"about {chunk}"))
        lab.backend.responder = self._reply
        self.raw: dict[str, Any] = {
            "endpointName": "Main",
            "vectorMemoryPrompt": "[TextChunk]",
            "vectorMemoryChunkEstimatedTokenSize": 5,
        }
        self.discussion_id, self.encryption_key = discussion_id, encryption_key

    @property
    def folder(self) -> DiscussionFolder:
        key_hash = "0123456789abcdef" if self.encryption_key else None
        return DiscussionFolder(self.discussion_id, key_hash, self.encryption_key)

    @property
    def settings(self) -> MemorySettings:
        return read_settings(MemorySettings, self.raw, "settings.json")

    def _reply(self, request: Any) -> Reply:
        if request.path.endswith("/embeddings"):
            return embed(request, lambda text: [1.0, 0.0])
        return chat_reply(self.answers(last_text(request)))

    def within(
        self,
        messages: list[Message],
        work: Callable[[ExecutionContext], Any],
        request: RequestContext | None = None,
        listener: EngineListener | None = None,
    ) -> None:
        """Run ``work`` as a node of a workflow that sees ``messages``."""
        self.lab.request = request or RequestContext(request_id="r-1")
        with request_scope(self.lab.request):
            list(
                start(
                    self.lab,
                    "Main",
                    *messages,
                    listener=listener,
                    discussion_id=self.discussion_id,
                    probes={PROBE: Probe(lambda context: work(context) or "")},
                )
            )

    # -- what is on disk -------------------------------------------------------------------------------------------
    def rows(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder.vector_database())) as database:
            return [row[0] if len(row) == 1 else row for row in database.execute(statement)]

    @property
    def texts(self) -> list[str]:
        return self.rows("SELECT memory_text FROM memories ORDER BY id")

    @property
    def logged(self) -> list[str]:
        return self.rows("SELECT message_hash FROM vector_memory_hash_log ORDER BY id")
