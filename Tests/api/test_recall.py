"""What was said is remembered by requests of clients, and found by the node Recall."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.utilities.discussions.message_index import message_rows, message_tables
from Tests.api.api_lab import CHAT, ApiLab, settled
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import assistant, reply_to, user

RECALL = [{"type": "Recall", "whoSaidIt": "off"}, {"type": "StaticResponse", "content": "{agent1Output}"}]
TALK = [{"type": "Standard", "endpointName": "Main", "prompt": ""}]
KEY = "a key of a client"


class Lab:
    """A server whose user remembers messages; a question is a request of one message."""

    def __init__(self, api: ApiLab) -> None:
        self.api = api
        self.settings()
        api.shared("ask", "")
        api.workflow("_DefaultWorkflow", RECALL, folder="_shared/ask")

    def settings(self, **more: Any) -> None:
        self.api.user(discussionIdMemoryFileWorkflowSettings="memory", encryptUsingApiKey=True)
        self.api.write("Workflows/tester/memory", {"rememberMessages": True, "timeZone": "UTC", **more})

    def say(
        self, *messages: Any, answer: str | None = None, discussion: str = "mill", key: str = "", **fields: Any
    ) -> str:
        if answer is not None:
            self.api.backend.responder = lambda request: reply_to(request, answer)
        first = {**messages[0], "content": f"[DiscussionId]{discussion}[/DiscussionId]{messages[0]['content']}"}
        headers = {"Authorization": f"Bearer {key}"} if key else None
        answer_of = self.api.chat(first, *messages[1:], headers=headers, **fields)
        text = answer_of.streamed_text if fields.get("stream") else answer_of.text
        assert settled()
        return str(text)

    def ask(self, question: str, *, node: dict[str, Any] | None = None, **options: Any) -> list[str]:
        nodes = [{**RECALL[0], **(node or {})}, RECALL[1]]
        self.api.workflow("_DefaultWorkflow", nodes, folder="_shared/ask")
        return self.say(user(question), model="ask", **options).splitlines()

    def path(self, discussion: str = "mill") -> Path:
        return next(Path(str(instance.DISCUSSION_DIRECTORY)).rglob(f"{discussion}/message_index.db"))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    with StubBackend() as backend:
        yield Lab(ApiLab(tmp_path, monkeypatch, backend))


def talk(lab: Lab, *lines: str, **options: Any) -> list[Any]:
    """A chat in which the user says every second line; returns it with the last answer."""
    said: list[Any] = []
    for place in range(0, len(lines), 2):
        said.append(user(lines[place]))
        lab.say(*said, answer=lines[place + 1], **options)
        said.append(assistant(lines[place + 1]))
    return said


def test_the_next_chat_knows_the_chat_before(lab: Lab) -> None:
    talk(lab, "Where do we put the key of the mill?", "Under the blue flower pot.", "Fine.", "The ladder stays here.")
    assert "Assistant: Under the blue flower pot." in [line.partition("] ")[2] for line in lab.ask("Where is the key?")]
    # The last answer, which no request has confirmed.
    assert lab.ask("ladder")[0].endswith("Assistant: The ladder stays here.")
    assert lab.ask("zeppelin") == []


def test_nothing_is_stored_without_the_setting(lab: Lab) -> None:
    lab.settings(rememberMessages=False)
    talk(lab, "Where do we put the key?", "Under the pot.", "Fine.", "Good.")
    assert list(Path(str(instance.DISCUSSION_DIRECTORY)).rglob("*.db")) == []


def test_after_an_edit_the_first_prompt_is_right(lab: Lab) -> None:
    said = talk(lab, "The key is under the pot.", "Yes.", "And the ladder?", "In the shed.")
    said[0] = user("The key is behind the door.")
    lab.api.workflow("_DefaultWorkflow", [{"type": "Recall", "input": "key"}, RECALL[1]])
    lines = lab.say(*said, user("So?")).splitlines()
    assert lines[0].partition("] ")[2] == "User: The key is behind the door."
    assert not any("pot" in line for line in lines)


@pytest.mark.parametrize("stream", [False, True])
def test_regenerated_answers_replace_each_other(lab: Lab, stream: bool) -> None:
    said = talk(lab, "Tell me of the mill.", "It has a red wheel.", "And the miller?", "He is asleep.", stream=stream)
    lab.say(*said[:-1], answer="He has gone to the market.", stream=stream)
    found = [line.partition("] ")[2] for line in lab.ask("miller")]
    assert "Assistant: He has gone to the market." in found
    assert "Assistant: He is asleep." not in found


@table(
    ("messages", "found"),
    [
        ([user("the heron")], False),
        ([user("the heron"), assistant("yes"), user("so")], True),
        ([{"role": "system", "content": "the heron"}, user("x"), assistant("y"), user("z")], False),
        ([user("x"), {"role": "tool", "content": "the heron", "tool_call_id": "1"}, assistant("y"), user("z")], False),
        ([user("x"), assistant("<think>the heron</think>y"), user("z")], False),
        ([user("x"), assistant("a heron", tool_calls=[]), user("z")], True),
    ],
)
def test_what_becomes_a_row(lab: Lab, messages: list[Any], found: bool) -> None:
    lab.settings()
    discussion = f"d{abs(hash(json.dumps(messages)))}"
    lab.say(*messages, answer="good", discussion=discussion)
    assert any("heron" in line for line in lab.ask("heron", discussion=discussion)) is found


def test_times_of_the_client_are_shown_and_resolved(lab: Lab) -> None:
    lab.say(
        {**user("Ines: I signed the lease yesterday."), "timestamp": 1773252000},
        {**assistant("Tom: Good for you."), "timestamp": 1773252060},
        {**user("Ines: And I moved the loom."), "timestamp": "2026-03-12T10:00:00Z"},
        {**assistant("Tom: Already?"), "timestamp": 1773309600},
        user("Ines: Yes."),
        answer="Tom: Well.",
    )
    assert lab.ask("lease")[0] == "[11 March 2026] Ines: I signed the lease yesterday (10 March 2026)."
    assert lab.ask("What happened on 10 March 2026?")[0].startswith("[11 March 2026] Ines: I signed")
    assert lab.ask("lease", node={"dates": False})[0] == "Ines: I signed the lease yesterday."
    lab.settings(timeZone="none")
    assert lab.ask("lease")[0] == "Ines: I signed the lease yesterday."


def test_what_the_prompt_holds_is_no_result(lab: Lab) -> None:
    said = talk(lab, "A heron stood there.", "A heron?", "Yes, a heron.", "Fine herons.", "Herons, I say.", "Good.")
    counts = {}
    for shown in (0, 2, 4, 100):
        lab.api.workflow("_DefaultWorkflow", [{"type": "Recall", "input": "heron", "newestShown": shown}, RECALL[1]])
        counts[shown] = len(lab.say(*said, user("heron?")).splitlines())
    assert counts == {0: 6, 2: 5, 4: 3, 100: 0}
    lab.api.workflow("_DefaultWorkflow", [{"type": "Recall", "input": "heron", "newestShownTokens": "1000"}, RECALL[1]])
    assert lab.say(*said, user("heron?")) == ""


@table(
    ("keys", "holds"),
    [
        ({"newestShown": "{agent1Output}"}, 3),
        ({"newestShown": " 4 "}, 3),
        ({"newestShown": "{agent1Output}00"}, 0),
        ({"newestShown": "{nothing}"}, 6),
        ({"newestShownTokens": "{agent1Output}"}, 5),
        ({"newestShownTokens": "{agent1Output}000"}, 0),
    ],
)
def test_how_much_the_prompt_holds_may_come_from_a_variable(lab: Lab, keys: dict[str, Any], holds: int) -> None:
    lab.settings()
    discussion = "".join(filter(str.isalnum, str(keys)))
    lines = ("A heron stood there.", "A heron?", "Yes, a heron.", "Fine herons.", "Herons, I say.", "Good.")
    said = talk(lab, *lines, discussion=discussion)
    counted = {"type": "StaticResponse", "content": "4"}
    shown = {"type": "StaticResponse", "content": "{agent2Output}"}
    lab.api.workflow("_DefaultWorkflow", [counted, {"type": "Recall", "input": "heron", **keys}, shown])
    assert len(lab.say(*said, user("heron?"), discussion=discussion).splitlines()) == holds


@table(
    ("newest", "fields", "input"),
    [
        ("Tom: Where is the ledger?", {}, "{chat_user_prompt_last_one}"),
        ("Tom: Ines, where is the ledger?", {}, "{chat_user_prompt_last_one}"),
        ("Tom: Where is the ledger?", {"name": "Tom"}, "{chat_user_prompt_last_one}"),
        ("Tom: Where is the {ledger}?", {}, "Look for:\n{chat_user_prompt_last_one}"),
        ("Where is the ledger?", {}, "{chat_user_prompt_last_one}"),
    ],
)
def test_who_asks_is_no_part_of_the_question(lab: Lab, newest: str, fields: dict[str, str], input: str) -> None:
    lab.settings()
    discussion = "".join(filter(str.isalnum, newest + input + str(fields)))
    lines = ("Tom: Good evening.", "Ines: I hid the ledger in the mill.", "Tom: Well done.", "Ines: Thank you.")
    said = talk(lab, *lines, discussion=discussion)
    lab.api.workflow("_DefaultWorkflow", [{"type": "Recall", "input": input}, RECALL[1]])
    found = lab.say(*said, {**user(newest), **fields}, discussion=discussion).splitlines()
    assert found[0].endswith("Ines: I hid the ledger in the mill.") and not any("What fits" in line for line in found)


def test_the_label_of_the_role_is_no_word_of_the_question(lab: Lab) -> None:
    said = talk(lab, "The user of the mill was Mara.", "I see.", "Ships came by.", "How many?")
    lab.api.user(discussionIdMemoryFileWorkflowSettings="memory", chatCompleteAddUserAssistant=True)
    lab.api.workflow("_DefaultWorkflow", [{"type": "Recall", "newestShown": 1}, RECALL[1]])
    assert "Mara" not in lab.say(*said, user("zeppelins")) and "Mara" in lab.say(*said, user("Which user?"))


def test_encrypted_for_a_client_with_a_key(lab: Lab) -> None:
    talk(lab, "Where is the heron?", "On the roof of the mill.", "And now?", "Still there.", key=KEY)
    assert [line.partition("] ")[2] for line in lab.ask("heron", key=KEY)][:2] == [
        "User: Where is the heron?",
        "Assistant: On the roof of the mill.",
    ]
    files = [path for path in Path(str(instance.DISCUSSION_DIRECTORY)).rglob("*") if path.is_file()]
    assert any(path.name == "message_index.db" for path in files)
    assert lab.ask("heron") == []
    for path in files:
        assert b"heron" not in path.read_bytes().lower()
        assert b"roof" not in path.read_bytes().lower()


@table(
    ("input", "expected"),
    [("", "Nothing."), (" ; ;", "Nothing."), ("zeppelin", "Nothing."), ("{chat_user_prompt_last_one}", "Nothing.")],
)
def test_the_text_for_nothing(lab: Lab, input: str, expected: str) -> None:
    lab.settings()
    assert lab.ask("hello", node={"input": input, "nothing": "Nothing."}, discussion="empty") == [expected]
    # Without an id.
    lab.api.workflow("_DefaultWorkflow", [{"type": "Recall", "nothing": "Nothing."}, RECALL[1]])
    assert lab.api.chat(user("heron")).text == "Nothing."


def test_text_is_inserted_as_text(lab: Lab) -> None:
    talk(lab, "The heron is {agent1Output} and {{ x }}.", "Yes.", "Fine.", "Good.")
    assert lab.ask("heron")[0].endswith("User: The heron is {agent1Output} and {{ x }}.")


def test_a_damaged_file_is_moved_away(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    said = talk(lab, "A heron stood there.", "A heron?", "Yes, a heron.", "Fine herons.")
    path = lab.path()
    path.write_bytes(b"not a database at all, and long enough to be read as one" * 100)
    lab.say(*said, user("Go on."), answer="Well.")
    assert "A heron?" in lab.ask("heron")[1]
    assert len([other for other in path.parent.iterdir() if re.search(r"\.db\.corrupt-\d+$", other.name)]) == 1
    assert [record.levelname for record in caplog.records if "is damaged" in record.message] == ["WARNING"]


def test_a_file_that_others_write_to_is_filled_by_the_next_request(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = talk(lab, "A heron stood there.", "A heron?", "Yes, a heron.", "Fine herons.")
    monkeypatch.setattr(message_rows, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(lab.path(), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert lab.say(*said, user("An egret, too."), answer="Well.") == "Well."
        assert lab.say(*said, user("An egret, too."), answer="Well.") == "Well."
        other.execute("ROLLBACK")
    assert [record.levelname for record in caplog.records if "could not be stored" in record.message] == ["WARNING"]
    assert not any("egret" in line for line in lab.ask("egret"))
    lab.say(*said, user("An egret, too."), assistant("Well."), user("So."), answer="Yes.")
    assert any(line.endswith("User: An egret, too.") for line in lab.ask("egret"))


def nothing_can_be_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a folder that is read-only: the files that SQLite makes next to a database."""
    for ending in ("-wal", "-shm"):
        Path(f"{path}{ending}").mkdir()


def the_disk_is_full(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use = message_tables.use_write_ahead_log

    def limited(connection: sqlite3.Connection) -> None:
        use(connection)
        connection.execute("PRAGMA max_page_count = 1")

    monkeypatch.setattr(message_tables, "use_write_ahead_log", limited)


@pytest.mark.parametrize("fault", [nothing_can_be_made, the_disk_is_full])
def test_where_nothing_can_be_written_what_is_there_is_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Any
) -> None:
    said = talk(lab, "A heron stood there.", "A heron?", "Yes, a heron.", "Fine herons.")
    with monkeypatch.context() as patch:
        fault(lab.path(), patch)
        for text in ("egret " * 2000, "an egret " * 2000):
            assert lab.say(*said, user(text), answer="Well.") == "Well."
        assert any(line.endswith("User: A heron stood there.") for line in lab.ask("heron"))
        assert lab.ask("egret") == []
    assert [record.levelname for record in caplog.records if "could not be stored" in record.message] == ["WARNING"]
    for ending in ("-wal", "-shm"):
        other = Path(f"{lab.path()}{ending}")
        if other.is_dir():
            other.rmdir()
    lab.say(*said, user("An egret, too."), assistant("Well."), user("So."), answer="Yes.")
    assert any(line.endswith("User: An egret, too.") for line in lab.ask("egret"))


def test_a_stopped_answer_is_stored_as_far_as_it_came(lab: Lab) -> None:
    said = talk(lab, "A heron stood there.", "A heron?", "Yes, a heron.", "Fine herons.")
    lab.api.backend.responder = lambda request: reply_to(request, "The stork has left, and nothing else came.")
    body = {"messages": [user(f"[DiscussionId]mill[/DiscussionId]{said[0]['content']}"), *said[1:], user("And?")]}
    response = lab.api.client.post(CHAT, data=json.dumps({**body, "stream": True}))
    chunks = iter(response.response)
    received = b""
    while b"ork" not in received:
        received += next(chunks)
    response.close()
    assert settled()
    found = [line.partition("] ")[2] for line in lab.ask("And what of the heron?", node={"maxTokens": 2000})]
    assert any(line.startswith("Assistant: The") and "nothing else" not in line for line in found)
