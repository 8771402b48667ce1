"""Searchable memories of a conversation: what is new, when it is worked on, and what survives failures."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from Middleware.exceptions import (
    BackendConnectionError,
    BackendResponseError,
    BackendStatusError,
    BackendTimeoutError,
    ConfigValueError,
    DataKeyError,
    EarlyTerminationException,
    FailoverError,
    GateTimeoutError,
    StateConflictError,
    UnreadableDataError,
)
from Middleware.exceptions.early_termination_exception import CANCELLED, LOCKED
from Middleware.models.process import Process, process
from Middleware.models.request_context import RequestContext
from Middleware.services.locking_service import get_locking_service
from Middleware.utilities.discussion_state import MEMORIES
from Middleware.utilities.discussions.message_places import LoggedMessage, place_of
from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.discussions.vector_memory.store import chunk_failures
from Middleware.utilities.hashing_utils import hash_content
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory import vector_memories
from Middleware.workflows.tools.memory.shared import KnownMessages
from Middleware.workflows.tools.memory.vector_memories import (
    KNOWN_HASHES,
    VectorMemoryPass,
    generate_and_store,
    new_messages,
)
from Tests.properties import examples
from Tests.stub_backend import StubBackend, chat_reply, status_reply
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, Message, llm, static, user
from Tests.workflows.tools.memory.memory_chat import MemoryChat, memory, numbered

KEY = b"MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


@pytest.fixture
def chat(lab: EngineLab) -> MemoryChat:
    return MemoryChat(lab)


def run_pass(chat: MemoryChat, messages: list[Message], request: RequestContext | None = None) -> None:
    chat.within(messages, lambda context: VectorMemoryPass(context, chat.settings, chat.folder).run(), request)


def generate(chat: MemoryChat, *pairs: tuple[str, str]) -> int:
    stored: list[int] = []
    chat.within([user("hi")], lambda context: stored.append(generate_and_store(pairs, chat.settings, context)))
    return stored[0]


def hashes(*numbers: int) -> list[str]:
    return [hash_content(f"m{number}") for number in numbers]


# -- what is new -------------------------------------------------------------------------------------------------------


@table(
    "known, logged, lookback, new",
    [
        ("abcdef", "", 2, (0, 4)),
        ("abcdef", "b", 2, (2, 4)),
        ("abcdef", "db", 2, (4, 4)),
        ("abcdef", "xb", 2, (2, 4)),
        ("abcdef", "xyz", 2, (0, 4)),
        ("abcdef", "e", 2, (4, 4)),
        ("abcdef", "eb", 2, (4, 4)),
        ("abcdef", "xe", 2, (0, 4)),
        ("abab", "a", 1, (3, 3)),
        ("aaab", "a", 2, (2, 2)),
        ("abcdef", "bd", 2, (2, 4)),
        ("ab", "", 2, (0, 0)),
        ("a", "", 3, (0, 0)),
        ("", "a", 0, (0, 0)),
        ("abc", "", 0, (0, 3)),
        ("abc", "c", -1, (3, 3)),
    ],
)
def test_new_messages(known: str, logged: str, lookback: int, new: tuple[int, int]) -> None:
    """As databases tell it that do not know where messages stood."""
    assert new_messages(KnownMessages(list(known)), [LoggedMessage(found) for found in logged], lookback) == range(*new)


@pytest.mark.parametrize(
    "then, at, now, lookback, new",
    [
        ("abab", 0, "abab", 1, (1, 3)),
        ("aaabcd", 1, "aaabcd", 2, (2, 4)),
        ("abacad", 4, "abaca", 1, (4, 4)),
        ("abacad", 4, "abaca", 0, (5, 5)),
        ("abcdef", 4, "cde", 1, (2, 2)),
        ("abcdef", 4, "cdefg", 1, (3, 4)),
    ],
)
def test_new_messages_behind_a_known_place(then: str, at: int, now: str, lookback: int, new: tuple[int, int]) -> None:
    logged = LoggedMessage(then[at], place_of(list(then), at))
    assert new_messages(KnownMessages(list(now)), [logged], lookback) == range(*new)


@examples(300)
@given(st.data())
def test_growing_edited_conversations_never_skip_a_message(data: st.DataObject) -> None:
    """Messages are unique here: whatever is edited, what is new was never processed, and what follows it is new too."""
    noted = data.draw(st.booleans())
    lookback = data.draw(st.integers(0, 4))
    messages: list[str] = []
    logged: list[LoggedMessage] = []
    counter = 0
    for _ in range(data.draw(st.integers(1, 8))):
        grown = data.draw(st.integers(0, 6))
        messages += [f"m{counter + number}" for number in range(grown)]
        counter += grown
        edit = data.draw(st.sampled_from(["none", "none", "drop last", "drop one", "change one"]))
        if messages and edit == "drop last":
            del messages[-data.draw(st.integers(1, 3)) :]
        elif messages and edit != "none":
            place = data.draw(st.integers(0, len(messages) - 1))
            messages[place : place + 1] = [] if edit == "drop one" else [f"m{counter}"]
            counter += 1
        end = max(0, len(messages) - lookback)
        new = new_messages(KnownMessages(messages), logged[:10], lookback)
        assert 0 <= new.start <= new.stop == end
        known = [message.hash for message in logged[:10]]
        if known and known[0] in messages[:end]:
            assert new.start == messages.index(known[0]) + 1
        elif known and known[0] in messages:
            assert not new
        elif not set(known) & set(messages if noted else messages[:end]):
            assert new.start == 0
        if new:
            logged.insert(0, LoggedMessage(messages[new.stop - 1], place_of(messages, new.stop - 1) if noted else None))
            assert not new_messages(KnownMessages(messages), logged[:10], lookback)  # at once again: nothing


TEXTS = st.sampled_from(["blank", "blank", "ok", "ok", "yes", "unique"])


@examples(300)
@given(st.lists(st.lists(TEXTS, min_size=1, max_size=6), min_size=1, max_size=12), st.integers(0, 4), st.data())
def test_repeats_and_blanks_neither_hide_nor_repeat_anything(
    turns: list[list[str]], lookback: int, data: st.DataObject
) -> None:
    """The newest messages may be changed as long as they are among those that are left alone."""
    messages: list[str] = []
    logged: list[LoggedMessage] = []
    processed = 0
    for turn in turns:
        messages += [f"unique {len(messages)}" if text == "unique" else text for text in turn]
        if data.draw(st.booleans()) and lookback and len(messages) > lookback + processed:
            messages[-data.draw(st.integers(1, lookback)) :] = ["ok", "blank"]
        end = max(0, len(messages) - lookback)
        new = new_messages(KnownMessages(messages), logged[:10], lookback)
        assert new == range(min(processed, end), end)
        if new:
            cut = data.draw(st.integers(new.start + 1, new.stop))  # a later chunk may fail
            logged.insert(0, LoggedMessage(messages[cut - 1], place_of(messages, cut - 1)))
            processed = cut


@examples(300)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=12),
    st.integers(0, 4),
)
def test_a_client_that_forgets_or_changes_what_is_old_hides_nothing(
    steps: list[tuple[int, int, int]], lookback: int
) -> None:
    """Every question that stays until it is old enough is looked at, though all answers and calls are alike."""
    messages: list[str] = []
    logged: list[LoggedMessage] = []
    seen: set[str] = set()
    number = 0
    steps = [(3, 0, 99), *steps]
    for grown, cut, changed in steps:
        for _ in range(grown):
            messages += [f"question {number}", "blank", "done", "ok"]
            number += 1
        del messages[:cut]
        if changed < len(messages) and messages[changed] in seen:
            seen.add(f"changed {number}")
            messages[changed] = f"changed {number}"
        new = new_messages(KnownMessages(messages), logged[:10], lookback)
        seen |= set(messages[new.start : new.stop])
        if new:
            logged.insert(0, LoggedMessage(messages[new.stop - 1], place_of(messages, new.stop - 1)))
        eligible = messages[: max(0, len(messages) - lookback)]
        assert [text for text in eligible if text.startswith("question") and text not in seen] == []


# -- trigger -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "count, raw, calls",
    [
        (3, {}, 0),
        (6, {}, 0),
        (7, {}, 1),
        (8, {}, 2),
        (13, {}, 3),
        (7, {"vectorMemoryChunkEstimatedTokenSize": 6}, 0),
        (8, {"vectorMemoryChunkEstimatedTokenSize": 1000}, 1),
        (7, {"vectorMemoryChunkEstimatedTokenSize": 1000}, 0),
        (7, {"vectorMemoryChunkEstimatedTokenSize": "1000", "vectorMemoryMaxMessagesBetweenChunks": "4"}, 1),
        (8, {"lookbackStartTurn": 6}, 0),
        (2, {"lookbackStartTurn": 0, "vectorMemoryMaxMessagesBetweenChunks": 2}, 1),
        (7, {"wilmerContextEstimationLevel": "balanced"}, 0),
        (13, {"wilmerContextEstimationLevel": "xaggressive"}, 2),
    ],
)
def test_trigger(chat: MemoryChat, count: int, raw: dict[str, Any], calls: int) -> None:
    chat.raw |= raw
    run_pass(chat, numbered(count))
    assert len(chat.lab.prompts) == calls


def test_tables_are_there_even_if_nothing_is_new(chat: MemoryChat) -> None:
    run_pass(chat, numbered(2))
    assert chat.texts == [] and chat.logged == []


def test_memories_rows_and_hashes(chat: MemoryChat) -> None:
    run_pass(chat, [{"role": "system", "content": "S"}, *numbered(13)])
    assert chat.lab.prompts == ["m0\nm1", "m2\nm3\nm4\nm5", "m6\nm7\nm8\nm9"]
    assert chat.texts == [f"about {prompt}" for prompt in chat.lab.prompts]
    assert chat.logged == hashes(1, 5, 9)
    assert json.loads(chat.rows("SELECT metadata_json FROM memories")[0]) == memory("about m0\nm1")


def test_nothing_twice(chat: MemoryChat) -> None:
    run_pass(chat, numbered(13))
    run_pass(chat, numbered(13))
    run_pass(chat, numbered(16))
    assert len(chat.texts) == 3
    run_pass(chat, numbered(18))
    assert chat.texts[3:] == ["about m10", "about m11\nm12\nm13\nm14"]


def test_a_pass_that_sees_an_earlier_state_of_the_conversation_repeats_nothing(chat: MemoryChat) -> None:
    """The pass of a request that had to wait, or of one that was sent after going back, many chunks before the last."""
    run_pass(chat, numbered(80))
    written = len(chat.lab.prompts)
    assert written == 2 * KNOWN_HASHES
    for count in range(1, 80):
        run_pass(chat, numbered(count))
    assert len(chat.lab.prompts) == written
    # Taken up again there, and then on the old way once more.
    another = [*numbered(20), *numbered(60, 100)]
    run_pass(chat, another)
    assert [prompt for prompt in chat.lab.prompts[written:] if not prompt.startswith("m1")] == []
    written = len(chat.lab.prompts)
    for count in (*range(1, 80), 80):
        run_pass(chat, numbered(count))
        run_pass(chat, another[:count])
    assert len(chat.lab.prompts) == written
    run_pass(chat, numbered(84))
    assert chat.lab.prompts[written:] == ["m77\nm78\nm79\nm80"]


def test_far_back_only_positions_count() -> None:
    """Earlier versions stored none."""
    places = [None if number % 3 else place_of(["a", "b"], 1) for number in range(2 * KNOWN_HASHES)]
    log = [LoggedMessage(f"m{number}", place) for number, place in enumerate(places)]
    memories: Any = SimpleNamespace(logged_messages=lambda limit, with_origin: log[:limit])
    read = list(vector_memories._logged(memories))
    assert read == log[:KNOWN_HASHES] + [message for message in log[KNOWN_HASHES:] if message.place is not None]


PLAIN: Message = {"role": "assistant", "content": "ok"}
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


def with_tools(number: int) -> list[Message]:
    return [user(f"question {number}"), CALL, {"role": "tool", "tool_call_id": "1", "content": "done"}, PLAIN]


def with_repeats(number: int) -> list[Message]:
    return [user("ok"), PLAIN, PLAIN, user(f"question {number}")]


@pytest.mark.slow
@pytest.mark.parametrize("turn", [with_tools, with_repeats])
@pytest.mark.parametrize("encryption_key", [None, KEY], ids=["clear", "encrypted"])
def test_no_turn_of_a_chat_with_equal_messages_is_lost(lab: EngineLab, turn: Any, encryption_key: bytes | None) -> None:
    chat = MemoryChat(lab, encryption_key=encryption_key)
    messages: list[Message] = []
    for number in range(38):
        for message in turn(number):
            messages.append(message)
            if message["role"] == "user":
                run_pass(chat, messages)
    asked = re.findall(r"question (\d+)", "\n".join(chat.lab.prompts))
    assert asked == [str(number) for number in range(len(asked))] and len(asked) >= 36


def test_a_database_without_places_goes_on_as_before(chat: MemoryChat) -> None:
    run_pass(chat, numbered(13))
    with closing(sqlite3.connect(chat.folder.vector_database())) as database:
        database.execute("DROP TABLE vector_memory_hash_places")
        database.commit()
    run_pass(chat, numbered(18))
    assert chat.logged == hashes(1, 5, 9, 10, 14) and len(chat.rows("SELECT * FROM vector_memory_hash_places")) == 2


def test_hash_and_place_are_stored_together(chat: MemoryChat) -> None:
    run_pass(chat, numbered(2))
    with closing(sqlite3.connect(chat.folder.vector_database())) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON vector_memory_hash_places BEGIN SELECT RAISE(FAIL, 'disk full'); END"
        )
        database.commit()
    run_pass(chat, numbered(13))
    assert chat.texts == [] and chat.logged == []


def test_a_place_that_cannot_be_read_is_none(chat: MemoryChat) -> None:
    run_pass(chat, numbered(13))
    with closing(sqlite3.connect(chat.folder.vector_database())) as database:
        database.execute("UPDATE vector_memory_hash_places SET place = '{'")
        database.commit()
    run_pass(chat, numbered(18))
    assert chat.logged == hashes(1, 5, 9, 10, 14)


def test_a_chunk_that_is_given_up_is_known_by_its_place(chat: MemoryChat) -> None:
    chat.answers = lambda chunk: "nothing"
    messages = [message for number in range(3) for message in with_tools(number)]
    for _ in range(4):
        run_pass(chat, messages)
    places = chat.rows("SELECT place FROM vector_memory_hash_places")
    assert len(places) == 1 == len(chat.logged) and json.loads(places[0])["index"] < 8


@pytest.mark.parametrize("deleted", [(11, 12), (0, 1), (3, 7)])
def test_deleted_messages_bring_nothing_back(chat: MemoryChat, deleted: tuple[int, int]) -> None:
    run_pass(chat, numbered(13))
    run_pass(chat, [message for number, message in enumerate(numbered(13)) if number not in deleted])
    assert len(chat.lab.prompts) == 3


def test_a_conversation_that_is_no_more_the_same_is_all_new(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    run_pass(chat, numbered(8))
    assert "is known any more" not in caplog.text
    run_pass(chat, numbered(8, 100))
    assert chat.lab.prompts[2:] == ["m100", "m101\nm102\nm103\nm104"] and "is known any more" in caplog.text


def test_braces_hash_in_their_escaped_form_and_reach_the_llm_as_written(chat: MemoryChat) -> None:
    escaped = "a__WILMER_L_CURLY__b__WILMER_R_CURLY__"
    chat.raw |= {"lookbackStartTurn": 0, "vectorMemoryMaxMessagesBetweenChunks": 1}
    run_pass(chat, [user(escaped)])
    assert chat.logged == [hash_content(escaped)] and chat.texts == ["about a{b}"]


# -- answers -----------------------------------------------------------------------------------------------------------


def test_items_without_a_summary_are_left_out(chat: MemoryChat) -> None:
    chat.answers = lambda chunk: json.dumps(
        [{"title": "x"}, memory("one", entities=None), memory(["no"]), memory("two", topics=["zoo"])]
    )
    assert generate(chat, ("text", "h1")) == 2
    assert chat.texts == ["one", "two"] and chat.logged == ["h1"]


def test_topics_are_found_only_if_wanted(chat: MemoryChat) -> None:
    chat.answers = lambda chunk: json.dumps(memory(chunk, topics=["zoo"]))
    generate(chat, ("without", "h1"))
    chat.raw["vectorMemoryIndexTopics"] = True
    generate(chat, ("with", "h2"))
    with chat.folder.memories() as memories:
        assert [row["memory_text"] for row in memories.keyword_search("zoo")] == ["with"]


@pytest.mark.parametrize("bad", ["I cannot do that.", "", "[{}]", '{"title": "cut'])
def test_an_unusable_answer_stops_the_pass(chat: MemoryChat, bad: str) -> None:
    good, chat.answers = chat.answers, lambda chunk: bad if chunk == "m0\nm1" else good(chunk)
    run_pass(chat, numbered(13))
    assert chat.logged == [] and chat.lab.prompts == ["m0\nm1"]
    chat.answers = good
    run_pass(chat, numbered(13))
    assert chat.lab.prompts[1] == "m0\nm1" and chat.logged == hashes(1, 5, 9)


def test_chunks_before_the_bad_one_stay(chat: MemoryChat) -> None:
    good, chat.answers = chat.answers, lambda chunk: "bad" if "m2" in chunk else good(chunk)
    run_pass(chat, numbered(13))
    assert chat.logged == hashes(1) and chat.texts == ["about m0\nm1"]


@pytest.mark.parametrize("nothing", ["[]", "```json\n[]\n```", '{"memories": []}', "Nothing to note: []"])
def test_nothing_worth_keeping_is_not_asked_again(
    chat: MemoryChat, caplog: pytest.LogCaptureFixture, nothing: str
) -> None:
    chat.answers = lambda chunk: nothing
    run_pass(chat, numbered(8))
    assert chat.texts == [] and chat.logged == hashes(0, 4)
    run_pass(chat, numbered(8))
    assert len(chat.lab.prompts) == 2
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == [
        "Discussion k1: the model found nothing worth remembering in 2 of 2 chunks; it is not asked again about them"
    ]


@table(
    ("answer", "kept", "told"),
    [
        ("null", 0, "an answer of 4 characters holds no memories as JSON"),
        ("", 0, "an answer of 0 characters holds no memories as JSON"),
        ('{"memories": null}', 0, "an answer of 18 characters holds no memories as JSON"),
        ('[{"text": "a"}]', 0, "an answer of 15 characters holds no memories as JSON"),
        (json.dumps([memory("a"), {"title": "b", "summary": "b"}, "c"]), 1, "Of 3 memories in one answer 1 are kept"),
    ],
)
def test_an_answer_without_all_that_was_asked_for_leaves_a_line(
    lab: EngineLab, caplog: pytest.LogCaptureFixture, answer: str, kept: int, told: str
) -> None:
    chat = MemoryChat(lab, f"k{len(answer)}")
    chat.answers = lambda chunk: answer
    generate(chat, (answer or "blank", "h1"))
    assert len(chat.texts) == kept
    assert any(told in record.getMessage() for record in caplog.records if record.levelname == "WARNING")


def test_one_bad_chunk_does_not_block_the_conversation(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    good, chat.answers = chat.answers, lambda chunk: "SECRET words" if "m0" in chunk else good(chunk)
    with caplog.at_level(logging.INFO):
        for attempt in (1, 2, 3):
            run_pass(chat, numbered(13))
            assert chat.logged == (hashes(1) if attempt == 3 else [])
    assert [record.levelname for record in caplog.records if "memories were made" in record.message] == ["WARNING"] * 2
    assert [
        record.message
        for record in caplog.records
        if record.levelname == "ERROR" and "is left without memories" in record.message and "3 times" in record.message
    ]
    assert "SECRET" not in caplog.text
    run_pass(chat, numbered(13))
    assert chat.logged == hashes(1, 5, 9)


def test_a_bad_beginning_does_not_block_a_growing_conversation(chat: MemoryChat) -> None:
    """With each turn the chunks end elsewhere, so no chunk fails twice; what fails begins at the same place."""
    good, chat.answers = chat.answers, lambda chunk: "bad" if "m2\n" in f"{chunk}\n" else good(chunk)
    for count, logged in ((13, [1]), (14, [1]), (15, [1, 3])):
        run_pass(chat, numbered(count))
        assert chat.logged == hashes(*logged)
    run_pass(chat, numbered(15))
    assert chat.logged == hashes(1, 3, 7, 11)


def test_successes_in_between_start_the_count_again(chat: MemoryChat) -> None:
    for answers in (["x", "x", "[]"], ["x", "x"]):
        for answer in answers:
            chat.answers = lambda chunk, answer=answer: answer  # type: ignore[misc]
            generate(chat, ("text", "h1"))
    assert chat.logged == ["h1"]


@pytest.mark.parametrize("status, logged", [(400, ["h1"]), (401, [])])
def test_only_failures_that_may_be_the_chunks_fault_count(chat: MemoryChat, status: int, logged: list[str]) -> None:
    chat.lab.backend.responder = lambda request: status_reply(status)
    for _ in range(3):
        assert generate(chat, ("text", "h1")) == 0
    assert chat.logged == logged


def failover(cause: Exception) -> FailoverError:
    error = FailoverError("x")
    error.__cause__ = cause
    return error


@table(
    "error, blames",
    [
        (BackendStatusError("x", status=500), True),
        (BackendStatusError("x", status=413), True),
        (BackendStatusError("x", status=503), False),
        (BackendStatusError("x", status=429), False),
        (BackendConnectionError("x"), False),
        (BackendTimeoutError("x"), True),
        (BackendResponseError("x"), True),
        (GateTimeoutError("x"), False),
        (ConfigValueError("x"), False),
        (UnreadableDataError("x"), False),
        (failover(BackendConnectionError("x")), False),
        (failover(BackendStatusError("x", status=500)), True),
        (EarlyTerminationException("x", LOCKED), False),
        (FailoverError("x"), True),
        (RuntimeError("x"), True),
        (KeyError("x"), True),
    ],
)
def test_whose_fault_it_may_be(error: Exception, blames: bool) -> None:
    assert vector_memories._blames_text(error) is blames


def test_a_wrong_endpoint_name_costs_no_chunk(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    chat.raw["vectorMemoryEndpointName"] = "Mian"
    for _ in range(4):
        generate(chat, ("text", "h1"))
    assert chat.logged == [] and "Mian" in caplog.text


def test_blank_chunks_are_skipped(chat: MemoryChat) -> None:
    assert generate(chat, (" \n", "h0"), ("text", "h1")) == 1 and chat.logged == ["h1"]


# -- who answers -------------------------------------------------------------------------------------------------------


def test_direct_call_with_the_built_in_prompts(chat: MemoryChat) -> None:
    del chat.raw["vectorMemoryPrompt"]
    generate(chat, ("Mara said [TextChunk].", "h1"))
    system, prompt = (message["content"] for message in chat.lab.backend.requests[0].json["messages"])
    for key in ("title", "summary", "entities", "key_phrases"):
        assert f'"{key}"' in system
    assert '[{"title"' in system and "Mara said [TextChunk]." in prompt and prompt.count("[TextChunk]") == 1


def test_direct_call_with_own_prompts_endpoint_and_length(chat: MemoryChat) -> None:
    chat.lab.endpoint("Other", {"modelNameToSendToAPI": "model-y"}, chat.lab.backend.url)
    chat.raw |= {
        "vectorMemorySystemPrompt": "S {Discussion_Id}",
        "vectorMemoryPrompt": "P [TextChunk]",
        "vectorMemoryEndpointName": "Other",
        "vectorMemoryMaxResponseSizeInTokens": 77,
    }
    generate(chat, ("x", "h1"))
    sent = chat.lab.backend.requests[0].json
    assert [message["content"] for message in sent["messages"]] == ["S k1", "P x"]
    assert sent["model"] == "model-y" and sent["max_tokens"] == 77


def test_workflow(chat: MemoryChat) -> None:
    chat.raw["vectorMemoryWorkflowName"] = "Writer"
    chat.lab.workflow("Writer", [llm("W {agent1Input}")])
    assert generate(chat, ("x {y}", "h1")) == 1
    assert chat.texts == ["about W x {y}"]


def test_workflow_whose_result_holds_braces(chat: MemoryChat) -> None:
    chat.raw["vectorMemoryWorkflowName"] = "Writer"
    chat.lab.workflow("Writer", [static("{agent1Input}")])
    escaped = json.dumps(memory("s")).replace("{", "__WILMER_L_CURLY__").replace("}", "__WILMER_R_CURLY__")
    assert generate(chat, (escaped, "h1")) == 1 and chat.texts == ["s"]


def test_no_workflow_of_that_name(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    chat.raw["vectorMemoryWorkflowName"] = "Missing"
    assert generate(chat, ("x", "h1")) == 0 and "Missing" in caplog.text and chat.logged == []


def test_without_a_name_for_the_conversation(chat: MemoryChat) -> None:
    chat.discussion_id = ""
    assert generate(chat, ("x", "h1")) == 0 and chat.lab.prompts == []


# -- after the memories ------------------------------------------------------------------------------------------------


def embedding(chat: MemoryChat, url: str | None = None) -> None:
    chat.lab.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
    chat.lab.endpoint(
        "Embed", {"apiTypeConfigFileName": "Embed", "modelNameToSendToAPI": "vec"}, url or chat.lab.backend.url
    )
    chat.raw["embeddingEndpointName"] = "Embed"


def test_vectors_for_new_and_for_older_memories(chat: MemoryChat) -> None:
    generate(chat, ("old", "h0"))
    embedding(chat)
    generate(chat, ("x", "h1"))
    assert chat.rows("SELECT memory_id, model FROM memory_embeddings ORDER BY memory_id") == [(1, "vec"), (2, "vec")]


def test_no_vectors_for_nothing(chat: MemoryChat) -> None:
    embedding(chat)
    chat.answers = lambda chunk: "[]"
    generate(chat, ("x", "h1"))
    assert [request.path for request in chat.lab.backend.requests if "embed" in request.path] == []


def test_what_follows_the_memories_may_fail(
    chat: MemoryChat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("SECRET")

    embedding(chat)
    chat.raw |= {"useStateDocument": True, "stateDocumentWorkflowName": "Missing"}
    monkeypatch.setattr(vector_memories, "embed_new_rows", fail)
    assert generate(chat, ("x", "h1"), ("y", "h2")) == 2 and chat.logged == ["h1", "h2"]
    assert "SECRET" not in caplog.text and "got no vectors: RuntimeError" in caplog.text and "Missing" in caplog.text


def test_after_a_failed_embedding_the_pass_embeds_no_more(chat: MemoryChat) -> None:
    """A server that hangs would hold up each chunk by minutes. The next pass fills the gap."""
    embedding(chat)
    respond = chat.lab.backend.responder
    chat.lab.backend.responder = lambda request: status_reply(503) if "embed" in request.path else respond(request)
    assert generate(chat, ("x", "h1"), ("y", "h2"), ("z", "h3")) == 3
    assert len([request for request in chat.lab.backend.requests if "embed" in request.path]) == 1
    chat.lab.backend.responder = respond
    assert generate(chat, ("v", "h4"), ("w", "h5")) == 2
    assert len(chat.rows("SELECT memory_id FROM memory_embeddings")) == 5


def locked(chat: MemoryChat, name: str) -> None:
    chat.lab.workflow(name, [{"type": "WorkflowLock", "workflowLockId": "L1"}, llm("after {agent1Input}")])


@pytest.fixture
def held(chat: MemoryChat) -> Iterator[None]:
    """Somebody else's request holds the lock L1."""
    assert get_locking_service().acquire("L1", "somebody else's run")
    yield
    get_locking_service().release("somebody else's run")


def test_a_held_lock_in_the_workflow_of_memories_is_a_failure_that_does_not_count(
    chat: MemoryChat, held: None, caplog: pytest.LogCaptureFixture
) -> None:
    chat.raw["vectorMemoryWorkflowName"] = "Writer"
    locked(chat, "Writer")
    for _ in range(4):
        run_pass(chat, numbered(13))
    assert chat.logged == [] == chat.texts and "it is tried again" in caplog.text
    assert process().one(chunk_failures).keys() == []


def test_a_held_lock_in_the_workflow_of_the_state_document_costs_that_alone(
    chat: MemoryChat, held: None, caplog: pytest.LogCaptureFixture
) -> None:
    chat.raw |= {"useStateDocument": True, "stateDocumentWorkflowName": "State"}
    locked(chat, "State")
    run_pass(chat, numbered(13))
    assert chat.logged == hashes(1, 5, 9) and "state_document.md is not updated" in caplog.text


@pytest.mark.parametrize("reason, passes", [(CANCELLED, True), (LOCKED, False)])
def test_only_a_cancellation_leaves_the_embedding(
    chat: MemoryChat, monkeypatch: pytest.MonkeyPatch, reason: str, passes: bool
) -> None:
    def stop(*args: Any) -> int:
        raise EarlyTerminationException("stopped", reason)

    embedding(chat)
    monkeypatch.setattr(vector_memories, "embed_new_rows", stop)
    with pytest.raises(EarlyTerminationException) if passes else contextlib.nullcontext():
        run_pass(chat, numbered(13))
    assert chat.logged == (hashes(1) if passes else hashes(1, 5, 9))


def test_facts_reach_the_state_document(chat: MemoryChat) -> None:
    chat.raw |= {"useStateDocument": True, "stateDocumentWorkflowName": "State"}
    chat.lab.workflow("State", [static("{agent2Input}{agent1Input};")])
    chat.answers = lambda chunk: json.dumps([memory(f"{chunk} one"), memory(f"{chunk} two")])
    generate(chat, ("x", "h1"), ("y", "h2"))
    assert Path(chat.folder.plain_file("state_document.md")).read_text("utf-8") == "- x one\n- x two;- y one\n- y two;"


# -- failures, crashes, company ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["llm", "state document"])
def test_a_cancelled_request_stores_nothing_more(chat: MemoryChat, moment: str) -> None:
    request = RequestContext(request_id="r-9")
    good = chat.answers

    def answer(chunk: str) -> str:
        if chunk == ("m2\nm3\nm4\nm5" if moment == "llm" else "state"):
            request.cancel_scope.cancel()
        return good(chunk)

    chat.answers = answer
    if moment != "llm":
        chat.raw |= {"useStateDocument": True, "stateDocumentWorkflowName": "State"}
        chat.lab.workflow("State", [llm("state")])
    with pytest.raises(EarlyTerminationException):
        run_pass(chat, numbered(13), request)
    assert chat.logged == hashes(1) and chat.texts == ["about m0\nm1"]
    assert process().one(chunk_failures).keys() == []
    chat.raw["useStateDocument"] = False
    run_pass(chat, numbered(13))
    assert chat.logged == hashes(1, 5, 9) and len(chat.texts) == 3


@pytest.mark.parametrize("after", [True, False])
def test_a_crash_costs_nothing_and_doubles_nothing(
    chat: MemoryChat, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    class Crash(BaseException):
        pass

    store = VectorMemories.store_chunk

    def crash(self: VectorMemories, items: Any, message_hash: str | None, *args: Any, **more: Any) -> list[int]:
        if message_hash != hashes(5)[0]:
            return store(self, items, message_hash, *args, **more)
        if after:
            store(self, items, message_hash, *args, **more)
        raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(VectorMemories, "store_chunk", crash)
        run_pass(chat, numbered(13))
    assert chat.logged == (hashes(1, 5) if after else hashes(1))
    run_pass(chat, numbered(18))
    assert "\n".join(text.removeprefix("about ") for text in chat.texts) == "\n".join(f"m{n}" for n in range(15))


def test_what_another_worker_has_written_ends_the_pass_with_one_warning(
    chat: MemoryChat, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def conflict(*_: object, **more: object) -> None:
        raise StateConflictError

    with monkeypatch.context() as patch:
        patch.setattr(VectorMemories, "store_chunk", conflict)
        run_pass(chat, numbered(13))
    told = [(record.levelname, record.message) for record in caplog.records if record.levelno > logging.INFO]
    assert [level for level, _ in told] == ["WARNING"] and "another worker has changed it in the meantime" in told[0][1]
    run_pass(chat, numbered(13))
    assert len(chat.texts) == 3


def test_a_database_that_is_none_costs_only_memories(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    chat.folder.create()
    path = Path(chat.folder.vector_database())
    path.write_bytes(b"this is no database" * 100)
    run_pass(chat, numbered(13))
    assert "could not be stored" in caplog.text and path.read_bytes() == b"this is no database" * 100


def test_a_database_error_stops_the_pass_unlogged(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    run_pass(chat, numbered(2))
    with closing(sqlite3.connect(chat.folder.vector_database())) as database:
        database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON vector_memory_hash_log BEGIN SELECT RAISE(FAIL, 'disk full'); END"
        )
        database.commit()
    run_pass(chat, numbered(13))
    assert chat.texts == [] and len(chat.lab.prompts) == 1 and "disk full" in caplog.text


def test_memories_of_another_key(lab: EngineLab) -> None:
    chat = MemoryChat(lab, encryption_key=KEY)
    run_pass(chat, numbered(8))
    assert "about" not in " ".join(chat.texts) and chat.logged == hashes(0, 4)
    chat.encryption_key = KEY[::-1].replace(b"=", b"") + b"="
    with pytest.raises(DataKeyError):
        run_pass(chat, numbered(18))


def test_two_requests_at_once_make_no_memory_twice(chat: MemoryChat) -> None:
    good = chat.answers

    def slow(chunk: str) -> str:
        time.sleep(0.1)
        return good(chunk)

    chat.answers = slow
    contexts: list[ExecutionContext] = []
    for _ in range(3):
        chat.within(numbered(13), contexts.append)
    threads = [
        threading.Thread(target=VectorMemoryPass(context, chat.settings, chat.folder).run) for context in contexts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert chat.logged == hashes(1, 5, 9) and len(chat.texts) == 3 and len(chat.lab.prompts) == 3


def test_memories_wait_for_the_next_time_if_the_turn_never_comes(
    chat: MemoryChat, caplog: pytest.LogCaptureFixture
) -> None:
    chat.raw["condensationLockTimeoutSeconds"] = 0.05
    with chat.folder.lock(MEMORIES):
        run_pass(chat, numbered(13))
        assert generate(chat, ("x", "h1")) == 0
    assert "another request is working" in caplog.text and chat.lab.prompts == [] and chat.logged == []


def test_one_line_for_the_operator(chat: MemoryChat, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        run_pass(chat, numbered(13))
        run_pass(chat, numbered(13))
    lines = [record.message for record in caplog.records if record.name.startswith(vector_memories.__package__)]
    assert len(lines) == 1 and "k1: 3 of 3 chunks" in lines[0] and "3 stored" in lines[0]


def test_a_second_answer_is_asked_only_for_what_failed(chat: MemoryChat) -> None:
    chat.lab.backend.responder = None
    chat.lab.backend.script(chat_reply(json.dumps(memory("one"))), chat_reply("?"))
    run_pass(chat, numbered(13))
    chat.lab.backend.script(chat_reply(json.dumps(memory("two"))), chat_reply(json.dumps(memory("three"))))
    run_pass(chat, numbered(13))
    assert chat.texts == ["one", "two", "three"]
