"""Recall by meaning: vectors of messages, made behind the answers of a real server's clients."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from Middleware.common import instance_global_variables as instance
from Middleware.models.process import process
from Middleware.services.memory import embedding_service, message_vectors, recall
from Middleware.utilities.vector_math_utils import vector_to_blob
from Tests.api.api_lab import ApiLab, settled
from Tests.api.test_recall import KEY, Lab, talk
from Tests.backend_dialects import embed
from Tests.stub_backend import Reply, StubBackend, status_reply
from Tests.tables import table
from Tests.workflows.engine_lab import assistant, reply_to, user

TOPICS = (("boat", "vessel"), ("bread", "loaf"), ("snow", "winter"))
CHAT = (
    "My grandfather had an old boat here.",
    "It must have been painted in red.",
    "Where shall we buy some bread for it?",
    "At the corner, next to the chemist.",
    "We expect some snow on Monday night.",
    "ok",
)


def vector(text: str) -> list[float]:
    """What a text is about, and a constant, so that all are a little alike."""
    return [*(float(any(word in text for word in topic)) for topic in TOPICS), 0.1]


class Vectors:
    """An embedding server: each call is noted; ``reply`` answers instead of the vectors."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.stub = lab, StubBackend()
        self.reply: Any = lambda request: embed(request, vector)
        self.stub.responder = lambda request: self.reply(request)
        lab.api.write("ApiTypes/Embed", {"type": "openAIEmbeddings"})
        self.model("first")
        lab.api.endpoint("Gone", {"apiTypeConfigFileName": "Embed"}, "http://127.0.0.1:9")

    def model(self, name: str) -> None:
        fields = {"apiTypeConfigFileName": "Embed", "modelNameToSendToAPI": name}
        self.lab.api.endpoint("Embed", fields, self.stub.url)

    def texts(self) -> list[list[str]]:
        """The texts of all calls until now."""
        calls = [request.json["input"] for request in self.stub.requests]
        self.stub.requests.clear()
        return calls

    def ask(self, question: str, **options: Any) -> list[str]:
        node = {"embeddingEndpointName": "Embed", **options.pop("node", {})}
        return [line.partition("] ")[2] for line in self.lab.ask(question, node=node, **options)]

    def stored(self, discussion: str = "mill") -> dict[str, Any]:
        """The text of each row with a vector, and that as stored."""
        with closing(sqlite3.connect(self.lab.path(discussion))) as database:
            statement = "SELECT text, vector FROM messages JOIN message_embeddings ON message_id = id"
            return dict(database.execute(statement).fetchall())


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vectors]:
    with StubBackend() as backend:
        found = Vectors(Lab(ApiLab(tmp_path, monkeypatch, backend)))
        with found.stub:
            found.model("first")
            yield found


def embedded(vectors: Vectors, **settings: Any) -> None:
    vectors.lab.settings(embeddingEndpointName="Embed", **settings)


@table(
    ("question", "key", "first"),
    [
        # What stands next to it counts in part.
        ("vessel?", "", CHAT[:2]),
        ("A loaf; a loaf", KEY, (CHAT[2], CHAT[1], CHAT[3])),
        ("winter", "", (CHAT[4],)),
        ("vessels painted", "", (CHAT[1], CHAT[0])),
    ],
)
def test_other_words_find(vectors: Vectors, question: str, key: str, first: tuple[str, ...]) -> None:
    embedded(vectors)
    options = {"key": key, "discussion": f"d{len(question)}"}
    talk(vectors.lab, *CHAT, **options)
    found = [line.partition(": ")[2] for line in vectors.ask(question, **options)]
    assert found[: len(first)] == list(first)
    without = vectors.ask(question, node={"embeddingEndpointName": ""}, **options)
    assert bool(without) is ("painted" in question)


def test_vectors_are_made_behind_the_answer(vectors: Vectors) -> None:
    """Of what is new and long enough, and a few older ones at a time; nothing is sent again."""
    talk(vectors.lab, *CHAT)
    assert vectors.texts() == []
    embedded(vectors, embeddingBackfillBatchSize=2)
    history = [user(CHAT[0]), assistant(CHAT[1]), user(CHAT[2]), assistant(CHAT[3]), user(CHAT[4]), assistant("ok")]
    vectors.lab.say(*history, user("And so we go home."), answer="We take the train of eight.")
    assert vectors.texts() == [["And so we go home.", "We take the train of eight.", *CHAT[:2]]]
    vectors.lab.say(user("What is it?"), answer="A question of one chat.")
    # The new chat has just begun, and is found by nobody.
    assert vectors.texts() == [list(CHAT[2:4])]
    vectors.lab.say(user("What is it?"), assistant("A question of one chat."), user("Well, so it is."), answer="Yes.")
    assert vectors.texts() == [["A question of one chat.", "Well, so it is.", CHAT[4]]]
    vectors.lab.say(user("What is it?"), assistant("A question of one chat."), user("Well, so it is."), answer="Yes.")
    assert vectors.texts() == []
    assert set(CHAT[:5]) < set(vectors.stored())


def test_the_endpoint_of_a_node_makes_vectors_as_well(vectors: Vectors) -> None:
    talk(vectors.lab, *CHAT)
    assert vectors.ask("loaf") == []
    assert vectors.texts() == [["loaf"], [*CHAT[:5]]]
    assert vectors.ask("loaf")[0] == f"User: {CHAT[2]}"


def test_encrypted_vectors_are_tokens(vectors: Vectors) -> None:
    embedded(vectors)
    talk(vectors.lab, *CHAT, key=KEY)
    found = vectors.stored()
    assert len(found) == 5
    assert all(isinstance(stored, str) and stored.startswith("gAAAA") for stored in found.values())
    plain = [vector_to_blob(vector(text)) for text in CHAT]
    files = [path for path in Path(str(instance.DISCUSSION_DIRECTORY)).rglob("*") if path.is_file()]
    assert not any(blob in path.read_bytes() for path in files for blob in plain)


LATE = threading.Event()


@table(
    ("reply", "endpoint", "says"),
    [
        (lambda request: status_reply(503), "Embed", "503"),
        (lambda request: status_reply(200, "not JSON"), "Embed", "Embed"),
        (lambda request: embed(request, lambda text: []), "Embed", "an empty vector"),
        (lambda request: embed(request, lambda text: [1.0, 0.0]), "Embed", "do not have the 2 numbers"),
        (lambda request: Reply(held=LATE), "Embed", "endpoint 'Embed' has not answered within 0.2 seconds"),
        (None, "Gone", "Gone"),
        (None, "Nowhere", "Nowhere"),
        (None, "Main", "generates text"),
    ],
)
def test_words_alone_without_a_vector(
    vectors: Vectors,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reply: Any,
    endpoint: str,
    says: str,
) -> None:
    embedded(vectors)
    vectors.reply = lambda request: embed(request, vector)
    talk(vectors.lab, *CHAT)
    monkeypatch.setattr(recall, "_EMBEDDING_SECONDS", 0.2)
    monkeypatch.setattr(message_vectors, "embed_messages", lambda *arguments: None)
    vectors.reply = reply or vectors.reply
    caplog.clear()
    vectors.texts()
    LATE.clear()
    assert vectors.ask("bread", node={"embeddingEndpointName": endpoint})[0] == f"User: {CHAT[2]}"
    if says.endswith("seconds"):
        # It is not waited for again, and one line in the log is enough.
        asked = vectors.texts(), vectors.ask("bread")[0], vectors.texts()
        assert asked == ([["bread"]], f"User: {CHAT[2]}", [])
        vectors.reply = lambda request: embed(request, vector)
        process().one(embedding_service._late).put("Embed", 0.0)
        assert vectors.ask("bread")[0] == f"User: {CHAT[2]}" and vectors.texts() == [["bread"]]
    LATE.set()
    lines = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert len(lines) == 1 and says in lines[0], lines


def test_vectors_of_models_are_kept_apart(vectors: Vectors) -> None:
    embedded(vectors)
    talk(vectors.lab, *CHAT)
    vectors.model("second")
    vectors.texts()
    vectors.reply = lambda request: embed(request, lambda text: [*reversed(vector(text)), 0.0])
    assert vectors.ask("loaf") == []
    assert vectors.texts() == [["loaf"], list(CHAT[:5])]
    assert vectors.ask("loaf")[0] == f"User: {CHAT[2]}"
    with closing(sqlite3.connect(vectors.lab.path())) as database:
        counts = database.execute("SELECT model, count(*) FROM message_embeddings GROUP BY 1 ORDER BY 1").fetchall()
    assert counts == [("first", 5), ("second", 5)]


def test_what_is_deleted_or_off_the_path_is_not_found(vectors: Vectors) -> None:
    embedded(vectors)
    said = talk(vectors.lab, *CHAT)
    vectors.lab.say(*said[:2], user("Where shall we buy some cheese for it?"), *said[3:], user("So."), answer="Yes.")
    assert not any("bread" in line for line in vectors.ask("loaf"))
    with closing(sqlite3.connect(vectors.lab.path())) as database:
        assert database.execute("SELECT count(*) FROM message_embeddings").fetchone()[0] == 6
    vectors.lab.say(*said, user("So."), answer="Yes.")
    assert vectors.ask("loaf")[0] == f"User: {CHAT[2]}"


def test_a_discussion_made_anew_has_no_old_vectors(vectors: Vectors) -> None:
    embedded(vectors)
    talk(vectors.lab, *CHAT)
    assert vectors.ask("vessel")
    for path in vectors.lab.path().parent.glob("message_index.db*"):
        path.unlink()
    talk(vectors.lab, "Is there any bread at all?", "No, there is not any.", "Fine.", "Good.")
    assert vectors.ask("loaf", node={"maxTokens": 20})[0] == "User: Is there any bread at all?"


def test_no_request_waits_for_vectors(vectors: Vectors) -> None:
    """The answer is complete, and the next one comes, while the server still makes them."""
    embedded(vectors)
    held = threading.Event()
    vectors.reply = lambda request: Reply(held=held) if held.is_set() is False else embed(request, vector)
    lab = vectors.lab
    lab.api.backend.responder = lambda request: reply_to(request, "It must have been painted in red.")
    try:
        for count in range(2):
            first = user("[DiscussionId]mill[/DiscussionId]My grandfather had an old boat here.")
            assert lab.api.chat(first, assistant("So?"), user(f"Yes, number {count}.")).text.startswith("It must")
    finally:
        held.set()
        assert settled()
