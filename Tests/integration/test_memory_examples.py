"""The examples in the user documentation of memory, copied as they stand, do what the pages say."""
from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.integration.launcher import PROJECT, Launcher
from Tests.integration.memory_chat import until
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, json_reply

PAGES = PROJECT / "Docs" / "User"
BLOCK = re.compile(r"```json\n(.*?)```", re.DOTALL)
TARGET = re.compile(r"`Configs/([\w/.-]+\.json)`")
USER_FILE, SETTINGS = "Users/me.json", "Workflows/demo/_DiscussionId-MemoryFile-Workflow-Settings.json"
MEMORY = [{"title": "The ledger", "summary": "Mara hid the ledger in the mill.", "entities": ["Mara"],
           "key_phrases": ["hidden ledger"]}]
ANSWERS = {"You keep the notes": "NOTE", "You keep the summary": "SUMMARY", "You write search terms": "ledger; mill",
           "You keep the long-term memory": json.dumps(MEMORY), "You keep a document": "STATE",
           "You condense": "OLD", "You write an even-handed": "NEUTRAL", "You keep the running": "OLDEST"}


def examples(page: str) -> Iterator[tuple[str, Any]]:
    """Each JSON block of a page with the last file named before it; lines of a file become an object."""
    text = (PAGES / page).read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        named = TARGET.findall(text[:block.start()])
        content = block[1].strip()
        yield named[-1] if named else "", json.loads("{" + content.rstrip(",") + "}" if content[0] == '"' else content)


def files(page: str) -> dict[str, Any]:
    """The whole files among a page's examples."""
    found: dict[str, Any] = {}
    for name, content in examples(page):
        if name not in found and isinstance(content, dict):
            found[name] = content
    return found


def lines(page: str, key: str) -> dict[str, Any]:
    """The example that has ``key`` at its top."""
    return next(content for _, content in examples(page) if key in content)


class Example:
    """A fresh installation with the demo's files, a user ``me``, and an LLM that answers each kind of prompt."""

    def __init__(self, public: Path, backend: StubBackend) -> None:
        self.configs, self.discussions = public / "Configs", public / "DiscussionIds"
        self._backend = backend
        backend.responder = self._reply
        shutil.copytree(PROJECT / "Public" / "Configs", self.configs)
        self.write(USER_FILE, self.read("Users/demo.json"))
        self.change("Endpoints/demo/Demo-LLM.json", endpoint=backend.url)

    def read(self, name: str) -> Any:
        return json.loads((self.configs / name).read_text(encoding="utf-8"))

    def write(self, name: str, content: Any) -> None:
        (self.configs / name).write_text(json.dumps(content), encoding="utf-8")

    def change(self, name: str, **keys: Any) -> None:
        self.write(name, {**self.read(name), **keys})

    def file(self, name: str) -> Any:
        """The content of a file of the discussion; None if it is not there."""
        path = self.discussions / "old-mill" / name
        return path.read_text(encoding="utf-8") if path.exists() else None

    def talk(self, server: Launcher, count: int, done: Callable[[], bool] = lambda: True) -> str:
        """Send ever longer requests, up to ``count`` messages; returns the last prompt of the answering node."""
        for number in range(1, count + 1, 2):
            messages = [{"role": ("user", "assistant")[index % 2], "content": f"Message {index} of the story."}
                        for index in range(number)]
            tag = {"role": "system", "content": "[DiscussionId]old-mill[/DiscussionId]Be kind."}
            finished = server.output().count("done after")
            answer = server.request("POST", "/v1/chat/completions", {"messages": [tag, *messages]})
            assert answer.status == 200, answer.body
            assert until(lambda finished=finished: server.output().count("done after") > finished)  # type: ignore[misc]
        assert until(done)
        answers = [body for request in self._backend.requests if "Be kind." in str(body := request.json)]
        return str(answers[-1]["messages"])

    @staticmethod
    def _reply(request: RecordedRequest) -> Reply:
        body = request.json
        if "input" in body:
            return json_reply({"embeddings": [[1.0, float(len(text))] for text in body["input"]]})
        system = body["messages"][0]["content"]
        return chat_reply(next((text for start, text in ANSWERS.items() if system.startswith(start)), "Answer."))


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Example]:
    with StubBackend() as backend:
        yield Example(tmp_path, backend)


def run(example: Example) -> Launcher:
    return Launcher("run_waitress.py", "--PublicDirectory", example.configs.parent, "--User", "me")


def assert_no_complaints(server: Launcher) -> None:
    output = server.output()
    assert not re.search(r"WARNING|ERROR|to look at", output), output


def copy_files(example: Example, page: str) -> None:
    for name, content in files(page).items():
        if name.startswith("Workflows/"):
            example.write(name, content)


def test_file_memories_come_back_in_later_prompts(example: Example) -> None:
    copy_files(example, "memory.md")
    example.change(USER_FILE, **lines("memory.md", "customWorkflow"))
    with run(example) as server:
        example.talk(server, 11)
        assert json.loads(example.file("memories.json")) == []
        example.talk(server, 13)
        assert len(json.loads(example.file("memories.json"))) == 1
        prompt = example.talk(server, 35)
        assert_no_complaints(server)
    assert "<notes>\\nNOTE\\n\\nNOTE\\n\\nNOTE\\n</notes>" in prompt
    assert "<summary>\\nSUMMARY\\n</summary>" in prompt


def test_searchable_memories_come_back_by_words(example: Example) -> None:
    copy_files(example, "searchable-memories.md")
    example.change(USER_FILE, **{**lines("memory.md", "customWorkflow"), "customWorkflow": "Searching"})
    with run(example) as server:
        prompt = example.talk(server, 15)
        assert_no_complaints(server)
        assert "1 of 1 chunks searched for memories, 1 stored" in server.output()
    assert "] Mara hid the ledger in the mill.\\n</notes>" in prompt


def test_searchable_memories_come_back_by_meaning_and_keep_a_document(example: Example) -> None:
    page = "searchable-memories.md"
    copy_files(example, page)
    example.change(USER_FILE, **{**lines("memory.md", "customWorkflow"), "customWorkflow": "Searching"})
    embeddings = "Endpoints/demo/Embeddings.json"
    address = example.read("Endpoints/demo/Demo-LLM.json")["endpoint"]
    example.write(embeddings, {**files(page)[embeddings], "endpoint": address})
    example.change(SETTINGS, embeddingEndpointName="Embeddings", **lines(page, "useStateDocument"))
    nodes = example.read("Workflows/demo/Searching.json")["nodes"]
    nodes[1] = {**nodes[1], **lines(page, "searchMode"), "input": "nothing with these words"}
    example.change("Workflows/demo/Searching.json", nodes=nodes)
    with run(example) as server:
        prompt = example.talk(server, 15)
        assert_no_complaints(server)
    assert "] Mara hid the ledger in the mill.\\n</notes>" in prompt
    assert example.file("state_document.md") == "STATE"


def test_the_compactor_tells_of_what_is_no_longer_sent(example: Example) -> None:
    page = "context-compactor.md"
    copy_files(example, page)
    example.change("Workflows/demo/_Compactor-Settings.json", recentContextTokens=40, oldContextTokens=40)
    example.change(USER_FILE, **lines(page, "customWorkflow"))
    with run(example) as server:
        prompt = example.talk(server, 25)
        assert_no_complaints(server)
    assert "<beginning>\\nOLDEST\\n</beginning>" in prompt and "<later>\\nOLD\\n</later>" in prompt


@pytest.mark.parametrize("page", ["memory.md", "searchable-memories.md", "context-compactor.md", "memory-settings.md"])
def test_every_example_of_a_page_is_json(page: str) -> None:
    assert list(examples(page))
