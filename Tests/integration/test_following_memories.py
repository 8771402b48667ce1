"""Memories that follow edits, over real sockets: a chat, an edit, a branch, a return, another chat with the same id."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.launcher import USER, ConfigTree, Launcher, api_type, endpoint
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_answer

pytestmark = pytest.mark.slow

MEMORY, SUMMARY, FACTS, DOCUMENT = "Write a memory of: ", "Sum up: ", "Write facts of: ", "Write a document of: "


class Model(StubBackend):
    """Writes memories that are their messages, summaries that are all they are made of, and else ``fine``."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []
        self.shown: list[str] = []

    def respond(self, request: RecordedRequest) -> Reply:
        text = str(request.json["messages"][-1]["content"])
        if text.startswith(FACTS):
            self.made.append(text)
            fact = {"title": "t", "summary": text.removeprefix(FACTS), "entities": [], "key_phrases": []}
            return chat_answer(request, json.dumps([fact]))
        if text.startswith(DOCUMENT):
            self.made.append(text)
            return chat_answer(request, text.removeprefix(DOCUMENT).replace("\n", " "))
        if text.startswith((MEMORY, SUMMARY)):
            self.made.append(text)
            text = text.split(": ", 1)[1]
            return chat_answer(request, text.replace("There is not yet a summary file", "").replace("\n", " "))
        self.shown.append(str(request.json["messages"][0]["content"]))
        return chat_answer(request, "fine")


def tree_of(public: Path, url: str) -> ConfigTree:
    tree = ConfigTree(public)
    tree.write("Users/_current-user.json", {"currentUser": USER})
    tree.write(
        f"Users/{USER}.json",
        {"chatPromptTemplateName": "_chatonly", "discussionIdMemoryFileWorkflowSettings": "Memory"},
    )
    tree.write(
        "PromptTemplates/_chatonly.json",
        {f"promptTemplate{role}Prefix": "" for role in ("System", "User", "Assistant")},
    )
    tree.write("Endpoints/Main.json", endpoint(url))
    tree.write("ApiTypes/Chat.json", api_type())
    tree.write("Presets/Chat/Plain.json", {})
    tree.write(
        f"Workflows/{USER}/Memory.json",
        {
            "endpointName": "Main",
            "preset": "Plain",
            "prompt": MEMORY + "[TextChunk]",
            "maxMessagesBetweenChunks": 4,
            "lookbackStartTurn": 1,
            "followEdits": True,
        },
    )
    node = {"endpointName": "Main", "preset": "Plain", "maxResponseSizeInTokens": 200}
    tree.private(
        "_DefaultWorkflow",
        {"title": "Memories", "type": "GetCurrentMemoryFromFile", "customDelimiter": " | "},
        {"title": "Summary", "type": "GetCurrentSummaryFromFile"},
        {"title": "Write", "type": "QualityMemory"},
        {
            "title": "Sum up",
            "type": "chatSummarySummarizer",
            **node,
            "prompt": SUMMARY + "[CHAT_SUMMARY] [LATEST_MEMORIES]",
            "minMemoriesPerSummary": 1,
        },
        {
            "title": "Answer",
            "type": "Standard",
            **node,
            "systemPrompt": "MEMORIES {agent1Output} SUMMARY {agent2Output} END",
            "returnToUser": True,
        },
    )
    return tree


def with_document(public: Path, url: str) -> ConfigTree:
    """The same with searchable memories, and a state document in place of the summary."""
    tree = tree_of(public, url)
    tree.write(
        f"Workflows/{USER}/Memory.json",
        {
            "endpointName": "Main",
            "preset": "Plain",
            "useVectorForQualityMemory": True,
            "vectorMemoryPrompt": FACTS + "[TextChunk]",
            "vectorMemoryMaxMessagesBetweenChunks": 4,
            "lookbackStartTurn": 1,
            "useStateDocument": True,
            "stateDocumentWorkflowName": "State",
            "followEdits": True,
        },
    )
    node = {"type": "Standard", "endpointName": "Main", "preset": "Plain", "maxResponseSizeInTokens": 200}
    tree.private("State", {"title": "Write", **node, "prompt": DOCUMENT + "{agent2Input} {agent1Input}"})
    tree.private(
        "_DefaultWorkflow",
        {"title": "State", "type": "GetCurrentStateDocument"},
        {"title": "Write", "type": "QualityMemory"},
        {"title": "Answer", **node, "systemPrompt": "STATE {agent1Output} END", "returnToUser": True},
    )
    return tree


def said(*texts: str) -> list[dict[str, str]]:
    numbered = [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]
    return [{"role": "system", "content": "[DiscussionId]mill[/DiscussionId]Be kind."}, *numbered]


def words(first: int, count: int, letter: str = "m") -> list[str]:
    return [f"{letter}{number}." for number in range(first, first + count)]


def test_memories_follow_a_chat(tmp_path: Path) -> None:
    with Model() as model:
        tree = tree_of(tmp_path / "Public", model.url)
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER) as server:
            folder = tree.public / "DiscussionIds" / "mill"

            def send(texts: list[str]) -> str:
                """A message of the client; what its nodes were shown, before the memories were written."""
                before = len(model.shown)
                answer = server.request("POST", "/v1/chat/completions", {"model": "x", "messages": said(*texts)})
                assert answer.status == 200 and len(model.shown) == before + 1
                return model.shown[-1]

            def stored(name: str) -> Any:
                return json.loads((folder / name).read_text("utf-8"))

            whole = words(0, 13)
            for count in (3, 5, 9, 13):
                send(whole[:count])
            assert len(stored("memories.json")) == 3
            shown = send(whole)
            assert all(word in shown for word in whole[:12])
            # An edit: gone at once, and the new text from the next request on.
            edited = [*whole[:5], "changed.", *whole[6:]]
            shown = send(edited)
            assert "m5." not in shown and "m1." in shown and "m9." in shown
            assert "changed." in json.dumps(stored("chat_summary.json"))
            shown = send(edited)
            assert "changed." in shown and "m5." not in shown and shown.count("m9.") == 2
            # The old branch again.
            made = len(model.made)
            shown = send(whole)
            assert "m5." in shown and "changed." not in shown
            assert send(edited) != shown
            assert len(model.made) == made


def test_the_state_document_follows_a_chat(tmp_path: Path) -> None:
    with Model() as model:
        tree = with_document(tmp_path / "Public", model.url)
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER) as server:
            path = tree.public / "DiscussionIds" / "mill" / "state_document.md"

            def send(texts: list[str]) -> str:
                """A message of the client; the document that its nodes were shown."""
                before = len(model.shown)
                answer = server.request("POST", "/v1/chat/completions", {"model": "x", "messages": said(*texts)})
                assert answer.status == 200 and len(model.shown) == before + 1
                return model.shown[-1].removeprefix("STATE ").removesuffix(" END")

            whole = words(0, 13)
            for count in (3, 5, 9, 13):
                send(whole[:count])
            document = send(whole)
            assert document == path.read_text("utf-8") and all(word in document for word in whole[:12])
            made = len(model.made)
            # An edit: gone at once, what is still true stands below; then the document is made again.
            edited = [*whole[:5], "changed.", *whole[6:]]
            shown = send(edited)
            assert "m5." not in shown and "m1." in shown and shown.split("\n\n- ")[1].startswith("m8.")
            assert len(model.made) == made + 2
            follows = send(edited)
            assert "changed." in follows and "m5." not in follows and follows.count("m9.") == 1
            # A branch, and the old one again: without a call, to the letter.
            branch = [*whole[:9], *words(0, 6, "n")]
            send(branch)
            made = len(model.made)
            assert (send(whole), send(edited), send(whole)) == (document, follows, document)
            assert "n1." in send(branch) and "m9." not in send(branch)
            assert len(model.made) == made
            # What the user writes stays, and gets what is new.
            send(whole)
            path.write_text("Mine.", encoding="utf-8")
            assert send(whole) == "Mine."
            shown = send(edited)
            assert shown.startswith("Mine.\n\n- m4.") and "changed." in shown and "m0." not in shown
            shown = send(edited)
            assert shown.startswith("Mine. ") and "changed." in shown and send(whole) == "Mine."
            # Deleted: made again of all facts, with one call.
            made = len(model.made)
            path.unlink()
            assert all(f"- {words_}" in send(whole) for words_ in ("m0.", "m4.", "m8."))
            assert len(model.made) == made + 1
            assert send(whole) == path.read_text("utf-8")


@pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "encrypted"])
def test_searchable_memories_follow_a_chat(tmp_path: Path, encrypted: bool) -> None:
    with Model() as model:
        tree = with_document(tmp_path / "Public", model.url)
        user = json.loads((tree.public / "Configs" / "Users" / f"{USER}.json").read_text("utf-8"))
        tree.write(f"Users/{USER}.json", {**user, "encryptUsingApiKey": encrypted})
        node = {"endpointName": "Main", "preset": "Plain", "maxResponseSizeInTokens": 200}
        tree.private(
            "_DefaultWorkflow",
            {"title": "Facts", "type": "VectorMemorySearch", "input": "t", "limit": 5},
            {"title": "Write", "type": "QualityMemory"},
            {
                "title": "Answer",
                "type": "Standard",
                **node,
                "systemPrompt": "FACTS {agent1Output} END",
                "returnToUser": True,
            },
        )
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", USER) as server:
            key = {"Authorization": "Bearer a-key-of-a-client"} if encrypted else {}

            def send(texts: list[str]) -> str:
                """A message of the client; what its nodes were shown, before the memories were written."""
                before = len(model.shown)
                body = {"model": "x", "messages": said(*texts)}
                request = urllib.request.Request(
                    f"http://127.0.0.1:{server.port}/v1/chat/completions",
                    json.dumps(body).encode(),
                    {"Content-Type": "application/json", **key},
                )
                with urllib.request.urlopen(request, timeout=CLIENT_PATIENCE) as answer:
                    answer.read()
                assert len(model.shown) == before + 1
                return model.shown[-1]

            whole = words(0, 13)
            for count in (3, 5, 9, 13):
                send(whole[:count])
            shown = send(whole)
            assert all(word in shown for word in whole[:12])
            # An edit: gone at once, and the new text from the next request on.
            edited = [*whole[:5], "changed.", *whole[6:]]
            shown = send(edited)
            assert "m5." not in shown and "m1." in shown and "m9." in shown
            shown = send(edited)
            assert "changed." in shown and "m5." not in shown and shown.count("m9.") == 1
            # A branch, and the old branch again.
            branch = [*whole[:6], *words(0, 9, "n")]
            for count in (8, 12, 15):
                shown = send(branch[:count])
                assert "m9." not in shown and "changed." not in shown
            made = len(model.made)
            shown = send(whole)
            assert "m5." in shown and "changed." not in shown and "n" not in shown.split("FACTS")[1].split("END")[0]
            assert "n3." in send(branch) and "changed." in send(edited)
            assert len(model.made) == made
