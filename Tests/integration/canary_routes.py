"""A server whose every file, key, run and memory holds a canary, and every call of the console's API with arguments.

The calls are those of the application's own table of routes, so that a new one is called as soon as it is there.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.console.calls import Route
from Tests.integration.console_server import API, Console, found_in_time
from Tests.integration.launcher import Backend, api_type, endpoint, llm_node
from Tests.patience import CLIENT_PATIENCE
from Tests.services.discussion_lab import DiscussionLab

CANARY = re.compile(r"canary[.][\w.-]+?[.]end", re.IGNORECASE)
# The keys of the list. Each is a canary itself; the name says what its line allows.
KEYS = {name: f"canary.key.{name}.end" for name in ("own", "all", "plain", "bob", "eve")}
LINES = {"own": "console=own user=ann", "all": "console=all user=ann", "plain": "user=ann", "bob": "user=bob"}
LINES["eve"] = "user=eve"
MODELS = {"own": "ann:Single", "all": "ann:Single", "plain": "ann:Single", "bob": "bob:Single", "eve": "eve:Single"}
ROLES = ("anonymous", "own", "all", "operator")
# Whose discussions are encrypted.
SEALED = "eve"
METHODS = ("GET", "POST", "PUT", "DELETE")
HIDDEN_TYPE = "canary.name.type.end"
# Endpoints that cannot be read; an error may quote them.
BROKEN = {
    "Broken": '{"comment": "canary.file.old.broken.end", "apiKey": "canary.secret.broken.end", "endpoint" "x"}',
    "Typed": '{"apiTypeConfigFileName": "Chat", "endpoint": "canary.file.old.b.end", "apiKey": ["canary.key.x.end"]}',
}

# Each call starts a process.
SLOW = ("POST runs/ID/test/run",)
MESSAGES = [{"role": "user", "content": "Hello"}]
BODIES: dict[str, list[Any]] = {
    "POST session": [{"code": "wrong"}, {"key": "wrong"}],
    "POST runs/ID/again/SPAN": [
        {"messages": MESSAGES, "endpoint": name, "preset": preset}
        for name, preset in (("Stub", None), ("Stub", "Plian"), ("Nothing", None), ("Spare", None), ("Broken", None))
    ],
    "POST runs/ID/replay": [{}],
    "POST runs/ID/test": [{"name": "x"}],
    "POST runs/ID/test/run": [{"name": "x"}],
    "POST runs/ID/test/save": [{"name": "x"}],
    "POST playground": [{"messages": MESSAGES, "stream": False}, {"model": "bob:Single", "messages": MESSAGES}],
    "PUT runs/ID": [{"pinned": True, "note": "mine"}],
    "PUT settings": [{"days": 7}, {"nothing": 1}],
    "PUT discussions/ID/memories/KEY": [{"text": "Something else."}],
    "POST config/check": [{"path": "Users/ann.json", "text": "{}"}],
    "POST config/assist": [{"path": "Users/ann.json", "text": "{}", "offset": 1}],
    "PUT config/file": [{"path": "Users/ann.json", "text": "{}", "base": "", "confirm": ""}],
}


class Canaries:
    """The server, and what its calls are made of. ``runs``, ``discussions``: ids, by whose they are."""

    def __init__(self, folder: Path, backend: Backend) -> None:
        self.folder, self.keys = folder, folder / "keys.txt"
        lines = [f"{KEYS[name]} {words}" for name, words in LINES.items()]
        self.keys.write_text("\n".join(["# canary.list.end", *lines]) + "\n", encoding="utf-8")
        flags = ("--User", "bob", "--User", "eve", "--accepted-keys-file", str(self.keys))
        self.console = Console(folder, backend, "run_waitress.py", *flags, "--console", "edit", "--record", "texts")
        self.configs = self.console.tree.configs
        self._write_users(backend.url)
        self._plant("old")
        for name, text in BROKEN.items():
            self.console.tree.write(f"Endpoints/{name}.json", text)
        self.runs: dict[str, str] = {}
        self.discussions = {name: f"talk-{name}" for name in ("own", "bob", SEALED, "nobody")}
        self.memories: dict[str, list[str]] = {}
        self._store_memories()

    def _write_users(self, url: str) -> None:
        tree = self.console.tree
        ann = json.loads((self.configs / "Users" / "ann.json").read_text("utf-8"))
        tree.write("Users/bob.json", {**ann, "endpointConfigsSubDirectory": "bobs"})
        tree.write("Users/eve.json", {**ann, "redactLogOutput": True})
        tree.write("Presets/Chat/Unused.json", {"temperature": 1})
        tree.write("Routing/unused.json", {})
        tree.write(f"ApiTypes/{HIDDEN_TYPE}.json", api_type())
        for name in ("Stub", "Spare", "bobs/Stub"):
            keys = {"apiTypeConfigFileName": HIDDEN_TYPE, "apiKey": f"canary.secret.{name.replace('/', '-')}.end"}
            tree.write(f"Endpoints/{name}.json", endpoint(url, **keys))
        tree.write("Workflows/bob/Plain.json", {"nodes": [llm_node("plain", returnToUser=True)]})

    def _plant(self, age: str) -> None:
        """Give each configuration file a text that no prompt contains."""
        for file in self.configs.rglob("*.json"):
            # All of a preset is sent, and so in the payload of a run; each key of a routing is a category.
            if file.stem in {*BROKEN, "Plain", "routes"} and file.parent.name != "ann":
                continue
            content = json.loads(file.read_text("utf-8"))
            place = file.relative_to(self.configs).as_posix().removesuffix(".json").replace("/", "-")
            nodes = content.get("nodes", []) if file.parent.parent.name == "Workflows" else []
            for part in [content, *nodes]:
                part["comment"] = f"canary.file.{age}.{re.sub(r'[^a-zA-Z]', '-', place)}.end"
            file.write_text(json.dumps(content, indent=2), encoding="utf-8")

    def _store_memories(self) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            lab = DiscussionLab(self.folder / "lab", monkeypatch)
            for name, discussion in self.discussions.items():
                said = f"canary.memory.{name}.end"
                lab.store(discussion, KEYS.get(name), encrypt=name == SEALED, texts=(said, f"More {said}"))
            lab.root.rename(self.console.tree.public / "DiscussionIds")

    def start(self) -> None:
        """Make all runs, some with the files as they were before; to be called on a server that answers."""
        self.console.sign_in()
        for name in KEYS:
            self._ask(name)
        first = self.runs["own"]
        self._plant("new")
        found_in_time(lambda: self._ask("own") if not self._changed(first, self.runs["own"]) else True)
        self.runs["own-before"] = first
        for discussion in self.discussions.values():
            answer = self.console.call("GET", f"discussions/{discussion}?part=memories")
            self.memories[discussion] = [entry["key"] for entry in answer["entries"]] or ["memory.1.x"]

    def _changed(self, a: str, b: str) -> bool:
        changes = self.console.call("GET", f"compare/{a}/{b}")["configuration"]
        return any(change["path"] == "Endpoints/Stub.json" and change["change"] == "changed" for change in changes)

    def _ask(self, name: str) -> None:
        said = {"role": "user", "content": f"canary.said.{name}.end"}
        body = {"model": MODELS[name], "messages": [said]}
        status, headers, _ = self._send("POST", "/v1/chat/completions", KEYS[name], body)
        assert status == 200, name
        run = self.runs[name] = headers["X-Request-Id"]
        found_in_time(lambda: True if self.console.call("GET", f"runs/{run}")["run"]["ended"] else None)

    def _send(self, method: str, path: str, key: str, body: Any = None) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.console.server.port, timeout=CLIENT_PATIENCE)
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def call(self, role: str, method: str, path: str, body: Any = None) -> tuple[int, set[str]]:
        """Return the status, and the canaries in head and body of the answer; the id of a run is one as well."""
        # An operator may have ended the session.
        if role == "operator" and self._send("GET", f"{API}session", self.console.token)[0] == 401:
            self.console.sign_in()
        key = {"anonymous": "", "operator": self.console.token}.get(role) if role not in KEYS else KEYS[role]
        status, headers, data = self._send(method, API + path, key or "", body)
        text = f"{headers}\n{data.decode('utf-8', 'replace')}"
        # An error may quote the path.
        ids = {f"canary.run.{name}.end" for name, run in self.runs.items() if run in text and run not in path}
        return status, ids | set(CANARY.findall(text))

    # -- arguments -----------------------------------------------------------------------------------------------
    def calls(self, route: Route) -> Iterator[tuple[str, Any]]:
        """Yield paths with their queries, and bodies, for a route."""
        bodies = BODIES.get(f"{route.method} {route.path}", [{}]) if route.method in ("POST", "PUT") else [None]
        runs = self.runs
        if f"{route.method} {route.path}" in SLOW:
            self.runs = {name: runs[name] for name in ("own", "bob")}
        paths = list(self._paths(route.path.split("/"), []))
        self.runs = runs
        for path, query, body in itertools.product(paths, self._queries(route), bodies):
            yield path + query, body

    def _paths(self, words: list[str], done: list[str]) -> Iterator[str]:
        if not words:
            yield "/".join(done)
            return
        for value in self._values(words[0], done) if words[0].isupper() else [words[0]]:
            yield from self._paths(words[1:], [*done, value])

    def _values(self, word: str, done: list[str]) -> list[str]:
        """What may stand for a word in capitals; for one that is new, everything that has a name."""
        if word == "SPAN":
            return [str(span) for span in range(1, 6)]
        if word == "KEY":
            return self.memories[done[1]]
        if word == "FOLDER":
            return ["ann", "_shared", "bob"]
        if word == "NAME":
            return sorted(file.stem for file in (self.configs / "Workflows" / done[-1]).glob("*.json"))
        if word == "ID" and done[-1] == "discussions":
            return list(self.discussions.values())
        if word in ("A", "B") or done[-1] == "runs":
            return list(self.runs.values())
        return [*self.runs.values(), *self.discussions.values(), "ann"]

    def _queries(self, route: Route) -> list[str]:
        files = [file.relative_to(self.configs).as_posix() for file in self.configs.rglob("*.json")]
        known = {
            "path": [
                *files,
                "../keys.txt",
                "../../keys.txt",
                str(self.keys),
                "../Console/secret",
                "Users/../../x.json",
            ],
            "run": list(self.runs.values()) if route.path != "events" else [self.runs["own"], self.runs["bob"]],
            "user": ["ann", "bob"],
            "part": ["summary", "memories", "searchable", "state"],
            "texts": ["1"],
            "q": ["canary"],
            "after": ["0"],
        }
        # Else the answer is a stream.
        always = "wait=0&" if "wait" in route.query else ""
        if route.path in {"config/file", "config/history"}:
            return [f"?path={path}" for path in known["path"]]
        some = [f"?{always}{name}={value}" for name in route.query for value in known.get(name, [])]
        return [f"?{always}", *some]
