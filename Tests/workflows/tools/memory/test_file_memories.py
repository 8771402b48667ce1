"""File memories: when they are made, from what, and what is kept when something goes wrong."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import DataKeyError, EarlyTerminationException
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.memory.memory_settings import load_memory_settings
from Middleware.utilities.discussion_state import MEMORIES
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.utilities.encryption_utils import derive_encryption_key
from Middleware.utilities.files.file_access import process_lock
from Middleware.utilities.hashing_utils import hash_content
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Middleware.workflows.tools.memory import shared
from Middleware.workflows.tools.memory.file_memories import MemoryWriter
from Middleware.workflows.tools.slow_but_quality_rag_tool import SlowButQualityRAGTool
from Tests.stub_backend import Reply, StubBackend, chat_reply, status_reply
from Tests.workflows.engine_lab import last_text, llm, static, user
from Tests.workflows.tools.memory.memory_lab import MemoryLab, chat, covering, said

LINE = "\n--------------\n"
NONE = "No preceding memories to show"
WORD = "word " * 1000  # 1571 tokens


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryLab]:
    with StubBackend() as backend:
        yield MemoryLab(tmp_path, monkeypatch, backend)


def open_file(lab: MemoryLab) -> None:
    lab.remember(chat(3))
    assert lab.stored() == []


# -- when --------------------------------------------------------------------------------------------------------------


def test_two_messages_touch_nothing(lab: MemoryLab) -> None:
    lab.remember([{"role": "system", "content": "s"}, user("a")])
    assert not (lab.root / "discussions").exists()


def test_no_discussion_touches_nothing(lab: MemoryLab) -> None:
    lab.remember(chat(20), discussion_id=None)
    assert not (lab.root / "discussions").exists() and lab.prompts == []


def test_one_system_and_two_others_make_the_file(lab: MemoryLab) -> None:
    lab.remember([{"role": "system", "content": "s"}, *chat(2)])
    assert lab.stored() == []


@pytest.mark.parametrize(
    ("turns", "spans"), [((7,), []), ((8,), [(0, 4)]), ((8, 12), [(0, 4)]), ((8, 13), [(0, 4), (5, 9)])]
)
def test_messages_make_memories_where_a_file_is(
    lab: MemoryLab, turns: tuple[int, ...], spans: list[tuple[int, int]]
) -> None:
    open_file(lab)
    for count in turns:
        lab.remember(chat(count))
    assert lab.stored() == covering(*spans)


def test_new_discussion_waits_for_the_second_request(lab: MemoryLab) -> None:
    lab.remember(chat(20))
    assert lab.stored() == []
    lab.remember(chat(20))
    assert lab.stored() == covering((0, 16))


def test_chunks_come_in_order(lab: MemoryLab) -> None:
    lab.settings(chunkEstimatedTokenSize=5)
    lab.remember(said(*(f"{number:x}" for number in range(20))))
    assert [text.count("\n") + 1 for text, _ in lab.stored()] == [1, 4, 4, 4, 4]
    assert [stored for _, stored in lab.stored()] == [hash_content(last) for last in ("0", "4", "8", "c", "10")]


def test_text_makes_memories_without_a_file(lab: MemoryLab) -> None:
    lab.backend.responder = lambda request: chat_reply("A thousand words.")
    lab.remember([user(WORD), *chat(3)])
    assert len(lab.stored()) == 1


@pytest.mark.parametrize(
    ("level", "size", "count"), [(None, 1571, 1), (None, 1572, 0), ("balanced", 1258, 0), ("balanced", 1257, 1)]
)
def test_level_and_threshold(lab: MemoryLab, level: str | None, size: int, count: int) -> None:
    lab.backend.responder = lambda request: chat_reply("A thousand words.")
    lab.settings(chunkEstimatedTokenSize=size, wilmerContextEstimationLevel=level)
    lab.remember([user(WORD), *chat(3)])
    assert len(lab.stored()) == count


def test_no_lookback_means_all(lab: MemoryLab) -> None:
    lab.settings(lookbackStartTurn=0)
    open_file(lab)
    lab.remember(chat(5))
    assert lab.stored() == covering((0, 4))


def test_numbers_in_texts(lab: MemoryLab) -> None:
    lab.settings(lookbackStartTurn="1", maxMessagesBetweenChunks="2")
    open_file(lab)
    lab.remember(chat(3))
    assert lab.stored() == covering((0, 1))


def test_system_messages_do_not_count(lab: MemoryLab) -> None:
    open_file(lab)
    lab.remember([{"role": "system", "content": "S"}, *chat(8)[:4], {"role": "system", "content": "T"}, *chat(8)[4:]])
    assert lab.stored() == covering((0, 4))


def test_tool_and_image_messages_count(lab: MemoryLab) -> None:
    open_file(lab)
    messages = [
        {"role": "tool", "content": "t", "tool_call_id": "1"},
        {"role": "user", "content": "", "images": ["i"]},
        *chat(6, 2),
    ]
    lab.remember(messages)
    assert lab.stored() == [("<t\n\nm2\nm3\nm4>", hash_content("m4"))]


def test_vector_setting_can_be_overridden(lab: MemoryLab) -> None:
    lab.settings(useVectorForQualityMemory=True)
    lab.remember(chat(3), force=True)
    assert lab.stored() == []


# -- what the model sees -----------------------------------------------------------------------------------------------


def test_memories_so_far_and_summary(lab: MemoryLab) -> None:
    lab.put("x1", "x2", "x3", "x4", texts=["1", "2", "3", "4 "])
    lab.store.save_summary(" all\n", "h")
    lab.settings(prompt="[Memory_file]#[Full_Memory_file]#[Chat_Summary]#[TextChunk]", chunkEstimatedTokenSize=5)
    lab.backend.script(chat_reply("5"), chat_reply("6"))
    lab.backend.responder = None
    lab.remember(said("a", "b", "c", "d", "e", *"xyz"))
    assert lab.prompts == [
        f"2{LINE}3{LINE}4#1{LINE}2{LINE}3{LINE}4#all#a",
        f"3{LINE}4 {LINE}5#1{LINE}2{LINE}3{LINE}4 {LINE}5#all#b\nc\nd\ne",
    ]
    assert [text for text, _ in lab.stored()] == ["1", "2", "3", "4 ", "5", "6"]


def test_nothing_known_yet(lab: MemoryLab) -> None:
    lab.settings(prompt="[Memory_file]#[Full_Memory_file]#[Chat_Summary]", systemPrompt="S [TextChunk]")
    open_file(lab)
    lab.remember(chat(8))
    sent = lab.backend.requests[0].json["messages"]
    assert [message["content"] for message in sent] == [
        "S m0\nm1\nm2\nm3\nm4",
        f"{NONE}#{NONE}#There is not yet a summary file",
    ]


def test_variables_come_first_and_only_in_the_template(lab: MemoryLab) -> None:
    lab.put("x", texts=["{Discussion_Id} [TextChunk]"])
    lab.settings(prompt="{Discussion_Id}:[Memory_file]:[TextChunk]", maxMessagesBetweenChunks=1)
    lab.remember(said(escape_braces("{Discussion_Id} [Memory_file]"), "a", "b", "c"))
    assert lab.prompts == ["d1:{Discussion_Id} [TextChunk]:{Discussion_Id} [Memory_file]"]


def test_hash_is_of_the_escaped_form_and_text_has_real_braces(lab: MemoryLab) -> None:
    lab.settings(maxMessagesBetweenChunks=1)
    open_file(lab)
    lab.remember(said(escape_braces("a{b}"), "1", "2", "3"))
    assert lab.stored() == [("<a{b}>", "4b16edada62bacf05a9fd2ecce27eb6143d71cc153bad51aacdfb9dbb582bd8b")]


def test_thoughts_are_cut(lab: MemoryLab) -> None:
    lab.endpoint(
        "Main", {"removeThinking": True, "startThinkTag": "<think>", "endThinkTag": "</think>"}, lab.backend.url
    )
    lab.backend.responder = lambda request: chat_reply("<think>x</think>fact")
    open_file(lab)
    lab.remember(chat(8))
    assert lab.stored() == [("fact", hash_content("m4"))]


@pytest.mark.parametrize(
    "thought",
    ["<think>A thought that", "\n<THINKING>\nA thought", "[THINK]A thought", "[[T]] own tags", "<think>a</thinking>"],
)
def test_a_thought_without_an_end_is_no_memory(lab: MemoryLab, caplog: pytest.LogCaptureFixture, thought: str) -> None:
    lab.endpoint("Main", {"removeThinking": True, "startThinkTag": "[[t]]", "endThinkTag": "[[/t]]"}, lab.backend.url)
    open_file(lab)
    lab.backend.responder = lambda request: chat_reply(thought, "length")
    lab.remember(chat(8))
    assert lab.stored() == []
    assert "Endpoint 'Main': the model did not finish thinking (finish reason: length)" in caplog.text
    lab.backend.responder = lambda request: chat_reply("fact about <think> tags")
    lab.remember(chat(8))
    assert lab.stored() == [("fact about <think> tags", hash_content("m4"))]


@pytest.mark.parametrize("reason", ["content_filter", "SAFETY", "error", "network_error"])
def test_a_refused_or_failed_answer_is_no_memory(lab: MemoryLab, reason: str) -> None:
    open_file(lab)
    lab.backend.responder = lambda request: chat_reply("I cannot talk about", reason)
    lab.remember(chat(8))
    assert lab.stored() == []
    lab.backend.responder = lambda request: chat_reply("fact")
    lab.remember(chat(8))
    assert lab.stored() == [("fact", hash_content("m4"))], "the next request tries it again"


@pytest.mark.parametrize("nested", [False, True])
def test_a_refused_answer_of_a_workflow_is_no_memory(lab: MemoryLab, nested: bool) -> None:
    lab.workflow("Inner", [llm("Sum it up: {agent1Input}")])
    inner = {"type": "CustomWorkflow", "workflowName": "Inner", "scoped_variables": ["{agent1Input}"]}
    lab.workflow("Maker", [static("x"), inner if nested else llm("Sum it up: {agent1Input}")])
    lab.settings(fileMemoryWorkflowName="Maker")
    open_file(lab)
    lab.backend.responder = lambda request: chat_reply("I cannot talk about", "content_filter")
    lab.remember(chat(8))
    assert lab.stored() == []
    lab.backend.responder = lambda request: chat_reply("fact")
    lab.remember(chat(8))
    assert lab.stored() == [("fact", hash_content("m4"))]


def test_an_answer_at_its_limit_is_a_memory_and_logged(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    open_file(lab)
    lab.backend.responder = lambda request: chat_reply("fact", "MAX_TOKENS")
    lab.remember(chat(8))
    assert lab.stored() == [("fact", hash_content("m4"))]
    assert [line for line in caplog.messages if "maxResponseSizeInTokens" in line and "Endpoint 'Main'" in line]


def test_a_workflows_thought_without_an_end_is_no_memory(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.workflow("Maker", [static("<think>A thought")])
    lab.settings(fileMemoryWorkflowName="Maker")
    for count in (3, 8):
        lab.remember(chat(count))
    assert lab.store.memories() == [] and "no memory: the answer is unfinished reasoning" in caplog.text


def test_workflow_gets_the_inputs(lab: MemoryLab) -> None:
    lab.put("x1", "x2", "x3", "x4", texts=["1", "2{a}", "3", "4"])
    lab.store.save_summary("sum", "h")
    lab.settings(fileMemoryWorkflowName="Maker", endpointName=..., prompt=...)
    lab.workflow("Maker", [static("{agent1Input}|{agent2Input}|{agent3Input}|{agent4Input}|{Discussion_Id}")])
    lab.remember(said(escape_braces("{agent2Input}"), "b", "c", "d", "e", *"xyz"))
    assert lab.stored()[-1] == (
        f"{{agent2Input}}\nb\nc\nd\ne|2{{a}}{LINE}3{LINE}4|1{LINE}2{{a}}{LINE}3{LINE}4|sum|d1",
        hash_content("e"),
    )


def test_unicode_survives_and_is_escaped_on_disk(lab: MemoryLab) -> None:
    lab.settings(maxMessagesBetweenChunks=1)
    open_file(lab)
    lab.path.write_text(json.dumps([{"text_block": "Ünï", "hash": "h"}], ensure_ascii=False), encoding="utf-8")
    lab.remember(said("日本", "1", "2", "3"))
    assert lab.path.read_bytes().isascii() and [text for text, _ in lab.stored()] == ["Ünï", "<日本>"]


# -- edits -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(lab: MemoryLab) -> MemoryLab:
    """13 messages with memories of m0-m4 and m5-m9."""
    open_file(lab)
    lab.remember(chat(8))
    lab.remember(chat(13))
    assert lab.stored() == covering((0, 4), (5, 9))
    return lab


@pytest.mark.parametrize("index", [12, 11, 10, 7, 0, 3])
def test_edits_without_effect(two: MemoryLab, index: int) -> None:
    edited = chat(13)
    edited[index]["content"] = "edited"
    two.remember(edited)
    assert two.stored() == covering((0, 4), (5, 9))


def test_edit_of_a_chunk_end_summarizes_the_span_again(two: MemoryLab) -> None:
    edited = chat(13)
    edited[9]["content"] = "edited"
    two.remember(edited)
    assert two.stored() == [*covering((0, 4), (5, 9)), ("<m5\nm6\nm7\nm8\nedited>", hash_content("edited"))]


def test_trimmed_head_with_the_anchor(two: MemoryLab) -> None:
    two.remember(chat(7, 6))
    assert two.stored() == covering((0, 4), (5, 9))


def test_trimmed_head_without_an_anchor(two: MemoryLab) -> None:
    two.remember(chat(8, 10))
    assert two.stored() == covering((0, 4), (5, 9), (10, 14))


@pytest.mark.parametrize("left", range(3, 13))
def test_deleted_tail(two: MemoryLab, left: int) -> None:
    """While any memory's last message is there, nothing that a memory covers is told again."""
    two.settings(maxMessagesBetweenChunks=1)
    two.remember(chat(left))
    known = [text for text, _ in two.stored()]
    assert known[:2] == [text for text, _ in covering((0, 4), (5, 9))]
    if left in (5, 6, 7, 10, 11, 12):
        assert len(known) == 2


def test_deleted_file_waits_for_enough_text(two: MemoryLab) -> None:
    two.path.unlink()
    two.settings(chunkEstimatedTokenSize=1000)
    two.remember(chat(13))
    assert two.stored() == []
    two.path.unlink()
    two.settings(chunkEstimatedTokenSize=10)
    two.remember(chat(13))
    assert "\n".join(text.strip("<>") for text, _ in two.stored()) == "\n".join(f"m{number}" for number in range(10))


@pytest.mark.parametrize(
    "names", [("User: ", "Assistant: "), ("Kim: ", "Sera: "), ("User: Kim: ", "Assistant: Sera: ")]
)
@pytest.mark.parametrize("anchors", [True, False])
def test_names_and_prefixes_make_no_new_messages(two: MemoryLab, names: tuple[str, str], anchors: bool) -> None:
    named = [{**message, "content": names[number % 2] + message["content"]} for number, message in enumerate(chat(18))]
    if not anchors:
        two.path.with_name("memory_anchors.json").unlink()
    two.remember(named[:13])
    assert len(two.stored()) == 2
    two.remember(named)  # stored with names ...
    two.remember(chat(23))  # ... and recognized without
    two.remember(named)
    assert [hash_content(named[14]["content"]), hash_content("m19")] == [stored for _, stored in two.stored()[2:]]


def test_repeated_short_message_is_no_anchor(lab: MemoryLab) -> None:
    texts = ["m0", "m1", "m2", "m3", "ok", "m5", "m6", "m7"]
    open_file(lab)
    lab.remember(said(*texts))
    later = [*texts, "m8", "m9", "ok", "m11", "m12"]
    lab.remember(said(*later))
    assert [text for text, _ in lab.stored()] == ["<m0\nm1\nm2\nm3\nok>", "<m5\nm6\nm7\nm8\nm9>"]


@pytest.mark.parametrize("content", [None, "", "[]", "{", '{"x": 1}'])
def test_anchors_are_not_needed(two: MemoryLab, content: str | None) -> None:
    path = two.path.with_name("memory_anchors.json")
    assert path.exists()
    path.unlink() if content is None else path.write_text(content, encoding="utf-8")
    two.remember(chat(18))
    assert two.stored() == covering((0, 4), (5, 9), (10, 14))
    if content in ("", "[]", "{"):
        assert path.read_text("utf-8") == content


# -- failures ----------------------------------------------------------------------------------------------------------


def answer_all_but(bad: str, reply: Reply) -> Any:
    return lambda request: reply if bad in last_text(request) else chat_reply(f"<{last_text(request)}>")


@pytest.mark.parametrize("reply", [chat_reply(""), chat_reply(" \n"), status_reply(400)])
def test_stops_at_the_chunk_that_fails(lab: MemoryLab, reply: Reply, caplog: pytest.LogCaptureFixture) -> None:
    lab.settings(chunkEstimatedTokenSize=4)
    messages = said("secret1", "secret2", "secret3", "secret4", "a", "b", "c")
    lab.backend.responder = answer_all_but("secret3", reply)
    lab.remember(messages)
    assert [text for text, _ in lab.stored()] == ["<secret1>", "<secret2>"]
    assert "d1" in caplog.text and "secret" not in caplog.text
    lab.backend.responder = answer_all_but("?", reply)
    lab.remember([*messages, *said("d", "e", "f")])
    assert "".join(text for text, _ in lab.stored()).startswith("<secret1><secret2><secret3><secret4>")


def test_blank_answer_for_the_only_chunk(lab: MemoryLab) -> None:
    open_file(lab)
    lab.backend.responder = lambda request: chat_reply("")
    lab.remember(chat(8))
    assert lab.stored() == []
    lab.backend.responder = answer_all_but("?", chat_reply(""))
    lab.remember(chat(9))
    assert lab.stored() == covering((0, 5))


@pytest.mark.parametrize(
    "settings",
    [{"endpointName": ...}, {"endpointName": "Nowhere"}, {"prompt": ""}, {"fileMemoryWorkflowName": "Nowhere"}],
)
def test_wrong_settings_do_not_end_the_chat(
    lab: MemoryLab, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    open_file(lab)
    lab.settings(**settings)
    lab.remember(chat(8))
    assert lab.stored() == [] and "Discussion d1: no memory: " in caplog.text


def test_workflow_that_raises_is_named_by_kind(
    lab: MemoryLab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("secret")

    open_file(lab)
    lab.settings(fileMemoryWorkflowName="Maker")
    monkeypatch.setattr(WorkflowManager, "start_child", fail)
    lab.remember(chat(8))
    assert "no memory: KeyError" in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize("settings", ["", "Nowhere"])
def test_missing_settings(lab: MemoryLab, settings: str, caplog: pytest.LogCaptureFixture) -> None:
    lab.user(discussionIdMemoryFileWorkflowSettings=settings)
    lab.remember(chat(8))
    assert not lab.path.exists() and "No memories are written" in caplog.text


@pytest.mark.parametrize("content", ["{", "", '{"a": 1}', '[{"text_block": 1}]'])
def test_unreadable_file_stays(lab: MemoryLab, content: str, caplog: pytest.LogCaptureFixture) -> None:
    open_file(lab)
    lab.path.write_text(content, encoding="utf-8")
    lab.remember(chat(20))
    assert lab.path.read_text("utf-8") == content and lab.prompts == [] and "d1/memories.json" in caplog.text


def test_full_disk_keeps_what_is_written(
    lab: MemoryLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lab.settings(chunkEstimatedTokenSize=4)
    real, writes = os.fsync, []

    def fsync(descriptor: int) -> None:
        writes.append(descriptor)
        if len(writes) > 3:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    lab.remember(said("secret1", "secret2", "secret3", "a", "b", "c"))
    assert [text for text, _ in lab.stored()] == ["<secret1>"]
    assert "cannot be stored: No space left" in caplog.text


@pytest.mark.parametrize(
    "removed",
    [
        "file",
        "contents",
        pytest.param(
            "folder",
            marks=pytest.mark.skipif(
                sys.platform == "win32", reason="Windows keeps a folder in its place while a file in it is open"
            ),
        ),
    ],
)
def test_memories_removed_meanwhile_are_all_made_anew(
    lab: MemoryLab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, removed: str
) -> None:
    lab.settings(chunkEstimatedTokenSize=4)
    talk = said(*(f"message{number}" for number in range(9)))
    lab.remember(talk[:6])
    assert len(lab.stored()) == 3
    answer = MemoryWriter._memory

    def remove_first(*arguments: Any) -> str:
        if removed == "file":
            lab.path.unlink()
        elif removed == "contents":
            lab.path.write_text("[]", "utf-8")
        else:
            lab.path.parent.rename(lab.root / "elsewhere")
        return answer(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryWriter, "_memory", remove_first)
        lab.remember(talk)
    assert "its memories were changed in the meantime" in caplog.text and "tried again next time" in caplog.text
    lab.remember(talk)
    assert [text for text, _ in lab.stored()] == [f"<message{number}>" for number in range(6)]


def test_wrong_key_fails_the_request(lab: MemoryLab) -> None:
    keys = [derive_encryption_key(name, "tester") for name in ("one", "two")]
    lab.remember(chat(3), encryption_key=keys[0])
    before = lab.path.read_bytes()
    with pytest.raises(DataKeyError):
        lab.remember(chat(20), encryption_key=keys[1])
    assert lab.path.read_bytes() == before


def test_nothing_in_clear_under_a_key(lab: MemoryLab) -> None:
    key = derive_encryption_key("one", "tester")
    for count in (3, 8):
        lab.remember(chat(count), encryption_key=key)
    files = [path for path in lab.path.parent.iterdir() if path.stat().st_size]
    assert {path.name for path in files} == {"memories.json", "memory_anchors.json"}
    assert all(
        b'"text_block"' not in path.read_bytes() and hash_content("m4").encode() not in path.read_bytes()
        for path in files
    )


# -- cancellation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workflow", [False, True])
def test_cancelled_in_the_middle(lab: MemoryLab, workflow: bool) -> None:
    lab.settings(chunkEstimatedTokenSize=4, **({"fileMemoryWorkflowName": "Maker"} if workflow else {}))
    lab.workflow("Maker", [{"type": "Standard", "endpointName": "Main", "prompt": "{agent1Input}"}])

    def respond(request: Any) -> Reply:
        if "second" in last_text(request):
            threading.Timer(0.1, lab.request.cancel_scope.cancel).start()
            return Reply(never=True)
        return chat_reply(f"<{last_text(request)}>")

    lab.backend.responder = respond
    with pytest.raises(EarlyTerminationException):
        lab.remember(said("firstone", "secondone", "thirdone", "a", "b", "c"))
    assert [text for text, _ in lab.stored()] == ["<firstone>"]


def test_cancelled_while_waiting(lab: MemoryLab) -> None:
    open_file(lab)
    threading.Timer(0.1, lab.request.cancel_scope.cancel).start()
    with lab.folder.lock(MEMORIES):
        started = time.monotonic()
        with pytest.raises(EarlyTerminationException):
            lab.remember(chat(8))
    assert time.monotonic() - started < 25  # before the wait for a lock ends by itself


# -- several at once ---------------------------------------------------------------------------------------------------


def test_two_requests_at_once_write_once(lab: MemoryLab) -> None:
    lab.settings(chunkEstimatedTokenSize=5)
    lab.backend.responder = lambda request: chat_reply(f"<{last_text(request)}>", header_delay=0.05)
    messages = said(*(f"{number:x}" for number in range(20)))
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            lab.remember(messages, request=RequestContext(request_id=f"r-{number}"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == [] and len(lab.prompts) == len(lab.stored()) == 5


def test_waiting_has_an_end(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.settings(condensationLockTimeoutSeconds=0.1)
    open_file(lab)
    with lab.folder.lock(MEMORIES):
        lab.remember(chat(8))
    assert lab.stored() == [] and "another request is working" in caplog.text
    lab.remember(chat(8))
    assert lab.stored() == covering((0, 4))


@pytest.mark.parametrize(
    ("key", "complete", "seconds"),
    [
        (..., False, 30),
        (..., True, 600),
        (100, False, 100),
        ("0", False, None),
        (-1, True, None),
        ("x", True, 600),
        ("x", False, 30),
        ("", False, 30),
        ("", True, 600),
        (True, False, 30),
    ],
)
def test_how_long_to_wait(lab: MemoryLab, key: Any, complete: bool, seconds: float | None) -> None:
    lab.settings(condensationLockTimeoutSeconds=key)
    lab.request.answered_at = 1.0 if complete else None
    settings = load_memory_settings()
    assert settings is not None
    assert shared._lock_seconds(settings, lab.context(chat(3))) == seconds


def _hold(root: str, ready: Any, release: Any) -> None:
    with process_lock(os.path.join(root, "discussions", "d1", MEMORIES)):
        ready.set()
        release.wait(300)


@pytest.mark.slow
def test_another_process_at_work(lab: MemoryLab) -> None:
    lab.settings(condensationLockTimeoutSeconds=0.2)
    open_file(lab)
    spawn = multiprocessing.get_context("spawn")
    ready, release = spawn.Event(), spawn.Event()
    process = spawn.Process(target=_hold, args=(str(lab.root), ready, release))
    process.start()
    try:
        assert ready.wait(120)
        lab.remember(chat(8))
        assert lab.stored() == []
    finally:
        release.set()
        process.join(120)
    lab.remember(chat(8))
    assert lab.stored() == covering((0, 4))


def test_a_workflow_inside_a_turn_gets_none(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    with shared.memory_lock(lab.context(chat(3)), lab.folder, None) as outer:
        with shared.memory_lock(lab.context(chat(3)), lab.folder, None) as inner:
            assert (outer, inner) == (True, False)
    assert "takes part in making memories" in caplog.text
    with shared.memory_lock(lab.context(chat(3)), lab.folder, None) as again:
        assert again


@pytest.mark.parametrize("vector", [False, True])
def test_many_requests_inside_a_turn_are_one_warning(
    lab: MemoryLab, vector: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The workflow that writes the memories has memory nodes of its own."""
    nodes = [
        {"type": "QualityMemory"},
        {"type": "RecentMemory"},
        {"type": "FullChatSummary"},
        static("[]" if vector else "made of {agent1Input}"),
    ]
    lab.settings(
        chunkEstimatedTokenSize=4,
        vectorMemoryChunkEstimatedTokenSize=4,
        useVectorForQualityMemory=vector,
        fileMemoryWorkflowName="Maker",
        vectorMemoryWorkflowName="Maker",
    )
    lab.workflow("Maker", nodes)
    lab.remember(chat(9))
    first = caplog.text.count("asks for more of them")
    lab.remember(chat(18))
    assert (first, caplog.text.count("asks for more of them")) == (1, 2)


# -- the log -----------------------------------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]


def test_the_log_tells_of_success(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "Middleware.workflows.tools")
    lab.settings(chunkEstimatedTokenSize=5)
    lab.remember(said("secret", *"bcdefgh"))
    assert [re.sub(r"\d+\.\d s$", "T", line) for line in told(caplog)] == ["Discussion d1: 2 memories written in T"]
    lab.remember(said("secret", *"bcdefgh"))
    assert len(told(caplog)) == 1


def test_the_log_tells_of_half_a_success(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "Middleware.workflows.tools")
    lab.settings(chunkEstimatedTokenSize=4)
    lab.backend.responder = answer_all_but("secret2", chat_reply(""))
    lab.remember(said("secret1", "secret2", "a", "b", "c"))
    assert [line.partition(" in ")[0] for line in told(caplog)] == ["Discussion d1: 1 memory written"]


def test_the_log_tells_nothing_of_nothing(lab: MemoryLab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "Middleware.workflows.tools")
    open_file(lab)
    lab.backend.responder = lambda request: chat_reply("")
    lab.remember(chat(8))
    assert told(caplog) == []


@pytest.mark.parametrize("name", ["chat_summary.json", "condensation_tracker.json"])
def test_another_broken_file_does_not_keep_memories_from_being_written(lab: MemoryLab, name: str) -> None:
    lab.settings(condenseMemories=True, memoriesBeforeCondensation=1)
    open_file(lab)
    lab.path.with_name(name).write_text("{broken", encoding="utf-8")
    lab.remember(chat(8))
    assert lab.stored() == covering((0, 4)) and len(lab.prompts) == 1


# -- places ------------------------------------------------------------------------------------------------------------


def test_key_without_encryption_is_a_place_of_its_own(lab: MemoryLab) -> None:
    for _ in range(2):
        lab.remember(chat(8), api_key_hash="0123456789abcdef")
    path = lab.root / "discussions" / "0123456789abcdef" / "d1" / "memories.json"
    assert json.loads(path.read_text("utf-8"))[0]["text_block"].startswith("<m0")
    assert not lab.path.exists()
    assert DiscussionFolder("d1").folder == str(lab.root / "discussions" / "d1")


def test_older_flat_file_is_used(lab: MemoryLab) -> None:
    flat = lab.root / "discussions" / "d1_memories.json"
    flat.parent.mkdir()
    flat.write_text("[]", encoding="utf-8")
    lab.remember(chat(8))
    assert len(json.loads(flat.read_text("utf-8"))) == 1 and not lab.path.exists()


def test_stamped_messages_do_not_count(lab: MemoryLab) -> None:
    open_file(lab)
    context = lab.context(chat(8))
    context.messages = [{**message, "content": "(stamp) " + message["content"]} for message in context.messages]
    with request_scope(lab.request):
        SlowButQualityRAGTool().handle_discussion_id_flow(context)
    assert lab.stored() == covering((0, 4))


# -- equal messages ----------------------------------------------------------------------------------------------------

CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


def with_tools(number: int) -> list[Any]:
    return [*said(f"question {number}"), CALL, {"role": "tool", "tool_call_id": "1", "content": "done"}, *said("ok")]


def with_repeats(number: int) -> list[Any]:
    return said("ok", "ok", "ok", f"question {number}")


@pytest.mark.parametrize("turn", [with_tools, with_repeats])
def test_no_turn_of_a_chat_with_equal_messages_is_lost(lab: MemoryLab, turn: Any) -> None:
    open_file(lab)
    messages: list[Any] = []
    for number in range(20):
        for message in turn(number):
            messages.append(message)
            if message["role"] == "user":
                lab.remember(messages)
    asked = re.findall(r"question (\d+)", "\n".join(text for text, _ in lab.stored()))
    assert asked == [str(number) for number in range(len(asked))] and len(asked) >= 18


def test_the_words_of_a_failed_script_are_no_memory(
    lab: MemoryLab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "maker.py"
    script.write_text("def Invoke(*args):\n    raise KeyError('x')\n", encoding="utf-8")
    lab.workflow("Maker", [{"type": "PythonModule", "module_path": str(script)}])
    lab.settings(fileMemoryWorkflowName="Maker")
    for count in (3, 8):
        lab.remember(chat(count))
    assert lab.store.memories() == [] and "a script of the workflow failed" in caplog.text
