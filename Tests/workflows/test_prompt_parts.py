"""Late texts and example turns of nodes on the wire, in every dialect and for every type of node that has prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.records.payloads import read_payload
from Middleware.common import instance_global_variables as instance
from Middleware.services.memory.memory_store import MemoryStore
from Middleware.utilities.discussions.discussion_folder import DiscussionFolder
from Tests.backend_dialects import DIALECTS, Answer
from Tests.llmapis.lab import CHATML
from Tests.stub_backend import RecordedRequest, Reply, StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import EngineLab, Message, assistant, llm, reply_to, start, static, user

TURNS: tuple[Message, ...] = (user("q1"), assistant("a1"), user("q2"))
PARTS = {
    "systemPrompt": "S",
    "lateSystemPrompt": "{agent1Output}",
    "lateInstruction": "Do {chat_user_prompt_last_one}",
    "exampleTurns": [{"user": "e1 {agent1Output}", "assistant": "x1"}, {"user": "e2", "assistant": "x2"}],
}
# What is sent, in messages.
SENT = [
    ("system", "S"),
    ("user", "e1 notes {}"),
    ("assistant", "x1"),
    ("user", "e2"),
    ("assistant", "x2"),
    ("user", "q1"),
    ("assistant", "a1"),
    ("user", "notes {}\n\nq2\n\nDo q2"),
]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    monkeypatch.setattr(instance, "DISCUSSION_DIRECTORY", str(tmp_path / "D"))
    with StubBackend() as backend:
        lab = EngineLab(tmp_path / "Configs", monkeypatch, backend)
        lab.write("PromptTemplates/chatml", {**CHATML, "promptTemplateAssistantSuffix": "<|im_end|>\n"})
        yield lab


def run(
    lab: EngineLab, *nodes: dict[str, Any], discussion_id: str | None = None, messages: tuple[Message, ...] = TURNS
) -> Any:
    lab.workflow("Main", list(nodes))
    return list(start(lab, "Main", *messages, discussion_id=discussion_id))[-1]


def sent(request: RecordedRequest) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request.json["messages"]]


def in_chatml(messages: list[tuple[str, str]]) -> str:
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages)


@table("api_type", DIALECTS)
@pytest.mark.parametrize("alternate", [False, True])
def test_every_dialect(lab: EngineLab, api_type: str, alternate: bool) -> None:
    lab.backend.responder = lambda _: DIALECTS[api_type].reply(Answer(), stream=False)
    lab.write("ApiTypes/Other", {"type": api_type})
    lab.endpoint("Main", {"apiTypeConfigFileName": "Other", "alternateRoles": alternate}, lab.backend.url)
    # The braces of an answer are text, not a placeholder.
    assert run(lab, static("notes {{}}"), llm(**PARTS)) == "Hello there"
    payload = lab.backend.requests[-1].json
    if "messages" not in payload:
        assert payload.get("system", "") + payload["prompt"] == in_chatml(SENT).rstrip()
        return
    shown = SENT if "system" not in payload else SENT[1:]
    assert [message["role"] for message in payload["messages"]] == [role for role, _ in shown]
    assert read_payload(payload) == ("S", "\n".join(f"{role}: {text}" for role, text in SENT[1:]))


def test_nodes_that_share_a_beginning_differ_in_the_newest_message_only(lab: EngineLab) -> None:
    nodes = [llm(systemPrompt="S", lateInstruction="Plan."), llm(systemPrompt="S", lateSystemPrompt="{agent1Output}")]
    run(lab, *nodes)
    plan, answer = map(sent, lab.backend.requests)
    assert plan[:-1] == answer[:-1] == [("system", "S"), ("user", "q1"), ("assistant", "a1")]
    assert (plan[-1], answer[-1]) == (("user", "q2\n\nPlan."), ("user", "<q2\n\nPlan.>\n\nq2"))
    lab.backend.requests.clear()
    run(lab, *nodes, messages=(*TURNS, assistant("a2"), user("q3")))
    assert sent(lab.backend.requests[0])[:-1] == [*plan[:-1], ("user", "q2"), ("assistant", "a2")]


def test_templates_of_jinja(lab: EngineLab) -> None:
    run(
        lab,
        static("notes"),
        llm(
            jinja2=True,
            lateSystemPrompt="{% if agent1Output %}Notes: {{ agent1Output }}{% endif %}",
            lateInstruction="{% if agent1Output == 'no' %}x{% endif %}",
            exampleTurns=[{"user": "{{ agent1Output }}", "assistant": "{x}"}],
        ),
        messages=(user("q"),),
    )
    assert sent(lab.backend.requests[0]) == [("user", "notes"), ("assistant", "{x}"), ("user", "Notes: notes\n\nq")]


@table("more, calls", [({}, ["x", "y"]), ({"multiModelList": [{"endpointName": "Main"}]}, ["x", "y"])])
@pytest.mark.parametrize("chat", [True, False])
def test_blocks_of_a_text(lab: EngineLab, more: dict[str, Any], calls: list[str], chat: bool) -> None:
    api_type = "openAIChatCompletion" if chat else "openAIV1Completion"
    lab.write("ApiTypes/Other", {"type": api_type})
    lab.endpoint("Main", {"apiTypeConfigFileName": "Other"}, lab.backend.url)
    lab.backend.responder = lambda _: DIALECTS[api_type].reply(Answer(), stream=False)
    run(
        lab,
        {
            "type": "SlowButQualityRAG",
            "ragType": "x",
            "ragTarget": "x--ChunkBreak--y",
            "endpointName": "Main",
            "systemPrompt": "S",
            "prompt": "Read this.",
            "lateInstruction": "[TextChunk]",
            **more,
            "exampleTurns": [{"user": "e", "assistant": "[TextChunk]!"}],
        },
        discussion_id="d1",
    )
    expected = [
        [("system", "S"), ("user", "e"), ("assistant", f"{text}!"), ("user", f"Read this.\n\n{text}")] for text in calls
    ]
    bodies = sorted((request.json for request in lab.backend.requests), key=json.dumps)
    if chat:
        assert [[(message["role"], message["content"]) for message in body["messages"]] for body in bodies] == expected
    else:
        assert [body["prompt"] for body in bodies] == [in_chatml(messages).rstrip() for messages in expected]


def test_markers_and_tags_of_a_summary(lab: EngineLab) -> None:
    store = MemoryStore(DiscussionFolder("d1"))
    for number in range(1, 5):
        store.append_memory(f"k{number}", f"h{number}")
    lab.backend.responder = lambda request: reply_to(request, "<old>All is well in the mill by the river.</old>")
    run(
        lab,
        {
            "type": "chatSummarySummarizer",
            "endpointName": "Main",
            "systemPrompt": "S",
            "prompt": "Fold.",
            "lateSystemPrompt": "<old>[CHAT_SUMMARY]</old>",
            "lateInstruction": "[LATEST_MEMORIES]",
            "minMemoriesPerSummary": 1,
        },
        discussion_id="d1",
    )
    lines = [sent(request)[-1][1].replace("\n", " ") for request in lab.backend.requests]
    assert len(lines) == 2
    assert "<old>There is not yet a summary file</old>  Fold.  k1" in lines[0] and lines[0].endswith("k3")
    assert lines[1] == "<old>All is well in the mill by the river.</old>  Fold.  k4"


def remember(lab: EngineLab, **settings: Any) -> None:
    name = "_DiscussionId-MemoryFile-Workflow-Settings"
    lab.write(
        f"Workflows/tester/{name}",
        {
            "endpointName": "Main",
            "chunkEstimatedTokenSize": 5,
            "maxMessagesBetweenChunks": 1,
            "lookbackStartTurn": 0,
            **settings,
        },
    )
    lab.user(discussionIdMemoryFileWorkflowSettings=name)
    run(lab, {"type": "QualityMemory"}, discussion_id="d1", messages=(*TURNS, assistant("a2"), user("q3")))
    assert lab.backend.requests


def test_tags_of_a_workflow_that_writes_memories(lab: EngineLab) -> None:
    lab.workflow("Write", [llm("Fold {agent1Input}", lateSystemPrompt="<old>none</old>", lateInstruction="Write.")])
    lab.backend.responder = lambda request: reply_to(request, f"<old>Fact {len(lab.backend.requests)} is new.</old>")
    remember(lab, fileMemoryWorkflowName="Write")
    texts = [text for text, _ in MemoryStore(DiscussionFolder("d1")).memories()]
    assert texts and not any("old" in text for text in texts)


def test_settings_of_memories_have_no_parts(lab: EngineLab) -> None:
    remember(lab, systemPrompt="S", prompt="[TextChunk]", lateInstruction="L")
    assert not any("L" in text for request in lab.backend.requests for _, text in sent(request))


def test_a_description_made_with_another_late_text_is_not_used(lab: EngineLab) -> None:
    seen: list[str] = []

    def describe(request: RecordedRequest) -> Reply:
        seen.append(str(request.json["messages"][-1]["content"][0]["text"]))
        return reply_to(request, f"description {len(seen)}")

    lab.backend.responder = describe
    image: Message = {"role": "user", "content": "look", "images": ["data:image/png;base64,iVBORw0KGgo="]}
    node = {"type": "ImageProcessor", "endpointName": "Main", "lateInstruction": "{agent1Output}"}
    results = [run(lab, static(text), node, messages=(image,)) for text in ("red?", "red?", "blue?")]
    assert results == ["description 1", "description 1", "description 2"]
    assert seen == ["look\n\nred?", "look\n\nblue?"]
