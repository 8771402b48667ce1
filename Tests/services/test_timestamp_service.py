"""The times of messages."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import DataKeyError, EarlyTerminationException
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext
from Middleware.services.timestamp_service import PLACEHOLDER, TimestampService
from Middleware.utilities.config import paths
from Middleware.utilities.datetime_utils import format_datetime_to_ts
from Middleware.utilities.discussion_state import SHORT
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key
from Middleware.utilities.hashing_utils import hash_content
from Middleware.utilities.said_times import Calendar, Source
from Middleware.utilities.text_utils import escape_braces
from Tests.llmapis.lab import Lab
from Tests.tables import table

NOW = datetime(2026, 3, 14, 9, 26, 53)
Message = dict[str, Any]


def stamp(**ago: float) -> str:
    return format_datetime_to_ts(NOW - timedelta(**ago))


def said(text: str, role: str = "user") -> Message:
    return {"role": role, "content": text}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Lab(tmp_path / "Configs", monkeypatch)
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    return tmp_path / "D"


@pytest.fixture
def service(root: Path) -> TimestampService:
    return TimestampService(now=lambda: NOW)


def stored(root: Path, name: str = "k1") -> dict[str, str]:
    return json.loads((root / name / "timestamps.json").read_bytes())  # type: ignore[no-any-return]


def store(root: Path, times: dict[str, Any]) -> None:
    (root / "k1").mkdir(parents=True, exist_ok=True)
    (root / "k1" / "timestamps.json").write_text(json.dumps(times), encoding="utf-8")


def h(text: str) -> str:
    return hash_content(text)


# -- history -----------------------------------------------------------------------------------------------------------


def test_a_new_conversation(root: Path, service: TimestampService) -> None:
    messages = [
        said("rules", "system"),
        said("a"),
        said("b", "assistant"),
        said("note", "systemMes"),
        said("c"),
        said("Bob:"),
    ]
    service.resolve_and_track_history(messages, "k1")
    assert stored(root) == {h("c"): stamp(), h("b"): stamp(seconds=1), h("a"): stamp(seconds=2)}


def test_unknown_messages_come_before_the_next_known_one(root: Path, service: TimestampService) -> None:
    store(root, {h("b"): stamp(hours=1), h("c"): "junk"})
    service.resolve_and_track_history([said("a"), said("b"), said("c"), said("d")], "k1")
    assert stored(root) == {h("d"): stamp(), h("c"): "junk", h("b"): stamp(hours=1), h("a"): stamp(hours=1, seconds=1)}


def test_known_history_writes_nothing(root: Path, service: TimestampService) -> None:
    service.resolve_and_track_history([said("a")], "k1")
    before = (root / "k1" / "timestamps.json").stat().st_mtime_ns
    service.resolve_and_track_history([said("a")], "k1")
    assert (root / "k1" / "timestamps.json").stat().st_mtime_ns == before


def test_the_noted_time_goes_to_the_newest_answer(root: Path, service: TimestampService) -> None:
    store(root, {PLACEHOLDER: stamp(minutes=5), h("a"): stamp(hours=1)})
    service.resolve_and_track_history([said("a"), said("b", "assistant"), said("c"), said("Bob:", "assistant")], "k1")
    assert stored(root) == {h("a"): stamp(hours=1), h("b"): stamp(minutes=5), h("c"): stamp()}


def test_a_noted_time_is_dropped_if_the_answer_has_one(root: Path, service: TimestampService) -> None:
    times = {h("a"): stamp(hours=1), h("b"): stamp(minutes=50)}
    store(root, {**times, PLACEHOLDER: stamp(minutes=5)})
    service.resolve_and_track_history([said("a"), said("b", "assistant")], "k1")
    assert stored(root) == times


def test_a_noted_time_without_any_answer(root: Path, service: TimestampService) -> None:
    store(root, {PLACEHOLDER: stamp(minutes=5)})
    service.resolve_and_track_history([said("a")], "k1")
    assert stored(root) == {h("a"): stamp()}


# -- answers -----------------------------------------------------------------------------------------------------------


def test_an_answer_committed_at_once(root: Path, service: TimestampService) -> None:
    service.save_placeholder_timestamp("k1")
    assert stored(root) == {PLACEHOLDER: stamp()}
    TimestampService(now=lambda: NOW + timedelta(minutes=1)).commit_assistant_response("k1", "x {y}")
    assert stored(root) == {h(escape_braces("x {y}")): stamp()}


def test_an_answer_without_noted_time(root: Path, service: TimestampService, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        service.commit_assistant_response("k1", "secret words")
    assert stored(root) == {h("secret words"): stamp()}
    assert "k1" in caplog.text and "secret" not in caplog.text


def test_an_empty_answer_only_drops_the_note(root: Path, service: TimestampService) -> None:
    service.save_placeholder_timestamp("k1")
    service.commit_assistant_response("k1", "")
    assert stored(root) == {}


def test_a_specific_time(root: Path, service: TimestampService) -> None:
    service.save_specific_timestamp("k1", "a", stamp(days=1))
    service.save_specific_timestamp("k1", "a", stamp(days=2))
    assert stored(root) == {h("a"): stamp(days=2)}


# -- what models see ---------------------------------------------------------------------------------------------------


def test_stamped_messages(root: Path, service: TimestampService) -> None:
    store(root, {h("a"): stamp(hours=2, minutes=15), h("c"): stamp(), h("rules"): stamp(), h("Bob:"): stamp()})
    messages = [said("rules", "system"), said("a"), said("b", "assistant"), said("c"), said("Bob:")]
    copies = service.format_messages_with_timestamps(messages, "k1")
    assert [copy["content"] for copy in copies] == [
        "rules",
        f"{stamp(hours=2, minutes=15)} a",
        "b",
        f"{stamp()} c",
        "Bob:",
    ]
    copies = service.format_messages_with_timestamps(messages, "k1", True)
    assert [copy["content"] for copy in copies][1:4] == [
        "[Sent 2 hours, 15 minutes ago] a",
        "b",
        "[Sent less than a minute ago] c",
    ]
    assert [message["content"] for message in messages] == ["rules", "a", "b", "c", "Bob:"]


def test_a_message_that_has_its_stamp_already(root: Path, service: TimestampService) -> None:
    text = f"{stamp()} a"
    store(root, {h(text): stamp()})
    assert service.format_messages_with_timestamps([said(text)], "k1")[0]["content"] == text


def test_junk_is_no_relative_time(root: Path, service: TimestampService) -> None:
    store(root, {h("a"): "junk", h("b"): 5})
    copies = service.format_messages_with_timestamps([said("a"), said("b")], "k1", True)
    assert [copy["content"] for copy in copies] == ["a", "b"]


@pytest.mark.parametrize(
    "ago, sentence",
    [
        ((), ""),
        (("junk",), ""),
        ((stamp(hours=2),), "[Time Context: The conversation started 2 hours ago.]"),
        ((stamp(hours=2), stamp(hours=2)), "[Time Context: The conversation started 2 hours ago.]"),
        (
            (stamp(days=1, minutes=3), stamp(minutes=1)),
            "[Time Context: This conversation started 1 day, 3 minutes ago. "
            "The most recent message was sent 1 minute ago.]",
        ),
    ],
)
def test_time_context(root: Path, service: TimestampService, ago: tuple[str, ...], sentence: str) -> None:
    store(root, {PLACEHOLDER: stamp(days=9), **{str(n): text for n, text in enumerate(ago)}})
    assert service.get_time_context_summary("k1") == sentence


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discussion_id", [None, ""])
def test_without_a_discussion_nothing_happens(root: Path, service: TimestampService, discussion_id: str | None) -> None:
    service.resolve_and_track_history([said("a")], discussion_id)
    service.save_placeholder_timestamp(discussion_id)
    service.commit_assistant_response(discussion_id, "a")
    service.save_specific_timestamp(discussion_id, "a", stamp())
    assert service.get_time_context_summary(discussion_id) == ""
    assert service.format_messages_with_timestamps([said("a")], discussion_id) == [said("a")]
    assert not root.exists()


def test_reading_creates_nothing(root: Path, service: TimestampService) -> None:
    service.get_time_context_summary("k1")
    service.format_messages_with_timestamps([said("a")], "k1")
    assert not root.exists()


@pytest.mark.parametrize("content", ["{broken", "[]"])
def test_a_broken_file_is_left_alone(
    root: Path, service: TimestampService, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    store(root, {})
    path = root / "k1" / "timestamps.json"
    path.write_text(content, encoding="utf-8")
    service.resolve_and_track_history([said("a")], "k1")
    assert service.get_time_context_summary("k1") == "" and path.read_text(encoding="utf-8") == content
    assert "k1/timestamps.json" in caplog.text


def test_a_failure_to_write_is_only_logged(
    root: Path, service: TimestampService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "get_project_root_directory_path", lambda: str(root))
    root.write_text("a file where the folder should be", encoding="utf-8")
    service.save_placeholder_timestamp("k1")
    assert "k1 were not saved" in caplog.text


def test_times_of_a_key(root: Path) -> None:
    key = derive_encryption_key("secretkey", "alice")
    service = TimestampService("ad165b11320bc915", key, now=lambda: NOW)
    service.resolve_and_track_history([said("a")], "k1")
    path = root / "ad165b11320bc915" / "k1" / "timestamps.json"
    assert path.read_bytes().startswith(b"gAAAA")
    assert service.format_messages_with_timestamps([said("a")], "k1")[0]["content"] == f"{stamp()} a"
    with pytest.raises(DataKeyError):
        TimestampService("ad165b11320bc915").save_placeholder_timestamp("k1")


def test_requests_at_the_same_time_lose_nothing(root: Path, service: TimestampService) -> None:
    threads = [
        threading.Thread(target=service.save_specific_timestamp, args=("k1", str(n), stamp())) for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stored(root)) == 16


@pytest.mark.parametrize(
    "write",
    [
        lambda service: service.resolve_and_track_history([said("a")], "k1"),
        lambda service: service.save_placeholder_timestamp("k1"),
        lambda service: service.commit_assistant_response("k1", "a"),
        lambda service: service.save_specific_timestamp("k1", "a", stamp()),
    ],
)
def test_a_cancelled_request_waits_for_nobody(root: Path, write: Callable[[TimestampService], None]) -> None:
    scope, left = CancelScope(), threading.Event()

    def wait() -> None:
        with pytest.raises(EarlyTerminationException):
            write(TimestampService(scope=scope))
        left.set()

    thread = threading.Thread(target=wait, daemon=True)
    with DiscussionFolder("k1").lock(SHORT):
        thread.start()
        assert not left.wait(0.1)
        scope.cancel("gone")
        assert left.wait(60)
    thread.join(60)
    assert not (root / "k1" / "timestamps.json").exists()


# -- messages without text ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", [{"role": "assistant", "content": None}, {"role": "assistant"}])
@pytest.mark.parametrize("relative", [False, True])
def test_a_message_without_text_stays_as_it_is(service: TimestampService, blank: Message, relative: bool) -> None:
    messages = [said("a"), blank, said("b"), dict(blank)]
    service.save_placeholder_timestamp("k1")
    service.resolve_and_track_history(messages, "k1")
    copies = service.format_messages_with_timestamps(messages, "k1", relative)
    assert [copies[1], copies[3]] == [blank, blank]
    assert all(copy["content"].endswith((") a", ") b", "] a", "] b")) for copy in (copies[0], copies[2]))


ROLES, CONTENTS = st.sampled_from(["user", "assistant", "system"]), st.sampled_from(["", "a", "b", "Bob:", "c", None])
TEXTS = st.lists(st.tuples(ROLES, CONTENTS))


@given(st.lists(TEXTS, max_size=4))
def test_every_message_gets_a_time_that_stays(tmp_path_factory: pytest.TempPathFactory, turns: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        base = tmp_path_factory.mktemp("times")
        Lab(base / "Configs", patch)
        patch.setattr(instance, "DISCUSSION_DIRECTORY", str(base / "D"))
        known: dict[str, str] = {}
        for number, turn in enumerate(turns):
            messages = [said(text, role) for role, text in turn]
            TimestampService(now=lambda number=number: NOW + timedelta(minutes=number)).resolve_and_track_history(
                messages, "k1"
            )
            times = stored(base / "D") if (base / "D" / "k1" / "timestamps.json").exists() else {}
            assert known.items() <= times.items()
            wanted = [
                m
                for i, m in enumerate(messages)
                if m["role"] != "system" and not (i == len(messages) - 1 and m["content"] == "Bob:")
            ]
            assert {h(m["content"] or "") for m in wanted} <= times.keys()
            TimestampService().format_messages_with_timestamps(messages, "k1")
            known = times


@pytest.mark.parametrize("unusable", ["junk", 5, None, ""])
def test_a_new_message_takes_the_nearest_usable_time(service: TimestampService, root: Path, unusable: Any) -> None:
    store(root, {h("a"): stamp(days=3), h("c"): stamp(days=1), h("d"): unusable})
    service.resolve_and_track_history([said(text) for text in "abcd"], "k1")
    assert stored(root)[h("b")] == stamp(days=1, seconds=1)


@table(
    ("fields", "stamps", "times"),
    [
        # Only the newest message came with the request; a time in the file is that of the server.
        ([], {}, {2: (NOW - timedelta(days=2), Source.STORED), 5: (NOW, Source.ARRIVAL)}),
        (
            [],
            {0: "2026-03-10 08:00"},
            {0: (datetime(2026, 3, 10, 8), Source.STAMP), 2: (NOW - timedelta(days=2), 3), 5: (NOW, 4)},
        ),
        (
            [[], ["2026-03-11T08:00"], [], [], [], [NOW.timestamp()]],
            {1: "2026-03-10 08:00"},
            {1: (datetime(2026, 3, 11, 8), Source.FIELD), 2: (NOW - timedelta(days=2), 3), 5: (NOW, Source.FIELD)},
        ),
        (
            [[5], [1773000000000]],
            {},
            {1: (datetime.fromtimestamp(1773000000), 1), 2: (NOW - timedelta(days=2), 3), 5: (NOW, 4)},
        ),
    ],
)
def test_when_the_messages_of_a_request_were_sent(
    service: TimestampService,
    root: Path,
    fields: list[list[Any]],
    stamps: dict[int, str],
    times: dict[int, tuple[datetime, int]],
) -> None:
    # The history lacks the messages of the system, whose numbers are left out.
    history = {0: said("one {x}"), 1: said("two", "assistant"), 2: said("three"), 5: said("four")}
    sent = zip(range(len(fields)), fields, strict=True)
    request = RequestContext(said={id(history[index]): (history[index], given) for index, given in sent if given})
    store(root, {hash_content("three"): stamp(days=2), PLACEHOLDER: stamp(days=1)})
    before = stored(root)
    found = service.said(request, "k1", history, stamps, Calendar())
    known = {index: (one.at, one.source) for index, one in found.items() if one.at is not None}
    # The arrival of a request is as long ago as the request has run.
    assert known.keys() == times.keys()
    for index, (at, source) in times.items():
        moment, found_source = known[index]
        assert found_source == source and abs((moment or 0) - at.timestamp()) < 60, index
    assert list(found) == [0, 1, 2, 5] and stored(root) == before
    assert not [one for one in service.said(request, "k1", history, stamps, Calendar(dates=False)).values() if one.at]
