"""CurlCommand with the real curl, and with fakes of it that start children or say too much."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.exceptions import EarlyTerminationException
from Middleware.workflows.handlers.impl.curl_command_handler import CurlCommandHandler
from Middleware.workflows.tools.curl import tool
from Tests.stub_backend import Reply, StubBackend
from Tests.tables import table
from Tests.windows import is_running, needs_curl, wine_lacks
from Tests.workflows.engine_lab import EngineLab, start, static, tried_with, until, user
from Tests.workflows.url_values import MUSEUM, MUSEUM_ENCODED, ROWS

FakeCurl = Callable[[str], Path]
# As curl, the fakes write the same bytes on every system.
PRELUDE = "import os, subprocess, sys, time; sys.stdout.reconfigure(encoding='utf-8', newline='\\n')"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineLab]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with StubBackend() as backend:
        yield EngineLab(tmp_path, monkeypatch, backend)


@pytest.fixture
def web() -> Iterator[StubBackend]:
    with StubBackend() as server:
        yield server


@pytest.fixture
def fake_curl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCurl:
    """Puts a Python program in curl's place; returns the folder it stands in."""

    def write(program: str) -> Path:
        code = tmp_path / "curl.py"
        code.write_text(f"{PRELUDE}\n{program}\n", encoding="utf-8")
        monkeypatch.setattr(tool, "CURL", [sys.executable, str(code)])
        return tmp_path

    return write


def curl(*args: Any, **keys: Any) -> dict[str, Any]:
    return {"type": "CurlCommand", "title": "Curl", "args": list(args), **keys}


def items(lab: EngineLab, *nodes: dict[str, Any], said: str = "hello", stream: bool = False) -> list[Any]:
    lab.workflow("Main", list(nodes), empty="", limit="10")
    return list(start(lab, "Main", user(said), probes={"CurlCommand": CurlCommandHandler()}, stream=stream))


def run(lab: EngineLab, *nodes: dict[str, Any], said: str = "hello") -> Any:
    return items(lab, *nodes, said=said)[-1]


# -- what is run -------------------------------------------------------------------------------------------------------


@needs_curl
def test_arguments_take_variables(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(body=b"pong"))
    said = 'it\'s $HOME; `x` "q" {brace}'
    node = curl(
        "-s",
        "-X",
        "POST",
        "-H",
        "X-Test: {chat_user_prompt_last_one}",
        "--max-time",
        5,
        "--data-raw",
        "b={chat_user_prompt_last_one}",
        f"{web.url}/echo",
    )
    assert run(lab, node, said=said) == "pong"
    request = web.requests[0]
    assert (request.method, request.path, request.body.decode()) == ("POST", "/echo", f"b={said}")
    assert request.headers["x-test"] == said


@needs_curl
@table(("url", "value", "target"), ROWS.values(), ids=list(ROWS))
def test_values_in_urls_are_encoded(lab: EngineLab, web: StubBackend, url: str, value: str, target: str) -> None:
    web.script(Reply(body=b"ok"))
    assert run(lab, static(value), curl("-sS", web.url + url)) == "ok"
    assert web.requests[0].path == target


@table(
    ("args", "shown"),
    [
        (["http://a.example/s?q={agent1Output}"], f"http://a.example/s?q={MUSEUM_ENCODED}"),
        (["a.example/wiki/{agent1Output}"], f"a.example/wiki/{MUSEUM_ENCODED}"),
        (["localhost:8080/?q={agent1Output}"], f"localhost:8080/?q={MUSEUM_ENCODED}"),
        (["--url", "a.example/?q={agent1Output}"], f"--url|a.example/?q={MUSEUM_ENCODED}"),
        (["--url=a.example/?q={agent1Output}"], f"--url=a.example/?q={MUSEUM_ENCODED}"),
        # What the address guard does not take for a URL.
        (["-d", "q={agent1Output}", "a.example"], f"-d|q={MUSEUM}|a.example"),
        (["-G", "--data-urlencode", "q={agent1Output}", "a.example"], f"-G|--data-urlencode|q={MUSEUM}|a.example"),
        (["-H", "X: http://b.example/?{agent1Output}", "a.example"], f"-H|X: http://b.example/?{MUSEUM}|a.example"),
        (["-e", "http://b.example/?q={agent1Output}", "a.example"], f"-e|http://b.example/?q={MUSEUM}|a.example"),
    ],
)
def test_only_values_in_urls_are_encoded(lab: EngineLab, fake_curl: FakeCurl, args: list[str], shown: str) -> None:
    fake_curl(SHOW)
    assert run(lab, static(MUSEUM), curl(*args, maxResponseBytes=0)) == f"{shown}\n"
    whole = run(lab, static(MUSEUM), curl(*args, maxResponseBytes=0, encodeUrlValues=False))
    assert whole == f"{shown}\n".replace(MUSEUM_ENCODED, MUSEUM)


@needs_curl
def test_streamed_word_by_word(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(body=b"two words"))
    chunks = items(lab, curl("-s", web.url), stream=True)
    assert [chunk["token"] for chunk in chunks if chunk["token"]] == ["two", " ", "words"]


@needs_curl
def test_output_is_not_substituted(lab: EngineLab, web: StubBackend) -> None:
    web.script(Reply(body=b"{empty} \xff"))
    assert run(lab, curl("-s", web.url), static("<{agent1Output}>")) == "<{empty} \ufffd>"


SHOW = "print('|'.join(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("keys", "leading"),
    [
        ({}, "--max-filesize|10485760|"),
        ({"maxResponseBytes": "2000"}, "--max-filesize|2000|"),
        ({"maxResponseBytes": 0}, ""),
        ({"allowedHosts": ["a.example"], "maxResponseBytes": -1}, "--max-redirs|0|"),
        (
            {"allowedHosts": ["a.example"], "proxy": "http://p:1"},
            "--max-filesize|10485760|--max-redirs|0|-x|http://p:1|",
        ),
        ({"proxy": "{empty}"}, "--max-filesize|10485760|"),
    ],
)
def test_the_command(lab: EngineLab, fake_curl: FakeCurl, keys: dict[str, Any], leading: str) -> None:
    fake_curl(SHOW)
    assert run(lab, curl("-s", "http://a.example", **keys)) == f"{leading}-s|http://a.example\n"


@pytest.mark.parametrize(
    "args",
    [["--max-filesize", "5", "--max-redirs", "3", "a.example"], ["--max-redirs=3", "--max-filesize=5", "a.example"]],
)
def test_the_author_has_the_last_word(lab: EngineLab, fake_curl: FakeCurl, args: list[str]) -> None:
    fake_curl(SHOW)
    assert run(lab, curl(*args, allowedHosts=["a.example"])) == "|".join(args) + "\n"


@pytest.mark.parametrize(("keys", "seen"), [({}, "http://p"), ({"allowedHosts": ["a.example"]}, "None")])
def test_no_proxy_of_the_environment_passes_the_guard(
    lab: EngineLab, fake_curl: FakeCurl, keys: dict[str, Any], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_curl("print(os.environ.get('https_proxy'))")
    monkeypatch.setenv("https_proxy", "http://p")
    assert run(lab, curl("a.example", **keys)) == f"{seen}\n"


# -- what comes out ----------------------------------------------------------------------------------------------------

BOTH = "sys.stdout.write('out'); sys.stdout.flush(); sys.stderr.write('err')"


@pytest.mark.parametrize(
    ("output_format", "output"),
    [("stdout", "out"), ("stdout+stderr", "outerr"), ("full", '{"stdout": "out", "stderr": "err", "returncode": 0}')],
)
def test_formats(lab: EngineLab, fake_curl: FakeCurl, output_format: str, output: str) -> None:
    fake_curl(BOTH)
    assert run(lab, curl("x", outputFormat=output_format)) == output


@pytest.mark.parametrize(
    ("output_format", "output"),
    [("stdout", "out"), ("stdout+stderr", "outerr"), ("full", '{"stdout": "out", "stderr": "err", "returncode": 7}')],
)
def test_a_failure_returned(lab: EngineLab, fake_curl: FakeCurl, output_format: str, output: str) -> None:
    fake_curl(f"{BOTH}; sys.exit(7)")
    assert run(lab, curl("x", outputFormat=output_format, onError="return")) == output


def test_a_failure_raised(lab: EngineLab, fake_curl: FakeCurl) -> None:
    fake_curl(f"{BOTH}; sys.exit(7)")
    with pytest.raises(RuntimeError) as caught:
        run(lab, curl("x"))
    assert str(caught.value) == "CurlCommand exited with status 7: err"


@needs_curl
def test_a_failure_of_the_real_curl(lab: EngineLab) -> None:
    with pytest.raises(RuntimeError, match=r"CurlCommand exited with status 6: curl: \(6\) .*name\.invalid"):
        run(lab, curl("-sS", "http://name.invalid/"))


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_no_curl(lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if sys.platform == "win32":  # which has a curl that no PATH hides
        monkeypatch.setattr(tool, "CURL", ["no-such-curl"])
    with pytest.raises(FileNotFoundError, match="needs the program 'curl', which was not found"):
        run(lab, curl("http://127.0.0.1", onError=on_error))


@wine_lacks("a limit of command lines")
def test_an_argument_too_long_for_the_system(lab: EngineLab, web: StubBackend) -> None:
    node = curl("-d", "{chat_user_prompt_last_one}", web.url, onError="return")
    assert run(lab, node, said="x" * 3_000_000).startswith("CurlCommand could not start curl: ")


def test_a_command_line_too_long_for_windows(lab: EngineLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows says that it does not find the file, with a number of its own."""
    error = FileNotFoundError(2, "The filename or extension is too long")
    error.winerror = 206  # type: ignore[attr-defined,unused-ignore]

    def start(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(tool.subprocess, "Popen", start)
    found = run(lab, curl("http://127.0.0.1", onError="return"))
    assert found == "CurlCommand could not start curl: The filename or extension is too long"


# -- time and size -----------------------------------------------------------------------------------------------------


@needs_curl
def test_a_timeout_beyond_all_bounds(lab: EngineLab, web: StubBackend) -> None:
    assert run(lab, curl("-s", web.url, timeout=1e300)) == '{"ok": true}'


@needs_curl
@pytest.mark.parametrize("timeout", [1.5, "1.5"])
def test_the_timeout(lab: EngineLab, web: StubBackend, timeout: Any) -> None:
    web.default = Reply(pieces=[b"some"] + [b"x"] * 4000, delay=0.05)
    began = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        run(lab, curl("-sN", web.url, timeout=timeout))
    assert 1.5 <= time.monotonic() - began < 60
    assert str(caught.value) == "curl timed out after 1.5 seconds"
    assert all(request.wait_ended() for request in web.requests)


@needs_curl
def test_a_timeout_is_returned_where_the_node_says_so(lab: EngineLab, web: StubBackend) -> None:
    web.default = Reply(pieces=[b"some"] + [b"x"] * 4000, delay=0.05)

    def check(seconds: float) -> None:
        node = {"timeout": seconds, "onError": "return"}
        assert run(lab, curl("-sN", web.url, **node)) == f"curl timed out after {seconds:g} seconds"
        full = json.loads(run(lab, curl("-sN", web.url, **node, outputFormat="full")))
        assert full["stdout"].startswith("some") and full["stderr"] == ""
        assert full["returncode"] is None and full["error"] == f"curl timed out after {seconds:g} seconds"

    tried_with(check, 1.5, 6.0, 24.0)


CAP_TEXT = "CurlCommand response exceeded the 10-byte cap (maxResponseBytes)."


@needs_curl
@pytest.mark.parametrize("cap", [10, "10", "{limit}"])
def test_the_cap(lab: EngineLab, web: StubBackend, cap: Any) -> None:
    web.default = Reply(pieces=[b"12345"] * 3, hang=True)
    began = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        run(lab, curl("-sN", "--max-filesize", "1000", web.url, maxResponseBytes=cap))
    assert str(caught.value) == CAP_TEXT
    assert time.monotonic() - began < 25  # before the node's timeout
    assert web.requests[0].wait_ended()
    assert run(lab, curl("-sN", "--max-filesize", "1000", web.url, maxResponseBytes=cap, onError="return")) == CAP_TEXT
    full = json.loads(
        run(
            lab,
            curl("-sN", "--max-filesize", "1000", web.url, maxResponseBytes=cap, onError="return", outputFormat="full"),
        )
    )
    assert full == {"stdout": "1234512345", "stderr": "", "returncode": None, "error": CAP_TEXT}


def test_just_within_the_cap(lab: EngineLab, fake_curl: FakeCurl) -> None:
    fake_curl("sys.stdout.write('x' * 10); sys.stderr.write('e' * 100_000)")
    assert run(lab, curl("x", maxResponseBytes=10, outputFormat="stdout+stderr")) == "x" * 10 + "e" * 10


def test_without_a_cap(lab: EngineLab, fake_curl: FakeCurl) -> None:
    fake_curl("sys.stdout.write('x' * 1_000_000); sys.stderr.write('e' * 1_000_000)")
    assert len(run(lab, curl("x", maxResponseBytes=0, outputFormat="stdout+stderr"))) == 2_000_000


# -- stopping ----------------------------------------------------------------------------------------------------------


def cancelled_after(lab: EngineLab, node: dict[str, Any], ready: Callable[[], object]) -> float:
    """Seconds from the cancellation to the end of the run."""
    moments: list[float] = []

    def cancel() -> None:
        ready()
        moments.append(time.monotonic())
        lab.request.cancel_scope.cancel("test")

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(EarlyTerminationException):
        run(lab, node)
    ended = time.monotonic()
    thread.join()
    return ended - moments[0]


@needs_curl
@pytest.mark.parametrize("reply", [Reply(never=True), Reply(pieces=[b"x"] * 8000, delay=0.02)])
def test_a_stop(lab: EngineLab, web: StubBackend, reply: Reply) -> None:
    web.default = reply
    assert cancelled_after(lab, curl("-sN", web.url, onError="return"), lambda: web.wait_requests(1)) < 60
    assert web.requests[0].wait_ended()
    assert until(lambda: not [thread for thread in threading.enumerate() if thread.name == "curl-output"])


WITH_CHILD = """
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(180)'])
with open(os.path.join(os.path.dirname(__file__), 'pids.tmp'), 'w') as file:
    file.write(f'{os.getpid()} {child.pid}')
os.replace(file.name, file.name[:-4])
time.sleep(180)
"""


def test_a_stop_ends_the_children_too(lab: EngineLab, fake_curl: FakeCurl) -> None:
    pids = fake_curl(WITH_CHILD) / "pids"
    assert cancelled_after(lab, curl("x", timeout=120), lambda: until(pids.exists)) < 60
    assert until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))


def test_a_timeout_ends_the_children_too(lab: EngineLab, fake_curl: FakeCurl) -> None:
    pids = fake_curl(WITH_CHILD) / "pids"

    def check(seconds: float) -> None:
        with pytest.raises(TimeoutError):
            run(lab, curl("x", timeout=seconds))
        assert until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))

    tried_with(check, 1.0, 5.0, 25.0)


def test_a_child_that_outlives_curl_does_not_hold_the_node(lab: EngineLab, fake_curl: FakeCurl) -> None:
    pids = fake_curl(WITH_CHILD.removesuffix("time.sleep(180)\n")) / "pids"

    def check(seconds: float) -> None:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            run(lab, curl("x", timeout=seconds))
        assert time.monotonic() - began < 60
        assert until(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))

    tried_with(check, 1.0, 5.0, 25.0)


def test_a_stop_before_curl_starts(lab: EngineLab, web: StubBackend) -> None:
    lab.request.cancel_scope.cancel("test")
    with pytest.raises(EarlyTerminationException):
        CurlCommandHandler().handle(_context(lab, curl(web.url)))
    assert web.connections == 0


def _context(lab: EngineLab, node: dict[str, Any]) -> Any:
    from Middleware.workflows.managers.workflow_variable_manager import WorkflowVariableManager
    from Middleware.workflows.models.execution_context import ExecutionContext

    return ExecutionContext(
        "r-1", "w", None, node, [], False, request=lab.request, workflow_variable_service=WorkflowVariableManager()
    )


# -- what is refused ---------------------------------------------------------------------------------------------------


@table(
    ("key", "value"),
    [
        ("args", None),
        ("args", []),
        ("args", "-s x"),
        ("args", {"a": 1}),
        ("timeout", 0),
        ("timeout", "x"),
        ("timeout", True),
        ("outputFormat", "stderr"),
        ("onError", "x"),
        ("proxy", "nonsense"),
        ("maxResponseBytes", "x"),
        ("blockPrivateAddresses", "x"),
        ("allowedHosts", []),
        ("allowedHosts", ["{empty}"]),
        ("allowedHosts", "a"),
        ("blockOptionInjection", 1),
        ("allowSchemeInjection", "x"),
    ],
)
def test_invalid_keys(lab: EngineLab, web: StubBackend, key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"CurlCommand node 'Curl': '{key}' must be "):
        run(lab, {**curl(web.url, onError="return"), key: value})
    assert web.connections == 0


@pytest.mark.parametrize(
    ("said", "keys"),
    [
        ("file:///etc/hosts", {}),
        ("-o/tmp/x", {}),
        ("--config", {}),
        ("-v", {"blockOptionInjection": True}),
        ("@/etc/hosts", {"blockOptionInjection": "true"}),
        ("a\0b", {}),
        ("{file}:///etc/hosts", {}),
        ("{file,http}:///etc/hosts", {}),
        ("fil[e-e]:///etc/hosts", {}),
        ("{gopher,http}://a/", {}),
        ("--url={file}:///etc/hosts", {}),
        ("-w%output{/tmp/x}", {}),
        ("-d@/etc/hosts", {}),
    ],
)
def test_what_values_must_not_bring(lab: EngineLab, web: StubBackend, said: str, keys: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"CurlCommand node 'Curl': args\[1\]") as caught:
        run(lab, curl("-s", "{chat_user_prompt_last_one}", web.url, onError="return", **keys), said=said)
    assert said not in str(caught.value)
    assert web.connections == 0


def test_what_an_output_must_not_bring_behind_an_option(lab: EngineLab, web: StubBackend) -> None:
    with pytest.raises(ValueError, match=r"args\[2\].*allowSchemeInjection"):
        run(lab, curl("-s", "--url", "{chat_user_prompt_last_one}"), said="{file}:///etc/hosts")


@needs_curl
def test_headers_of_an_output(lab: EngineLab, web: StubBackend) -> None:
    asked = [curl("-sS", "-H", "X-Title: {agent1Output}", f"{web.url}/echo")]
    run(lab, {"type": "StaticResponse", "content": "Ferry times\n"}, *asked)
    assert web.requests[0].headers["x-title"] == "Ferry times"
    with pytest.raises(ValueError, match="line break"):
        run(lab, {"type": "StaticResponse", "content": "a\r\nAuthorization: b"}, *asked)
    assert len(web.requests) == 1


@needs_curl
def test_a_scheme_of_the_author(lab: EngineLab, tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("a file")
    node = curl("-s", "file:{chat_user_prompt_last_one}")
    assert run(lab, node, said=(tmp_path / "here.txt").as_uri().removeprefix("file:")) == "a file"


@needs_curl
def test_a_scheme_allowed(lab: EngineLab, tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("a file")
    node = curl("-s", "{chat_user_prompt_last_one}", allowSchemeInjection=True)
    assert run(lab, node, said=(tmp_path / "here.txt").as_uri()) == "a file"


@pytest.mark.parametrize("args", [["10.0.0.1"], ["-s", "--url", "http://localhost/"], ["{chat_user_prompt_last_one}"]])
@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_the_guard(lab: EngineLab, args: list[str], on_error: str) -> None:
    with pytest.raises(ValueError, match="blocked a request to a disallowed address: .*(private|loopback)"):
        run(lab, curl(*args, blockPrivateAddresses=True, onError=on_error), said="http://127.0.0.1/")


def test_the_guard_looks_at_urls_only(lab: EngineLab, fake_curl: FakeCurl) -> None:
    fake_curl("print('ran')")
    assert run(lab, curl("-d", "10.0.0.1", "https://8.8.8.8", blockPrivateAddresses=True)) == "ran\n"


GUARDS: list[dict[str, Any]] = [{"allowedHosts": ["8.8.8.8"]}, {"blockPrivateAddresses": True}]


@needs_curl
@pytest.mark.parametrize("guard", GUARDS)
def test_ways_to_a_server_under_guard(lab: EngineLab, web: StubBackend, guard: dict[str, Any]) -> None:
    """A local proxy is for the author and the configuration, not for what somebody said."""

    def asked(*args: Any, said: str = "hello", **keys: Any) -> str:
        node = curl("-s", "-H", "Authorization: mine", *args, "http://8.8.8.8/x", **guard, **keys)
        lab.workflow("Main", [node], way=web.url, through="{chat_user_prompt_last_one}")
        probes = {"CurlCommand": CurlCommandHandler()}
        return str(list(start(lab, "Main", user(said), probes=probes))[-1])

    for args, keys in (
        (("-x", web.url), {}),
        (("-x", "{way}"), {"blockOptionInjection": True}),
        ((), {"proxy": web.url}),
        ((), {"proxy": "{way}"}),
        ((), {"proxy": f"http://{{chat_user_prompt_last_one}}:pw@127.0.0.1:{web.port}"}),
    ):
        assert asked(*args, **keys) == '{"ok": true}'
    assert [request.path for request in web.requests] == ["http://8.8.8.8/x"] * 5
    for args, keys in (
        (("-x", "{chat_user_prompt_last_one}"), {}),
        (("-x{chat_user_prompt_last_one}",), {}),
        (("--proxy", "{through}"), {"blockOptionInjection": True}),
        ((), {"proxy": "{chat_user_prompt_last_one}"}),
        ((), {"proxy": "{through}"}),
        ((), {"proxy": "{{ chat_user_prompt_last_one }}", "jinja2": True}),
    ):
        with pytest.raises(ValueError, match="blocked a request to a disallowed address: .*127.0.0.1"):
            asked(*args, said=web.url, onError="return", **keys)
    with pytest.raises(ValueError, match="leads to another address"):
        asked("--connect-to", "::{chat_user_prompt_last_one}", said=f"127.0.0.1:{web.port}")
    with pytest.raises(ValueError, match=r"args\[3\].*'proxy'"):
        asked("{chat_user_prompt_last_one}", said=f"-x{web.url}")
    assert len(web.requests) == 5


@needs_curl
def test_a_template_of_the_author_may_choose_an_option(lab: EngineLab, web: StubBackend) -> None:
    node = curl("{% if 1 %}-k{% endif %}", "-s", web.url, jinja2=True, blockOptionInjection=True)
    assert run(lab, node) == '{"ok": true}'
    with pytest.raises(ValueError, match=r"args\[0\].*blockOptionInjection"):
        run(lab, {**node, "args": ["{{ chat_user_prompt_last_one }}", web.url]}, said="-s")


@needs_curl
def test_redirects_are_not_followed_under_guard(lab: EngineLab, web: StubBackend) -> None:
    web.default = Reply(status=302, body=b"", headers={"Location": "/again"})
    with pytest.raises(RuntimeError, match="status 47"):
        run(lab, curl("-sSL", web.url, allowedHosts=["127.0.0.1"]))
    assert len(web.requests) == 1
