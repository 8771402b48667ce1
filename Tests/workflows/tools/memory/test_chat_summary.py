"""The rolling summary, with files, locks and an LLM server as in service."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import BackendStatusError, ConfigValueError, EarlyTerminationException
from Middleware.models.request_context import request_scope
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.discussion_state import MEMORIES
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.memory import shared
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, status_reply
from Tests.workflows.engine_lab import EngineLab, last_text, reply_to, static, until, user

NO_SUMMARY = "There is not yet a summary file"
DASHES = "\n------------\n"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    with StubBackend() as backend:
        yield EngineLab(tmp_path / "Configs", monkeypatch, backend)


@pytest.fixture
def store(lab: EngineLab) -> MemoryStore:
    return MemoryStore(DiscussionFolder("d1"))


def remember(store: MemoryStore, last: int, first: int = 1) -> None:
    for number in range(first, last + 1):
        store.append_memory(f"k{number}", f"h{number}")


def node(**more: Any) -> dict[str, Any]:
    return {
        "type": "chatSummarySummarizer",
        "endpointName": "Main",
        "prompt": "[CHAT_SUMMARY]|[LATEST_MEMORIES]",
        **more,
    }


def run(
    lab: EngineLab, *nodes: dict[str, Any], discussion_id: str = "d1", stream: bool = False, **variables: Any
) -> Any:
    lab.workflow("Main", list(nodes), **variables)
    return run_written(lab, discussion_id, stream)


def run_written(lab: EngineLab, discussion_id: str = "d1", stream: bool = False) -> Any:
    manager = WorkflowManager("Main", listeners=[])
    with request_scope(lab.request):
        results = list(manager.start(lab.request, [user("hi")], discussion_id=discussion_id, stream=stream))
    return "".join(chunk["token"] for chunk in results) if stream else results[-1]


def answers(lab: EngineLab, *texts: Any) -> None:
    """The LLM's answers in turn, the last one again and again; what is no text is a reply."""
    left = list(texts)

    def respond(request: RecordedRequest) -> Reply:
        answer = left.pop(0) if len(left) > 1 else left[0]
        return reply_to(request, answer) if isinstance(answer, str) else answer

    lab.backend.responder = respond


# -- how many calls ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memories", "keys", "batches", "stored"),
    [
        (7, {}, ["k1 k2 k3", "k4 k5 k6"], "h6"),
        (7, {"minMemoriesPerSummary": 1}, ["k1 k2 k3", "k4 k5 k6", "k7"], "h7"),
        (7, {"minMemoriesPerSummary": "{agent1Output}"}, ["k1 k2 k3", "k4 k5 k6", "k7"], "h7"),
        (3, {}, ["k1 k2 k3"], "h3"),
        (2, {}, [], None),
        (0, {}, [], None),
        (3, {"minMemoriesPerSummary": "many"}, ["k1 k2 k3"], "h3"),
        (2, {"loopIfMemoriesExceed": 1, "minMemoriesPerSummary": 2}, ["k1"], "h1"),
        (3, {"loopIfMemoriesExceed": 0, "minMemoriesPerSummary": 1}, ["k1", "k2", "k3"], "h3"),
        (3, {"loopIfMemoriesExceed": -4, "minMemoriesPerSummary": 0}, ["k1", "k2", "k3"], "h3"),
        (5, {"loopIfMemoriesExceed": 9}, ["k1 k2 k3 k4 k5"], "h5"),
    ],
)
def test_batches(
    lab: EngineLab, store: MemoryStore, memories: int, keys: dict[str, Any], batches: list[str], stored: str | None
) -> None:
    remember(store, memories)
    texts = [f"s{number}" for number, _ in enumerate(batches)]
    answers(lab, *texts, "too many")
    assert run(lab, static("1"), node(**keys)) == (texts[-1] if texts else NO_SUMMARY)
    befores = [NO_SUMMARY, *texts]
    assert lab.prompts == [
        f"{before}|{batch.replace(' ', DASHES)}" for before, batch in zip(befores, batches, strict=False)
    ]
    assert store.summary() == ((texts[-1], stored) if texts else None)
    # Nobody waits for the lock if there is nothing to do.
    assert Path(store.state.place, MEMORIES).exists() == bool(batches)


def test_it_goes_on_where_the_summary_ends(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 7)
    store.save_summary("old", "h4")
    assert run(lab, node()) == f"<old|k5{DASHES}k6{DASHES}k7>"
    assert len(lab.prompts) == 1 and store.summary() == (f"<old|k5{DASHES}k6{DASHES}k7>", "h7")


def test_memories_that_end_with_equal_messages(lab: EngineLab, store: MemoryStore) -> None:
    """Who always types the same goes on getting a new summary."""
    prompts = []
    for number in range(1, 8):
        store.append_memory(f"k{number}", "same")
        if number in (3, 5, 6, 7):
            run(lab, node(minMemoriesPerSummary=2, prompt="[LATEST_MEMORIES]"))
            prompts.append((len(lab.prompts), store.summary_position()))
    assert lab.prompts == [DASHES.join(batch) for batch in (("k1", "k2", "k3"), ("k4", "k5"), ("k6", "k7"))]
    assert prompts == [(1, 3), (2, 5), (2, 5), (3, 7)]


@pytest.mark.parametrize("prompt", ["[LATEST_MEMORIES]", "plain"])
@pytest.mark.parametrize("old", ["h1", "gone", None])
def test_the_place_of_a_summary_is_stored(lab: EngineLab, store: MemoryStore, prompt: str, old: str | None) -> None:
    remember(store, 7)
    if old:
        store.save_summary("old", old)
    run(lab, node(prompt=prompt, minMemoriesPerSummary=1))
    assert store.summary() == (lab.prompts and f"<{lab.prompts[-1]}>", "h7") and store.summary_position() == 7


def test_a_summary_of_forgotten_memories_is_extended_by_all(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    store.save_summary("old", "gone")
    assert run(lab, node()) == f"<old|k1{DASHES}k2{DASHES}k3>" and store.summary() is not None


def test_nothing_new(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    store.save_summary("old", "h3")
    assert run(lab, node()) == "old" and lab.prompts == []


def test_nothing_stored_creates_nothing(lab: EngineLab, store: MemoryStore) -> None:
    assert run(lab, node()) == NO_SUMMARY
    kept = [path for path in Path(store.state.folder).iterdir() if not path.name.startswith(".")]
    assert [path.name for path in kept] == ["memories.json"]


def test_without_discussion_id(lab: EngineLab) -> None:
    assert run(lab, node(), discussion_id="") == NO_SUMMARY and lab.prompts == []


# -- without a call ----------------------------------------------------------------------------------------------------

LINES = ["Ann keeps bees in her garden.", "Her brother Tom lives in Ghent.", "She sells honey on Saturdays."]
MORE = ["Tom is afraid of bees.", "Ann wants to visit him in May.", "The train costs 40 euros."]


@pytest.mark.parametrize(
    ("old", "memories", "limit", "stored", "prompts"),
    [
        # Three lines are estimated at 28 tokens.
        (None, LINES, 28, LINES, []),
        (None, LINES, "{agent1Output}", LINES, []),
        (LINES[0], LINES[1:], 28, LINES, []),
        # If they do not fit, the newest third stays as it is, and the older lines are shortened.
        (None, LINES, 27, ["shortened", LINES[2]], ["\n".join(LINES[:1]) + "|" + LINES[1]]),
        (
            f"{LINES[0]}\n\n{LINES[1]}\n{LINES[2]}",
            MORE[:2],
            44,
            ["shortened", MORE[1]],
            [f"{LINES[0]}\n{LINES[1]}|{LINES[2]}\n{MORE[0]}"],
        ),
        # A line too long for that is no reason to lose another one.
        (None, [LINES[0], " ".join(MORE)], 27, ["shortened"], [f"{LINES[0]}|{' '.join(MORE)}"]),
        # What is one line cannot be parted.
        (None, [" ".join(LINES)] * 2, 27, None, [f"{NO_SUMMARY}|{DASHES.join([' '.join(LINES)] * 2)}"]),
        (None, [" "] * 2, 27, None, [f"{NO_SUMMARY}| {DASHES} "]),
        # What the summary says already is not appended.
        (LINES[0], LINES, 28, LINES, []),
        (LINES[2], [LINES[2], LINES[2].lower()], 9, LINES[2:], []),
        (None, LINES, 0, None, [f"{NO_SUMMARY}|{DASHES.join(LINES)}"]),
        (None, LINES, -5, None, [f"{NO_SUMMARY}|{DASHES.join(LINES)}"]),
        # The batches that fit are appended, the LLM is asked about the others.
        (None, LINES + MORE, 30, ["shortened", MORE[2]], [f"{LINES[0]}\n{LINES[1]}|{LINES[2]}\n{MORE[0]}\n{MORE[1]}"]),
    ],
)
def test_memories_are_appended_while_they_fit(
    lab: EngineLab,
    store: MemoryStore,
    old: str | None,
    memories: list[str],
    limit: object,
    stored: list[str] | None,
    prompts: list[str],
) -> None:
    if old:
        store.append_memory("before", "h0")
        store.save_summary(old, "h0", 1)
    for number, memory in enumerate(memories, start=1):
        store.append_memory(memory, f"h{number}")
    answers(lab, "shortened")
    keys = {"minMemoriesPerSummary": 2, "appendMemoriesUpToTokens": limit}
    summary = "\n".join(stored) if stored is not None else "shortened"
    assert run(lab, static("28"), node(**keys)) == summary
    assert store.summary() == (summary, f"h{len(memories)}")
    assert store.summary_position() == len(memories) + bool(old)
    assert lab.prompts == prompts


# -- prompts -----------------------------------------------------------------------------------------------------------


def test_without_markers_it_is_one_ordinary_call(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 7)
    assert run(lab, static("all"), node(prompt="Sum up {agent1Output}")) == "<Sum up all>"
    assert store.summary() == ("<Sum up all>", "h7") and len(lab.prompts) == 1


def test_without_a_prompt_the_conversation_is_sent(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    assert run(lab, node(prompt="")) == "<hi>" and store.summary() == ("<hi>", "h3")


def test_markers_in_the_system_prompt(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    run(lab, node(systemPrompt="S [CHAT_SUMMARY]", prompt="P [LATEST_MEMORIES]"))
    sent = [message["content"] for message in lab.backend.requests[0].json["messages"]]
    assert sent == [f"S {NO_SUMMARY}", f"P k1{DASHES}k2{DASHES}k3"]


def test_markers_may_come_from_variables(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 7)
    assert run(lab, node(prompt="{template}"), template="[LATEST_MEMORIES]") == f"<k4{DASHES}k5{DASHES}k6>"


def test_memories_are_not_filled_in(lab: EngineLab, store: MemoryStore) -> None:
    store.append_memory("{agent1Output} [CHAT_SUMMARY] {{x}}", "h1")
    store.save_summary("{Discussion_Id} [LATEST_MEMORIES]", "gone")
    run(lab, static("no"), node(prompt="{agent1Output} [CHAT_SUMMARY] + [LATEST_MEMORIES]", minMemoriesPerSummary=1))
    assert lab.prompts == ["no {Discussion_Id} [LATEST_MEMORIES] + {agent1Output} [CHAT_SUMMARY] {{x}}"]


def test_jinja(lab: EngineLab, store: MemoryStore) -> None:
    store.append_memory("{{ Discussion_Id }}", "h1")
    run(lab, node(prompt="{{ 1 + 1 }} [LATEST_MEMORIES]", jinja2=True, minMemoriesPerSummary=1))
    assert lab.prompts == ["2 {{ Discussion_Id }}"]


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_answers_are_cleaned_once_and_never_streamed(lab: EngineLab, store: MemoryStore, stream: bool) -> None:
    remember(store, 3)
    lab.endpoint(
        "Main", {"removeThinking": True, "startThinkTag": "<think>", "endThinkTag": "</think>"}, lab.backend.url
    )
    answers(lab, "<think>hm</think>Sum: Sum: it")
    keys = {"removeCustomTextFromResponseStart": True, "responseStartTextToRemove": ["Sum:"]}
    assert run(lab, node(**keys), stream=stream) == "Sum: it"
    assert store.summary() == ("Sum: it", "h3")
    assert [request.json["stream"] for request in lab.backend.requests] == [False]


@pytest.mark.parametrize("prompt", ["[LATEST_MEMORIES]", "plain"])
@pytest.mark.parametrize("answer", ["", " \n", "<think>Let me see"])
def test_a_blank_answer_is_not_stored(lab: EngineLab, store: MemoryStore, prompt: str, answer: str) -> None:
    remember(store, 7)
    store.save_summary("old", "h1")
    answers(lab, answer)
    assert run(lab, node(prompt=prompt)) == "old"
    assert store.summary() == ("old", "h1") and len(lab.prompts) == 1


def test_what_an_example_says_is_no_part_of_a_summary(lab: EngineLab, store: MemoryStore) -> None:
    """Small models write down what they were shown."""
    remember(store, 3)
    answers(lab, "Ann moved to Bruges in March.\nThe user keeps bees in the garden.")
    run(lab, node(exampleTurns=[{"user": "Notes: Ann.", "assistant": "Ann moved to Bruges in March."}]))
    assert store.summary() is not None and store.summary()[0] == "The user keeps bees in the garden."


def test_a_blank_second_answer_ends_the_loop(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 12)
    answers(lab, "one", "", "three")
    assert run(lab, node()) == "one"
    assert store.summary() == ("one", "h3") and len(lab.prompts) == 2


def test_a_tool_call_is_no_summary(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    reply = chat_reply("text", "tool_calls")
    reply.body["choices"][0]["message"]["tool_calls"] = [call]
    answers(lab, reply)
    assert run(lab, node()) == NO_SUMMARY and store.summary() is None


def test_an_error_keeps_what_was_done(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 7)
    answers(lab, "one", status_reply(400))
    with pytest.raises(BackendStatusError):
        run(lab, node())
    assert store.summary() == ("one", "h3")


def test_without_endpoint(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    with pytest.raises(ConfigValueError, match="names no endpoint"):
        run(lab, node(endpointName=None))


def test_a_cancelled_request_stores_nothing(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    lab.backend.responder = lambda request: chat_reply("late", header_delay=90.0)
    threading.Timer(0.2, lab.request.cancel_scope.cancel).start()
    started = time.monotonic()
    with pytest.raises(EarlyTerminationException):
        run(lab, node())
    assert time.monotonic() - started < 60 and store.summary() is None


@pytest.mark.parametrize("prompt", ["[LATEST_MEMORIES]", "plain"])
@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("chat_summary.json", "[broken", NO_SUMMARY),
        ("chat_summary.json", '{"a": "b"}', NO_SUMMARY),
        ("memories.json", "[1]", "old"),
        ("condensation_tracker.json", "[]", "old"),
    ],
)
def test_nobody_is_asked_for_a_summary_that_cannot_be_stored(
    lab: EngineLab,
    store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
    name: str,
    content: str,
    shown: str,
    prompt: str,
) -> None:
    remember(store, 7)
    store.save_summary("old", "h1")
    path = Path(store.state.folder) / name
    path.write_text(content, encoding="utf-8")
    assert run(lab, node(prompt=prompt)) == shown
    assert path.read_text(encoding="utf-8") == content and lab.prompts == []
    assert len([record for record in caplog.records if f"d1/{name}" in record.getMessage()]) == 1


def test_a_summary_that_breaks_meanwhile_is_left_alone(
    lab: EngineLab, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    remember(store, 3)
    path = Path(store.state.folder) / "chat_summary.json"

    def respond(request: RecordedRequest) -> Reply:
        path.write_text("[broken", encoding="utf-8")
        return chat_reply("new")

    lab.backend.responder = respond
    assert run(lab, node()) == NO_SUMMARY
    assert path.read_text(encoding="utf-8") == "[broken" and "cannot be stored" in caplog.text


@pytest.mark.parametrize(
    ("memories", "more", "told"), [(7, {}, "6 memories"), (1, {"minMemoriesPerSummary": 1}, "1 memory"), (2, {}, None)]
)
def test_the_log_tells_of_success(
    lab: EngineLab,
    store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
    memories: int,
    more: dict[str, Any],
    told: str | None,
) -> None:
    caplog.set_level(logging.INFO, "Middleware.workflows.tools")
    remember(store, memories)
    run(lab, node(**more))
    lines = [record.getMessage() for record in caplog.records if "summary" in record.getMessage()]
    assert len(lines) == bool(told)
    assert all(
        re.fullmatch(rf"Discussion d1: summary brought up to date with {told} in \d+\.\d s", line) for line in lines
    )


# -- taking turns ------------------------------------------------------------------------------------------------------


def held(store: MemoryStore, work: Callable[[], object]) -> threading.Thread:
    """A thread that holds the lock while it does ``work``."""
    ready = threading.Event()

    def hold() -> None:
        with store.state.lock(MEMORIES):
            ready.set()
            work()

    thread = threading.Thread(target=hold)
    thread.start()
    assert ready.wait(60)
    return thread


def test_it_looks_again_once_it_has_the_lock(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    go = threading.Event()

    def work() -> None:
        go.wait(60)
        store.save_summary("by another", "h3")

    thread = held(store, work)
    threading.Timer(0.3, go.set).start()
    assert run(lab, node()) == "by another" and lab.prompts == []
    thread.join()


def test_it_does_not_wait_for_ever(
    lab: EngineLab, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remember(store, 3)
    store.save_summary("old", "gone")
    monkeypatch.setattr(shared, "LONGEST_WAIT_BEFORE_ANSWER", 0.2)
    done = threading.Event()
    thread = held(store, lambda: done.wait(60))
    try:
        assert run(lab, node()) == "old"
    finally:
        done.set()
        thread.join()
    assert lab.prompts == [] and "d1" in caplog.text and store.summary() == ("old", "gone")


def test_a_cancelled_request_does_not_wait(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    done = threading.Event()
    thread = held(store, lambda: done.wait(60))
    threading.Timer(0.2, lab.request.cancel_scope.cancel).start()
    started = time.monotonic()
    try:
        with pytest.raises(EarlyTerminationException):
            run(lab, node())
    finally:
        done.set()
        thread.join()
    assert time.monotonic() - started < 25  # before the wait ends by itself


@pytest.mark.parametrize(
    ("settings", "complete", "seconds"),
    [
        (None, False, 30.0),
        (None, True, 600.0),
        ({}, False, 30.0),
        ({}, True, 600.0),
        ({"condensationLockTimeoutSeconds": 90}, False, 90.0),
        ({"condensationLockTimeoutSeconds": "5"}, False, 5.0),
        ({"condensationLockTimeoutSeconds": 0}, False, None),
        ({"condensationLockTimeoutSeconds": -1}, True, None),
    ],
)
def test_how_long_it_waits(
    lab: EngineLab,
    store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    complete: bool,
    seconds: float | None,
) -> None:
    remember(store, 3)
    if settings is not None:
        lab.user(discussionIdMemoryFileWorkflowSettings="Mem")
        lab.write("Workflows/tester/Mem", settings)
    waits: list[float | None] = []
    lock = DiscussionFolder.lock

    def watched(self: DiscussionFolder, name: str = "", scope: Any = None, timeout: float | None = None) -> Any:
        if name == MEMORIES:
            waits.append(timeout)
        return lock(self, name, scope, timeout)

    monkeypatch.setattr(DiscussionFolder, "lock", watched)
    lab.request.answered_at = 1.0 if complete else None
    run(lab, node())
    assert waits == [seconds] and "settings" not in caplog.text


def test_a_missing_settings_file_does_not_matter(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    lab.user(discussionIdMemoryFileWorkflowSettings="Nowhere")
    assert run(lab, node()).startswith("<")


def test_inside_the_making_of_memories_it_does_not_wait_for_itself(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    context = ExecutionContext("r", "w", "d1", {}, [], False)
    with shared.memory_lock(context, store.state, None) as mine:
        assert mine and run(lab, node()) == NO_SUMMARY
    assert lab.prompts == []


def test_two_requests_fold_in_a_memory_once(lab: EngineLab, store: MemoryStore) -> None:
    remember(store, 3)
    lab.backend.responder = lambda request: chat_reply(f"<{last_text(request)}>", header_delay=0.3)
    results: list[Any] = []
    lab.workflow("Main", [node()])
    threads = [threading.Thread(target=lambda: results.append(run_written(lab))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert until(lambda: len(results) == 2) and results[0] == results[1] and len(lab.prompts) == 1
