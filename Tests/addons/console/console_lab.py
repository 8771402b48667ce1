"""The console over the application, with a scripted LLM server behind it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from werkzeug.test import Client

from Middleware.addons.console.sign_in import make_code
from Middleware.api.edge.access_keys import AccessKeys
from Tests.api.api_lab import Answer as ApiAnswer

HOST = "127.0.0.1:5000"
SECRET = b"s" * 32
API = "/console/api/"


class FakeRecords(SimpleNamespace):
    """The console's object of the process, as far as its WSGI application itself needs it."""

    def __init__(self, folder: Path, mode: str = "on") -> None:
        self.index_file = folder / "index.db"
        super().__init__(
            mode=mode,
            recording="facts",
            folder=SimpleNamespace(secret=lambda: SECRET, path=str(folder)),
            settings=SimpleNamespace(mode=lambda: "facts"),
            store=SimpleNamespace(index=self.index),
        )

    @contextlib.contextmanager
    def index(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.index_file, isolation_level=None)
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS session (hash BLOB PRIMARY KEY, created INTEGER, used INTEGER, label TEXT)"
            )
            connection.execute("CREATE TABLE IF NOT EXISTS spent (nonce BLOB PRIMARY KEY, until INTEGER)")
            yield connection
        finally:
            connection.close()


class Answer(ApiAnswer):
    """A response of the console, read to its end."""

    @property
    def message(self) -> str:
        return str(self.json["error"]["message"])


class Browser:
    """Calls the console as its page does; ``token`` is sent with each call once it is set."""

    def __init__(self, application: Any, host: str = HOST) -> None:
        self.application = application
        self.host = host
        self.token = ""
        self.address = "127.0.0.1"

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a call of the API, or with a path that begins with a slash anything else."""
        sent = {
            "Host": self.host,
            "Sec-Fetch-Site": "same-origin",
            "Origin": f"http://{self.host}",
            **({"Authorization": f"Bearer {self.token}"} if self.token else {}),
            **(headers or {}),
        }
        options: dict[str, Any] = {}
        if body is not None:
            options["data"] = body if isinstance(body, (bytes, str)) else json.dumps(body)
            sent.setdefault("Content-Type", "application/json")
        sent = {name: value for name, value in sent.items() if value != "-"}
        return Answer(
            Client(self.application).open(
                path if path.startswith("/") else API + path,
                method=method,
                headers=sent,
                environ_overrides={"REMOTE_ADDR": self.address},
                **options,
            )
        )

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return self.call("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def sign_in(self, now: float, secret: bytes = SECRET) -> Browser:
        """Sign in as the operator."""
        answer = self.post("session", {"code": make_code(secret, now)})
        assert answer.status == 200, answer.data
        self.token = answer.json["token"]
        return self

    def sign_in_with(self, key: str) -> Browser:
        """Sign in with a client's key."""
        answer = self.post("session", {"key": key})
        assert answer.status == 200, answer.data
        self.token = answer.json["token"]
        return self


def accepted(path: Path, *lines: str, users: tuple[str, ...] = ("ann", "bob")) -> AccessKeys:
    """Return a list of accepted keys in a file."""
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return AccessKeys(str(path), lambda: list(users))
