"""The names that scripts read."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope

ROOT = Path(__file__).resolve().parents[2]


def test_values_before_a_launcher_sets_them() -> None:
    code = (
        "from Middleware.common import instance_global_variables as i; print([i.CONFIG_DIRECTORY, "
        "i.PUBLIC_DIRECTORY, i.DISCUSSION_DIRECTORY, i.USER_LEVEL_SQLITE_DIRECTORY, i.USERS, i.FILE_LOGGING, "
        "i.PORT, i.LOGGING_DIRECTORY, i.LISTEN_ADDRESS, i.CONCURRENCY_LIMIT, i.CONCURRENCY_TIMEOUT, "
        "i.CONCURRENCY_LEVEL, i.MAX_REQUEST_MB, i.get_request_semaphore()])"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str([None] * 7 + ["logs", "127.0.0.1", 1, 900, "wilmer", 256, None])


def test_the_instance_id_is_a_uuid4() -> None:
    assert uuid.UUID(instance.INSTANCE_ID).version == 4


def test_request_scoped_names_follow_the_request() -> None:
    with request_scope(RequestContext(api_type="ollamaapichat", user="bob", workflow_override="fast")) as request:
        assert instance.get_api_type() == "ollamaapichat"
        assert instance.get_request_user() == "bob"
        assert instance.get_workflow_override() == "fast"
        instance.set_request_user("eve")
        instance.set_workflow_override(None)
        instance.set_api_type("openaicompletion")
        assert (request.user, request.workflow_override, request.api_type) == ("eve", None, "openaicompletion")
        instance.clear_request_user()
        instance.clear_workflow_override()
        instance.clear_api_type()
        assert (request.user, request.workflow_override, request.api_type) == (None, None, "openai")


def test_defaults_and_setters_without_a_request() -> None:
    def check() -> None:
        with request_scope(None):  # type: ignore[arg-type]
            assert instance.get_api_type() == "openai"
            assert instance.get_request_user() is None and instance.get_workflow_override() is None
            instance.set_request_user("ann")
            instance.set_workflow_override("w")
            assert (instance.get_request_user(), instance.get_workflow_override()) == ("ann", "w")

    contextvars.Context().run(check)


def test_threads_do_not_share_request_state() -> None:
    seen: list[str | None] = []
    with request_scope(RequestContext(user="bob")):
        thread = threading.Thread(
            target=contextvars.Context().run, args=(lambda: seen.append(instance.get_request_user()),)
        )
        thread.start()
        thread.join()
    assert seen == [None]


def test_the_semaphore_is_bounded_and_absent_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process().one(instance.Gate), "semaphore", None)
    instance.initialize_request_semaphore(2)
    semaphore = instance.get_request_semaphore()
    assert semaphore is not None
    assert [semaphore.acquire(blocking=False) for _ in range(3)] == [True, True, False]
    semaphore.release()
    semaphore.release()
    with pytest.raises(ValueError):
        semaphore.release()
    instance.initialize_request_semaphore(0)
    assert instance.get_request_semaphore() is None
