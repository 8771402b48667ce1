"""Calls to real MCP servers: child processes, streamable HTTP, SSE."""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.tools import mcp_client_tool
from Middleware.workflows.tools.mcp.mcp_sessions import McpSessions, SessionTimeoutError
from Middleware.workflows.tools.mcp.server_file import load_server
from Middleware.workflows.tools.mcp_client_tool import MCPClient, MCPToolCallError
from Tests.llmapis.lab import Lab
from Tests.utilities.shortages import no_more_threads
from Tests.workflows.engine_lab import tried_with, until
from Tests.workflows.tools.mcp.mcp_lab import HttpServer, ends, plain_file, python_file, sdk_file

TRANSPORTS = ("stdio", "streamable_http", "sse")

# Where a server is killed or its session given up, asyncio leaves the ends of its pipes to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Collect the rest of this file's servers before the filter above ends."""
    yield
    gc.collect()


@pytest.fixture
def sessions() -> Iterator[McpSessions]:
    made = McpSessions()
    yield made
    made.close()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    made = Lab(tmp_path, monkeypatch)
    made.write("MCPServers/lab", plain_file())
    return made


@pytest.fixture
def client(lab: Lab, sessions: McpSessions) -> MCPClient:
    return MCPClient(sessions)


@pytest.fixture(scope="module", params=TRANSPORTS)
def shared_server(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The file of the same server over each transport."""
    if request.param == "stdio":
        yield sdk_file()
        return
    with HttpServer(request.param) as server:
        yield server.file()


@pytest.fixture
def transport(shared_server: dict[str, Any], lab: Lab) -> str:
    lab.write("MCPServers/lab", shared_server)
    return str(shared_server["transport"])


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(MCPToolCallError) as caught:
        call()
    return str(caught.value)


def pid(client: MCPClient, name: str = "lab") -> int:
    return int(client.call_tool(name, "pid"))


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_over_every_transport(client: MCPClient, transport: str) -> None:
    assert client.call_tool("lab", "add", {"a": 40, "b": 2}) == '{"result": 42}'
    assert client.call_tool("lab", "echo", {"text": "Grüße {x}\n"}) == "Grüße {x}\n"
    assert client.call_tool("lab", "parts") == 'one {"type": "image", "data": "aGk=", "mimeType": "image/png"}two'
    assert error_of(lambda: client.call_tool("lab", "fail", {"text": "no luck"})) == (
        "MCP tool 'fail' reported an error: no luck"
    )
    assert pid(client) == pid(client)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ('{"content": [], "structuredContent": {"a": "ü"}}', '{"a": "ü"}'),
        ('{"content": [{"type": "text", "text": "t"}], "structuredContent": {}}', "{}"),
        ('{"content": []}', ""),
        ('{"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b\\n"}]}', "ab\n"),
    ],
)
def test_results_of_a_server_of_an_older_protocol(lab: Lab, client: MCPClient, result: str, text: str) -> None:
    lab.write("MCPServers/old", plain_file(result))
    assert client.call_tool("old", "any") == text


def test_arguments_keep_their_types(client: MCPClient) -> None:
    given = {"n": 1, "f": 1.5, "flag": True, "none": None, "list": [1, "x", {"deep": False}]}
    assert client.call_tool("lab", "arguments", given) == repr(given)
    assert client.call_tool("lab", "arguments") == "{}"


@pytest.mark.slow
def test_unknown_tool(lab: Lab, client: MCPClient) -> None:
    lab.write("MCPServers/lab", sdk_file())
    assert error_of(lambda: client.call_tool("lab", "nope")).startswith("MCP tool 'nope' reported an error: ")


def test_error_answer_of_the_protocol(client: MCPClient) -> None:
    assert error_of(lambda: client.call_tool("lab", "refused")) == ("MCP call to 'lab.refused' failed: not like this")
    assert pid(client) == pid(client)


def test_answer_against_the_protocol(lab: Lab, client: MCPClient) -> None:
    lab.write("MCPServers/odd", plain_file('{"content": 5}'))
    assert error_of(lambda: client.call_tool("odd", "t")) == (
        "MCP call to 'odd.t' failed: the server's answer does not follow the protocol"
    )


# -- list_tools --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_list_tools(client: MCPClient, transport: str) -> None:
    tools = client.list_tools("lab", 60)
    assert {"add", "echo", "pid"} <= set(tools)
    schema = tools["add"]["llm_schema"]
    assert set(tools["add"]) == {"llm_schema"} and set(schema) == {"type", "name", "description", "parameters"}
    assert (schema["type"], schema["name"], schema["description"]) == ("function", "add", "Adds two numbers.")
    assert set(schema["parameters"]["properties"]) == {"a", "b"}
    assert tools["echo"]["llm_schema"]["description"] == ""


def test_list_tools_of_several_pages(client: MCPClient) -> None:
    assert list(client.list_tools("lab")) == ["a", "b"]


# -- server files ------------------------------------------------------------------------------------------------------


def test_unknown_server(client: MCPClient) -> None:
    assert error_of(lambda: client.call_tool("nope", "t")) == (
        "MCP server config 'nope' was not found under Public/Configs/MCPServers/."
    )
    assert error_of(lambda: client.list_tools("nope")) == (
        "MCP server config 'nope' was not found under Public/Configs/MCPServers/."
    )


@pytest.mark.parametrize("name", ["a/b", "a\\b", "c:d", ".", "..", "", " ", "../lab", "/lab"])
def test_name_that_is_no_flat_name(lab: Lab, client: MCPClient, name: str) -> None:
    lab.write("MCPServers/a/b", plain_file())
    assert error_of(lambda: client.call_tool(name, "t")).startswith(f"'{name}' cannot be the name of an MCP server")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({}, "transport None; it must be 'stdio', 'sse' or 'streamable_http'"),
        ({"transport": "http"}, "transport 'http'; it must be 'stdio', 'sse' or 'streamable_http'"),
        ({"transport": ["sse"]}, "transport ['sse']; it must be"),
        ({"transport": "sse"}, "has no 'url', which the transport 'sse' needs"),
        ({"transport": "streamable_http", "url": " "}, "has no 'url', which the transport 'streamable_http' needs"),
        ({"transport": "sse", "url": 5}, "has a 'url' that is not a string"),
        ({"transport": "sse", "url": "ftp://x"}, "has a 'url' that is not an http:// or https:// address"),
        ({"transport": "sse", "url": "http://[x"}, "has a 'url' that is not an http:// or https:// address"),
        ({"transport": "stdio"}, "has no 'command', which the transport 'stdio' needs"),
        ({"transport": "stdio", "command": "x", "args": "a"}, "needs a list of strings as 'args'"),
        ({"transport": "stdio", "command": "x", "args": [None]}, "needs a list of strings as 'args'"),
        ({"transport": "stdio", "command": "x", "env": ["A"]}, "needs an object of strings as 'env'"),
        ({"transport": "stdio", "command": "x", "cwd": "/nowhere/at/all"}, "has a 'cwd' that is not a folder"),
        ({"transport": "sse", "url": "http://x", "headers": {"A": None}}, "needs an object of strings as 'headers'"),
    ],
)
def test_server_file_that_makes_no_sense(lab: Lab, client: MCPClient, content: dict[str, Any], problem: str) -> None:
    lab.write("MCPServers/odd", content)
    message = error_of(lambda: client.call_tool("odd", "t"))
    assert message.startswith("MCP server config 'odd' ") and problem in message


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_server_file_that_is_no_object(lab: Lab, client: MCPClient, text: str) -> None:
    (lab.root / "MCPServers" / "broken.json").write_text(text, encoding="utf-8")
    message = error_of(lambda: client.call_tool("broken", "t"))
    assert message.startswith("MCP server config 'broken' cannot be read: MCPServers/broken.json")
    assert str(lab.root) not in message


def test_a_changed_file_gets_a_new_process(lab: Lab, client: MCPClient) -> None:
    first = pid(client)
    lab.write("MCPServers/lab", plain_file(env={"A": "1"}))
    second = pid(client)
    assert first != second and ends(first) and psutil.pid_exists(second)


# -- child processes ---------------------------------------------------------------------------------------------------


def test_environment_is_limited(lab: Lab, client: MCPClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WILMER_TEST_SECRET", "do not hand down")
    lab.write("MCPServers/lab", plain_file(env={"OWN_VALUE": "yes", "NUMBER": 5}))
    seen = client.call_tool("lab", "environment").splitlines()
    assert "OWN_VALUE=yes" in seen and "NUMBER=5" in seen and f"PATH={os.environ['PATH']}" in seen
    assert "do not hand down" not in "".join(seen)


def test_working_directory(lab: Lab, client: MCPClient, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    lab.write("MCPServers/lab", plain_file(cwd=str(tmp_path / "here")))
    assert os.path.samefile(client.call_tool("lab", "folder"), tmp_path / "here")


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (
            {"transport": "stdio", "command": "/no/such/folder/program-x"},
            "'program-x' cannot be started: {reason}",
        ),
        (python_file("import sys; sys.exit('bad luck')"), "the server ended the connection"),
    ],
)
def test_server_that_does_not_start(
    lab: Lab, client: MCPClient, caplog: pytest.LogCaptureFixture, content: dict[str, Any], cause: str
) -> None:
    lab.write("MCPServers/gone", content)
    with pytest.raises(FileNotFoundError) as missing:
        subprocess.run(["/no/such/folder/program-x"], check=False)
    message = error_of(lambda: client.call_tool("gone", "t"))
    assert message == f"MCP call to 'gone.t' failed: {cause.format(reason=missing.value.strerror)}"
    assert "/no/such" not in message
    assert ("bad luck" in caplog.text) == ("sys" in str(content))


NOISE = {"STDERR": "private thing, key=abcdefgh\n", "KEY": "abcdefgh"}


def test_error_output_is_logged_at_debug_only(lab: Lab, client: MCPClient, caplog: pytest.LogCaptureFixture) -> None:
    lab.write("MCPServers/noisy", plain_file(env=NOISE))
    with caplog.at_level(logging.DEBUG):
        client.call_tool("noisy", "t")
    lines = [record for record in caplog.records if "MCP server 'noisy':" in record.getMessage()]
    assert len(lines) == 1 and lines[0].levelno == logging.DEBUG
    assert "abcdefgh" not in caplog.text


def test_nothing_of_an_encrypted_conversation_is_logged(
    lab: Lab, client: MCPClient, caplog: pytest.LogCaptureFixture
) -> None:
    lab.write("MCPServers/noisy", plain_file(env={"STDERR": "private thing\n"}))
    with caplog.at_level(logging.DEBUG), request_scope(RequestContext(redact=True)):
        assert client.call_tool("noisy", "t", {"text": "private argument"}) == "{'text': 'private argument'}"
    assert "private" not in caplog.text


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_server_is_kept_between_calls(client: MCPClient, sessions: McpSessions) -> None:
    first = pid(client)
    assert pid(client) == first and int(MCPClient(sessions).call_tool("lab", "pid")) == first
    assert psutil.pid_exists(first)
    sessions.close(60)
    assert not psutil.pid_exists(first)


def test_sessions_can_be_used_again_after_closing(client: MCPClient, sessions: McpSessions) -> None:
    first = pid(client)
    sessions.close()
    sessions.close()
    assert pid(client) != first


def test_a_shortage_of_threads_passes(client: MCPClient, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        no_more_threads(patch, "mcp")
        with pytest.raises(RuntimeError, match="new thread"):
            pid(client)
    assert psutil.pid_exists(pid(client))


def test_an_idle_server_is_ended(lab: Lab) -> None:
    def check(idle_seconds: float) -> None:
        sessions = McpSessions(idle_seconds)
        client = MCPClient(sessions)
        try:
            first = pid(client)
            assert client.call_tool("lab", "slow", {"seconds": 2 * idle_seconds}) == "done"
            assert pid(client) == first  # used, not idle
            assert ends(first)
            assert pid(client) != first
        finally:
            sessions.close()

    tried_with(check, 0.3, 2.0, 10.0)


def test_idle_time_and_the_shared_sessions() -> None:
    from Middleware.workflows.tools.mcp import mcp_sessions

    assert mcp_sessions.IDLE_SECONDS == 300
    assert MCPClient()._sessions is MCPClient()._sessions is process().one(mcp_client_tool._new_sessions)


@pytest.mark.slow
def test_parallel_calls_share_a_server(client: MCPClient, transport: str) -> None:
    pid(client)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: client.call_tool("lab", "meet", {"text": str(n), "count": 8}, 60), range(8)))
        pids = set(pool.map(lambda _: pid(client), range(8)))
    assert texts == [str(n) for n in range(8)] and len(pids) == 1


def test_a_server_that_died_idle_is_started_again(client: MCPClient) -> None:
    first = pid(client)
    for _ in range(3):
        psutil.Process(first).kill()
        assert ends(first)
        first, before = pid(client), first
        assert first != before


def test_a_server_that_dies_during_the_call(client: MCPClient) -> None:
    first = pid(client)
    assert error_of(lambda: client.call_tool("lab", "die")) == (
        "MCP call to 'lab.die' failed: the server ended the connection"
    )
    assert pid(client) != first


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["streamable_http", "sse"])
def test_an_http_server_that_was_restarted(lab: Lab, client: MCPClient, kind: str) -> None:
    with HttpServer(kind) as server:
        lab.write("MCPServers/lab", server.file())
        first = pid(client)
        server.kill()
        assert error_of(lambda: pid(client)) == "MCP call to 'lab.pid' failed: the server cannot be reached"
        server.start()
        assert pid(client) != first


@pytest.mark.slow
def test_an_http_server_of_an_older_protocol_that_forgot_the_session(
    lab: Lab, client: MCPClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mcp.client.client as sdk

    real = sdk.Client
    monkeypatch.setattr(sdk, "Client", lambda *args, **more: real(*args, mode="legacy", **more))
    with HttpServer("streamable_http") as server:
        lab.write("MCPServers/lab", server.file())
        first = pid(client)
        server.kill()
        server.start()
        assert pid(client) != first


# -- time and cancellation ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_timeout_of_a_call(client: MCPClient, transport: str) -> None:
    pid(client)
    started = time.monotonic()
    message = error_of(lambda: client.call_tool("lab", "slow", {"seconds": 90}, timeout=0.5))
    assert message == "MCP call to 'lab.slow' timed out after 0.5s (waiting for the tool)"
    assert time.monotonic() - started < 60


def test_a_server_that_hangs_does_not_block_the_next_call(client: MCPClient) -> None:
    first = pid(client)
    assert "timed out after 1s" in error_of(lambda: client.call_tool("lab", "block", {"seconds": 90}, timeout=1))
    assert pid(client) != first
    assert ends(first)


def test_a_call_ends_in_time_even_if_the_thread_of_the_sessions_is_blocked(
    lab: Lab, sessions: McpSessions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next call gets another thread, whatever blocks this one."""
    monkeypatch.setattr("Middleware.workflows.tools.mcp.mcp_sessions.STUCK_SECONDS", 1.0)
    server, go_on = load_server("lab"), threading.Event()

    async def block(_: Any) -> None:
        go_on.wait(120)

    async def call(client: Any) -> Any:
        return (await client.call_tool("folder", {})).content[0].text

    assert sessions.run(server, call, 60) == os.getcwd()
    began = time.monotonic()
    with pytest.raises(SessionTimeoutError, match="blocked"):
        sessions.run(server, block, 2.0)
    assert time.monotonic() - began < 60
    assert "The thread of the MCP sessions is blocked" in caplog.text
    assert sessions.run(server, call, 60) == os.getcwd()
    go_on.set()


def test_timeout_covers_the_handshake(lab: Lab, client: MCPClient) -> None:
    lab.write("MCPServers/mute", python_file("import time\ntime.sleep(90)"))
    pid(client)  # the package is loaded
    started = time.monotonic()
    assert error_of(lambda: client.call_tool("mute", "t", timeout=0.4)) == (
        "MCP call to 'mute.t' timed out after 0.4s (connecting to the server)"
    )
    assert time.monotonic() - started < 60


def test_a_short_timeout_leaves_the_other_callers_connection(
    lab: Lab, client: MCPClient, sessions: McpSessions, tmp_path: Path
) -> None:
    lab.write("MCPServers/lazy", plain_file(env={"WAITS": str(tmp_path / "go on")}))
    pid(client)
    with ThreadPoolExecutor(2) as pool:
        patient = pool.submit(client.call_tool, "lazy", "t", None, 60)
        assert until(lambda: any(server.name == "lazy" for server in list(sessions._current)))
        assert "timed out" in error_of(lambda: client.call_tool("lazy", "t", timeout=0.2))
        (tmp_path / "go on").touch()
        assert patient.result(60) == "{}"


@pytest.mark.parametrize("timeout", [0, -1, "30", True, None, float("nan"), float("inf")])
def test_bad_timeouts(client: MCPClient, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout"):
        client.call_tool("lab", "pid", {}, timeout)


def cancelled_after(ready: Callable[[], object], call: Callable[[], Any]) -> float:
    """Run ``call`` in a request that is cancelled once ``ready`` has returned; return the seconds until it noticed."""
    request = RequestContext()
    moment: list[float] = []

    def cancel() -> None:
        ready()
        moment.append(time.monotonic())
        request.cancel_scope.cancel()

    threading.Thread(target=cancel).start()
    with request_scope(request), pytest.raises(EarlyTerminationException):
        call()
    return time.monotonic() - moment[0]


@pytest.mark.slow
def test_cancellation_of_a_call(client: MCPClient, transport: str) -> None:
    pid(client)
    assert cancelled_after(lambda: time.sleep(0.3), lambda: client.call_tool("lab", "slow", {"seconds": 90})) < 60


def test_cancellation_ends_the_process_of_a_busy_server(client: MCPClient, tmp_path: Path) -> None:
    first, begun = pid(client), tmp_path / "begun"
    arguments = {"seconds": 90, "begun": str(begun)}
    assert cancelled_after(lambda: until(begun.exists), lambda: client.call_tool("lab", "block", arguments, 90)) < 60
    assert pid(client) != first
    assert ends(first)


def test_cancellation_while_connecting(lab: Lab, client: MCPClient, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    lab.write(
        "MCPServers/mute",
        python_file(f"import os, time\nopen({str(note)!r}, 'w').write(str(os.getpid()))\ntime.sleep(90)"),
    )
    pid(client)
    assert (
        cancelled_after(
            lambda: until(lambda: note.exists() and note.read_text("utf-8") != ""),
            lambda: client.call_tool("mute", "t", timeout=90),
        )
        < 60
    )
    assert ends(int(note.read_text(encoding="utf-8")))


def test_cancelled_before_the_call(client: MCPClient) -> None:
    request = RequestContext()
    request.cancel_scope.cancel()
    with request_scope(request), pytest.raises(EarlyTerminationException):
        client.call_tool("lab", "pid")


def test_cancelling_one_request_leaves_the_others(client: MCPClient) -> None:
    pid(client)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.call_tool, "lab", "slow", {"seconds": 1.0, "text": "mine"}, 60)
        time.sleep(0.2)
        cancelled_after(lambda: time.sleep(0.1), lambda: client.call_tool("lab", "slow", {"seconds": 90}, 90))
        assert other.result(60) == "mine"


def test_a_finished_call_leaves_no_callback(client: MCPClient) -> None:
    request = RequestContext()
    with request_scope(request):
        pid(client)
    assert not request.cancel_scope._callbacks


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_headers_are_sent_and_never_shown(lab: Lab, client: MCPClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    # A script that uses the package, too, has imported it before.
    importlib.import_module("mcp.client.client")
    logging.getLogger("mcp").setLevel(logging.NOTSET)
    with HttpServer("streamable_http", "Authorization=Bearer s3cret-token") as server:
        lab.write("MCPServers/lab", server.file(headers={"Authorization": "Bearer s3cret-token"}))
        assert client.call_tool("lab", "echo", {"text": "private"}) == "private"
        lab.write("MCPServers/lab", server.file(headers={"Authorization": "Bearer wr0ng-token"}))
        message = error_of(lambda: client.call_tool("lab", "pid"))
        assert message == "MCP call to 'lab.pid' failed: Server returned an error response (HTTP status 401)"
        assert "s3cret" not in repr(load_server("lab")) and "wr0ng" not in repr(load_server("lab"))
    for secret in ("s3cret", "wr0ng", "private"):
        assert secret not in caplog.text + message


def test_masking(lab: Lab) -> None:
    lab.write(
        "MCPServers/lab",
        {
            "transport": "sse",
            "url": "https://me:pa55word@host/x?key=qwertz12",
            "headers": {"Authorization": "Bearer abcdefgh", "X": "1"},
        },
    )
    text = load_server("lab").masked("https://me:pa55word@host/x?key=qwertz12 abcdefgh pa55word qwertz12 1")
    assert text.endswith(" 1")
    for secret in ("pa55word", "qwertz12", "abcdefgh"):
        assert secret not in text


def test_refused_connection(lab: Lab, client: MCPClient) -> None:
    lab.write("MCPServers/down", {"transport": "streamable_http", "url": "http://127.0.0.1:1/mcp"})
    assert error_of(lambda: client.call_tool("down", "t")) == (
        "MCP call to 'down.t' failed: the server cannot be reached"
    )


# -- the process -------------------------------------------------------------------------------------------------------


def run_python(code: str, lab: Lab) -> str:
    start = (
        f"from Middleware.common import instance_global_variables as i\ni.CONFIG_DIRECTORY = {str(lab.root)!r}\n"
        "i.USERS = ['tester']\n"
    )
    root = Path(mcp_client_tool.__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", start + code], cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "never retrieved" not in done.stderr, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("linger", [0, 300])
def test_servers_end_with_the_process(lab: Lab, linger: float) -> None:
    lab.write("MCPServers/lab", plain_file(env={"LINGER": linger}))
    child = run_python(
        "from Middleware.workflows.tools.mcp_client_tool import MCPClient\nprint(MCPClient().call_tool('lab', 'pid'))",
        lab,
    )
    assert ends(int(child))


def test_the_package_is_loaded_at_the_first_call_only(lab: Lab) -> None:
    code = (
        "import json, sys\nfrom Middleware.workflows.handlers.impl import mcp_tool_call_handler\n"
        "print(json.dumps([name for name in ('mcp', 'anyio', 'httpx2', 'pydantic') if name in sys.modules]))"
    )
    assert json.loads(run_python(code, lab)) == []


@pytest.mark.slow
def test_missing_package(lab: Lab) -> None:
    code = (
        "import sys\nsys.modules['mcp'] = None\n"
        "from Middleware.workflows.tools.mcp_client_tool import MCPClient, MCPToolCallError\n"
        "try:\n    MCPClient().call_tool('lab', 'pid')\nexcept MCPToolCallError as error:\n    print(error)"
    )
    assert run_python(code, lab) == (
        "MCP needs the Python package 'mcp', which is not installed (pip install -r requirements.txt)"
    )
