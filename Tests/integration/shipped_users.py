"""The shipped configuration with a scripted model behind every endpoint, and fakes of the services it asks.

Every endpoint's address names the endpoint in its path, so that the model knows who asks. Each answer is numbered:
what a client reads tells which call it comes from.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from Tests.backend_dialects import Answer, dialect_of, embed, speak, texts_of, wants_stream
from Tests.integration.launcher import PROJECT, Launcher, Response
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply
from Tests.workflows.engine_lab import until

SHIPPED = PROJECT / "Public" / "Configs"
USERS = sorted(
    path.relative_to(SHIPPED / "Users").with_suffix("").as_posix()
    for path in (SHIPPED / "Users").rglob("*.json")
    if path.name != "_current-user.json"
)
ARTICLES = [{"title": "Baltic Sea", "text": "The Baltic Sea is brackish; herring live in it."}]
MEMORIES = [
    {
        "title": "The ledger",
        "summary": "Mara hid the ledger in the mill.",
        "entities": ["Mara"],
        "key_phrases": ["hidden ledger"],
    }
]
TOOL, TOOL_SAYS = "get_current_time", "It is five past twelve."
TOOLS = {
    "openapi": "3.1.0",
    "info": {"title": "time", "version": "1"},
    "paths": {
        f"/{TOOL}": {
            "post": {
                "operationId": TOOL,
                "summary": "The time",
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {"type": "object", "properties": {"timezone": {"type": "string"}}, "required": []}
                        }
                    }
                },
                "responses": {"200": {"description": "The time"}},
            }
        }
    },
}
_NUMBER = re.compile(r"Reply \d+ ")
COMPLAINT = re.compile(r"^.*(?:WARNING|ERROR|CRITICAL|Traceback|to look at).*$", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """A call of the model: by whom, with what, and what it was told. ``roles``: of its messages, if there are any."""

    endpoint: str
    roles: tuple[str, ...]
    system: str
    prompt: str
    stream: bool
    text: str

    @property
    def is_in_turns(self) -> bool:
        """Whether the strictest chat templates take it: user and assistant by turns, the user first and last."""
        turns = self.roles[1:] if self.roles[:1] == ("system",) else self.roles
        return not self.roles or turns == tuple(("user", "assistant")[index % 2] for index in range(len(turns) | 1))

    @property
    def asker(self) -> tuple[str, str]:
        """Endpoint and system prompt, in which answers of earlier calls do not count."""
        return self.endpoint, _NUMBER.sub("Reply ", self.system)


class Model(StubBackend):
    """Speaks every dialect. ``category``: what it chooses when a prompt shows all of ``categories``.

    ``calls`` are those of the model, ``services`` the paths of what else was asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.services: list[str] = []
        self.categories: tuple[str, ...] = ()
        self.category = ""

    def respond(self, request: RecordedRequest) -> Reply:
        path = urlsplit(request.path).path
        if not request.body or not path.startswith("/endpoint/"):
            self.services.append(path)
            return _service_reply(path)
        if "input" in request.json:
            return embed(request)
        if dialect_of(request) is None:
            return json_reply({"success": True})  # KoboldCpp's way to stop
        endpoint, texts = path.split("/")[2], texts_of(request)
        system = "\n".join(text for role, text in texts if role == "system")
        prompt = "\n".join(text for role, text in texts if role != "system")
        text = self._text(endpoint, f"{system}\n{prompt}")
        roles = tuple(message["role"] for message in request.json.get("messages", ()))
        self.calls.append(Call(endpoint, roles, system, prompt, wants_stream(request), text))
        return speak(request, Answer(tokens=re.findall(r"\S+\s*", text), usage=False))

    def _text(self, endpoint: str, prompt: str) -> str:
        if self.category and all(re.search(rf"\b{name}\b", prompt) for name in self.categories):
            return self.category
        if re.search(r'"summary"|"key_phrases"', prompt) and "JSON" in prompt:
            return json.dumps(MEMORIES)
        if TOOL in prompt and "NO TOOL" in prompt:
            return "NO TOOL" if TOOL_SAYS in prompt else json.dumps({"tool": TOOL, "arguments": {}})
        return f"Reply {len(self.calls)} of {endpoint}."


def _service_reply(path: str) -> Reply:
    """The offline encyclopedia, and an OpenAPI server of tools."""
    if path.endswith("/openapi.json"):
        return json_reply(TOOLS)
    if path == "/top_article":
        return json_reply(ARTICLES[0])
    if path in ("/summaries", "/articles", "/top_n_articles"):
        return json_reply(ARTICLES)
    return json_reply({"time": TOOL_SAYS})


def copy_of_shipped(public: Path, model: StubBackend) -> Path:
    """``Public`` with the shipped configuration, in which all endpoints and services are the model."""
    configs = public / "Configs"
    shutil.copytree(SHIPPED, configs)
    for name in ("Scripts", "modules"):
        if (PROJECT / "Public" / name).is_dir():
            shutil.copytree(PROJECT / "Public" / name, public / name)
    for file in (configs / "Endpoints").rglob("*.json"):
        _change(file, endpoint=f"{model.url}/endpoint/{file.stem}")
    for user in USERS:
        file = configs / "Users" / f"{user}.json"
        services = {"offlineWikiApiHost": "127.0.0.1", "offlineWikiApiPort": model.port, "MCPO_URL": model.url}
        known = json.loads(file.read_text(encoding="utf-8"))
        _change(file, **{key: value for key, value in services.items() if key in known})
    return public


def _change(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **keys}), encoding="utf-8")


class Chat:
    """A client of one running user, which judges each answer and what was logged meanwhile."""

    def __init__(self, user: str, public: Path, server: Launcher, model: Model) -> None:
        self.user, self.server, self.model = user, server, model
        self.settings = json.loads((public / "Configs" / "Users" / f"{user}.json").read_text(encoding="utf-8"))
        self._public = public

    def models(self) -> list[str]:
        return [entry["id"] for entry in self.server.request("GET", "/v1/models").json["data"]]

    def categories(self) -> list[str]:
        """The user's routes; one without a name if there is no routing."""
        if not self.settings.get("routingConfig"):
            return [""]
        routing = self._public / "Configs" / "Routing" / f"{self.settings['routingConfig']}.json"
        return [name for name in json.loads(routing.read_text(encoding="utf-8")) if name != "$schema"]

    def stored(self, discussion: str) -> list[str]:
        """The files that are kept with a discussion."""
        folder = self._public / "DiscussionIds" / discussion
        return [path.name for path in folder.glob("*") if not path.name.startswith(".")]

    def choose(self, category: str) -> None:
        """Let the model choose ``category`` from now on."""
        self.model.categories, self.model.category = tuple(filter(None, self.categories())), category

    def ask(self, path: str, body: dict[str, Any], read: Callable[[Response], str]) -> Call:
        """One request; the call of the model whose answer the client reads. Waits until background nodes are done."""
        logged, called = self.server.output_size(), len(self.model.calls)
        response = self.server.request("POST", path, body)
        assert response.status == 200, f"{body.get('model')}: {response.body.decode()}"
        assert until(lambda: "done after" in self.server.output(logged)), self.server.output(logged)
        complaints = COMPLAINT.findall(self.server.output(logged))
        assert not complaints, "\n".join(complaints)
        text = read(response)
        calls = self.model.calls[called:]
        assert not [call for call in calls if not call.is_in_turns], "some models refuse it"
        answering = [call for call in calls if call.text == text.strip()]
        assert len(answering) == 1, f"{body.get('model')} answers {text!r}; the calls: {calls}"
        return answering[0]
