"""What is lost to a faster worker: one warning in words for a request, whatever was to be stored."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import StateConflictError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.compactor_store import Boundary, CompactorStore
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.services.timestamp_service import TimestampService
from Middleware.services.vision_cache import VisionResponses
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.workflows.tools.memory.chat_summary import save_summary
from Middleware.workflows.tools.memory.shared import storage_errors_logged
from Tests.llmapis.lab import Lab


def test_a_faster_worker_is_one_warning_for_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Lab(tmp_path / "Configs", monkeypatch)
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))

    def conflict(*_: object, **more: object) -> None:
        raise StateConflictError("another worker has changed k1/x.json in the meantime")

    for method in ("read", "write", "change"):
        monkeypatch.setattr(DiscussionFolder, method, conflict)
    folder = DiscussionFolder("k1", None, None)
    with request_scope(RequestContext(user="ann")):
        VisionResponses(folder).add({"h": "text"})
        TimestampService().save_placeholder_timestamp("k1")
        assert not save_summary(MemoryStore(folder), "text", "h")
        assert MemoryStore(folder).memories() == []
        assert not CompactorStore(folder).read().readable and CompactorStore(folder).folded() is None
        with storage_errors_logged(folder):
            CompactorStore(folder).save(("text", "h"), Boundary("h", 1))
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == [
        (
            "WARNING",
            "Something of this turn is not stored, as another worker has changed k1/x.json "
            "in the meantime; the next message makes up for it",
        )
    ]
    assert not any(record.exc_info for record in caplog.records)
