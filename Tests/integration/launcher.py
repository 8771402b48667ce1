"""What the integration tests stand on: a configuration on disk, a scripted LLM server, and launchers as processes.

    with Backend() as backend:
        tree = standard_tree(tmp_path / "Public", backend.url)
        with Launcher("run_waitress.py", "--PublicDirectory", tree.public, "--User", "ann") as server:
            assert server.ask("Single").status == 200

Every LLM node made by ``llm_node`` names itself in its system prompt, so that the back-end can be told what to say to
which node, and tests can ask which nodes ran.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from Tests.api.front_dialects import Front
from Tests.integration.scripted_backend import USAGE as USAGE
from Tests.integration.scripted_backend import Answer as Answer
from Tests.integration.scripted_backend import Backend as Backend
from Tests.integration.scripted_backend import Talk as Talk
from Tests.integration.scripted_backend import says as says
from Tests.integration.scripted_backend import slow as slow
from Tests.integration.scripted_backend import stuck as stuck
from Tests.patience import CLIENT_PATIENCE, PATIENCE

NO_MARKS = {f"promptTemplate{role}Prefix": "" for role in ("System", "User", "Assistant")}
"""A prompt template that leaves messages as they are."""

PROJECT = Path(__file__).resolve().parents[2]
SERVER = "server.py"
LAUNCHERS = ("run_waitress.py", SERVER, "run_eventlet.py")
USER = "ann"
# A machine with a load of forty took 35 s.
START_SECONDS = 120.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


class ConfigTree:
    """A ``Public`` folder that tests write into."""

    def __init__(self, public: Path) -> None:
        self.public = public
        self.configs = public / "Configs"

    def write(self, path: str, value: Any) -> Path:
        """Write a file below ``Configs``: text as it is, anything else as JSON."""
        file = self.configs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        file.write_text(text, encoding="utf-8")
        return file

    def shared(self, name: str, *nodes: Mapping[str, Any]) -> Path:
        """A workflow that clients select with ``model``."""
        return self.write(f"Workflows/_shared/{name}.json", {"nodes": list(nodes)})

    def private(self, name: str, *nodes: Mapping[str, Any]) -> Path:
        """A workflow of the user."""
        return self.write(f"Workflows/{USER}/{name}.json", {"nodes": list(nodes)})


def llm_node(name: str, **keys: Any) -> dict[str, Any]:
    """A Standard node that the back-end knows as ``name``."""
    return {
        "title": name,
        "type": "Standard",
        "endpointName": "Stub",
        "preset": "Plain",
        "systemPrompt": f"node:{name}",
        "prompt": "",
        "lastMessagesToSendInsteadOfPrompt": 5,
        "maxResponseSizeInTokens": 100,
        "returnToUser": False,
        **keys,
    }


def child_node(workflow: str, **keys: Any) -> dict[str, Any]:
    """A node that runs another workflow."""
    return {"title": workflow, "type": "CustomWorkflow", "workflowName": workflow, "returnToUser": False, **keys}


def endpoint(url: str, **keys: Any) -> dict[str, Any]:
    """An endpoint file."""
    return {
        "endpoint": url,
        "apiTypeConfigFileName": "Chat",
        "modelNameToSendToAPI": "stub",
        "apiKey": "",
        "maxContextTokenSize": 8192,
        "trimBeginningAndEndLineBreaks": True,
        **keys,
    }


def api_type(**keys: Any) -> dict[str, Any]:
    """An ApiTypes file of an OpenAI-compatible chat server."""
    return {
        "nameForDisplayOnly": "Chat",
        "type": "openAIChatCompletion",
        "presetType": "Chat",
        "maxNewTokensPropertyName": "max_tokens",
        "streamPropertyName": "stream",
        **keys,
    }


def standard_tree(public: Path, backend_url: str) -> ConfigTree:
    """One user with prompt routing, a nested route, and shared workflows for everything the tests stop or delay."""
    tree = ConfigTree(public)
    tree.write("Users/_current-user.json", {"currentUser": USER})
    tree.write(
        f"Users/{USER}.json",
        {
            "routingConfig": "routes",
            "categorizationWorkflow": "Categorize",
            "maxCategorizationAttempts": 1,
            "allowSharedWorkflows": True,
            "chatPromptTemplateName": "_chatonly",
            "embeddingEndpointName": "Vectors",
        },
    )
    tree.write("PromptTemplates/_chatonly.json", NO_MARKS)
    tree.write("Endpoints/Stub.json", endpoint(backend_url))
    tree.write("ApiTypes/Chat.json", api_type())
    tree.write("Endpoints/Vectors.json", endpoint(backend_url, apiTypeConfigFileName="Vectors"))
    tree.write("ApiTypes/Vectors.json", {"type": "openAIEmbeddings"})
    tree.write("Presets/Chat/Plain.json", {"temperature": 0.5})
    tree.write(
        "Routing/routes.json",
        {
            "POEM": {"description": "poems", "workflow": "Poem"},
            "OTHER": {"description": "the rest", "workflow": "Plain"},
        },
    )
    respond = {"returnToUser": True}
    tree.private("Categorize", llm_node("categorize"))
    tree.private("Plain", llm_node("plain", **respond))
    tree.private("_DefaultWorkflow", llm_node("plain", **respond))
    tree.private("Poem", llm_node("outline"), child_node("Draft", scoped_variables=["{agent1Output}"], **respond))
    tree.private(
        "Draft",
        llm_node("draft", systemPrompt="node:draft {agent1Input}"),
        llm_node("final", systemPrompt="node:final {agent1Output}", **respond),
    )
    tree.private("Steps", llm_node("inner"), llm_node("inner-next"))
    tree.private("Speaker", llm_node("speaker", **respond), llm_node("speaker-next"))
    tree.shared("Single", llm_node("single", **respond))
    tree.shared(
        "Agent",
        llm_node(
            "agent",
            systemPrompt="node:agent {chat_system_prompt}",
            allowTools=True,
            lastMessagesToSendInsteadOfPrompt=50,
            **respond,
        ),
    )
    tree.shared("Chain", llm_node("first"), llm_node("second", **respond), llm_node("third"))
    tree.shared("Nested", child_node("Steps"), llm_node("outer-next", **respond))
    tree.shared("NestedSpeaker", child_node("Speaker", **respond), llm_node("outer-next"))
    tree.shared("Background", llm_node("answer", **respond), llm_node("slow"), llm_node("late"))
    tree.shared(
        "Remember", llm_node("answer", **respond), llm_node("remember", systemPrompt="node:remember <{agent1Output}>")
    )
    return tree


@dataclass(frozen=True)
class Response:
    """A complete answer as it came over the wire; ``seconds``: from the request to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float = 0.0

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The message of a chat completion."""
        content: str = self.json["choices"][0]["message"]["content"]
        return content

    @property
    def error(self) -> str:
        """The message of an error; the body must be one."""
        error = self.json["error"]
        message: str = error if isinstance(error, str) else error["message"]
        return message


class Launcher:
    """A launcher as a process of its own, on a free loopback port. Ended by its own process id.

    ``backend``: whose ``hello`` the chat completions send. ``folders``: working and home directory, if not as usual.
    """

    def __init__(
        self,
        script: str,
        *arguments: str | os.PathLike[str],
        backend: Backend | None = None,
        folders: tuple[Path, Path] | None = None,
    ) -> None:
        self.script = script
        self._backend = backend
        self._folders = folders
        self._arguments = [os.fspath(argument) for argument in arguments]
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._log = Path(self._folder.name) / "output.txt"
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Launcher:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self.command(), "--port", "0", *self._arguments],
                cwd=self._folders[0] if self._folders else tempfile.gettempdir(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**clean_environment(), **(home_environment(self._folders[1]) if self._folders else {})},
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def command(self) -> list[str]:
        """The words that start the program."""
        return [sys.executable, str(PROJECT / self.script)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def output(self, since: int = 0) -> str:
        """What the process has printed so far, without the first ``since`` bytes."""
        with self._log.open("rb") as log:
            log.seek(since)
            return log.read().decode("utf-8", "replace")

    def output_size(self) -> int:
        """Bytes that the process has printed so far."""
        return self._log.stat().st_size

    def wait_output(self, text: str, timeout: float = PATIENCE, since: int = 0) -> str:
        """The output once it has ``text``. Raises AssertionError."""
        deadline = time.monotonic() + timeout
        while text not in (output := self.output(since)):
            assert time.monotonic() < deadline, f"'{text}' was not printed:\n{output}"
            time.sleep(0.02)
        return output

    def stop(self) -> None:
        """End the process if it still runs."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)

    def request(self, method: str, path: str, body: Any = None, timeout: float = CLIENT_PATIENCE) -> Response:
        """One request on a connection of its own, answered completely. ``body``: JSON data, or bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        started = time.monotonic()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode("utf-8")
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            response = connection.getresponse()
            return Response(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
                time.monotonic() - started,
            )
        finally:
            connection.close()

    def ask(self, model: str | None = None, stream: bool = False, **fields: Any) -> Response:
        """One chat completion; ``model`` names a shared workflow, None means routing."""
        return self.request("POST", "/v1/chat/completions", self._chat(model, stream, **fields))

    def open(self, model: str | None, stream: bool, path: str = "/v1/chat/completions") -> socket.socket:
        """Send a chat completion and leave the answer unread. The caller closes the socket when it wants."""
        body = json.dumps(self._chat(model, stream)).encode("utf-8")
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=CLIENT_PATIENCE)
        sock.sendall(head.encode("ascii") + body)
        return sock

    def open_front(self, front: Front, model: str, stream: bool, timeout: float = CLIENT_PATIENCE) -> socket.socket:
        """Send a request in a dialect and leave the answer unread."""
        assert self._backend is not None
        body = json.dumps(front.body(self._backend.hello, model=model, stream=stream)).encode()
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        sock.sendall(
            b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
            % (front.path.encode(), len(body), body)
        )
        return sock

    def _chat(self, model: str | None, stream: bool, **fields: Any) -> dict[str, Any]:
        text = fields.pop("text", self._backend.hello if self._backend else "Hello")
        named = {} if model is None else {"model": model}
        return {**named, "messages": [{"role": "user", "content": text}], "stream": stream, **fields}

    def _wait_until_it_answers(self) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            found = _ADDRESS.search(self.output())
            if found:
                self.port = int(found[1])
                try:
                    self.request("GET", "/v1/models")
                    return
                except OSError:
                    pass
            time.sleep(0.02)
        raise AssertionError(f"{self.script} did not start (exit status {self.process.poll()}):\n{self.output()}")


def run_launcher(
    script: str, *arguments: str | os.PathLike[str], timeout: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Run a launcher that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, str(PROJECT / script), *(os.fspath(argument) for argument in arguments)],
        cwd=tempfile.gettempdir(),
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=clean_environment(),
    )


def clean_environment() -> dict[str, str]:
    """The environment for a launcher: UTF-8 output, and nothing that changes its behaviour."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("WILMER") and "PROXY" not in name.upper()
    }
    return {**environment, "PYTHONUTF8": "1"}


def home_environment(home: Path) -> dict[str, str]:
    """What makes a folder the home directory of a process, on every system, and the one for its data below that."""
    return {
        "HOME": str(home),
        "USERPROFILE": str(home),
        "LOCALAPPDATA": str(home / "AppData" / "Local"),
        "XDG_DATA_HOME": "",
    }


def read_until(sock: socket.socket, wanted: bytes, timeout: float = CLIENT_PATIENCE) -> bytes:
    """Read until ``wanted`` has arrived. Raises AssertionError if the peer closes first or takes too long."""
    data = b""
    sock.settimeout(timeout)
    while wanted not in data:
        piece = sock.recv(65536)
        assert piece, f"closed after {data!r}"
        data += piece
    return data


def read_to_end(sock: socket.socket, timeout: float = CLIENT_PATIENCE) -> bytes:
    """Read until the peer closes."""
    data = b""
    sock.settimeout(timeout)
    while piece := sock.recv(65536):
        data += piece
    return data


def dechunked(answer: bytes) -> bytes:
    """The body of a streamed answer. Raises ValueError if its last chunk is missing."""
    body, rest = b"", answer.partition(b"\r\n\r\n")[2]
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if not (length := int(size, 16)):
            return body
        body, rest = body + rest[:length], rest[length + 2 :]


def sse_payloads(body: bytes) -> list[str]:
    """The ``data:`` payloads of an event stream."""
    assert "\n:" not in body.decode("utf-8")
    lines = body.decode("utf-8").split("\n")
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def streamed_text(body: bytes) -> str:
    """The text of an event stream of chat completion chunks."""
    chunks = [json.loads(payload) for payload in sse_payloads(body) if payload != "[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ()))
