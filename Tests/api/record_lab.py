"""The whole WSGI application with the recorder of a console."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.types import WSGIApplication

import pytest
from flask import Flask
from werkzeug.test import Client

from Middleware.addons.console.addon import mount
from Middleware.addons.console.application import PREFIX
from Middleware.addons.console.sign_in import make_code
from Middleware.addons.records.model import RunDocument, Span
from Middleware.addons.records.records import RunRecords, build_records
from Middleware.addons.records.run_texts import normalised
from Middleware.api.app import build_wsgi_application, create_app
from Middleware.api.running.running_requests import running_requests
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import Process
from Tests.api.api_lab import CHAT, ApiLab
from Tests.stub_backend import StubBackend
from Tests.workflows.engine_lab import until, user


def console_site(records: RunRecords, app: Flask | None = None) -> WSGIApplication:
    """Return the application of a server that records its runs and has a console."""
    return build_wsgi_application(app, 100, [records.recorder], {PREFIX: mount(records)})


class RecordLab(ApiLab):
    """An ``ApiLab`` whose requests pass the middlewares and are recorded. ``record_lab`` closes what it has opened."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, backend: StubBackend) -> None:
        monkeypatch.setattr(instance, "CONSOLE_DIRECTORY", str(root / "Console"))
        super().__init__(root / "Configs", monkeypatch, backend)
        self.records: RunRecords = build_records("on")
        self._token = ""
        self.caller = self.served()

    def record(self, texts: str) -> None:
        """Begin anew with another ``--record``."""
        self.records.close()
        self.records = build_records("on", texts)
        self.caller = self.served()

    def served(self) -> Client:
        """Return a client of a new application, for other settings of the process."""
        return Client(console_site(self.records, create_app()))

    def ask(
        self,
        text: str = "hi",
        path: str = CHAT,
        stream: bool = False,
        headers: dict[str, str] | None = None,
        **fields: Any,
    ) -> bytes:
        """Send a request, wait for its last node, and return the body of the answer."""
        body = {"messages": [user(text)], "stream": stream, **fields}
        response = self.caller.post(path, data=json.dumps(body), headers=headers)
        data = response.get_data()
        response.close()
        assert until(lambda: running_requests().count() == 0)
        return data

    def console(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """Return what a call of the console's API answers to the operator."""
        if not self._token:
            code = make_code(self.records.folder.secret(), time.time())
            self._token = self._call("session", "POST", {"code": code}, {})["token"]
        return self._call(path, method, body, {"Authorization": f"Bearer {self._token}"})

    def _call(self, path: str, method: str, body: Any, headers: dict[str, str]) -> Any:
        with self.caller.open(f"/console/api/{path}", method=method, json=body, headers=headers) as response:
            assert response.status_code == 200, response.data
            return json.loads(response.data)

    def shown(self) -> Any:
        """Return the newest run as its page gets it."""
        return self.console(f"runs/{self.run().facts['id']}")

    @property
    def runs(self) -> list[RunDocument]:
        """Oldest first."""
        return list(reversed(self.records.ring.documents()))

    def run(self) -> RunDocument:
        """Return the newest run, as it is shown and stored."""
        assert until(lambda: all(run.finished for run in self.runs))
        return normalised(self.runs[-1])


@contextmanager
def record_lab(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordLab]:
    """Yield a lab in a process of its own, as far as objects of the process go."""
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as stub:
        lab = RecordLab(root, monkeypatch, stub)
        yield lab
        # Its writer would go on, and lock its segment in the process of a later test.
        lab.records.close()


def named(run: RunDocument, kind: str) -> list[Span]:
    """Return the spans of one kind."""
    return [span for span in run.spans if span.kind == kind]


def tree(run: RunDocument) -> list[str]:
    """Return a line for each span, indented below its parent."""
    depths: dict[int, int] = {}
    lines = []
    for span in run.spans:
        depths[span.id] = 0 if span.parent is None else depths[span.parent] + 1
        lines.append(f"{'  ' * depths[span.id]}{span.kind} {span.name} {span.status}")
    return lines
