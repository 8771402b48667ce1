"""Why a run took as long as it did, and what of a prompt was the same as before: as the page of a run gets it.

The servers and tools of these runs are really slow. What is slow takes a second; on a machine so loaded that something
else takes longer, it takes more.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Tests.api.record_lab import RecordLab, record_lab
from Tests.stub_backend import Reply, chat_chunk, chat_reply, chat_stream_reply, sse_reply, status_reply
from Tests.workflows.engine_lab import llm, until

SLOW, SLOWER = 1.0, 5.0
NANOSECONDS = 1_000_000_000


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordLab]:
    with record_lab(tmp_path, monkeypatch) as lab:
        yield lab


def slow_gate(lab: RecordLab, slow: float) -> None:
    instance.initialize_request_semaphore(1)
    lab.caller = lab.served()
    go_on = threading.Event()
    lab.backend.script(Reply(**vars(chat_reply("first")) | {"held": go_on}), chat_reply("second"))
    first = threading.Thread(target=lab.ask)
    first.start()
    assert until(lambda: bool(lab.backend.requests))
    second = threading.Thread(target=lab.ask)
    second.start()
    assert until(lambda: any(run.facts["status"] == "queued" for run in lab.runs))
    time.sleep(slow)
    go_on.set()
    for thread in (first, second):
        thread.join(60)


def slow_load(lab: RecordLab, slow: float) -> None:
    lab.write("ApiTypes/Ollama", {"type": "ollamaApiChat", "streamPropertyName": "stream", "presetType": "x"})
    lab.endpoint("Main", {"apiTypeConfigFileName": "Ollama"}, lab.backend.url)
    lab.backend.script(
        Reply(
            header_delay=slow,
            body={
                "model": "m",
                "message": {"role": "assistant", "content": "x"},
                "done": True,
                "done_reason": "stop",
                "load_duration": int(0.9 * slow * NANOSECONDS),
                "prompt_eval_count": 40,
                "prompt_eval_duration": 10_000_000,
                "eval_count": 2,
                "eval_duration": 20_000_000,
            },
        )
    )
    lab.ask()


def long_prompt(lab: RecordLab, slow: float) -> None:
    timings = {"cache_n": 412, "prompt_n": 3900, "prompt_ms": 950.0 * slow, "predicted_n": 2, "predicted_ms": 10.0}
    lab.backend.script(
        sse_reply(
            [
                chat_chunk({"role": "assistant", "content": ""}),
                chat_chunk({"content": "x"}),
                chat_chunk({}, "stop", timings=timings),
                "[DONE]",
            ],
            delays=[slow, 0, 0],
        )
    )
    lab.ask(stream=True)


def long_prompt_that_nobody_reported(lab: RecordLab, slow: float) -> None:
    lab.backend.script(chat_stream_reply(["x", "y"], delays=[slow, 0, 0, 0]))
    lab.ask(stream=True)


def slow_writing(lab: RecordLab, slow: float) -> None:
    lab.backend.script(chat_stream_reply([*"ten tokens"], delay=slow / 10))
    lab.ask(stream=True)


def slow_tool(lab: RecordLab, slow: float) -> None:
    script = lab.root / "wait.py"
    script.write_text(f"import time\ndef Invoke():\n    time.sleep({slow})\n    return 'late'\n", encoding="utf-8")
    lab.default([{"title": "Look it up", "type": "PythonModule", "module_path": str(script)}, llm("{agent1Output}")])
    lab.backend.script(chat_reply("late"))
    lab.ask()


def failed_attempt(lab: RecordLab, slow: float) -> None:
    lab.backend.script(status_reply(503, "busy", headers={"Retry-After": "0"}, header_delay=slow), chat_reply("late"))
    lab.ask()


def wait_before_the_next_attempt(lab: RecordLab, slow: float) -> None:
    lab.backend.script(status_reply(503, "busy", headers={"Retry-After": str(round(slow))}), chat_reply("late"))
    lab.ask()


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (slow_gate, "gate", "waiting for a slot at the gate"),
        (slow_load, "load", "Main loaded its model"),
        (long_prompt, "prompt", "Main read 4,312 prompt tokens (412 reused)"),
        (long_prompt_that_nobody_reported, "prompt", "Main read the prompt"),
        (slow_writing, "write", "Main wrote ≈10"),
        (slow_tool, "tool", "in node 1 'Look it up'"),
        (failed_attempt, "retry", "failed attempt at Main"),
        (wait_before_the_next_attempt, "pause", "waiting to try Main again"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_explanation_names_what_was_slow(lab: RecordLab, make: Any, kind: str, words: str) -> None:
    lab.backend.responder = None
    for slow in (SLOW, SLOWER):
        make(lab, slow)
        shown = lab.shown()
        facts, explanation = shown["run"], shown["explanation"]
        assert facts["status"] == "ok", facts["error"]
        parts, whole = explanation["parts"], facts["answered"] - facts["started"]
        assert whole > 900_000 * slow
        if parts[0]["kind"] == kind:
            break
    assert (parts[0]["kind"], words in parts[0]["what"]) == (kind, True), explanation
    assert abs(sum(part["us"] for part in parts) - whole) <= whole * 0.05
    if make in (failed_attempt, wait_before_the_next_attempt):
        assert any("1 attempt at Main failed" in sentence for sentence in explanation["odd"])


def test_a_running_run_says_where_its_time_goes_so_far(lab: RecordLab) -> None:
    go_on = threading.Event()
    lab.backend.responder = lambda request: Reply(**vars(chat_reply("late")) | {"held": go_on})
    asking = threading.Thread(target=lab.ask)
    asking.start()
    assert until(lambda: bool(lab.backend.requests))
    time.sleep(0.2)
    text = lab.console(f"runs/{lab.runs[0].facts['id']}")["explanation"]["text"]
    go_on.set()
    asking.join(60)
    assert text.startswith("So far ") and "Main" in text


def test_a_planted_change_is_named_with_message_and_character(lab: RecordLab) -> None:
    turns = [
        {"role": "system", "content": f"Today is Monday. {'Be brief. ' * 50}"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Next"},
    ]
    lab.default([llm("", systemPrompt="{chat_system_prompt}", title="Answer")])
    lab.ask(messages=turns[:2])
    changed = [{"role": "system", "content": turns[0]["content"].replace("Monday", "Tuesday")}, *turns[1:]]
    timings = {"cache_n": 0, "prompt_n": 500, "prompt_ms": 900.0, "predicted_n": 1, "predicted_ms": 1.0}
    lab.backend.responder = lambda request: sse_reply(
        [chat_chunk({"content": "x"}), chat_chunk({}, "stop", timings=timings), "[DONE]"], header_delay=SLOW
    )
    lab.ask(messages=changed, stream=True)
    shown = lab.shown()
    [call] = [row[0] for row in shown["spans"] if row[2] == "llm"]
    found = shown["prefix"][str(call)]
    sent = json.loads(lab.backend.requests[-1].body)["messages"][0]["content"]
    assert sent.count("Today is ") == 1
    assert (found["same"], found["message"], found["role"]) == (sent.index("Tuesday"), 1, "system")
    assert "Today is Monday" in found["text"] and "Today is Tuesday" in found["text"]
    assert (found["reused"], found["of"]) == (0, 500)
    # The largest part of the time was reading it again, and the sentence says why that was necessary.
    assert "Main could not use what it had read before: " in shown["explanation"]["text"]
    assert "Today is Tuesday" in shown["explanation"]["text"]
