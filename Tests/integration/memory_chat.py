"""Conversations with memories over real sockets, whose messages are numbered so that nothing is lost or told twice.

Every message holds a marker such as ``#12#``. The scripted LLM server answers each memory node with the markers of what
it was given, so that a stored text says exactly which messages it stands for.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from Tests.backend_dialects import embed
from Tests.integration.launcher import USER, ConfigTree, api_type, child_node, endpoint, llm_node, standard_tree
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, chat_answer, node_of, status_reply

ANSWER = "This is the answer."
EMBEDDING_MODEL = "embedder"
_MARKER = re.compile(r"#(\d+)#")
NEW, BEFORE = "NEW-PART", "KNOWN-PART"


def marker(number: int) -> str:
    return f"#{number}#"


def markers(text: str) -> list[int]:
    """The numbers of the messages that a text stands for, in its order."""
    return [int(found) for found in _MARKER.findall(text)]


def message_text(number: int) -> str:
    """About 14 tokens by the engine's estimate."""
    return f"{marker(number)} some words were said in turn"


def hash_of(number: int) -> str:
    """How stored data refers to the message."""
    return hashlib.sha256(message_text(number).encode()).hexdigest()


def conversation(name: str, count: int) -> list[dict[str, str]]:
    """A system message with the discussion's name and ``count`` numbered messages; the last is the user's."""
    roles = ("user", "assistant")
    numbered = [{"role": roles[(count - 1 - number) % 2], "content": message_text(number)} for number in range(count)]
    return [{"role": "system", "content": f"[DiscussionId]{name}[/DiscussionId]Be kind."}, *numbered]


def looked_at(folder: Path) -> bool:
    """Whether the memories of a discussion were looked at once, after which a shorter text is due for one."""
    return any((folder / name).exists() for name in ("memories.json", "vector_memory.db"))


class MemoryBackend(StubBackend):
    """Answers chat nodes with ``ANSWER``, memory nodes with markers, and embedding calls with vectors.

    Attributes:
        delays: seconds before an answer, by node; ``jitter`` is the longest random one of the others.
        held: nodes whose calls get no answer until ``release`` is called.
        failing: nodes whose calls get status 500.
        distinct: no two memories have the same text, as with real models.
    """

    def __init__(self, seed: int = 0, jitter: float = 0.0) -> None:
        super().__init__()
        self.jitter = jitter
        self.delays: dict[str, float] = {}
        self.held: set[str] = set()
        self._released = threading.Event()
        self.failing: set[str] = set()
        self.distinct = False
        self._chance = random.Random(seed)
        self._calls: list[tuple[str, RecordedRequest]] = []
        self._called = threading.Condition()

    def hold(self, *nodes: str) -> None:
        """Let the calls of these nodes wait from now on."""
        self._released = threading.Event()
        self.held = set(nodes)

    def release(self) -> None:
        """Answer all calls that wait, and those that come."""
        self.held = set()
        self._released.set()

    @property
    def calls(self) -> list[str]:
        """The nodes that called, in order."""
        with self._called:
            return [name for name, _ in self._calls]

    def wait_calls(self, node: str, count: int, timeout: float) -> list[RecordedRequest]:
        """Wait for the next call of ``node``, or for ``count`` of any ("").

        Returns the call, the last of them; nothing if they do not come within ``timeout`` seconds.
        """
        with self._called:
            known = len(self._calls)

            def wanted() -> list[RecordedRequest]:
                some = [request for name, request in self._calls[known:] if node in ("", name)]
                return some[0 if node else count - 1 :][:1]

            self._called.wait_for(wanted, timeout)
            return wanted()

    def count(self, node: str) -> int:
        """Return how often ``node`` has called."""
        return self.calls.count(node)

    def last_call(self, node: str) -> RecordedRequest:
        """Return the newest call of ``node``, which must have been made."""
        with self._called:
            return next(request for name, request in reversed(self._calls) if name == node)

    def respond(self, request: RecordedRequest) -> Reply:
        name = node_of(request)
        delay = self.delays.get(name, self._chance.uniform(0, self.jitter))
        with self._called:
            self._calls.append((name, request))
            self._called.notify_all()
        reply = self._answer(name, request)
        return replace(reply, header_delay=delay, held=self._released if name in self.held else None)

    def _answer(self, name: str, request: RecordedRequest) -> Reply:
        if name in self.failing:
            return status_reply(500)
        if name == "embed":
            return embed(request, lambda text: [1.0, float(len(text))])
        text = _answer(name, str(request.json["messages"][-1]["content"]))
        if self.distinct and name == "memory":
            text += f" (answer {len(self._calls)})"
        return chat_answer(request, [text[:5], text[5:]])


def _answer(name: str, prompt: str) -> str:
    if name == "answer":
        return ANSWER
    known, _, new = prompt.rpartition(NEW)
    if name == "facts":
        return json.dumps(
            [
                {
                    "title": f"Message {number}",
                    "summary": marker(number),
                    "entities": ["Ann"],
                    "key_phrases": ["some words"],
                }
                for number in markers(new)
            ]
        )
    told = (
        markers(new)
        if name in ("memory", "condense", "old", "neutral")
        else [*dict.fromkeys(markers(known) + markers(new))]
    )
    return f"{name}: {' '.join(map(marker, told))}"


def memory_tree(public: Any, backend_url: str, *, vector: bool, summary: bool = True, **settings: Any) -> ConfigTree:
    """A user whose shared workflow ``Chat`` answers and then makes memories; ``Recall`` reads them before it answers,
    and ``Whole`` does both.

    ``vector``: searchable memories with vectors and a state document, else memory files, a summary, and condensation.
    """
    tree = standard_tree(public, backend_url)
    tree.write(
        f"Users/{USER}.json",
        {
            "allowSharedWorkflows": True,
            "chatPromptTemplateName": "_chatonly",
            "discussionIdMemoryFileWorkflowSettings": "memory-settings",
            "contextCompactorSettingsFile": "compactor",
        },
    )
    tree.write("ApiTypes/Embed.json", {"type": "openAIEmbeddings", "presetType": "Embed"})
    tree.write("ApiTypes/Chat.json", api_type())
    tree.write(
        "Endpoints/Embed.json",
        endpoint(backend_url, apiTypeConfigFileName="Embed", modelNameToSendToAPI=EMBEDDING_MODEL),
    )
    tree.write(
        f"Workflows/{USER}/memory-settings.json",
        {
            "useVectorForQualityMemory": vector,
            "endpointName": "Stub",
            "preset": "Plain",
            "lookbackStartTurn": 2,
            "chunkEstimatedTokenSize": 60,
            "maxMessagesBetweenChunks": 4,
            "fileMemoryWorkflowName": "WriteMemory",
            "condenseMemories": True,
            "memoriesBeforeCondensation": 3,
            "memoryCondensationBuffer": 1,
            "condenseMemoriesSystemPrompt": "node:condense",
            "condenseMemoriesPrompt": f"{NEW} [MemoriesToCondense]",
            "vectorMemoryChunkEstimatedTokenSize": 60,
            "vectorMemoryMaxMessagesBetweenChunks": 4,
            "vectorMemorySystemPrompt": "node:facts",
            "vectorMemoryPrompt": f"{NEW} [TextChunk]",
            "embeddingEndpointName": "Embed",
            "useStateDocument": True,
            "stateDocumentWorkflowName": "WriteState",
            **settings,
        },
    )
    tree.write(
        f"Workflows/{USER}/compactor.json",
        {
            "endpointName": "Stub",
            "preset": "Plain",
            "lookbackStartTurn": 2,
            "recentContextTokens": 60,
            "oldContextTokens": 60,
            "oldSectionSystemPrompt": "node:old",
            "oldSectionPrompt": f"[RECENT_MESSAGES] {NEW} [MESSAGES_TO_SUMMARIZE]",
            "neutralSummarySystemPrompt": "node:neutral",
            "neutralSummaryPrompt": f"{NEW} [MESSAGES_TO_SUMMARIZE]",
            "oldestUpdateSystemPrompt": "node:oldest",
            "oldestUpdatePrompt": f"[EXISTING_SUMMARY] {NEW} [NEW_CONTENT]",
        },
    )
    tree.private("WriteMemory", llm_node("memory", prompt=f"{BEFORE} {{agent2Input}} {NEW} {{agent1Input}}"))
    tree.private("WriteState", llm_node("state", prompt=f"{BEFORE} {{agent2Input}} {NEW} {{agent1Input}}"))
    answer = llm_node("answer", returnToUser=True, addDiscussionIdTimestampsForLLM=True)
    fold = {
        **llm_node("summary", prompt=f"[CHAT_SUMMARY] {NEW} [LATEST_MEMORIES]"),
        "type": "chatSummarySummarizer",
        "minMemoriesPerSummary": 2,
        "loopIfMemoriesExceed": 2,
    }
    nodes = (
        [{"type": "QualityMemory"}, fold, {"type": "ContextCompactor"}]
        if not vector and summary
        else [{"type": "QualityMemory"}]
    )
    tree.private("Remember", *nodes)
    tree.shared("Chat", answer, child_node("Remember"))
    recalled = (
        {"type": "VectorMemorySearch", "input": "some words", "limit": 100}
        if vector
        else {"type": "GetCurrentMemoryFromFile"},
        {"type": "GetCurrentSummaryFromFile"},
    )
    showing = {"systemPrompt": "node:answer <{agent1Output}|{agent2Output}>"}
    tree.shared("Recall", *recalled, llm_node("answer", returnToUser=True, **showing))
    tree.shared("Whole", *recalled, {**answer, **showing}, child_node("Remember"))
    return tree


class Exchange:
    """One chat completion in a thread of its own, which the server may not live to answer."""

    def __init__(self, port: int, model: str, messages: Sequence[dict[str, str]], stream: bool = False) -> None:
        self.status = 0
        self.body = b""
        self.seconds = 0.0
        self.failure: Exception | None = None
        self._request = json.dumps({"model": model, "messages": list(messages), "stream": stream})
        self._port = port
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=CLIENT_PATIENCE)
        started = time.monotonic()
        try:
            connection.request("POST", "/v1/chat/completions", self._request, {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.status, self.body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.failure = error
        finally:
            self.seconds = time.monotonic() - started
            connection.close()

    def wait(self, timeout: float = CLIENT_PATIENCE) -> Exchange:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the request was not answered"
        return self

    @property
    def answered(self) -> bool:
        return self.status == 200 and self.failure is None
