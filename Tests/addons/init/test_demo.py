"""When the demo's LLM server is started, what is said of it, and that one server does not depend on another's."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

from Middleware.addons.init import demo, demo_backend
from Middleware.cli.arguments import LaunchArguments
from Middleware.cli.program import StartError
from Middleware.common import instance_global_variables as instance
from Middleware.utilities.command_lines import command
from Tests.patience import PATIENCE


@pytest.fixture
def endpoint(config):
    """Writes the demo user's endpoint file."""
    config.user("demo")
    config.current("demo")
    folder = config.path / "Endpoints" / "demo"
    folder.mkdir(parents=True)

    def write(content):
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / "Demo-LLM.json").write_text(text, "utf-8")

    return write


@pytest.mark.parametrize("address", ["http://127.0.0.1:5055", "http://localhost:5055/v1", " http://127.0.0.1:5055/ "])
def test_the_shipped_endpoint_leads_to_the_demo_server(endpoint, address):
    endpoint({"endpoint": address})
    assert demo.is_wanted(LaunchArguments())
    assert demo.elsewhere() == []


@pytest.mark.parametrize("address, started", [("http://127.0.0.1:5055", True), ("http://127.0.0.1:11434", False)])
@pytest.mark.parametrize(
    "chosen",
    [{"users": ["demo"]}, {"public_directory": "x"}, {"config_directory": "x"}],
    ids=lambda chosen: next(iter(chosen)),
)
def test_the_demo_named_on_the_command_line_has_its_back_end_and_no_offer(endpoint, chosen, address, started):
    endpoint({"endpoint": address})
    assert demo.is_wanted(LaunchArguments(**chosen)) is started
    assert not demo.is_first_start(LaunchArguments(**chosen))


def test_another_user_beside_the_demo(endpoint, config, monkeypatch):
    endpoint({"endpoint": "http://127.0.0.1:5055"})
    config.user("me")
    monkeypatch.setattr("Middleware.common.instance_global_variables.USERS", ["demo", "me"])
    assert not demo.is_wanted(LaunchArguments(users=["demo", "me"]))


@pytest.mark.parametrize(
    "address, shown",
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("http://192.168.1.20:5055", "http://192.168.1.20:5055"),
        ("https://127.0.0.1:5055", "https://127.0.0.1:5055"),
        ("http://me:secret@host:1/v1", "http://host:1"),
        ("http://[::1", "no server"),
        ("http://h:x", "no server"),
        ("\x1b[2J", "no server"),
    ],
)
def test_an_endpoint_that_leads_elsewhere_starts_no_demo_server(endpoint, address, shown):
    endpoint({"endpoint": address})
    assert not demo.is_wanted(LaunchArguments())
    [line] = demo.elsewhere()
    assert line.endswith(f"Endpoints/demo/Demo-LLM.json leads to {shown}")


@pytest.mark.parametrize("content", ["{", [], {}, {"endpoint": 3}, {"endpoint": ""}])
def test_an_endpoint_that_cannot_be_read_is_told_elsewhere(endpoint, content):
    endpoint(content)
    assert demo.is_wanted(LaunchArguments())
    assert demo.elsewhere() == []


def test_of_other_users_nothing_is_said(endpoint, config):
    endpoint({"endpoint": "http://127.0.0.1:11434"})
    config.user("me")
    config.current("me")
    assert demo.elsewhere() == []


def test_a_second_server_takes_over_when_the_first_goes():
    first = demo_backend.start()
    port = first.port
    demo.start_backend(port)
    assert demo_backend.is_running(port)
    first.shutdown()
    first.server_close()
    deadline = time.monotonic() + PATIENCE
    while not demo_backend.is_running(port):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_that_ends_meanwhile_leaves_the_port(monkeypatch):
    """It has the port still, and answers no more."""
    monkeypatch.setattr(demo, "TAKEOVER_SECONDS", 60.0)
    asked = threading.Event()
    answers = demo_backend.is_running

    def is_running(port):
        asked.set()
        return answers(port)

    monkeypatch.setattr("Middleware.addons.init.demo_backend.is_running", is_running)
    with socket.create_server(("127.0.0.1", 0)) as ending:
        port = ending.getsockname()[1]
        starting = threading.Thread(target=demo.start_backend, args=(port,))
        starting.start()
        assert asked.wait(60)
    starting.join(60)
    assert answers(port)


def test_a_server_that_starts_meanwhile_is_used(monkeypatch):
    """It has the port already, and answers a moment later."""
    monkeypatch.setattr(demo, "TAKEOVER_SECONDS", 60.0)
    said = iter([False, False, True])
    monkeypatch.setattr("Middleware.addons.init.demo_backend.is_running", lambda port: next(said))
    with socket.create_server(("127.0.0.1", 0)) as other:
        demo.start_backend(other.getsockname()[1])
    assert next(said, None) is None


def test_another_program_at_the_port_is_an_error(monkeypatch):
    monkeypatch.setattr(demo, "TAKEOVER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(StartError, match="another program uses"):
        demo.start_backend(listener.getsockname()[1])


@pytest.mark.parametrize("script", ["bash run_linux.sh", "bash run_macos.sh", r".\run_windows.bat"])
def test_the_instructions_begin_with_a_chat_in_a_terminal(monkeypatch, script):
    monkeypatch.setenv("WILMER_START_SCRIPT", script)
    for name in ("USERS", "CONFIG_DIRECTORY", "PUBLIC_DIRECTORY"):
        monkeypatch.setattr(instance, name, None)
    monkeypatch.delenv("WILMER_CONTAINER", raising=False)
    lines = demo.instructions("http://127.0.0.1:5000")
    shown = "  " + command([*script.split(), "chat", "demo"])
    chat = next(number for number, line in enumerate(lines) if line.endswith(shown))
    assert chat < next(number for number, line in enumerate(lines) if "curl" in line)
    assert any(line.endswith(" chat demo --ask-key") for line in demo.instructions("http://127.0.0.1:5000", True))
    monkeypatch.setattr(instance, "USERS", ["demo"])
    assert any(line.endswith(" chat demo --User demo") for line in demo.instructions("http://127.0.0.1:5000"))


def test_the_instructions_name_the_command_that_connects_a_model():
    assert demo.instructions("http://127.0.0.1:5000")[-1].endswith(" init")
