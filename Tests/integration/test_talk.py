"""``try`` and ``chat``, through a running server and with the engine in their process; stopped, they leave no call."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from Tests.integration.launcher import (
    PROJECT,
    USER,
    Backend,
    ConfigTree,
    Launcher,
    clean_environment,
    llm_node,
    run_launcher,
    says,
    standard_tree,
    stuck,
)
from Tests.patience import PATIENCE
from Tests.stub_backend import json_reply, status_reply
from Tests.windows import needs_curl

pytestmark = pytest.mark.slow
posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and pseudo-terminals")


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Backend() as backend:
        yield backend


@pytest.fixture
def tree(backend: Backend, tmp_path: Path) -> ConfigTree:
    return standard_tree(tmp_path / "Public", backend.url)


def command(tree: ConfigTree, *words: str) -> list[str]:
    return ["server.py", words[0], "--PublicDirectory", str(tree.public), "--user", USER, *words[1:]]


@pytest.mark.parametrize("where", ["server", "engine"])
def test_try(backend: Backend, tree: ConfigTree, where: str) -> None:
    words = command(tree, "try", "Single", backend.hello)
    if where == "server":
        with Launcher("server.py", "--PublicDirectory", tree.public, "--User", USER) as server:
            ended = run_launcher(*words)
            assert f"[the server at http://127.0.0.1:{server.port}]" in ended.stderr
            assert "runs as ann:Single" in server.output()
    else:
        ended = run_launcher(*words)
        assert "[the engine in this process]" in ended.stderr
    assert (ended.returncode, ended.stdout) == (0, "single says hello.\n"), ended.stderr
    assert "[route shared Single, first text after " in ended.stderr
    # Windows ends a server in the middle of what it does; its file stays, and the next command does not ask it.
    if sys.platform != "win32" or where == "engine":
        assert not list((tree.public / "DiscussionIds").glob(".server-*"))


def test_nodes_after_the_answer_run_before_the_command_ends(backend: Backend, tree: ConfigTree) -> None:
    ended = run_launcher(*command(tree, "try", "Chain", backend.hello))
    assert ended.stdout == "second says hello.\n" and backend.nodes() == ["first", "second", "third"]


def test_trace(backend: Backend, tree: ConfigTree) -> None:
    tree.shared("Long", llm_node("first", systemPrompt="node:first\n" + "one\n" * 20), llm_node("last"))
    shown = run_launcher(*command(tree, "try", "Long", backend.hello, "--trace")).stderr
    lines = [line.strip() for line in shown.splitlines()]
    order = [
        "route shared Long",
        "workflow _shared/Long",
        "> node 1 Standard 'first'",
        "calls Stub, model stub",
        "system: node:first",
        "one",
        "... (18 more lines)",
        f"user: {backend.hello}",
        "output of node 1: first says hello.",
        "> node 2 Standard 'last'",
        "output of node 2: last says hello.",
    ]
    assert [line for line in lines if line in order] == [
        *order[:6],
        "one",
        *order[6:10],
        "calls Stub, model stub",
        f"user: {backend.hello}",
        order[10],
    ], shown
    assert any(line.startswith("Stub answered after") and "11 prompt tokens, 7 tokens" in line for line in lines)
    backend.replies["last"] = lambda request: json_reply(
        {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
            "timings": {"cache_n": 5, "prompt_n": 6, "predicted_n": 7},
        }
    )
    counted = run_launcher(*command(tree, "try", "Long", backend.hello, "--trace")).stderr
    assert "11 prompt tokens, 5 of them cached, 7 tokens" in counted
    assert any(line.startswith("< node 1 after") for line in lines)
    full = run_launcher(*command(tree, "try", "Long", backend.hello, "--trace", "--full")).stderr
    assert full.count("one\n") >= 20 and "more lines" not in full


@needs_curl
def test_trace_shows_what_tools_are_asked(backend: Backend, tree: ConfigTree, tmp_path: Path) -> None:
    script = tmp_path / "roll.py"
    script.write_text("def Invoke(*args, **kwargs):\n    return 'rolled'\n", encoding="utf-8")
    tree.shared(
        "Tools",
        {"type": "StaticResponse", "title": "say", "content": "rock & roll"},
        {
            "type": "WebFetch",
            "title": "fetch",
            "method": "POST",
            "body": '{{"about": "{agent1Output}"}}',
            "url": f"{backend.url.replace('//', '//ann:pw@')}/node/page?q={{agent1Output}}&token=abc",
        },
        {
            "type": "CurlCommand",
            "title": "curl",
            "onError": "return",
            "maxResponseBytes": 0,
            "args": ["-sS", "-u", "ann:pw", f"{backend.url}/node/page/{{agent1Output}}"],
        },
        {
            "type": "PythonModule",
            "title": "roll",
            "module_path": str(script),
            "args": ["{agent1Output}"],
            "kwargs": {"sides": "6"},
        },
        {"type": "StaticResponse", "title": "end", "content": "end", "returnToUser": True},
    )
    backend.replies["page"] = json_reply({"a": 1})
    shown = run_launcher(*command(tree, "try", "Tools", backend.hello, "--trace", "--full")).stderr
    lines = [line.strip() for line in shown.splitlines()]
    asked = lines.index(f"calls WebFetch: POST {backend.url}/node/page?q=rock%20%26%20roll&token=***REDACTED***")
    assert lines[asked - 1].startswith("> node 2 WebFetch") and lines[asked + 1] == '{"about": "rock & roll"}'
    assert any(line.startswith("calls curl: -sS -u ") and "/node/page/rock%20%26%20roll" in line for line in lines)
    assert f'calls {script}: {{"args": ["rock & roll"], "kwargs": {{"sides": "6"}}}}' in lines
    assert "ann:pw" not in shown


@pytest.mark.parametrize(("text", "key", "workflow"), [("CODE", "CODE", "Single"), ("else", "Default", "Chain")])
def test_trace_names_the_branch(backend: Backend, tree: ConfigTree, text: str, key: str, workflow: str) -> None:
    tree.shared(
        "Fork",
        {
            "type": "ConditionalCustomWorkflow",
            "title": "fork",
            "conditionalKey": "{chat_user_prompt_last_one}",
            "workflowUserFolderOverride": "_shared",
            "conditionalWorkflows": {"CODE": "Single", "Default": "Chain"},
        },
    )
    shown = run_launcher(*command(tree, "try", "Fork", text, "--trace")).stderr
    lines = [line.strip() for line in shown.splitlines()]
    start = lines.index(f"takes {key} -> {workflow}")
    assert lines[start - 1].startswith("> node 1 ConditionalCustomWorkflow"), shown
    assert lines[start + 1] == f"workflow _shared/{workflow}" and shown.count("takes ") == 1, shown


def test_what_goes_wrong(backend: Backend, tree: ConfigTree) -> None:
    for words, message in (
        (("try", "Singel", "x"), "There is no model 'Singel'. The models: ann:"),
        (("chat", "Singel"), "Did you mean 'Single'?"),
        (("try", "Single", " "), "TEXT is blank"),
        (("try", "Single"), "the following arguments are required: TEXT"),
    ):
        ended = run_launcher(*command(tree, *words))
        assert ended.returncode in (1, 2) and ended.stdout == "" and message in ended.stderr, ended.stderr
    backend.replies["single"] = status_reply(500)
    ended = run_launcher(*command(tree, "try", "Single", backend.hello))
    said = ended.stderr.partition("ERROR: ")[2]
    assert ended.returncode == 1 and said.count("'single'") == 1, ended.stderr
    unknown = run_launcher("server.py", "try", "x", "y", "--PublicDirectory", str(tree.public), "--user", "anna")
    assert unknown.returncode == 1 and "Did you mean 'ann'?" in unknown.stderr


def test_a_server_that_wants_a_key(backend: Backend, tree: ConfigTree, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("a-key-of-some-length", encoding="utf-8")
    words = command(tree, "try", "Single", backend.hello)
    server = subprocess.Popen(
        [
            sys.executable,
            str(PROJECT / "server.py"),
            "--port",
            "0",
            "--PublicDirectory",
            str(tree.public),
            "--User",
            USER,
            "--accepted-keys-file",
            str(tmp_path / "keys"),
        ],
        cwd=tempfile.gettempdir(),
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not _listens(tree):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        refused = run_launcher(*words)
        assert refused.returncode == 1 and refused.stdout == "" and "--ask-key" in refused.stderr, refused.stderr
        assert run_launcher(*words, "--api-key", "a-key-of-some-length").stdout == "single says hello.\n"
    finally:
        server.terminate()
        server.wait(PATIENCE)


def _listens(tree: ConfigTree) -> bool:
    files = list((tree.public / "DiscussionIds").glob(".server-*.json"))
    try:
        with socket.create_connection(("127.0.0.1", urlsplit(json.loads(files[0].read_text())["url"]).port or 0)):
            return True
    except (OSError, IndexError):
        return False


@posix
@pytest.mark.parametrize("where", ["server", "engine"])
def test_ctrl_c_leaves_no_call_running(backend: Backend, tree: ConfigTree, where: str) -> None:
    backend.replies["single"] = stuck("One ", "two ")

    def stop() -> None:
        words = command(tree, "try", "Single", backend.hello)
        with subprocess.Popen(
            [sys.executable, str(PROJECT / words[0]), *words[1:]],
            cwd=tempfile.gettempdir(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=clean_environment(),
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.read(4) == b"One "
            process.send_signal(signal.SIGINT)
            assert b"Stopped." in process.stderr.read()
        assert process.returncode == 130
        assert backend.calls("single")[-1].wait_ended()

    if where == "server":
        with Launcher("server.py", "--PublicDirectory", tree.public, "--User", USER):
            stop()
    else:
        stop()


@posix
def test_chat(backend: Backend, tree: ConfigTree) -> None:
    from Tests.integration.terminal import Terminal

    words = command(tree, "chat", "Single")
    with Terminal([PROJECT / words[0], *words[1:]], tree.public) as terminal:
        terminal.wait("/quit or Ctrl-D ends the chat.")
        terminal.type(f"{backend.hello}\n")
        terminal.wait("single says hello.")
        terminal.wait("complete after")
        backend.replies["single"] = stuck("Never ", "ending ")
        terminal.type("second message\n")
        terminal.wait("Never ending")
        terminal.type("\x03")
        terminal.wait("Stopped.")
        assert backend.calls("single")[-1].wait_ended()
        backend.replies["single"] = lambda request: says(request, "third")
        terminal.type("third message\n")
        terminal.wait("third says hello.")
        terminal.type("/quit\n")
        assert terminal.wait_end() == 0
    conversation = backend.calls("single")[-1].json["messages"][1:]
    assert [message["content"].strip() for message in conversation] == [
        backend.hello,
        "single says hello.",
        "second message",
        "Never ending",
        "third message",
    ]


def piped(tree: ConfigTree, *words: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run a command with another code page than UTF-8 in force, and with pipes."""
    return subprocess.run(
        [sys.executable, str(PROJECT / "server.py"), *command(tree, *words)[1:]],
        input=data,
        capture_output=True,
        timeout=120,
        env={**clean_environment(), "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp850"},
    )


TEXT = "Grüße, 雨 🙂"
# What is piped, and what of it arrives; None: nothing.
PIPED: dict[str, Callable[[str], tuple[bytes, str | None]]] = {
    "UTF-8": lambda text: (f"{text}\n".encode(), text),
    "byte order mark": lambda text: (f"\ufeff{text}".encode(), text),
    "line ends of Windows": lambda text: (f"{text}\r\nsecond\r\n".encode(), f"{text}\nsecond"),
    "UTF-16": lambda text: (f"{text}\r\nsecond".encode("utf-16"), f"{text}\nsecond"),
    "UTF-16, the other order": lambda text: (f"\ufeff{text}".encode("utf-16-be"), text),
    "a code page": lambda text: ("Grüße".encode("cp850"), None),
    "half a character": lambda text: ("雨".encode()[:2], None),
    "UTF-16 without its last byte": lambda text: (text.encode("utf-16")[:-1], None),
}


@pytest.mark.parametrize("name", PIPED)
def test_a_message_from_a_pipe(backend: Backend, tree: ConfigTree, name: str) -> None:
    data, text = PIPED[name](f"{backend.hello} {TEXT}")
    backend.replies["single"] = lambda request: json_reply(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}]}
    )
    ended = piped(tree, "try", "Single", "-", data=data)
    if text is None:
        assert (ended.returncode, ended.stdout) == (2, b"")
        assert "The standard input is not UTF-8 text" in ended.stderr.decode()
    else:
        assert (ended.returncode, ended.stdout.decode().splitlines()) == (0, [TEXT]), ended.stderr
        assert backend.calls("single")[-1].json["messages"][-1]["content"].strip() == text


def test_a_conversation_from_a_pipe(backend: Backend, tree: ConfigTree) -> None:
    first, second = f"{backend.hello} {TEXT}", "second 雨"
    ended = piped(tree, "chat", "Single", data=f"\ufeff{first}\r\n{second}\n".encode())
    assert ended.returncode == 0, ended.stderr
    said = [call.json["messages"][-1]["content"] for call in backend.calls("single")]
    assert [text.removesuffix("\n") for text in said] == [first, second]
    for data in (f"{first}\n".encode() + b"\x81\n", f"{first}\n".encode("utf-16"), b"\xfe\xff\0h\0\n"):
        wrong = piped(tree, "chat", "Single", data=data)
        assert wrong.returncode == 1 and "ERROR: The standard input is not UTF-8 text" in wrong.stderr.decode()
