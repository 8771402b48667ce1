"""How a context window is shared out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jinja2 import Template

from Middleware.addons.init.plan import (
    INSTRUCTIONS,
    OLLAMA_WINDOW,
    SMALLEST_WINDOW,
    Choice,
    make_plan,
    shares,
    window_of,
)
from Middleware.addons.init.servers import Model, Server
from Middleware.utilities.prompt_extraction_utils import RESERVED_TOKENS
from Middleware.utilities.text_utils import rough_estimate_token_length

WINDOWS = (2048, 4096, 4097, 8192, 16384, 32768, 131072, 1_000_000)


def planned(window: int = 8192) -> dict[str, Any]:
    server = Server("http://h", "llama.cpp", (Model("m", window, thinks=False),))
    files = make_plan(Choice(server, server.models[0], "me", 5000)).files
    return {path: json.loads(data) for path, data in files.items()}


@pytest.mark.parametrize("window", WINDOWS)
def test_every_prompt_and_its_answer_fit(window: int) -> None:
    share = shares(window)
    assert all(number > 0 for number in share.values())
    assert share["answerTokens"] + share["roomTokens"] + RESERVED_TOKENS + INSTRUCTIONS <= window
    remembered = share["summaryRoom"] + share["memoriesShown"] * share["memoryTokens"]
    assert share["roomTokens"] - remembered >= 150  # messages beside all memories
    thoughtful = shares(window, thinks=True)
    # In the smallest window, old messages that fit take the place of newer ones that do not.
    assert share["sharedTokens"] >= (250 if window > SMALLEST_WINDOW else 170)
    assert share["recallTokens"] == (300 if window <= 4096 else 600)
    recalled = share["recallTokens"] + (share["memoriesShown"] * share["memoryTokens"] + share["summaryRoom"]) // 2
    assert share["sharedTokens"] + recalled <= share["roomTokens"]
    # What is sent for a plan is sent for the answer after it, too, with the plan in front of the newest message.
    assert share["sharedTokens"] + share["notesTokens"] <= share["roomTokens"]
    assert share["sharedTokens"] + thoughtful["notesTokens"] + INSTRUCTIONS <= window
    # Of the messages, the prompt for a route has at most 2,400 characters.
    route = planned()["Workflows/me/assistant/_DefaultWorkflow.json"]["nodes"][0]
    constant = route["systemPrompt"] + "".join(turn["user"] + turn["assistant"] for turn in route["exampleTurns"])
    assert rough_estimate_token_length(constant + "x" * 2400) + thoughtful["routeNameTokens"] <= window
    # A memory is written from messages, the beginning of a summary from one that was full and three memories.
    files = planned()
    for writer, given, answer in [
        (files["Workflows/me/_Memory-Settings.json"], share["chunkTokens"], "memoryTokens"),
        (
            files["Workflows/me/memory/_DefaultWorkflow.json"]["nodes"][-1],
            share["summaryRoom"] + 3 * share["memoryTokens"],
            "summaryTokens",
        ),
    ]:
        constant = writer["systemPrompt"] + writer["prompt"]
        constant += "".join(turn["user"] + turn["assistant"] for turn in writer["exampleTurns"])
        assert rough_estimate_token_length(constant) + given + thoughtful[answer] <= window


@pytest.mark.parametrize("window, room", [(2048, 256), (8192, 1024), (131072, 2000)])
def test_a_model_that_thinks_first_has_room_for_that_beside_a_short_answer(window: int, room: int) -> None:
    plain, thoughtful = shares(window), shares(window, thinks=True)
    grown = {name for name in plain if plain[name] != thoughtful[name]}
    assert grown == {"notesTokens", "routeNameTokens", "taskTokens", "memoryTokens", "factTokens", "summaryTokens"}
    assert all(thoughtful[name] - plain[name] == room for name in grown)


@pytest.mark.parametrize(
    "kind, known, window, words",
    [
        ("vLLM", 32768, 32768, "what the server said"),
        ("vLLM", None, 8192, "a guess"),
        ("LM Studio", None, 4096, "a guess"),
        ("llama.cpp", 512, SMALLEST_WINDOW, "said that its context window has 512 tokens"),
        ("Ollama", 8192, 8192, "what the server said"),
        ("Ollama", 131072, OLLAMA_WINDOW, "Ollama reserves memory"),
    ],
)
def test_the_window_that_is_written(kind: str, known: int | None, window: int, words: str) -> None:
    found, remark = window_of(Server("http://h", kind), Model("m", known))
    assert found == window
    assert words in remark


def test_what_was_said_is_looked_up_before_the_answer_and_stands_in_its_prompt_for_now() -> None:
    files = planned()
    assert files["Workflows/me/_Memory-Settings.json"]["rememberMessages"] is True
    assert files["Workflows/me/_Memory-Settings.json"]["followEdits"] is True
    nodes = files["Workflows/me/memory/_DefaultWorkflow.json"]["nodes"]
    found, answer = nodes[3:5]
    assert found == {
        "title": "Look up what was said",
        "type": "Recall",
        "newestShownTokens": "{agent3Output}",
        "maxTokens": 600,
    }
    assert answer["title"] == "Answer" and "{{ agent4Output }}" in answer["lateSystemPromptForNow"]
    assert answer["lastMessagesToSendInsteadOfPromptMaxTokenSize"] == found["newestShownTokens"]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("remembered", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("system", ["", "Be brief. " * 40])
def test_no_message_that_counts_as_sent_is_cut_off(window: int, remembered: float, system: str) -> None:
    """The limit of Recall is that of the messages: what the context window cuts off in addition would be in neither."""
    share = shares(window)

    def text(tokens: float) -> str:
        return ("The miller has a cat. " * int(tokens))[: int(tokens * 3.1)]

    notes, summary = text(2 * share["memoryTokens"] * remembered), text(share["summaryRoom"] * remembered)
    values = {
        "messages": [{"role": "user", "content": "Hello"}],
        "chat_system_prompt": system,
        "agent1Output": summary or "There is not yet a summary file",
        "agent2Output": notes or "No memories have been generated yet",
        "agent4Output": text(share["recallTokens"]),
        "nothingYet": planned()["Workflows/me/memory/_DefaultWorkflow.json"]["nothingYet"],
        "current_day_of_week": "Wednesday",
        "todays_date_pretty": "November 29, 2026",
    }
    nodes = planned(window)["Workflows/me/memory/_DefaultWorkflow.json"]["nodes"]
    room, *parts = (
        Template(template).render(values)
        for template in (
            nodes[2]["content"],
            nodes[4]["systemPrompt"],
            nodes[4]["lateSystemPrompt"],
            nodes[4]["lateSystemPromptForNow"],
        )
    )
    taken = sum(map(rough_estimate_token_length, parts))
    assert int(room) <= max(window - share["answerTokens"] - RESERVED_TOKENS - taken, 0)


def test_the_prompts_for_small_jobs_begin_alike_and_those_for_answers_too() -> None:
    """A back-end with two slots keeps one for each: a slot is taken whose prompt shares a tenth with the new one."""
    nodes = [
        node
        for path, content in planned().items()
        if path.startswith("Workflows/") and not path.endswith(".test.json")
        for node in content.get("nodes", [content])
    ]
    jobs = [node["systemPrompt"] for node in nodes if node.get("endpointName") == "Worker" and node.get("prompt")]
    assert len(jobs) == 3
    assert len({job[:300] for job in jobs}) == 1
    answers = {node["systemPrompt"] for node in nodes if node.get("endpointName") == "Main"}
    assert len(answers) == 1
