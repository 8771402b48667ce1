"""The three launchers as processes, with a small application in place of the real one."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from Middleware.utilities import config_utils
from Tests.free_ports import free_port
from Tests.patience import PATIENCE

ROOT = config_utils.get_project_root_directory_path()
LAUNCHERS = ["run_waitress", "run_eventlet", "server"]
# server.py is the same server as run_waitress.py.
DIFFERENT = [*LAUNCHERS[:2], pytest.param("server", marks=pytest.mark.deep)]
STUB = """
import os, runpy, sys, threading, time, types
launcher = sys.argv[1]
sys.argv = [launcher + ".py"] + sys.argv[2:]
sys.path.insert(0, ".")

def application(environ, start_response):
    if environ["PATH_INFO"] == "/slow":
        start_response("200 OK", [("Content-Type", "text/plain")])
        sent.clear()
        def body():
            yield b"begun"
            while not stopping:
                time.sleep(0.02)
            yield b" ended"
            sent.set()
        return body()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"ok"]

stopping, sent = [], threading.Event()
sent.set()
app = types.ModuleType("Middleware.api.app")
app.build_wsgi_application = lambda *_: application
shutdown = types.ModuleType("Middleware.api.running.shutdown")
shutdown.shut_down = lambda seconds: (stopping.append(1), sent.wait(60), time.sleep(0.3))
if "SLOW_START" in os.environ:
    begin = threading.Thread.start
    threading.Thread.start = lambda thread: (time.sleep(thread.name == "start-check"), begin(thread))
sys.modules.update({"Middleware.api.app": app, "Middleware.api.running.shutdown": shutdown})
runpy.run_path(launcher + ".py", run_name="__main__")
"""


@pytest.fixture
def folder(tmp_path):
    users = tmp_path / "Configs" / "Users"
    users.mkdir(parents=True)
    (users / "ann.json").write_text('\ufeff{"port": 1}', "utf-8")
    return str(tmp_path / "Configs")


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def start(folder, tmp_path):
    running = []

    def begin(launcher, *words, directory=folder):
        command = [sys.executable, "-c", STUB, launcher, "--ConfigDirectory", directory, *words]
        output = open(tmp_path / f"output{len(running)}", "w+b")
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        process.output = output
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.wait(PATIENCE)
        process.output.close()


def output(process):
    process.output.seek(0)
    return process.output.read().decode("utf-8")


def ask(port, path="/", host="127.0.0.1", patience=PATIENCE):
    """An open connection and the response that has begun; tries until the server is up."""
    deadline = time.monotonic() + patience
    while True:
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            return connection, connection.getresponse()
        except ConnectionError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_serves_streams_and_ends_cleanly_on_sigterm(launcher, start, port, folder):
    process = start(launcher, "--User", "ann", "--port", str(port))
    connection, response = ask(port)
    assert (response.status, response.read()) == (200, b"ok")
    connection.close()
    connection, response = ask(port, "/slow")
    assert response.read(5) == b"begun"
    process.send_signal(signal.SIGTERM)
    if os.name != "nt":
        assert response.read() == b" ended"  # the end of a running answer still reaches its client
        assert process.wait(PATIENCE) == 0
    connection.close()
    printed = output(process)
    assert folder in printed and "ann" in printed and f"http://127.0.0.1:{port}" in printed and "--listen" in printed
    assert "Demo mode" not in printed and "Traceback" not in printed


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a console event there")
@pytest.mark.parametrize("launcher", DIFFERENT)
def test_a_stop_right_after_the_start_is_as_orderly(launcher, start, port, monkeypatch):
    monkeypatch.setenv("SLOW_START", "1")
    process = start(launcher, "--User", "ann", "--port", str(port))
    connection, response = ask(port, "/slow")
    assert response.read(5) == b"begun"
    process.send_signal(signal.SIGTERM)  # on two of the servers, while the first lines are still printed
    assert response.read() == b" ended"
    assert process.wait(PATIENCE) == 0
    connection.close()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="a console event there")
@pytest.mark.parametrize("launcher", DIFFERENT)
def test_ctrl_c_ends_with_0(launcher, start, port):
    process = start(launcher, "--User", "ann", "--port", str(port))
    ask(port)[0].close()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    assert "Traceback" not in output(process)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", DIFFERENT)
def test_what_is_not_http_is_answered_with_json(launcher, start, port):
    start(launcher, "--User", "ann", "--port", str(port))
    ask(port)[0].close()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
        sock.sendall(b"NONSENSE\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    # No path was read, so the error has the form that most clients understand.
    assert json.loads(answer.rpartition(b"\r\n")[2])["error"]["type"] == "invalid_request_error"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", DIFFERENT)
def test_unknown_user(launcher, start):
    process = start(launcher, "--User", "Zed")
    assert process.wait(PATIENCE) == 1
    assert "ERROR: Config file not found for user 'Zed': " in output(process)


@pytest.mark.slow
def test_taken_port(start):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = start("run_waitress", "--User", "ann", "--port", str(port))
        assert process.wait(PATIENCE) == 1
    assert f"Port {port} on 127.0.0.1 is already in use" in output(process) and "Traceback" not in output(process)


@pytest.mark.slow
def test_version_and_bad_values(start):
    process = start("run_waitress", "--version")
    assert process.wait(PATIENCE) == 0 and output(process).startswith("WilmerAI ")
    assert start("run_waitress", "--concurrency", "-1").wait(PATIENCE) == 2


@pytest.mark.slow
def test_several_users_listen_on_ipv6_with_a_warning(start, port, tmp_path, folder):
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    (tmp_path / "Configs" / "Users" / "bob.json").write_text("{}", "utf-8")
    process = start(
        "run_waitress", "--User", "ann", "--User", "bob", "--listen", "::", "--allow-public", "--port", str(port)
    )
    for host in ("::1", "127.0.0.1"):
        connection, response = ask(port, host=host)
        assert response.read() == b"ok"
        connection.close()
    assert "ann, bob" in output(process) and "WARNING: there is no password" in output(process)


def test_two_requests_on_one_connection(start, port):
    start("run_waitress", "--User", "ann", "--port", str(port))
    connection, response = ask(port)
    response.read()
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"ok"
    connection.close()
