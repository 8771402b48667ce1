"""Long conversations with the shipped users that remember: what is stored, what models read, what the log says."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.launcher import PROJECT, Launcher, streamed_text
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_answer, json_reply
from Tests.workflows.engine_lab import until

GAME, ASSISTANT = "_example_game_bot_with_file_memory", "_example_assistant_with_vector_memory"
SHIPPED_ADDRESS = "http://127.0.0.1:5001"
ID = "old-mill"
IMAGE = "data:image/png;base64,iVBORw0KGgo="
TITLE = (
    '### Task:\nGenerate a concise title.\n### Output:\nJSON format: { "title": "your title" }\n'
    "### Chat History:\n<chat_history>\nUSER: Hello\n</chat_history>"
)

PLAN = "<think>Hm, {so}.</think><outcome>\nDoor {n} opens.\n</outcome>\n<status>\nMill; dusk\n</status>"
FACT = (
    '[{"title": "Ledger", "summary": "Mara hid ledger {n} in the mill.", "entities": ["Mara"], '
    '"key_phrases": ["hidden ledger"]}]'
)
ANSWERS = {  # how a system prompt begins -> what the model says; {n} is the number of the call
    "You keep the chronicle of a text adventure short": "JOINED {n}",
    "You keep the chronicle": "ENTRY {n}",
    "You keep the summary of a long": "STORY {n}",
    "You keep the long-term memory": f"Here they are:\n```json\n{FACT}\n```",
    "You keep a document": "# The person\n- Looks for ledger {n}.",
    "You sum up a part": "PART {n}",
    "You keep the summary of how": "BEGINNING {n}",
    "You do small tasks": '{"title": "Ledger"}',
}
STEPS = {  # what a step asks for behind the newest message -> what the model says
    "First plan your turn": PLAN,
    "First make notes for your next message": "<think>Hm, {so}.</think>NOTES {n}",
}
LEFT_OVER = (  # what no prompt may hold: markers, template code, words for what is missing, empty sections
    r"\{\{|\{%|\{agent|_CURLY__|\[DiscussionId|\[IMAGE_BLOCK\]|<think>",
    r"\[(TextChunk|Memory_file|CHAT_SUMMARY|LATEST_MEMORIES|\w*Memories\w*|[A-Z_]{6,})\]",
    r"did not exist|No additional information|No state document|No relevant memories|Cannot perform",
    r"memories to grab|been generated yet",
    r"(?<!If it is empty, there is none yet:\n)<(\w+)>\s*</\1>|\bNone\b|\n{4}|\b(User: User|Assistant: Assistant):",
)


class Server:
    """A launcher with a copy of the shipped configuration, whose endpoints all lead to one scripted model."""

    def __init__(self, public: Path, user: str, backend: StubBackend) -> None:
        self.public, self._backend = public, backend
        for folder in ("Configs", "WorkflowFiles"):
            shutil.copytree(PROJECT / "Public" / folder, public / folder)
        for file in (public / "Configs" / "Endpoints" / "_example_users").glob("*.json"):
            content = json.loads(file.read_text(encoding="utf-8"))
            assert content["endpoint"] == SHIPPED_ADDRESS
            file.write_text(json.dumps({**content, "endpoint": backend.url}), encoding="utf-8")
        backend.responder = self._reply
        self.launcher = Launcher("run_waitress.py", "--PublicDirectory", public, "--User", user)

    def send(self, *messages: dict[str, Any], stream: bool = False, model: str = "any") -> str:
        """One chat completion; returns once the nodes after the answer are done as well."""
        finished = self.launcher.output().count("done after")
        body = {"model": model, "messages": list(messages), "stream": stream}
        response = self.launcher.request("POST", "/v1/chat/completions", body)
        assert response.status == 200, response.body
        assert until(lambda: self.launcher.output().count("done after") > finished)
        return streamed_text(response.body) if stream else response.text

    def talk(self, turns: int, text: str = "I look for the ledger {here}.", model: str = "any") -> None:
        """So many turns, every other one streamed."""
        messages: list[dict[str, Any]] = [{"role": "system", "content": f"[DiscussionId]{ID}[/DiscussionId]"}]
        for number in range(turns):
            messages.append({"role": "user", "content": f"Turn {number}. {text}"})
            answer = self.send(*messages, stream=bool(number % 2), model=model)
            assert answer.startswith("The floor creaks"), "neither a label nor thinking stands before it"
            messages.append({"role": "assistant", "content": answer})

    def assert_titles_do_not_enter_memory(self) -> None:
        tag = {"role": "system", "content": f"[DiscussionId]{ID}[/DiscussionId]"}
        for _ in range(3):
            assert self.send(tag, {"role": "user", "content": TITLE}) == '{"title": "Ledger"}'
        # A running server has its own files beside the conversations.
        kept = [path.name for path in (self.public / "DiscussionIds").iterdir() if not path.name.startswith(".server-")]
        assert len(self.prompts()) == 3 and kept == []

    def prompts(self, beginning: str = "") -> list[str]:
        """System prompt and messages of all calls whose system prompt begins like that, as one text each."""
        texts = [
            "\n".join(str(message["content"]) for message in request.json["messages"])
            for request in self._backend.requests
            if "messages" in request.json
        ]
        return [text for text in texts if text.startswith(beginning)]

    def stored(self, name: str) -> str:
        return (self.public / "DiscussionIds" / ID / name).read_text(encoding="utf-8")

    def assert_nothing_to_complain_about(self) -> None:
        assert not re.findall(r".*(?:WARNING|ERROR|to look at).*", self.launcher.output())
        for prompt in self.prompts():
            for pattern in LEFT_OVER:
                assert not re.search(pattern, prompt), f"{pattern} in:\n{prompt}"

    def _reply(self, request: RecordedRequest) -> Reply:
        body = request.json
        if "messages" not in body:  # KoboldCpp
            return json_reply({"results": [{"text": "A brass key."}]})
        system = body["messages"][0]["content"]
        step = next((text for task, text in STEPS.items() if task in body["messages"][-1]["content"]), None)
        text = step or next(
            (text for start, text in ANSWERS.items() if system.startswith(start)),
            "Assistant: The floor creaks, {n} times.",
        )
        text = text.replace("{n}", str(len(self._backend.requests)))
        return chat_answer(request, [text[:4], text[4:]])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    """Starts the server of a user; it and its model end with the test."""
    with StubBackend() as backend:
        servers: list[Server] = []

        def run(user: str) -> Server:
            servers.append(Server(tmp_path / "Public", user, backend))
            servers[-1].launcher.__enter__()
            return servers[-1]

        yield run
        for server in servers:
            server.launcher.__exit__(None, None, None)


def test_the_game_bot_keeps_a_long_story(start: Callable[[str], Server]) -> None:
    server = start(GAME)
    server.assert_titles_do_not_enter_memory()
    server.talk(56)
    memories = [entry["text_block"].split()[0] for entry in json.loads(server.stored("memories.json"))]
    assert memories == ["JOINED", *["ENTRY"] * 5], "the oldest five of ten became one"
    assert "STORY" in server.stored("chat_summary.json")
    plan, telling = server.prompts("You are the game master")[-2:]
    assert "First plan your turn" in plan and "Tell the player what happens" in telling
    assert plan.partition("<chronicle>")[0] == telling.partition("<chronicle>")[0], "the server reads it once"
    for prompt in (plan, telling):
        assert re.search(r"<summary>\nSTORY \d+\n</summary>", prompt)
        assert re.search(r"<chronicle>\nENTRY \d+(\n\nENTRY \d+){3}\n</chronicle>", prompt)
        assert "Saltreach" in prompt and "Maud Tarrow" in prompt and "no dice" in prompt, "the three files"
    assert re.search(r"<plan>\nDoor \d+ opens.\n</plan>", telling) and "*Mill; dusk*" in telling
    written = server.prompts("You keep the chronicle of a text adventure. ")
    assert all("User: Turn" in prompt and "Assistant: The floor" in prompt for prompt in written), "who said what"
    server.assert_nothing_to_complain_about()


def recalled(prompt: str) -> list[str]:
    return prompt.partition("<earlier>\n")[2].partition("\n</earlier>")[0].splitlines()


def test_the_assistant_remembers_single_facts_and_how_things_stand(start: Callable[[str], Server]) -> None:
    server = start(ASSISTANT)
    server.assert_titles_do_not_enter_memory()
    (server.public / "WorkflowFiles" / ASSISTANT / "about-you.md").write_text("Lives by the mill.", encoding="utf-8")
    server.talk(33)
    database = sqlite3.connect(server.public / "DiscussionIds" / ID / "vector_memory.db")
    assert database.execute("SELECT count(*) FROM memories").fetchone() == (6,)
    database.close()
    assert server.stored("state_document.md").startswith("# The person\n- Looks for ledger ")
    answers = [prompt for prompt in server.prompts("You are Wren") if "<draft>" in prompt]
    assert "<earlier>" not in answers[0] and "<state>" not in answers[0], "nothing is known yet"
    assert {re.sub(r"\d+", "N", line).partition("] ")[2] for line in recalled(answers[-1])} == {
        "Mara hid ledger N in the mill."
    }, "the prompt has all messages"
    assert "<state>\n# The person" in answers[-1] and "<person>\nLives by the mill.\n</person>" in answers[-1]
    assert "This is the document so far" in server.prompts("You keep a document")[-1]
    # Another chat with the same id.
    server.send(
        {"role": "system", "content": f"[DiscussionId]{ID}[/DiscussionId]"}, {"role": "user", "content": "Turn 32?"}
    )
    answer = [prompt for prompt in server.prompts("You are Wren") if "<draft>" in prompt][-1]
    assert recalled(answer)[0].endswith("] User: Turn 32. I look for the ledger {here}.")
    server.assert_nothing_to_complain_about()


def test_the_compacted_chat_tells_of_what_is_no_longer_sent(start: Callable[[str], Server]) -> None:
    server = start(ASSISTANT)
    server.talk(15, "It is a long story. " * 350, model="Compacted_Chat")
    prompt = server.prompts("You are a warm")[-1]
    assert re.search(r"<beginning>\nBEGINNING \d+\n</beginning>", prompt)
    assert re.search(r"<middle>\nPART \d+\n</middle>", prompt) and "Turn 14" in prompt and "Turn 0." not in prompt
    first, followed = server.prompts("You sum up a part")[0], server.prompts("You keep the summary of how")
    assert "<part>\nuser: User: Turn 0." in first and "Turn 1." in first.partition("</later>")[0]
    # Of all records of the beginning again, so that none is of an edited message.
    assert "<summary>\n\n</summary>" in followed[-1]
    assert [prompt.partition("<after>")[2].count("PART ") for prompt in followed] == list(range(1, len(followed) + 1))
    server.assert_nothing_to_complain_about()


def test_the_assistant_describes_an_image_once(start: Callable[[str], Server]) -> None:
    server = start(ASSISTANT)
    tag = {"role": "system", "content": f"[DiscussionId]{ID}[/DiscussionId]"}
    image = {
        "role": "user",
        "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": IMAGE}}],
    }
    server.send(tag, image)
    server.send(tag, image, {"role": "assistant", "content": "A key."}, {"role": "user", "content": "Whose?"})
    assert "A brass key." in server.prompts("You are Wren")[-1]
    assert "A brass key." in server.stored("vision_responses.json")
    server.assert_nothing_to_complain_about()
