"""What memories cost per turn of a growing conversation, apart from the LLM, which answers at once here.

    python benchmarks/memory_turns.py [--messages 2000] [--words 60] [--profile]

A conversation grows by a question and an answer per turn, as a client sends it: whole each time. The workflow answers
with time stamps and then writes searchable memories with vectors and a state document, memory files, a rolling summary
and compacted context, and searches the memories. Times are milliseconds without the time spent in the LLM's place;
those of nodes include the workflows they start. Reading and escaping the request is the server's work and left out.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import os
import pstats
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware.common import instance_global_variables as instance
from Middleware.llmapis.embedding_api import EmbeddingApiService
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.messages import Message
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.events import EngineListener, Listeners, RunRecord
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Middleware.workflows.models.execution_context import NodeExecutionInfo
from Tests.integration.launcher import ConfigTree

DIMENSIONS = 384
AROUND = 25  # turns on either side of a place that is reported
WORDS = [f"word{number}" for number in range(3000)]

LLM = {"endpointName": "Main", "preset": "Plain"}
SETTINGS = {
    **LLM,
    "useVectorForQualityMemory": True,
    "systemPrompt": "Take notes.",
    "prompt": "[Memory_file]\n[TextChunk]",
    "vectorMemorySystemPrompt": "facts",
    "vectorMemoryPrompt": "[TextChunk]",
    "embeddingEndpointName": "Embedder",
    "useStateDocument": True,
    "stateDocumentWorkflowName": "State",
    "condenseMemories": True,
    "memoriesBeforeCondensation": 5,
    "memoryCondensationBuffer": 5,
}
MEMORY_NODES: list[dict[str, Any]] = [
    {"type": "VectorMemorySearch", "input": "{chat_user_prompt_last_one};word7", "limit": 5},
    {"type": "GetCurrentStateDocument"},
    {
        "type": "Standard",
        **LLM,
        "lastMessagesToSendInsteadOfPrompt": 20,
        "systemPrompt": "{agent1Output}{agent2Output}",
        "addDiscussionIdTimestampsForLLM": True,
        "returnToUser": True,
    },
    {"type": "QualityMemory"},
    {"type": "RecentMemory"},
    {"type": "chatSummarySummarizer", **LLM, "prompt": "[CHAT_SUMMARY]\n[LATEST_MEMORIES]"},
    {"type": "ContextCompactor"},
]
PLAIN_NODES: list[dict[str, Any]] = [
    {"type": "Standard", **LLM, "lastMessagesToSendInsteadOfPrompt": 20, "systemPrompt": "x", "returnToUser": True}
]
FILES: dict[str, Any] = {
    "Users/_current-user": {"currentUser": "bench"},
    "Users/bench": {
        "discussionIdMemoryFileWorkflowSettings": "memory",
        "contextCompactorSettingsFile": "compactor",
        "chatPromptTemplateName": "plain",
    },
    "PromptTemplates/plain": {},
    "Presets/Api/Plain": {},
    "Endpoints/Main": {"endpoint": "http://127.0.0.1:9", "apiTypeConfigFileName": "Api", "modelNameToSendToAPI": "m"},
    "Endpoints/Embedder": {
        "endpoint": "http://127.0.0.1:9",
        "apiTypeConfigFileName": "Embed",
        "modelNameToSendToAPI": "e",
    },
    "ApiTypes/Api": {"type": "openAIChatCompletion", "presetType": "Api"},
    "ApiTypes/Embed": {"type": "openAIEmbeddings", "presetType": "Api"},
    "Workflows/bench/memory": SETTINGS,
    "Workflows/bench/compactor": LLM,
    "Workflows/bench/State": {
        "nodes": [{"type": "Standard", **LLM, "systemPrompt": "state", "prompt": "{agent1Input}\n{agent2Input}"}]
    },
    "Workflows/bench/Chat": {"nodes": MEMORY_NODES},
    "Workflows/bench/Plain": {"nodes": PLAIN_NODES},
}


class InstantLlm:
    """Takes the place of LLM and embedding calls; ``seconds`` and ``cpu`` are what that cost so far."""

    def __init__(self) -> None:
        self.seconds = self.cpu = 0.0
        self.calls = 0
        self._chance = random.Random(2)
        self._vector = [self._chance.uniform(-1, 1) for _ in range(DIMENSIONS)]

    def install(self) -> None:
        llm = self

        def ask(service: LlmApiService, conversation: Sequence[dict[str, Any]] = (), **_: Any) -> str:
            return llm.timed(lambda: llm.answer(str(conversation[0]["content"])))

        def embed(service: EmbeddingApiService, texts: Sequence[str]) -> list[list[float]]:
            return llm.timed(lambda: [llm._vector] * len(texts))

        LlmApiService.get_response_from_llm = ask  # type: ignore[method-assign, assignment]
        EmbeddingApiService.embed = embed  # type: ignore[method-assign, assignment]

    def timed(self, action: Any) -> Any:
        begun, cpu = time.perf_counter(), time.process_time()
        try:
            return action()
        finally:
            self.calls += 1
            self.seconds += time.perf_counter() - begun
            self.cpu += time.process_time() - cpu

    def answer(self, system: str) -> str:
        if system == "facts":
            return json.dumps(
                [
                    {
                        "title": self.words(4),
                        "summary": self.words(20),
                        "entities": [self.words(1)],
                        "key_phrases": [self.words(2), self.words(2)],
                    }
                    for _ in range(3)
                ]
            )
        return self.words(300 if system == "state" else 80)

    def words(self, count: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=count))


class NodeTimes(EngineListener):
    """Milliseconds of each node of the outer workflow, without the LLM's."""

    def __init__(self, llm: InstantLlm) -> None:
        self._llm, self._before = llm, 0.0
        self.turns: list[dict[str, float]] = []

    def run_started(self, record: RunRecord) -> None:
        if record.run.workflow_name == "Chat":
            self.turns.append({})

    def node_started(self, record: RunRecord, index: int, node_type: str, name: str) -> None:
        if record.run.workflow_name == "Chat":
            self._before = self._llm.seconds

    def node_finished(self, record: RunRecord, info: NodeExecutionInfo) -> None:
        if record.run.workflow_name == "Chat":
            self.turns[-1][info.node_type] = (info.execution_time_seconds - (self._llm.seconds - self._before)) * 1000


def run(name: str, messages: Sequence[dict[str, str]], llm: InstantLlm, listeners: Listeners) -> tuple[float, float]:
    """Wall and CPU milliseconds of one turn without the LLM's."""
    fresh: list[Message] = [{"role": message["role"], "content": message["content"]} for message in messages]
    seconds, cpu = llm.seconds, llm.cpu
    begun, begun_cpu = time.perf_counter(), time.process_time()
    with request_scope(RequestContext(listeners=listeners)):
        WorkflowManager.run_custom_workflow(name, "bench", None, fresh)
    return (
        (time.perf_counter() - begun - (llm.seconds - seconds)) * 1000,
        (time.process_time() - begun_cpu - (llm.cpu - cpu)) * 1000,
    )


def grow(count: int, words: int, llm: InstantLlm, times: NodeTimes) -> list[tuple[float, float]]:
    """The costs of all turns up to ``count`` messages."""
    messages = [{"role": "system", "content": "[DiscussionId]bench[/DiscussionId]Be kind."}]
    costs, listeners = [], Listeners([times])
    for _ in range(count // 2):
        messages.append({"role": "user", "content": llm.words(words // 3)})
        costs.append(run("Chat", messages, llm, listeners))
        messages.append({"role": "assistant", "content": llm.words(words)})
    baseline = [run("Plain", messages, llm, listeners) for _ in range(2 * AROUND)]
    print(f"without memories, at {count} messages: {summary([wall for wall, _ in baseline])} wall")
    return costs


def report(costs: Sequence[tuple[float, float]], times: NodeTimes, places: Sequence[int]) -> None:
    for place in places:
        turns = slice(max(0, place // 2 - AROUND), place // 2 + AROUND)
        some = costs[turns]
        print(
            f"\nat {place} messages: {summary([wall for wall, _ in some])} wall; "
            f"{summary([cpu for _, cpu in some])} CPU"
        )
        by_node: dict[str, list[float]] = defaultdict(list)
        for turn in times.turns[turns]:
            for node, milliseconds in turn.items():
                by_node[node].append(milliseconds)
        for node, found in by_node.items():
            print(f"    {node:24} {summary(found)}")


def summary(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return (
        f"median {statistics.median(ordered):6.1f}, p95 {ordered[int(len(ordered) * 0.95)]:6.1f}, "
        f"mean {statistics.fmean(ordered):6.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2000, help="how long the conversation gets")
    parser.add_argument("--words", type=int, default=90, help="of an answer; a question has a third")
    parser.add_argument("--profile", action="store_true", help="also print where the time goes; slows everything down")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    llm = InstantLlm()
    llm.install()
    times = NodeTimes(llm)
    with tempfile.TemporaryDirectory() as folder:
        tree = ConfigTree(Path(folder))
        for name, content in FILES.items():
            tree.write(f"{name}.json", content)
        instance.CONFIG_DIRECTORY, instance.USERS = str(tree.configs), ["bench"]
        instance.DISCUSSION_DIRECTORY = str(Path(folder) / "Discussions")
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        costs = grow(options.messages, options.words, llm, times)
        profile.disable()
        report(costs, times, [place for place in (100, 500, 1000, 2000) if place <= options.messages])
        print(f"\n{llm.calls} LLM calls")
        if options.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
