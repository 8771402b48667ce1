"""Memories found by meaning: a real embedding model behind the whole product, and an LLM that extracts fixed facts."""

from __future__ import annotations

import json
import math
import operator
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
import pytest

from Tests.integration.launcher import (
    PROJECT,
    USER,
    ConfigTree,
    Launcher,
    child_node,
    endpoint,
    llm_node,
    standard_tree,
)
from Tests.real.embedding_server import MODEL, EmbeddingServer
from Tests.real.servers import API_KEY
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_reply

if TYPE_CHECKING:
    from Tests.real.minilm import MiniLM

pytestmark = pytest.mark.real

NAME = "house"
NOTHING = "No relevant memories found in the vector database for the given keywords."
FACTS_PER_CHUNK = 6
PARAPHRASES = {
    "feline;dozed;sofa": "The cat sleeps on the couch every afternoon.",
    "doctor;dad's job": "Ann's father works as a physician in a small hospital.",
    "vehicle;engine failure;highway": "The car broke down on the motorway at night.",
    "wedding;bride;groom": "Ben and Carla got married in a little church in May.",
    "debt;borrowed money": "Carla still owes her neighbour two hundred euros.",
}
OTHERS = [
    "The roof of the barn was painted green.",
    "Ann plays the violin in the town orchestra.",
    "The village bakery opens at six in the morning.",
    "Ben grows tomatoes behind the house.",
    "The river froze over last January.",
    "Carla speaks four languages.",
    "The library closes on Mondays.",
    "Ann dislikes mushrooms.",
    "The old clock in the hall runs ten minutes slow.",
    "Ben is afraid of heights.",
    "The school has a new headmaster.",
    "Carla collects stamps from Africa.",
    "The bridge is being repaired.",
    "Ann lost her umbrella on the train.",
    "A storm knocked down the apple tree.",
    "Ben learned chess from his uncle.",
    "The ferry leaves twice a day.",
    "Carla wants to study astronomy.",
    "The cellar smells of paint.",
    "Ann runs five kilometres before breakfast.",
    "The museum shows Roman coins.",
    "Ben repaired the radio himself.",
    "The soup was far too salty.",
    "Carla wrote a poem about the sea.",
    "The bus stop moved to the market square.",
    "Ann keeps bees near the forest.",
    "The lighthouse was built in 1890.",
    "Ben sings in a choir on Thursdays.",
    "Carla paints portraits in oil.",
    "The well in the garden ran dry.",
    "Ann forgot the password of her computer.",
    "The theatre plays a comedy this week.",
    "Ben's suitcase was stolen in Lisbon.",
    "The mayor opened a swimming pool.",
    "Carla's blue scarf is made of wool.",
]
FACTS = [fact for place, other in enumerate(OTHERS) for fact in [other, *[*PARAPHRASES.values()][place : place + 1]]]
UNRELATED = "The museum shows Roman coins."


@pytest.fixture(scope="module")
def model() -> MiniLM:
    from Tests.real import minilm  # its packages are there only where these tests run

    return minilm.MiniLM(minilm.wheel())


@pytest.fixture(scope="module")
def embedder(model: MiniLM) -> Iterator[EmbeddingServer]:
    with EmbeddingServer(model) as server:
        yield server


def facts(request: RecordedRequest) -> Reply:
    """The facts whose numbers the messages of the chunk hold, or a greeting."""
    text = json.dumps(request.json["messages"])
    if "node:facts" not in text:
        return chat_reply("Fine.")
    chunks = [FACTS[start : start + FACTS_PER_CHUNK] for start in range(0, len(FACTS), FACTS_PER_CHUNK)]
    found = [fact for number, chunk in enumerate(chunks) if f"#{number}#" in text for fact in chunk]
    return chat_reply(json.dumps([{"title": "", "summary": fact, "entities": [], "key_phrases": []} for fact in found]))


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory, embedder: EmbeddingServer) -> Iterator[Path]:
    with StubBackend() as llm:
        llm.responder = facts
        yield _tree(tmp_path_factory.mktemp("wilmer") / "Public", llm.url, embedder.url).public


def _tree(public: Path, llm: str, embedder: str) -> ConfigTree:
    tree = standard_tree(public, llm)
    tree.write(
        f"Users/{USER}.json",
        {
            "allowSharedWorkflows": True,
            "chatPromptTemplateName": "_chatonly",
            "embeddingEndpointName": "MiniLM",
            "discussionIdMemoryFileWorkflowSettings": "memory-settings",
        },
    )
    tree.write("ApiTypes/Embed.json", {"type": "openAIEmbeddings", "presetType": "Embed"})
    tree.write(
        "Endpoints/MiniLM.json",
        endpoint(embedder, apiTypeConfigFileName="Embed", apiKey=API_KEY, modelNameToSendToAPI=MODEL),
    )
    tree.write(
        f"Workflows/{USER}/memory-settings.json",
        {
            "useVectorForQualityMemory": True,
            "endpointName": "Stub",
            "preset": "Plain",
            "lookbackStartTurn": 1,
            "vectorMemoryChunkEstimatedTokenSize": 20,
            "vectorMemoryMaxMessagesBetweenChunks": 1,
            "vectorMemorySystemPrompt": "node:facts",
            "vectorMemoryPrompt": "[TextChunk]",
            "embeddingEndpointName": "MiniLM",
        },
    )
    tree.private("Remember", {"type": "QualityMemory"})
    tree.shared("Chat", llm_node("answer", returnToUser=True), child_node("Remember"))
    said = "{chat_user_prompt_last_one}"
    for name, keys in {
        "keyword": {"searchMode": "keyword"},
        "semantic": {"searchMode": "semantic"},
        "hybrid": {"searchMode": "hybrid"},
        "both": {"searchMode": "hybrid", "input": "Roman coins", "semanticQuery": said},
    }.items():
        tree.shared(
            name,
            {"type": "VectorMemorySearch", "input": said, "limit": 5, "embeddingEndpointName": "MiniLM", **keys},
            {"type": "StaticResponse", "content": "{agent1Output}", "returnToUser": True},
        )
    return tree


@pytest.fixture(scope="module")
def wilmer(public: Path) -> Iterator[Launcher]:
    """A server that has stored all facts as memories of one conversation."""
    with Launcher("run_waitress.py", "--PublicDirectory", public, "--User", USER) as server:
        chunks = math.ceil(len(FACTS) / FACTS_PER_CHUNK)
        messages = [f"#{number}# A long letter came, and they talked about it for an hour." for number in range(chunks)]
        say(server, "Chat", "Hello.")
        say(server, "Chat", *messages, "And?", "Well?")
        deadline = time.monotonic() + 60
        while len(stored(database(public))) < len(FACTS):
            assert time.monotonic() < deadline, server.output()[-3000:]
            time.sleep(0.05)
        yield server


def say(server: Launcher, model: str, *texts: str) -> str:
    """The answer to a conversation; its messages are the user's and the assistant's in turn, the last the user's."""
    roles = ("user", "assistant")
    messages: list[dict[str, str]] = [{"role": "system", "content": f"[DiscussionId]{NAME}[/DiscussionId]Be kind."}]
    messages += [{"role": roles[(len(texts) - 1 - place) % 2], "content": text} for place, text in enumerate(texts)]
    answer = server.request("POST", "/v1/chat/completions", {"model": model, "messages": messages, "stream": False})
    assert answer.status == 200, answer.body
    return answer.text


def found(server: Launcher, mode: str, query: str) -> list[str]:
    return say(server, mode, query).split("\n\n---\n\n")


def database(public: Path) -> Path:
    return public / "DiscussionIds" / NAME / "vector_memory.db"


def stored(path: Path) -> list[tuple[Any, ...]]:
    """Memory, model and vector of each row that has one."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'memory_embeddings'").fetchone():
            return []
        return connection.execute(
            "SELECT m.memory_text, e.model, e.dim, e.vector FROM memories m "
            "JOIN memory_embeddings e ON e.memory_id = m.id ORDER BY m.id"
        ).fetchall()


def cosine(model: MiniLM, first: str, second: str) -> float:
    return sum(a * b for a, b in zip(model.embed(first), model.embed(second), strict=True))


def test_clients_get_the_vectors_of_the_model(wilmer: Launcher, model: MiniLM) -> None:
    """By OpenAI's package, which asks for base64, and finds the nearest fact to a question with them."""
    with openai.OpenAI(
        base_url=f"{wilmer.url}/v1", api_key="any", http_client=openai.DefaultHttpxClient(trust_env=False)
    ) as client:
        answer = client.embeddings.create(model="any", input=["Where did the feline doze?", *FACTS])
    question, *facts = (entry.embedding for entry in answer.data)
    assert facts[0] == pytest.approx(model.embed(FACTS[0]), abs=1e-6)
    nearest = max(zip(facts, FACTS, strict=True), key=lambda pair: sum(map(operator.mul, question, pair[0])))
    assert nearest[1] == PARAPHRASES["feline;dozed;sofa"]


@pytest.mark.parametrize(
    ("first", "second", "published"),
    [
        ("The weather is lovely today.", "It's so sunny outside!", 0.6660),
        ("The weather is lovely today.", "He drove to the stadium.", 0.1046),
        ("It's so sunny outside!", "He drove to the stadium.", 0.1411),
    ],
)
def test_the_model_gives_its_published_similarities(model: MiniLM, first: str, second: str, published: float) -> None:
    """Those of the documentation of its makers' library."""
    assert math.hypot(*model.embed(first)) == pytest.approx(1, abs=1e-5)
    assert cosine(model, first, second) == pytest.approx(published, abs=2e-4)


def test_paraphrases_are_nearer_than_the_unrelated(model: MiniLM) -> None:
    near = cosine(model, "The feline dozed off on the sofa.", "The cat sleeps on the couch.")
    assert near > 0.4 > max(cosine(model, "The feline dozed off on the sofa.", other) for other in OTHERS)


def test_memories_have_their_vectors(wilmer: Launcher, public: Path, embedder: EmbeddingServer) -> None:
    rows = stored(database(public))
    assert sorted(row[0] for row in rows) == sorted(FACTS) and len(OTHERS) >= 30
    assert {(row[1], row[2]) for row in rows} == {(MODEL, 384)}
    assert sorted(text for texts in embedder.inputs for text in texts if text in FACTS) == sorted(FACTS)


@pytest.mark.parametrize("query", PARAPHRASES)
def test_paraphrases_are_found_by_meaning(wilmer: Launcher, query: str) -> None:
    assert found(wilmer, "keyword", query) == [NOTHING]
    assert found(wilmer, "semantic", query)[0] == PARAPHRASES[query]
    assert found(wilmer, "hybrid", query)[0] == PARAPHRASES[query]


@pytest.mark.parametrize("query", PARAPHRASES)
def test_hybrid_joins_words_and_meaning(wilmer: Launcher, query: str) -> None:
    """The memory that holds the keywords and the one that is meant are both at the top."""
    assert set(found(wilmer, "both", query)[:2]) == {UNRELATED, PARAPHRASES[query]}


def test_backfill_makes_the_same_vectors(
    wilmer: Launcher, public: Path, embedder: EmbeddingServer, tmp_path: Path
) -> None:
    copy = tmp_path / "vector_memory.db"
    with closing(sqlite3.connect(database(public))) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute("DELETE FROM memory_embeddings")
        target.commit()
    assert stored(copy) == []
    done = subprocess.run(
        [
            sys.executable,
            str(PROJECT / "Scripts" / "backfill_embeddings.py"),
            "--db",
            str(copy),
            "--url",
            embedder.url,
            "--model",
            MODEL,
            "--api-key",
            API_KEY,
            "--batch-size",
            "7",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert stored(copy) == stored(database(public)) != []
