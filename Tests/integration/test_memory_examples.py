"""The examples in the user documentation of memory, copied as they stand, do what the pages say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Tests.backend_dialects import embed
from Tests.docs.blocks import blocks, whole_files
from Tests.docs.pages import all_pages
from Tests.docs.sandbox import USER, USER_FILE, Sandbox
from Tests.integration.launcher import Launcher
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply, json_reply
from Tests.workflows.engine_lab import until

SETTINGS = f"Workflows/{USER}/_Memory-Settings.json"
FACT = "Mara hid the ledger in the mill."
ANSWERS = {
    "You do small jobs": "NOTE",
    "You keep notes": "NOTE",
    "You keep the chronicle": "SUMMARY",
    "You keep the long-term memory": f"- {FACT}\n",
    "You keep a document": "STATE",
    "You condense": "OLD",
    "You write an even-handed": "NEUTRAL",
    "You keep the running": "OLDEST",
}


def files(page: str) -> dict[str, Any]:
    """The whole files among a page's examples."""
    return {block.value: block.json() for block in whole_files(all_pages()[f"Docs/User/{page}"])}


def lines(page: str, key: str) -> dict[str, Any]:
    """The example that has ``key`` at its top."""
    found = (block.json() for block in blocks(all_pages()[f"Docs/User/{page}"]))
    return next(content for content in found if key in content)


class Example:
    """What ``init`` writes for a user, and an LLM that answers each kind of prompt."""

    def __init__(self, folder: Path, backend: StubBackend) -> None:
        self._backend = backend
        backend.responder = self._reply
        sandbox = Sandbox(folder, backend.url)
        backend.requests.clear()
        self.configs, self.discussions = sandbox.configs, sandbox.public / "DiscussionIds"

    def read(self, name: str) -> Any:
        return json.loads((self.configs / name).read_text(encoding="utf-8"))

    def write(self, name: str, content: Any) -> None:
        (self.configs / name).parent.mkdir(parents=True, exist_ok=True)
        (self.configs / name).write_text(json.dumps(content), encoding="utf-8")

    def change(self, name: str, **keys: Any) -> None:
        self.write(name, {**self.read(name), **keys})

    def file(self, name: str) -> Any:
        """The content of a file of the discussion; None if it is not there."""
        path = self.discussions / "old-mill" / name
        return path.read_text(encoding="utf-8") if path.exists() else None

    def talk(
        self, server: Launcher, model: str, count: int, done: Callable[[], bool] = lambda: True, says: str = ""
    ) -> str:
        """Send ever longer requests, up to ``count`` messages; returns the last prompt of the answering node.

        ``says``: what each message says after its number.
        """
        for number in range(1, count + 1, 2):
            messages = [
                {"role": ("user", "assistant")[index % 2], "content": f"Message {index} of the story.{says}"}
                for index in range(number)
            ]
            tag = {"role": "system", "content": "[DiscussionId]old-mill[/DiscussionId]Be kind."}
            finished = server.output().count("done after")
            answer = server.request("POST", "/v1/chat/completions", {"model": model, "messages": [tag, *messages]})
            assert answer.status == 200, answer.body
            assert until(lambda finished=finished: server.output().count("done after") > finished)  # type: ignore[misc]
        assert until(done)
        answers = [body for request in self._backend.requests if "Be kind." in str(body := request.json)]
        return str(answers[-1]["messages"])

    @staticmethod
    def _reply(request: RecordedRequest) -> Reply:
        if not request.body:
            return json_reply({"object": "list", "data": [{"id": "stub-model", "object": "model"}]})
        if "input" in request.json:
            return embed(request)
        system = request.json["messages"][0]["content"]
        return chat_reply(next((text for start, text in ANSWERS.items() if system.startswith(start)), "Answer."))


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Example]:
    with StubBackend() as backend:
        yield Example(tmp_path, backend)


def run(example: Example) -> Launcher:
    return Launcher("run_waitress.py", "--PublicDirectory", example.configs.parent, "--User", USER)


def assert_no_complaints(server: Launcher) -> None:
    output = server.output()
    assert not re.search(r"WARNING|ERROR|to look at", output), output


def copy_files(example: Example, page: str) -> None:
    for name, content in files(page).items():
        if name.startswith("Workflows/"):
            example.write(name, content)


def test_file_memories_come_back_in_later_prompts(example: Example) -> None:
    copy_files(example, "memory.md")
    with run(example) as server:
        example.talk(server, "quest", 11)
        assert json.loads(example.file("memories.json")) == []
        example.talk(server, "quest", 13)
        assert len(json.loads(example.file("memories.json"))) == 1
        prompt = example.talk(server, "quest", 35)
        assert_no_complaints(server)
    notes = re.sub(r"\[\d+ \w+ \d{4}\] ", "", prompt)  # each begins with the day on which its messages were said
    assert "<notes>\\nNOTE\\n\\nNOTE\\n\\nNOTE\\n</notes>" in notes and notes != prompt
    assert "<summary>\\nSUMMARY\\n</summary>" in prompt


def test_searchable_memories_come_back_by_words(example: Example) -> None:
    page = "searchable-memories.md"
    copy_files(example, page)
    example.change(SETTINGS, **lines(page, "useVectorForQualityMemory"))
    with run(example) as server:
        prompt = example.talk(server, "searching", 15, says=f" {FACT}")
        assert_no_complaints(server)
        assert "1 of 1 chunks searched for memories, 1 stored" in server.output()
    assert f"] {FACT}\\n</earlier>" in prompt


def test_searchable_memories_come_back_by_meaning_and_keep_a_document(example: Example) -> None:
    page = "searchable-memories.md"
    copy_files(example, page)
    embeddings = f"Endpoints/{USER}/Embeddings.json"
    address = example.read(f"Endpoints/{USER}/Main.json")["endpoint"]
    example.write(embeddings, {**files(page)[embeddings], "endpoint": address})
    example.change(
        SETTINGS,
        **lines(page, "useVectorForQualityMemory"),
        **lines(page, "embeddingEndpointName"),
        **lines(page, "useStateDocument"),
    )
    searching = f"Workflows/{USER}/searching/_DefaultWorkflow.json"
    nodes = example.read(searching)["nodes"]
    nodes[0] = {**nodes[0], "embeddingEndpointName": "Embeddings", "input": "nothing with these words"}
    example.change(searching, nodes=nodes)
    with run(example) as server:
        prompt = example.talk(server, "searching", 15, says=f" {FACT}")
        assert_no_complaints(server)
    assert f"] {FACT}\\n</earlier>" in prompt
    assert example.file("state_document.md") == "STATE"


def test_the_compactor_tells_of_what_is_no_longer_sent(example: Example) -> None:
    page = "context-compactor.md"
    copy_files(example, page)
    example.change(f"Workflows/{USER}/_Compactor-Settings.json", recentContextTokens=40, oldContextTokens=40)
    example.change(USER_FILE, **lines(page, "contextCompactorSettingsFile"))
    with run(example) as server:
        prompt = example.talk(server, "compacting", 25)
        assert_no_complaints(server)
    assert "<beginning>\\nOLDEST\\n</beginning>" in prompt and "<later>\\nOLD\\n</later>" in prompt
