"""A conversation that grows: how often what a back-end gets does not begin with what it got before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.llmapis.lab import CHATML
from Tests.stub_backend import RecordedRequest, Reply, StubBackend
from Tests.workflows.engine_lab import EngineLab, Message, assistant, llm, user

# Ordinary turns: the newest message is the user's. From the 12th one on, 21 messages do not hold the conversation.
TURNS = 31
NODES = [
    llm("<{chat_user_prompt_n_messages}", nMessagesToIncludeInVariable=21, systemPrompt="S", returnToUser=False),
    llm(
        "<{chat_user_prompt_estimated_token_limit}",
        estimatedTokensToIncludeInVariable=21,
        systemPrompt="S",
        returnToUser=False,
    ),
    llm("", lastMessagesToSendInsteadOfPrompt=21, systemPrompt="S"),
]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    with StubBackend() as backend:
        lab = EngineLab(tmp_path, monkeypatch, backend)
        lab.write("PromptTemplates/chatml", {**CHATML, "promptTemplateAssistantSuffix": "<|im_end|>\n"})
        yield lab


def text(request: RecordedRequest) -> str:
    body = request.json
    return str(body["prompt"]) if "prompt" in body else "\n".join(one["content"] for one in body["messages"])


def new_beginnings(lab: EngineLab) -> list[int]:
    """Return for each node how often its prompt did not begin with the one before."""
    talk: list[Message] = []
    seen: list[list[str]] = [[] for _ in NODES]
    for turn in range(TURNS):
        talk.append(user(f"q{turn:02}"))
        lab.backend.requests.clear()
        lab.run(NODES, *talk)
        for number, request in enumerate(lab.backend.requests):
            seen[number].append(text(request))
        talk.append(assistant(f"a{turn:02}"))
    return [sum(not after.startswith(before) for before, after in itertools.pairwise(one)) for one in seen]


@pytest.mark.parametrize("completion", [False, True])
def test_windows_jump_instead_of_sliding(lab: EngineLab, completion: bool) -> None:
    if completion:
        lab.write(
            "ApiTypes/Text",
            {
                "type": "openAIV1Completion",
                "presetType": "Text",
                "samplerFieldMap": {},
                "streamPropertyName": "stream",
                "maxNewTokensPropertyName": "max_tokens",
            },
        )
        lab.backend.responder = lambda _: Reply(body={"choices": [{"text": "x"}]})
        lab.endpoint("Main", {"apiTypeConfigFileName": "Text", "promptTemplate": "chatml"}, lab.backend.url)
    assert new_beginnings(lab) == [20, 20, 20]
    lab.user(messageBlockSize=10)
    assert new_beginnings(lab) == [4, 4, 4]
