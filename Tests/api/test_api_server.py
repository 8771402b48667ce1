"""The application: discovery of handlers, unknown routes, wrong methods."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from werkzeug.exceptions import BadRequest, RequestEntityTooLarge

from Middleware.api import app as app_module
from Middleware.api import handlers
from Middleware.api.api_server import NOT_OFFERED, ApiServer, discover_handlers
from Middleware.api.concurrency_middleware import ConcurrencyLimitMiddleware
from Middleware.api.dialects import API_TYPES
from Middleware.api.edge.admission_middleware import AdmissionMiddleware
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler
from Middleware.common import instance_global_variables as instance
from Middleware.models.process import process
from Tests.api.api_lab import CHAT, ApiLab
from Tests.api.front_dialects import message_at, openai_message, plain_message
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import static


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        lab = ApiLab(tmp_path, monkeypatch, backend)
        lab.default([static("x")])
        yield lab


@pytest.mark.parametrize("path", ["/nope", "/%0Anope", "/static/x.js", "/v1", "/v1/chat", "/v2/models"])
def test_unknown_path(lab: ApiLab, path: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = lab.get(path)
    (record,) = (record for record in caplog.records if " refused: " in record.getMessage())
    assert "404 Not Found: GET /" in record.getMessage() and "\n" not in record.getMessage()
    message = openai_message(answer.json, 404)
    assert "with /v1 behind it" in message and "\n" not in message
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "application/json"


def test_unknown_ollama_path_has_its_own_error_shape(lab: ApiLab) -> None:
    answer = lab.get("/api/nope")
    assert answer.status == 404
    assert plain_message(answer.json)


@pytest.mark.parametrize("path", ["/v1//chat/completions", "/v1/chat//completions", "/api//chat", "/v1/models//"])
def test_double_slashes_are_no_redirect(lab: ApiLab, path: str) -> None:
    answer = lab.post({"model": "tester", "messages": []}, path)
    assert answer.status == 404
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json["error"]


@pytest.mark.parametrize(("method", "path"), [("GET", CHAT), ("DELETE", CHAT), ("PUT", CHAT), ("POST", "/v1/models")])
def test_wrong_method(lab: ApiLab, method: str, path: str) -> None:
    with lab.client.open(path, method=method) as response:
        assert response.status_code == 405
        assert CHAT in openai_message(response.get_json(), 405) or path != CHAT
        assert ("POST" if path == CHAT else "GET") in response.headers["Allow"]


@table(
    "path",
    [
        "/v1/audio/speech",
        "/batches",
        "/api/push",
        "/v1/messages/batches",
        "/v1/messages/batches/",
        "/messages/x",
        "/v1/responses/compact/x",
        "/v1/conversations",
    ],
)
def test_services_of_other_servers_are_no_matter_of_the_base_url(lab: ApiLab, path: str) -> None:
    answer = lab.post({"model": "m", "input": "x"}, path)
    message = message_at(path, answer.json, 404)
    assert answer.status == 404 and message == f"404 Not Found: POST {path}. {NOT_OFFERED}"


def test_options_and_head(lab: ApiLab) -> None:
    with lab.client.options(CHAT) as response:
        assert response.status_code == 200 and "POST" in response.headers["Allow"]
    with lab.client.head("/v1/models") as response:
        assert response.status_code == 200 and response.data == b""


def test_discovery() -> None:
    names = [type(handler).__name__ for handler in discover_handlers()]
    assert {"OpenAIApiHandler", "OllamaApiHandler", "CompatibilityApiHandler"} <= set(names)
    assert "BaseApiHandler" not in names
    assert len(set(names)) == len(names)


EXTRA = """
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler, json_response


class ExtraHandler(BaseApiHandler):
    def register_routes(self, app):
        app.add_url_rule("/extra", "extra", lambda: json_response({"extra": True}))

    def error_body(self, error):
        return {}


class Unfinished(BaseApiHandler):
    pass
"""


def test_new_handlers_are_found_and_broken_ones_skipped(
    lab: ApiLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "handlers"
    folder.mkdir()
    (folder / "extra.py").write_text(EXTRA, encoding="utf-8")
    (folder / "broken.py").write_text("import no_such_module_anywhere", encoding="utf-8")
    (folder / "base_skipped.py").write_text("raise RuntimeError('must not be imported')", encoding="utf-8")
    monkeypatch.setattr(handlers, "__path__", [*handlers.__path__, str(folder)])
    try:
        client = ApiServer().app.test_client()
    finally:
        sys.modules.pop("Middleware.api.handlers.extra", None)
    assert client.get("/extra").get_json() == {"extra": True}
    assert client.get("/v1/models").status_code == 200
    assert "broken" in caplog.text and "no_such_module_anywhere" in caplog.text
    assert "must not be imported" not in caplog.text


def test_a_request_has_the_same_api_type_at_the_gate_and_in_its_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of paths and the handlers' routes are written apart."""

    def serve(self: BaseApiHandler, api_type: str, *rest: object, **options: object) -> str:
        return api_type

    monkeypatch.setattr(BaseApiHandler, "serve", serve)
    client = ApiServer().app.test_client()
    assert {path: client.post(path).get_data(as_text=True) for path in API_TYPES} == dict(API_TYPES)


PAIR = """
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler


class Pair(BaseApiHandler):
    def register_routes(self, app):
        app.add_url_rule("/{0}", "{0}", lambda: self.serve("openai", self.fail), methods=["POST"])

    def fail(self, context, body):
        raise RuntimeError("internal words")
"""
COLLIDING = """
from Middleware.api.handlers.base.base_api_handler import BaseApiHandler


class Colliding(BaseApiHandler):
    def register_routes(self, app):
        app.add_url_rule("/x", "same", lambda: "1")
        app.add_url_rule("/y", "same", lambda: "2")
"""


def test_a_handler_needs_nothing_but_routes_and_shares_its_name_with_others(
    lab: ApiLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sources = {"pair_one": PAIR.format("one"), "pair_two": PAIR.format("two"), "colliding": COLLIDING}
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(handlers, "__path__", [*handlers.__path__, str(tmp_path)])
    try:
        client = ApiServer().app.test_client()
    finally:
        for name in sources:
            sys.modules.pop(f"Middleware.api.handlers.{name}", None)
    for path in ("/one", "/two"):
        answer = client.post(path, json={})
        assert openai_message(answer.get_json(), answer.status_code).startswith("Internal error (RuntimeError)")
    assert client.get("/v1/models").status_code == 200
    assert "The routes of the front-end handler Colliding could not be registered" in caplog.text


def test_a_given_application_is_used() -> None:
    flask = Flask("mine", static_folder=None)
    assert ApiServer(flask).app is flask
    assert CHAT in [rule.rule for rule in flask.url_map.iter_rules()]


def test_the_rules_only_find_functions_for_paths() -> None:
    """Code for the other way would be compiled for each rule at every start."""
    rules = list(app_module.create_app().url_map.iter_rules())
    assert len(rules) > 30
    for rule in rules:
        with pytest.raises(NotImplementedError, match="no path is built"):
            rule.build({})


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError("internal words"), 500), (BadRequest(), 400), (RequestEntityTooLarge(), 413)]
)
@pytest.mark.parametrize("path", ["/broken", "/api/broken"])
def test_an_unforeseen_error_is_json_without_details(lab: ApiLab, path: str, error: Exception, status: int) -> None:
    def view() -> str:
        raise error

    flask = app_module.create_app()
    flask.add_url_rule(path, "broken", view)
    response = flask.test_client().get(path)
    assert response.status_code == status
    assert "internal words" not in response.get_data(as_text=True)
    assert message_at(path, response.get_json(), status)


ROUTES = {
    "/v1/chat/completions": "POST",
    "/chat/completions": "POST",
    "/v1/completions": "POST",
    "/completions": "POST",
    "/v1/models": "GET",
    "/models": "GET",
    "/v1/models/tester": "GET",
    "/models/tester": "GET",
    "/api/chat": "POST",
    "/api/generate": "POST",
    "/api/tags": "GET",
    "/api/version": "GET",
    "/api/ps": "GET",
    "/api/show": "POST",
}


@table(("path", "method"), ROUTES.items())
@table("slash", ["", "/"])
def test_every_route(lab: ApiLab, path: str, method: str, slash: str) -> None:
    with lab.client.options(path + slash) as response:
        assert response.status_code == 200 and method in response.headers["Allow"]
    with lab.client.open(path + slash, method=method, data='{"model":"tester","messages":[]}') as response:
        assert response.status_code == 200
    with lab.client.patch(path + slash) as response:
        assert response.status_code == 405 and method in response.headers["Allow"]
    with lab.client.head(path + slash) as response:
        assert response.status_code == (200 if method == "GET" else 405)


def test_factory_and_lazy_app() -> None:
    assert app_module.create_app() is not app_module.create_app()
    assert app_module.app is app_module.app
    with pytest.raises(AttributeError):
        _ = app_module.no_such_name


def behind_admission(flask: Flask, threads: int | None = None) -> Any:
    """What a request meets once it is admitted."""
    outer = app_module.build_wsgi_application(flask, threads)
    assert isinstance(outer, AdmissionMiddleware)
    return outer.app


def test_gate_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    flask = app_module.create_app()
    monkeypatch.setattr(process().one(instance.Gate), "semaphore", None)
    assert behind_admission(flask) is flask
    instance.initialize_request_semaphore(2)
    monkeypatch.setattr(instance, "CONCURRENCY_TIMEOUT", 7)
    gated = behind_admission(flask, threads=100)
    assert isinstance(gated, ConcurrencyLimitMiddleware)
    assert (gated.acquire_timeout, gated.max_waiting) == (7, 36)
    monkeypatch.setattr(instance, "CONCURRENCY_LEVEL", "endpoint")
    assert behind_admission(flask) is flask
