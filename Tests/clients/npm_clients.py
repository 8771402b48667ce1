"""The npm packages as clients: one Node process runs them all (``npm/worker.mjs`` has its protocol)."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from Tests.clients.client import IMPATIENT_SECONDS, MODEL, RESULTS, TOOL, Client, Said, Turns, texts
from Tests.clients.responses_clients import NO_COMPLETIONS
from Tests.patience import CLIENT_PATIENCE, PATIENCE

FOLDER = Path(__file__).with_name("npm")
ANSWER_SECONDS = CLIENT_PATIENCE


class NpmError(Exception):
    """What a package threw, as its name and message."""


def missing() -> str:
    """Say why the packages cannot be tested here; ``""`` if they can."""
    if shutil.which("node") is None:
        return "The npm clients need Node.js 20 or later, and there is no 'node'."
    installed = (FOLDER / "node_modules").is_dir()
    return "" if installed else "Scripts/developer/run_client_tests.sh installs the npm packages."


class Worker:
    """The Node process."""

    def __init__(self, errors: Path) -> None:
        node = shutil.which("node") or "node"
        self._errors = errors
        with errors.open("wb") as output:
            self._process = subprocess.Popen(
                [node, str(FOLDER / "worker.mjs")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                encoding="utf-8",
            )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, **request: Any) -> Any:
        """Have a method called and return its value. Raises NpmError."""
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
            assert self._process.stdin
            self._process.stdin.write(json.dumps({"id": number, **request}) + "\n")
            self._process.stdin.flush()
        return answer.result(ANSWER_SECONDS)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            reply = json.loads(line)
            waiting = self._waiting.pop(reply["id"])
            if "error" in reply:
                waiting.set_exception(NpmError(reply["error"]))
            else:
                waiting.set_result(reply.get("value"))
        for waiting in self._waiting.values():
            waiting.set_exception(AssertionError(f"Node ended: {self._errors.read_text(encoding='utf-8')}"))


class NpmClient(Client):
    """One package. ``name``: as the worker knows it."""

    name = ""

    def __init__(self, url: str, worker: Worker) -> None:
        self._url = url
        self._worker = worker

    def models(self) -> list[str]:
        return list(self._call("models"))

    def chat(self, turns: Turns, image: str = "") -> Said:
        return _said(self._call("chat", turns=turns, image=image))

    def stream(self, turns: Turns) -> Said:
        return _said(self._call("stream", turns=turns))

    def complete(self, prompt: str) -> Said:
        return _said(self._call("complete", prompt=prompt))

    def complete_with_image(self, prompt: str, image: str) -> Said:
        return _said(self._call("complete_with_image", prompt=prompt, image=image))

    def stream_completion(self, prompt: str) -> Said:
        return _said(self._call("stream_completion", prompt=prompt))

    def use_tool(self, question: str, stream: bool) -> tuple[Said, Said]:
        first, second = self._call("use_tool", question=question, tool=TOOL, results=RESULTS, stream=stream)
        return _said(first), _said(second)

    def break_off(self, question: str) -> str:
        return str(self._call("break_off", question=question))

    def give_up(self, question: str) -> None:
        self._call("give_up", question=question, seconds=IMPATIENT_SECONDS)

    def call(self, method: str, **arguments: Any) -> Any:
        """A method that only this package has."""
        return self._call(method, **arguments)

    def _call(self, method: str, **arguments: Any) -> Any:
        return self._worker.call(
            client=self.name, url=self._url, method=method, arguments={"model": MODEL, **arguments}
        )


class NpmOpenAi(NpmClient):
    """``openai``."""

    name = "openai"
    lacks = frozenset({"complete_with_image"})


class NpmOllama(NpmClient):
    """``ollama``."""

    name = "ollama"


class NpmOpenAiResponses(NpmClient):
    """``openai`` over the Responses API."""

    name = "openai-responses"
    lacks = NO_COMPLETIONS | {"models"}
    done, reached_limit = "completed", "incomplete"


class NpmAnthropic(NpmClient):
    """``@anthropic-ai/sdk``."""

    name = "anthropic"
    lacks = NO_COMPLETIONS
    done, reached_limit = "end_turn", "max_tokens"


class NpmAiOpenAi(NpmClient):
    """``ai`` with ``@ai-sdk/openai``, which takes the Responses API and refers to items that the server has stored."""

    name = "ai-openai"
    lacks = NO_COMPLETIONS | {"models"}


class NpmAiAnthropic(NpmClient):
    """``ai`` with ``@ai-sdk/anthropic``."""

    name = "ai-anthropic"
    lacks = NO_COMPLETIONS | {"models"}


class NpmAiOllama(NpmClient):
    """``ai`` with ``ai-sdk-ollama``."""

    name = "ai-ollama"
    # It passes the signal of an abort to ``chat`` of "ollama", which takes none: the connection stays open.
    lacks = NO_COMPLETIONS | {"models", "break_off", "give_up"}


class NpmLangChainOpenAi(NpmClient):
    """``@langchain/openai``."""

    name = "langchain-openai"
    lacks = NO_COMPLETIONS | {"models", "break_off", "give_up"}


class NpmLangChainOllama(NpmLangChainOpenAi):
    """``@langchain/ollama``, which sends the text and the image of a message as two."""

    name = "langchain-ollama"
    lacks = NpmLangChainOpenAi.lacks | {"chat_with_image"}


NPM_CLIENTS: Mapping[str, type[NpmClient]] = {
    "openai": NpmOpenAi,
    "ollama": NpmOllama,
    "openai-responses": NpmOpenAiResponses,
    "anthropic": NpmAnthropic,
    "ai-openai": NpmAiOpenAi,
    "ai-anthropic": NpmAiAnthropic,
    "ai-ollama": NpmAiOllama,
    "langchain-openai": NpmLangChainOpenAi,
    "langchain-ollama": NpmLangChainOllama,
}


def _said(reply: Mapping[str, Any]) -> Said:
    tokens = reply.get("tokens")
    return Said(
        texts(reply["pieces"]),
        tuple((name, given) for name, given in reply.get("calls") or ()),
        reply.get("finish"),
        tuple(tokens) if tokens else None,
    )
