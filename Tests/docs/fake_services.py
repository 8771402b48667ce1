"""What stands behind every example: one server that is every LLM, the offline encyclopedia and the web."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from Tests.backend_dialects import Answer, Call, dialect_of, embed, speak, texts_of
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply, status_reply

MODEL = "stub-model"
ARTICLE = {"title": "Baltic Sea", "text": "The Baltic Sea is brackish; herring live in it."}
PAGE = "<html><head><title>A page</title></head><body><h1>A page</h1><p>It rains in Bergen.</p></body></html>"
RESEARCH = {
    "status": "success",
    "answer": "Herring live in the Baltic Sea.",
    "sources": [{"book": "wikipedia", "title": "Baltic Sea"}],
}
WEB = "/web/"


class FakeServices(StubBackend):
    """The server. ``begin`` says what holds for the example that is tried now.

    Attributes:
        prompts: what each call of an LLM said since ``begin``.
        researcher: what the offline researcher answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.prompts: list[str] = []
        self._lock = threading.Lock()
        self._replies: dict[str, list[Any]] = {}
        self._addresses: list[str] = []
        self._web: Mapping[str, Any] = {}
        self.researcher: Any = RESEARCH

    def begin(self, replies: Mapping[str, Any], web: Mapping[str, Any], researcher: Any = RESEARCH) -> None:
        """A new example; ``replies`` and ``web`` as its comment has them."""
        with self._lock:
            self.prompts, self._web, self.researcher = [], web, researcher
            self._replies = {part: list(said) if isinstance(said, list) else [said] for part, said in replies.items()}

    def add_replies(self, replies: Mapping[str, Any]) -> None:
        """Those of one request come before those of the example."""
        with self._lock:
            first = {part: list(said) if isinstance(said, list) else [said] for part, said in replies.items()}
            self._replies = {**first, **{part: said for part, said in self._replies.items() if part not in first}}

    def web_page(self, address: str) -> str:
        """What a workflow asks in place of an address."""
        if address not in self._addresses:
            self._addresses.append(address)
        return f"{self.url}{WEB}{self._addresses.index(address)}"

    def respond(self, request: RecordedRequest) -> Reply:
        path = urlsplit(request.path).path
        if path.startswith(WEB):
            return _page(self._web.get(self._addresses[int(path.split("/")[2])], PAGE))
        if request.method == "GET" and path in ("/v1/models", "/models"):
            return json_reply({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        if dialect_of(request) is not None:
            return self._generate(request)
        if request.body and "input" in request.json:
            return embed(request)
        return json_reply(self.researcher) if path == "/search" else _service(path)

    def _generate(self, request: RecordedRequest) -> Reply:
        texts = [text for _, text in texts_of(request)]
        prompt, last = "\n".join(texts), texts[-1]
        with self._lock:
            self.prompts.append(prompt)
            said = self._said(prompt, last)
        if isinstance(said, dict) and "status" in said:
            return status_reply(said["status"])
        return speak(request, _answer(said))

    def _said(self, prompt: str, last: str) -> Any:
        for part, replies in self._replies.items():
            if part in prompt:
                return replies.pop(0) if len(replies) > 1 else replies[0]
        return f"Reply {len(self.prompts)} to: {' '.join(last.split())[:80]}"


def _answer(said: Any) -> Answer:
    if not isinstance(said, dict):
        return Answer(tokens=re.findall(r"\s*\S+\s*", str(said)) or [""], usage=False)
    calls = [
        Call(call["name"], call.get("arguments", {}), f"call_{number}")
        for number, call in enumerate(said["tool_calls"], 1)
    ]
    return Answer(tokens=[said.get("content", "")], finish="tool_calls", calls=calls, usage=False)


def _service(path: str) -> Reply:
    """The offline encyclopedia, and whatever else somebody asks for."""
    if path == "/top_article":
        return json_reply(ARTICLE)
    if path in ("/summaries", "/articles", "/top_n_articles"):
        return json_reply([ARTICLE])
    return json_reply({"error": "not found"}, 404)


def _page(page: Any) -> Reply:
    status, content = (page["status"], page.get("body", "")) if isinstance(page, dict) else (200, page)
    kind = "application/json" if _is_json(content) else "text/html" if "<" in content else "text/plain"
    return json_reply(content.encode(), status, headers={"Content-Type": f"{kind}; charset=utf-8"})


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
