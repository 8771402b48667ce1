"""The shipped scripts of the tool loop against a server like MCPO, run as PythonModule nodes run them."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.workflows.tools.dynamic_module_loader import run_dynamic_module
from Tests.llmapis.lab import Lab
from Tests.stub_backend import BEFORE_STATUS, RecordedRequest, Reply, StubBackend, json_reply

LIST, CALL = "Public/Scripts/mcpo/list_tools.py", "Public/Scripts/mcpo/call_tool.py"
TIME = {
    "info": {"title": "mcp-time", "description": "mcp-time MCP Server", "version": "1"},
    "paths": {
        "/get_current_time": {
            "post": {
                "summary": "Get Current Time",
                "description": "Get current time in a\nspecific timezone",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"$ref": "#/components/schemas/get_current_time_form_model"}}
                    },
                },
            }
        },
        "/reset": {"post": {"summary": "Reset"}, "get": {"summary": "Not a tool"}},
    },
    "components": {
        "schemas": {
            "get_current_time_form_model": {
                "properties": {"timezone": {"type": "string", "description": "IANA timezone name"}},
                "type": "object",
                "required": ["timezone"],
            }
        }
    },
}
ROOT = {
    "openapi": "3.1.0",
    "info": {
        "title": "MCP OpenAPI Proxy",
        "version": "1.0",
        "description": (
            "Automatically generated API from MCP Tool Schemas\n\n- **available tools**：\n    - [time](/time/docs)\n"
            "    - [clock](/clock/docs)"
        ),
    },
    "paths": {},
}
TOOLS = (
    "Choose.\n\n### time/get_current_time\nThe time.\n\n### clock/get_current_time\nA clock.\n\n### notes/read_note\n"
)
PARIS = '{"tool": "time/get_current_time", "arguments": {"timezone": "Europe/Paris"}}'
NOON = {"datetime": "2026-11-22T12:00:00+01:00"}


@pytest.fixture
def server() -> Iterator[StubBackend]:
    with StubBackend() as server:
        server.default = json_reply({"detail": "Not Found"}, 404)
        yield server


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: StubBackend) -> Lab:
    """A user whose tools are on ``server``; the working directory holds no scripts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MCPO_URL", raising=False)
    monkeypatch.delenv("MCPO_API_KEY", raising=False)
    lab = Lab(tmp_path / "Configs", monkeypatch)
    lab.user(MCPO_URL=f"{server.url}/")
    return lab


def describes(server: StubBackend, **documents: Any) -> None:
    """Let the server tell of its tools; ``root`` is its own document, the others those of its parts."""
    paths = {
        "/openapi.json" if name == "root" else f"/{name}/openapi.json": document for name, document in documents.items()
    }
    server.responder = lambda request: json_reply(paths[request.path]) if request.path in paths else None


def argument(schema: dict[str, Any], **components: Any) -> dict[str, Any]:
    """The document of a server with one tool, which takes one argument."""
    body = {"content": {"application/json": {"schema": {"type": "object", "properties": {"x": schema}}}}}
    return {"info": {}, "paths": {"/do": {"post": {"requestBody": body}}}, "components": {"schemas": components}}


def list_tools() -> str:
    return str(run_dynamic_module(LIST))


def call_tool(reply: str, results: str = "", tools: str = TOOLS) -> str:
    return str(run_dynamic_module(CALL, reply, tools, results))


def tool_calls(server: StubBackend) -> list[tuple[str, Any]]:
    return [(request.path, request.json) for request in server.requests if request.method == "POST"]


def shipped_prompt() -> str:
    root = config_utils.get_project_root_directory_path()
    return Path(root, "Public", "Configs", "default_tool_prompt.txt").read_text(encoding="utf-8")


# -- list_tools.py -----------------------------------------------------------------------------------------------------


def test_a_server_for_one_mcp_server_lists_its_tools(lab: Lab, server: StubBackend) -> None:
    describes(server, root=TIME)
    assert (
        "### get_current_time\nGet current time in a specific timezone\nArguments:\n"
        "- timezone (string, required): IANA timezone name\n\n### reset\nReset\nArguments: none"
    ) in list_tools()


def test_a_server_for_several_lists_all_of_them_by_their_paths(lab: Lab, server: StubBackend) -> None:
    describes(server, root=ROOT, time=TIME, clock=TIME)
    prompt = list_tools()
    assert [line for line in prompt.splitlines() if line.startswith("### ")] == [
        "### time/get_current_time",
        "### time/reset",
        "### clock/get_current_time",
        "### clock/reset",
    ]


def test_one_of_several_that_fails_is_left_out(lab: Lab, server: StubBackend, caplog: Any) -> None:
    describes(server, root=ROOT, clock=TIME)
    prompt = list_tools()
    assert "### clock/reset" in prompt and "### time" not in prompt
    assert "The tools of 'time' are left out" in caplog.text


def test_the_prompt_is_the_file_of_the_user(lab: Lab, server: StubBackend) -> None:
    describes(server, root=TIME)
    (lab.root / "default_tool_prompt.txt").write_text("Ärger\n{{TOOLS}}\nEnd", encoding="utf-8-sig")
    prompt = list_tools()
    assert prompt.startswith("Ärger\n### get_current_time") and prompt.endswith("Arguments: none\nEnd")


def test_a_prompt_without_a_place_for_the_tools_ends_with_them(lab: Lab, server: StubBackend) -> None:
    describes(server, root=TIME)
    (lab.root / "default_tool_prompt.txt").write_text("Choose.", encoding="utf-8")
    assert list_tools().startswith("Choose.\n\n### get_current_time")


@pytest.mark.parametrize("text", [None, "", "\n"])
def test_without_the_file_there_is_a_short_prompt(lab: Lab, server: StubBackend, text: str | None) -> None:
    describes(server, root=TIME)
    if text is not None:
        (lab.root / "default_tool_prompt.txt").write_text(text, encoding="utf-8")
    prompt = list_tools()
    assert "### get_current_time" in prompt and '{"tool": "name"' in prompt and "NO TOOL" in prompt


def test_the_shipped_prompt_says_what_the_scripts_understand() -> None:
    assert "{{TOOLS}}" in shipped_prompt() and '{"tool": "' in shipped_prompt() and "NO TOOL" in shipped_prompt()


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({"type": "integer", "default": 5}, "- x (integer, optional, default 5)"),
        ({"enum": ["a", "ö"]}, '- x (optional, one of "a", "ö")'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "- x (string, optional)"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "- x (string or integer, optional)"),
        ({"type": ["number", "null"]}, "- x (number, optional)"),
        (
            {"type": "array", "items": {"$ref": "#/components/schemas/Point"}},
            "- x (list of object with a, b, optional)",
        ),
        ({"type": "array"}, "- x (list, optional)"),
        ({"$ref": "#/components/schemas/Loop"}, "- x (optional)"),
        ({"$ref": "elsewhere"}, "- x (optional)"),
        ({"$ref": "#/components/schemas/Endless"}, "- x (list of list of list of array, optional)"),
        ({"description": "two\n### lines"}, "- x (optional): two ### lines"),
        (None, "- x (optional)"),
    ],
)
def test_how_arguments_are_told(lab: Lab, server: StubBackend, schema: Any, line: str) -> None:
    describes(
        server,
        root=argument(
            schema,
            Point={"type": "object", "properties": {"a": {}, "b": {}}},
            Loop={"$ref": "#/components/schemas/Loop"},
            Endless={"type": "array", "items": {"$ref": "#/components/schemas/Endless"}},
        ),
    )
    assert f"### do\nArguments:\n{line}\n" in list_tools() + "\n"


def test_long_descriptions_are_cut(lab: Lab, server: StubBackend) -> None:
    describes(server, root={"info": {}, "paths": {"/do": {"post": {"description": "long " * 1000}}}})
    assert len(list_tools()) < 1000


@pytest.mark.parametrize("path", ["/a/../b", "/a b", "no-slash", "/", "//", "/x\n### y"])
def test_a_path_that_is_no_plain_name_is_no_tool(lab: Lab, server: StubBackend, path: str) -> None:
    describes(server, root={"info": {}, "paths": {path: {"post": {"summary": "x"}}, "/ok": {"post": {"summary": "x"}}}})
    assert [line for line in list_tools().splitlines() if line.startswith("### ")] == ["### ok"]


@pytest.mark.parametrize(
    "document",
    [{}, {"paths": None}, {"paths": []}, {"info": [], "paths": {"/x": None}}, {"paths": {"/x": {"post": "y"}}}],
)
def test_a_document_without_tools_gives_no_prompt(lab: Lab, server: StubBackend, document: Any, caplog: Any) -> None:
    describes(server, root=document)
    assert list_tools() == ""
    assert [record.levelname for record in caplog.records if record.name.startswith("mcpo")] == ["WARNING"]


@pytest.mark.parametrize(
    "body",
    [
        {"content": []},
        {"content": {"application/json": {"schema": {"properties": [1]}}}},
        "text",
        {"$ref": "#/x"},
        {"content": {"application/json": {"schema": {"properties": {"a": "b"}, "required": None}}}},
    ],
)
def test_odd_documents_break_nothing(lab: Lab, server: StubBackend, body: Any) -> None:
    describes(server, root={"info": {}, "paths": {"/do": {"post": {"summary": "Does it", "requestBody": body}}}})
    assert "### do\nDoes it\nArguments" in list_tools()


@pytest.mark.parametrize(
    "reply", [json_reply(ROOT, 500), json_reply([1]), Reply(body=b"<html>"), Reply(drop=BEFORE_STATUS)]
)
def test_a_server_that_makes_no_sense_is_one_line_in_the_log(
    lab: Lab, server: StubBackend, reply: Reply, caplog: Any
) -> None:
    server.default = reply
    assert list_tools() == ""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1 and lines[0].startswith("No tools for this request: the server at 127.0.0.1")


def test_nobody_there_is_one_line_in_the_log(lab: Lab, caplog: Any) -> None:
    lab.user(MCPO_URL="http://user:secret@127.0.0.1:1")
    assert list_tools() == ""
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == [
        "No tools for this request: the server at 127.0.0.1:1 cannot be reached (ConnectionRefusedError). "
        "MCPO_URL in the user file says where they are"
    ]


@pytest.mark.parametrize("url", ["localhost:8889", "ftp://x", "http://", "http://[::1", "http://x:y", "http://x:0", 5])
def test_an_address_that_is_none_is_told(lab: Lab, url: Any, caplog: Any) -> None:
    lab.user(MCPO_URL=url)
    assert list_tools() == ""
    assert "MCPO_URL is no address such as http://localhost:8889" in caplog.text


# -- where the server is -----------------------------------------------------------------------------------------------


def test_the_user_comes_before_the_environment(lab: Lab, server: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    describes(server, root=TIME)
    monkeypatch.setenv("MCPO_URL", "http://127.0.0.1:1")
    assert list_tools()
    lab.user(MCPO_URL="")
    assert not list_tools()
    monkeypatch.setenv("MCPO_URL", server.url)
    assert list_tools()


def test_the_address_may_have_a_path(lab: Lab, server: StubBackend) -> None:
    lab.user(MCPO_URL=f"{server.url}/below/")
    server.default = json_reply(NOON)
    call_tool(PARIS)
    assert tool_calls(server) == [("/below/time/get_current_time", {"timezone": "Europe/Paris"})]


def test_a_key_is_sent_with_every_request(lab: Lab, server: StubBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPO_API_KEY", "k1")
    describes(server, root=TIME)
    list_tools()
    call_tool(PARIS)
    assert [request.headers.get("authorization") for request in server.requests] == ["Bearer k1"] * 2


# -- call_tool.py ------------------------------------------------------------------------------------------------------

CALLED = 'Call: time/get_current_time {"timezone": "Europe/Paris"}\n'


@pytest.mark.parametrize(
    "reply",
    [
        PARIS,
        f"I will look.\n```json\n{PARIS}\n```\n",
        f'<think>Maybe {{"tool": "notes/read_note"}}?</think>{PARIS}',
        PARIS[:-1],
        PARIS[:-2],
        f"```json\n{PARIS[:-1]}\n```",
        '{"name": "time/get_current_time", "parameters": {"timezone": "Europe/Paris"}}',
        '{"tool_calls": [{"name": "time/get_current_time", "parameters": {"timezone": "Europe/Paris"}}]}',
        '[{"function": {"name": "time/get_current_time", "arguments": "{\\"timezone\\": \\"Europe/Paris\\"}"}}]',
        '{"tool": "time.get_current_time", "arguments": {"timezone": "Europe/Paris"}}',
        '{"tool": "Time_Get_Current_Time", "arguments": {"timezone": "Europe/Paris"}}',
    ],
)
def test_replies_that_ask_for_the_call(lab: Lab, server: StubBackend, reply: str) -> None:
    server.default = json_reply(NOON)
    assert call_tool(reply) == CALLED + f"Result: {json.dumps(NOON)}\n\n"
    assert tool_calls(server) == [("/time/get_current_time", {"timezone": "Europe/Paris"})]


@pytest.mark.parametrize(
    "reply",
    [
        "NO TOOL",
        "no tool.",
        "",
        "It is noon.",
        '{"tool": "NO TOOL"}',
        '{"tool": null}',
        '{"tool": ""}',
        '{"tool": 5}',
        '{"answer": "noon"}',
        "[NO TOOL]",
        "A set {a, b} of things",
        "[]",
        "{}",
        '{"tool_calls": []}',
    ],
)
def test_replies_that_ask_for_nothing(lab: Lab, server: StubBackend, reply: str) -> None:
    assert call_tool(reply) == ""
    assert server.requests == []


def test_a_name_without_its_folder_will_do_if_it_is_the_only_one(lab: Lab, server: StubBackend) -> None:
    server.default = json_reply("Buy milk.")
    assert call_tool('{"tool": "read_note"}') == "Call: notes/read_note {}\nResult: Buy milk.\n\n"
    assert "there is no tool 'get_current_time'" in call_tool('{"tool": "get_current_time"}')


@pytest.mark.parametrize("name", ["../admin", "time/../../admin", "http://elsewhere/x", "time", "docs"])
def test_only_tools_of_the_list_are_called(lab: Lab, server: StubBackend, name: str) -> None:
    text = call_tool(json.dumps({"tool": name}))
    assert f"Error: there is no tool '{name}'. The tools are: time/get_current_time, clock/" in text
    assert server.requests == []


def test_several_calls_are_made_in_order_and_never_too_many(lab: Lab, server: StubBackend) -> None:
    server.responder = lambda request: json_reply(request.json["n"])
    reply = json.dumps([{"tool": "notes/read_note", "arguments": {"n": number}} for number in (1, 2, 1, 3, 4)])
    text = call_tool(reply)
    assert [body["n"] for _, body in tool_calls(server)] == [1, 2]
    assert text.count("Call: ") == 2


def test_a_call_that_was_made_is_not_made_again(lab: Lab, server: StubBackend) -> None:
    assert call_tool(PARIS, CALLED + "Result: noon\n\n") == ""
    assert server.requests == []


def test_a_reply_that_cannot_be_read_is_told_to_the_model_once(lab: Lab) -> None:
    told = call_tool('{"tool": "notes/read_note, "arguments": }')
    assert told.startswith("Error: the reply was no valid JSON.")
    assert call_tool('{"tool": "notes/read_note, "arguments": }', told) == ""


@pytest.mark.parametrize("arguments", ["Europe/Paris", ["a"], 5])
def test_arguments_must_be_an_object(lab: Lab, server: StubBackend, arguments: Any) -> None:
    text = call_tool(json.dumps({"tool": "notes/read_note", "arguments": arguments}))
    assert text.endswith("Result: Error: the arguments must be a JSON object\n\n") and server.requests == []


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"detail": {"message": "Unexpected error", "error": "Invalid timezone"}}, 500, "Error: Invalid timezone"),
        ({"detail": {"message": "Tool is away"}}, 500, "Error: Tool is away"),
        ({"detail": {"code": 7}}, 500, 'Error: {"code": 7}'),
        ({"detail": [{"loc": ["body", "timezone"], "msg": "missing"}]}, 422, "Error: argument timezone: missing"),
        ({"detail": "Not Found"}, 404, "Error: Not Found"),
        ({}, 503, "Error: {}"),
        (b"Bad gateway", 502, "Error: Bad gateway"),
        (b"", 500, "Error: HTTP status 500"),
        (b"", 200, "(done; the tool answered nothing)"),
        (None, 200, "null"),
        ("plain {text}", 200, "plain {text}"),
        (b"no JSON \xff", 200, "no JSON \ufffd"),
    ],
)
def test_what_the_model_reads_of_answers(lab: Lab, server: StubBackend, body: Any, status: int, text: str) -> None:
    server.default = Reply(status=status, body=body if isinstance(body, bytes) else json.dumps(body).encode())
    assert call_tool(PARIS) == f"{CALLED}Result: {text}\n\n"


def test_long_results_are_cut(lab: Lab, server: StubBackend) -> None:
    server.default = json_reply("x" * 100_000)
    text = call_tool(PARIS)
    assert len(text) < 7000 and text.endswith("x\n(the rest of the result is left out)\n\n")


def test_a_server_that_went_away_is_told_to_the_model(lab: Lab, server: StubBackend) -> None:
    server.default = Reply(drop=BEFORE_STATUS)
    assert "Result: Error: the server at 127.0.0.1" in call_tool(PARIS)


def test_a_tool_that_takes_too_long_is_told_to_the_model(lab: Lab, server: StubBackend, tmp_path: Path) -> None:
    """In a copy with a shorter patience, as an author would make it."""
    source = Path(config_utils.get_project_root_directory_path(), CALL).read_text(encoding="utf-8")
    copy = tmp_path / "impatient.py"
    copy.write_text(source.replace("CALL_SECONDS = 60.0", "CALL_SECONDS = 0.2"), encoding="utf-8")
    server.default = Reply(never=True)
    text = run_dynamic_module("impatient.py", PARIS, TOOLS)
    assert "Result: Error: the server at 127.0.0.1" in text and "no answer within 0.2 seconds" in text


# -- stop --------------------------------------------------------------------------------------------------------------


def test_stop_reaches_the_server_of_the_tool(lab: Lab, server: StubBackend) -> None:
    server.default = Reply(never=True)
    request = RequestContext(request_id="r-1")

    def stop() -> None:
        server.wait_requests()
        request.cancel_scope.cancel()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with request_scope(request), pytest.raises(EarlyTerminationException):
        call_tool(PARIS)
    stopper.join()
    asked: RecordedRequest = server.requests[0]
    assert asked.wait_ended() and asked.client_left


def test_a_finished_call_leaves_nothing_registered(lab: Lab, server: StubBackend) -> None:
    request = RequestContext(request_id="r-1")
    with request_scope(request):
        call_tool(PARIS)
    assert not request.cancel_scope._callbacks


def test_the_working_directory_may_hold_a_script_of_the_same_path(lab: Lab, tmp_path: Path) -> None:
    own = tmp_path / os.path.dirname(LIST)
    own.mkdir(parents=True)
    (own / "list_tools.py").write_text("def Invoke():\n    return 'own'\n", encoding="utf-8")
    assert list_tools() == "own"
