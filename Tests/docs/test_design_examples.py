"""The worked examples of the product's design documents, with the calls that these show.

Their cleaning rule, a prefix, is the first example of ``Docs/Developer/adding-a-cleaning-rule.md``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flask import Response, g, jsonify, request
from flask.views import MethodView
from werkzeug.exceptions import ClientDisconnected

from Middleware.api import workflow_gateway
from Middleware.api.app import create_app
from Middleware.exceptions.early_termination_exception import EarlyTerminationException
from Middleware.models.process import Process
from Middleware.models.request_context import request_scope
from Middleware.services.cancellation_service import CancellationService, get_cancellation_service
from Middleware.workflows.handlers import impl
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Tests.api.api_lab import ApiLab
from Tests.stub_backend import StubBackend
from Tests.tables import table
from Tests.workflows.engine_lab import static, user

HANDLER = """
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext

class DatabaseQueryHandler(BaseHandler):
    def handle(self, context: ExecutionContext) -> str:
        query_template = context.config.get("query")
        resolved_query = context.workflow_variable_service.apply_variables(
            query_template, context
        )
        connection_string = context.config.get("connectionString")
        result = f"Executed: {resolved_query}"
        return result
"""
DECLARED = HANDLER.replace(
    "    def handle",
    """    KEYS = {"DatabaseQuery": (
        ConfigKey("connectionString", "str", None, "Where the database is.", required=True),
        ConfigKey("query", "str", None, "What it is asked.", "full", required=True))}

    def handle""",
).replace("\nfrom", "\nfrom Middleware.utilities.config.declarations import ConfigKey\nfrom", 1)
NODE = {
    "type": "DatabaseQuery",
    "connectionString": "your_db_connection_string",
    "query": "SELECT * FROM users WHERE name = '{lastUserMessage}';",
}
# A name that is not a variable is left as written; the variable with the user's last message has another name.
RESULTS = {
    "lastUserMessage": "Executed: SELECT * FROM users WHERE name = '{lastUserMessage}';",
    "chat_user_prompt_last_one": "Executed: SELECT * FROM users WHERE name = 'Mira';",
}
MODULE = f"{impl.__name__}.database_query_handler"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    monkeypatch.setattr("Middleware.models.process._process", Process())
    with StubBackend() as backend:
        yield ApiLab(tmp_path / "configs", monkeypatch, backend)


@pytest.fixture(name="cancellation_service")
def _cancellation_service(lab: ApiLab) -> CancellationService:
    return get_cancellation_service()


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules belong to the package of node handlers."""
    folder = tmp_path / "impl"
    folder.mkdir()
    monkeypatch.setattr(impl, "__path__", [*impl.__path__, str(folder)])
    node_types.cache_clear()
    yield folder
    sys.modules.pop(MODULE, None)
    vars(impl).pop("database_query_handler", None)
    node_types.cache_clear()


def run(lab: ApiLab, manager: type[WorkflowManager], variable: str) -> Any:
    query = NODE["query"].replace("lastUserMessage", variable)
    lab.workflow("Ask", [{**NODE, "query": query}, static("{agent1Output}")])
    with request_scope(lab.request):
        return manager("Ask").run_workflow([user("Mira")], "r-1")


@table("variable, result", RESULTS.items())
def test_a_node_type_registered_in_the_manager(lab: ApiLab, handlers: Path, variable: str, result: str) -> None:
    (handlers / "database_query_handler.py").write_text(HANDLER, encoding="utf-8")

    class Manager(WorkflowManager):
        def __init__(self, workflow_config_name: str, **kwargs: Any) -> None:
            super().__init__(workflow_config_name, **kwargs)
            common_dependencies: dict[str, Any] = {
                "workflow_manager": self,
                "workflow_variable_service": self.variables,
            }
            self.node_handlers = {
                **self.node_handlers,
                "DatabaseQuery": importlib.import_module(MODULE).DatabaseQueryHandler(**common_dependencies),
            }

    assert run(lab, Manager, variable) == result


def test_a_node_type_that_is_declared_needs_no_registration(lab: ApiLab, handlers: Path) -> None:
    (handlers / "database_query_handler.py").write_text(DECLARED, encoding="utf-8")
    assert run(lab, WorkflowManager, "lastUserMessage") == RESULTS["lastUserMessage"]


def test_a_node_type_that_is_unknown_does_not_run(lab: ApiLab, handlers: Path) -> None:
    with pytest.raises(Exception, match="the unknown type 'DatabaseQuery'|names no endpoint"):
        run(lab, WorkflowManager, "lastUserMessage")


# -- cancellation ------------------------------------------------------------------------------------------------------


@table("path", ["/api/chat", "/api/generate"])
def test_a_request_is_cancelled_by_its_id(lab: ApiLab, cancellation_service: CancellationService, path: str) -> None:
    answer = lab.client.delete(path, json={"request_id": "abc-123"})
    assert (answer.status_code, answer.json) == (200, {"status": "cancelled", "request_id": "abc-123"})
    assert cancellation_service.is_cancelled("abc-123")


def test_a_stream_of_an_own_api_handler_cancels_its_request(
    lab: ApiLab, cancellation_service: CancellationService
) -> None:
    lab.default([static("one two three")])
    messages = [user("hi")]
    # The documents leave out the request id, which comes first.
    handle_user_prompt: Any = partial(workflow_gateway.handle_user_prompt, "abc-123")

    def streaming_with_cancellation_handling() -> Generator[Any, None, None]:
        try:
            for chunk in handle_user_prompt(messages, stream=True):  # noqa: UP028
                yield chunk
        except (GeneratorExit, ClientDisconnected, BrokenPipeError, ConnectionError):
            request_id = getattr(g, "current_request_id", None)
            if request_id:
                cancellation_service.request_cancellation(request_id)
            raise

    with create_app().test_request_context(), request_scope(lab.request):
        g.current_request_id = "abc-123"
        stream = streaming_with_cancellation_handling()
        assert next(stream)["token"] == "one"
        assert not cancellation_service.is_cancelled("abc-123")
        stream.close()
    assert "abc-123" in cancellation_service.get_all_cancelled_requests()


def test_the_request_id_is_there_for_plug_ins(lab: ApiLab) -> None:
    seen = []
    app = create_app()

    @app.after_request
    def look(response: Response) -> Response:
        seen.append(g.current_request_id)
        return response

    lab.default([static("hello")])
    answer = app.test_client().post("/v1/chat/completions", json={"messages": [user("hi")]})
    assert seen == [answer.headers["X-Request-Id"]]


def test_an_own_endpoint_that_cancels(lab: ApiLab, cancellation_service: CancellationService) -> None:
    class CancelAPI(MethodView):
        @staticmethod
        def delete() -> tuple[Response, int]:
            from Middleware.services.cancellation_service import cancellation_service

            request_data = request.get_json()
            request_id = request_data.get("request_id")
            cancellation_service.request_cancellation(request_id)  # type: ignore[attr-defined]
            return jsonify({"status": "cancelled", "request_id": request_id}), 200

    app = create_app()
    app.add_url_rule("/cancel", view_func=CancelAPI.as_view("cancel"))
    answer = app.test_client().delete("/cancel", json={"request_id": "abc-123"})
    assert (answer.status_code, answer.json) == (200, {"status": "cancelled", "request_id": "abc-123"})
    assert cancellation_service.is_cancelled("abc-123")


def test_a_long_operation_that_is_cancelled(lab: ApiLab, cancellation_service: CancellationService) -> None:
    class Operation:
        request_id = "my-request-id"

        def run(self) -> None:
            if cancellation_service.is_cancelled(self.request_id):
                cancellation_service.acknowledge_cancellation(self.request_id)
                raise EarlyTerminationException(f"Request {self.request_id} cancelled")

    Operation().run()
    cancellation_service.request_cancellation("my-request-id")
    with pytest.raises(EarlyTerminationException, match="Request my-request-id cancelled"):
        Operation().run()
    Operation().run()
    assert cancellation_service.get_all_cancelled_requests() == set()
