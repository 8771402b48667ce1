"""The workflows in whose nodes clients go away, and what those nodes work with."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from Tests.integration.launcher import (
    USER,
    Backend,
    ConfigTree,
    api_type,
    endpoint,
    llm_node,
    standard_tree,
)
from Tests.integration.scripted_backend import NODE_PATH
from Tests.patience import PATIENCE
from Tests.workflows.tools.mcp.mcp_lab import python_file

HELLO = "{chat_user_prompt_last_one}"
# Longer than a stop may take, and than the 5 seconds after which a client gets the headers, and with them its id.
SLEEP_SECONDS = PATIENCE + 30.0
WORDS = 200  # of a text that is given out word by word

_WAITING_CHILD = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.sendall(f"GET {sys.argv[2]} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
sock.recv(1)
"""
_STARTS_A_CHILD = """
import subprocess, sys

def Invoke(port, path):
    subprocess.run([sys.executable, "-S", "-c", {code!r}, port, path])
    return "The child has ended."
"""
_SLEEPS = """
import time

def Invoke(seconds):
    time.sleep(float(seconds))
    return "It slept well."
"""
_STDIO_SERVER = """
import json, socket, sys

def answer(message):
    if message["method"] == "initialize":
        return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                           "serverInfo": {"name": "stuck", "version": "1"}}}
    if message["method"] != "tools/call":
        return {"error": {"code": -32601, "message": "no such method"}}
    sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    path = sys.argv[2] + message["params"]["arguments"]["text"]
    sock.sendall(f"GET {path} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode())
    return {"result": {"content": [{"type": "text", "text": str(sock.recv(1))}]}}

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message)}), flush=True)
"""


def stop_tree(public: Path, backend: Backend, deaf_port: int) -> ConfigTree:
    """The standard tree, and a shared workflow for every phase.

    ``deaf_port``: of a listener that lets nobody in.
    """
    tree = standard_tree(public, backend.url)
    _write_user(tree, backend.port)
    _write_endpoints(tree, backend.url, deaf_port)
    _write_memory_settings(tree)
    _write_llm_workflows(tree)
    _write_memory_workflows(tree)
    _write_tool_workflows(tree, backend)
    return tree


def _write_user(tree: ConfigTree, port: int) -> None:
    path = tree.configs / "Users" / f"{USER}.json"
    user = json.loads(path.read_text(encoding="utf-8"))
    service = {"useOfflineWikiApi": True, "offlineWikiApiHost": "127.0.0.1", "offlineWikiApiPort": port}
    tree.write(
        f"Users/{USER}.json",
        {
            **user,
            **service,
            "discussionIdMemoryFileWorkflowSettings": "memory-settings",
            "contextCompactorSettingsFile": "compactor",
        },
    )


def _write_endpoints(tree: ConfigTree, url: str, deaf_port: int) -> None:
    tree.write("ApiTypes/Kobold.json", api_type(type="koboldCppGenerate", maxNewTokensPropertyName="max_length"))
    tree.write("ApiTypes/Embed.json", {"type": "openAIEmbeddings", "presetType": "Embed"})
    tree.write("Endpoints/Kobold.json", endpoint(url, apiTypeConfigFileName="Kobold"))
    tree.write("Endpoints/Embed.json", endpoint(url, apiTypeConfigFileName="Embed"))
    tree.write("Endpoints/Deaf.json", endpoint(f"http://127.0.0.1:{deaf_port}"))
    tree.write(
        "Endpoints/Thinker.json", endpoint(url, removeThinking=True, startThinkTag="<think>", endThinkTag="</think>")
    )


def _write_memory_settings(tree: ConfigTree) -> None:
    tree.write(
        f"Workflows/{USER}/memory-settings.json",
        {
            "useVectorForQualityMemory": True,
            "endpointName": "Stub",
            "preset": "Plain",
            "lookbackStartTurn": 1,
            "chunkEstimatedTokenSize": 60,
            "maxMessagesBetweenChunks": 4,
            "fileMemoryWorkflowName": "WriteMemory",
            "vectorMemoryChunkEstimatedTokenSize": 60,
            "vectorMemoryMaxMessagesBetweenChunks": 4,
            "vectorMemorySystemPrompt": "node:facts",
            "vectorMemoryPrompt": "[TextChunk]",
            "embeddingEndpointName": "Embed",
        },
    )
    tree.write(
        f"Workflows/{USER}/compactor.json",
        {
            "endpointName": "Stub",
            "preset": "Plain",
            "lookbackStartTurn": 1,
            "recentContextTokens": 60,
            "oldContextTokens": 60,
            "oldSectionSystemPrompt": "node:old",
            "neutralSummarySystemPrompt": "node:neutral",
            "oldestUpdateSystemPrompt": "node:oldest",
        },
    )


def _write_llm_workflows(tree: ConfigTree) -> None:
    last = llm_node("last", returnToUser=True)
    tree.shared("Thinker", llm_node("thinker", endpointName="Thinker", returnToUser=True), llm_node("last"))
    tree.shared(
        "Kobold",
        llm_node("kobold", systemPrompt="node:kobold.", endpointName="Kobold", returnToUser=True),
        llm_node("last"),
    )
    tree.shared("Busy", llm_node("busy"), last)
    tree.shared("Deaf", llm_node("deaf", endpointName="Deaf"), last)
    side_by_side = [llm_node("left"), llm_node("right")]
    tree.write("Workflows/_shared/SideBySide.json", {"parallelNodes": True, "nodes": [*side_by_side, last]})
    tree.shared(
        "Blocks",
        {
            "type": "ConversationChunkProcessor",
            "id": "blocks",
            "workflowName": "Block",
            "chunkSize": 2,
            "lookbackMessages": 1,
            "cursorDirectory": str(tree.public),
        },
        last,
    )
    tree.private("Block", llm_node("block", prompt="{agent1Input}"))
    rag = {
        "type": "SlowButQualityRAG",
        "ragType": "CurrentConversation",
        "preset": "Plain",
        "ragTarget": f"{HELLO} one--ChunkBreak--{HELLO} two--ChunkBreak--{HELLO} three",
        "systemPrompt": "node:rag",
        "prompt": "[TextChunk]",
    }
    tree.shared("Rag", {**rag, "endpointName": "Stub"}, last)
    tree.shared("RagTogether", {**rag, "multiModelList": [{"endpointName": "Stub"}] * 2}, last)


def _write_memory_workflows(tree: ConfigTree) -> None:
    last = llm_node("last", returnToUser=True)
    summary = {
        **llm_node("summary", prompt="[CHAT_SUMMARY] [LATEST_MEMORIES]"),
        "type": "chatSummarySummarizer",
        "minMemoriesPerSummary": 1,
        "loopIfMemoriesExceed": 2,
    }
    tree.private("WriteMemory", llm_node("memory", prompt="{agent1Input}"))
    tree.shared("FileMemory", {"type": "RecentMemory"}, last)
    tree.shared("VectorMemory", {"type": "QualityMemory"}, last)
    tree.shared("Summary", {"type": "RecentMemory"}, summary, last)
    tree.shared("Compactor", {"type": "ContextCompactor"}, last)


def _write_tool_workflows(tree: ConfigTree, backend: Backend) -> None:
    last = llm_node("last", returnToUser=True)
    port = str(backend.port)
    tree.shared("Page", {"type": "WebFetch", "url": f"{backend.url}{NODE_PATH}page/{HELLO}"}, last)
    tree.shared("Curl", {"type": "CurlCommand", "args": ["-sS", f"{backend.url}{NODE_PATH}curl/{HELLO}"]}, last)
    tree.shared("Wikipedia", {"type": "OfflineWikiApiFullArticle", "promptToSearch": HELLO}, last)
    tree.write("MCPServers/http.json", {"transport": "streamable_http", "url": f"{backend.url}/mcp"})
    tree.write(
        "MCPServers/stdio.json",
        python_file(_STDIO_SERVER, args=["-S", "-c", _STDIO_SERVER, port, f"{NODE_PATH}stdio/"]),
    )
    for kind in ("http", "stdio"):
        call = {"type": "MCPToolCall", "server": kind, "tool": "wait", "arguments": {"text": HELLO}}
        tree.shared(f"Mcp-{kind}", call, last)
    child = _script(tree, "starts_a_child.py", _STARTS_A_CHILD.format(code=_WAITING_CHILD))
    tree.shared(
        "Child", {"type": "PythonModule", "module_path": child, "args": [port, f"{NODE_PATH}child/{HELLO}"]}, last
    )
    sleeper = _script(tree, "sleeps.py", _SLEEPS)
    tree.shared(
        "Sleep", llm_node("first"), {"type": "PythonModule", "module_path": sleeper, "args": [str(SLEEP_SECONDS)]}, last
    )
    tree.shared(
        "Words",
        {"type": "StaticResponse", "content": " ".join(f"word{n}" for n in range(WORDS)), "returnToUser": True},
        llm_node("last"),
    )


def _script(tree: ConfigTree, name: str, text: str) -> str:
    path = tree.public / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@contextmanager
def deaf_listener() -> Iterator[tuple[int, str]]:
    """A port of this machine at which connecting hangs, and why it does not where it does not."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting: list[socket.socket] = []
        try:
            yield listener.getsockname()[1], _fill(listener.getsockname(), waiting)
        finally:
            for sock in waiting:
                sock.close()


def _fill(address: Any, waiting: list[socket.socket]) -> str:
    """Take every place in the queue of a listener; returns why that does not make connecting hang, "" if it does."""
    for _ in range(16):
        sock = socket.socket()
        waiting.append(sock)
        sock.settimeout(0.3)
        try:
            sock.connect(address)
        except TimeoutError:
            return ""
        except OSError as error:
            return f"{sys.platform} refuses connections to a full queue: {error}"
    return f"{sys.platform} lets more in than the queue holds"
