"""Waiting for another thread that reads the same memories."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.discussions.vector_memory import VectorMemories, cache, store
from Middleware.utilities.discussions.vector_memory.cache import LatestUsed, held
from Middleware.utilities.encryption_utils import NO_CIPHER
from Middleware.utilities.vector_math_utils import vector_to_blob
from Tests.patience import CLIENT_PATIENCE, PATIENCE
from Tests.utilities.discussions.vector_memory.lab import CIPHER, item, opened
from Tests.utilities.shortages import no_more_threads


def nearest(memories: VectorMemories) -> object:
    return memories.nearest([1.0, 0.0], "m", 5)


def keywords(memories: VectorMemories) -> object:
    return [row["id"] for row in memories.keyword_search("mill")]


@pytest.mark.parametrize(
    ("cipher", "method", "search"),
    [(NO_CIPHER, "embeddings", nearest), (CIPHER, "embeddings", nearest), (CIPHER, "_stored_rows", keywords)],
    ids=["clear", "encrypted", "words"],
)
def test_a_cancelled_request_does_not_wait_for_the_reading_of_another(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cipher: object,
    method: str,
    search: Callable[[VectorMemories], object],
) -> None:
    path = tmp_path / "vector_memory.db"
    with opened(path, cipher) as memories:  # type: ignore[arg-type]
        memories.store_chunk([item("mill")], None)
        memories.add_embeddings([(1, vector_to_blob([1, 0]))], "m")
    reading, go_on, found = threading.Event(), threading.Event(), []
    read = getattr(store.VectorMemories, method)

    def slow(self: VectorMemories, *arguments: object) -> object:
        reading.set()
        assert go_on.wait(2 * CLIENT_PATIENCE)
        return read(self, *arguments)

    monkeypatch.setattr(store.VectorMemories, method, slow)

    def first() -> None:
        with opened(path, cipher, write=False) as memories:  # type: ignore[arg-type]
            found.append(search(memories))

    thread = threading.Thread(target=first)
    thread.start()
    scope = CancelScope()
    try:
        assert reading.wait(PATIENCE)
        # a test that fails must end, too
        rescue = threading.Timer(CLIENT_PATIENCE, go_on.set)
        rescue.start()
        threading.Timer(0.1, scope.cancel).start()
        started = time.monotonic()
        with (
            opened(path, cipher, write=False, scope=scope) as memories,
            (  # type: ignore[arg-type]
                pytest.raises(EarlyTerminationException)
            ) as raised,
        ):
            search(memories)
        assert time.monotonic() - started < PATIENCE and raised.value.is_cancellation
    finally:
        go_on.set()
        thread.join(PATIENCE)
        rescue.cancel()
    assert found == [[1]]


@pytest.mark.parametrize("scope", [None, CancelScope()])
def test_a_lock_is_held_when_the_one_before_ends(scope: CancelScope | None) -> None:
    lock, order = threading.Lock(), []
    lock.acquire()

    def wait() -> None:
        with held(lock, scope):
            order.append("second")

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.3)
    order.append("first")
    lock.release()
    thread.join(PATIENCE)
    assert order == ["first", "second"] and not lock.locked()


def test_what_nobody_used_for_a_while_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(cache, "time", clock)
    kept: LatestUsed[list[int]] = LatestUsed(8, idle_seconds=600)
    first, _ = kept.get_or_make("a", list), kept.get_or_make("b", list)
    clock.now += 400
    assert kept.get_or_make("a", list) is first
    clock.now += 400
    kept._forget()
    assert len(kept.keys()) == 1 and kept.get_or_make("a", list) is first
    clock.now += 601
    kept._forget()
    assert len(kept.keys()) == 0 and kept.get_or_make("a", list) is not first
    kept.clear()


def test_no_thread_stays_for_nothing() -> None:
    kept: LatestUsed[list[int]] = LatestUsed(8, idle_seconds=0.05)
    kept.get_or_make("a", list)
    timer = kept._timer
    assert timer is not None
    timer.join(PATIENCE)
    assert kept._timer is None and len(kept.keys()) == 0


def test_a_shortage_of_threads_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: LatestUsed[list[int]] = LatestUsed(8, idle_seconds=0.05)
    with monkeypatch.context() as patch:
        no_more_threads(patch, "idle-memories")
        first = kept.get_or_make("a", list)
    assert kept.get_or_make("a", list) is first
    assert kept._timer is not None
    kept._timer.join(PATIENCE)
    assert len(kept.keys()) == 0


def test_no_more_are_kept_than_asked_for() -> None:
    kept: LatestUsed[list[int]] = LatestUsed(2)
    first = kept.get_or_make("a", list)
    for name in ("b", "c"):
        kept.get_or_make(name, list)
    assert len(kept.keys()) == 2 and kept.get_or_make("a", list) is not first
    kept.clear()
