"""The recipe in ``deploy/several-workers``: three workers, one database, and the proxies that stand before them."""
from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from Tests.integration.launcher import USER, Backend, Launcher, standard_tree
from Tests.stub_backend import RecordedRequest, Reply, chat_chunk, chat_reply, sse_reply
from Tests.workflows.engine_lab import until

RECIPE = Path(__file__).parents[2] / "deploy" / "several-workers"
WORKERS = 3
# Debian's Caddy is older than the one that the recipe names: it fails requests while a worker restarts.
PROXIES = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}
STREAMS = 9
PIECES = 30

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="the proxies are those of Debian")]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def written(folder: Path, name: str, port: int, workers: list[int]) -> str:
    """Return a file of the recipe with the addresses of this machine."""
    text = (RECIPE / name).read_text("utf-8")
    text = re.sub(r"worker-(\d):5000", lambda found: f"127.0.0.1:{workers[int(found[1]) - 1]}", text)
    return re.sub(r"(listen |bind ):?5000", rf"\g<1>127.0.0.1:{port}", text)


@contextmanager
def proxy(kind: str, folder: Path, workers: list[int]) -> Iterator[int]:
    """Run a proxy of the recipe and yield its port."""
    port = free_port()
    text, file = written(folder, PROXIES[kind], port, workers), folder / PROXIES[kind]
    if kind == "nginx":
        places = "".join(f"{name}_temp_path {folder}/{name};\n"
                         for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        text = (f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
                f"http {{\naccess_log off;\n{places}{text}\n}}\n")
    file.write_text(text, encoding="utf-8")
    command = ["nginx", "-p", folder, "-c", file] if kind == "nginx" else ["haproxy", "-f", file]
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            assert until(lambda: process.poll() is not None or accepts(port), 60)
            assert process.poll() is None, (folder / "proxy.log").read_text("utf-8")
            yield port
        finally:
            process.terminate()
            process.wait(60)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError:
        return False
    return True


class Client(threading.Thread):
    """Asks for one answer after the other, half of the clients streamed, until it is told to stop."""

    def __init__(self, port: int, streamed: bool) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.streamed = streamed
        self.ends = threading.Event()
        self.answers, self.faults = 0, list[str]()

    def run(self) -> None:
        body = {"model": "Single", "stream": self.streamed, "messages": [{"role": "user", "content": "hi"}]}
        while not self.ends.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(body),
                                   {"Content-Type": "application/json"})
                answer = connection.getresponse()
                data = answer.read()
                is_whole = data.endswith(b"data: [DONE]\n\n") or not self.streamed
                if answer.status != 200 or data.count(b"word") != PIECES or not is_whole:
                    self.faults.append(f"{answer.status}: {data[-300:]!r}")
            except (OSError, http.client.HTTPException) as error:
                self.faults.append(repr(error))
            finally:
                connection.close()
            self.answers += 1


def answered(clients: list[Client], wanted: int) -> bool:
    return sum(client.answers for client in clients) >= wanted


def words(request: RecordedRequest) -> Reply:
    if request.json.get("stream"):
        return sse_reply([*[chat_chunk({"content": "word "})] * PIECES, chat_chunk({}, "stop")], delay=0.03)
    return chat_reply("word " * PIECES, header_delay=0.5)


@pytest.mark.parametrize("kind", PROXIES)
def test_workers_restart_one_after_the_other_without_a_cut_answer(kind: str, tmp_path: Path, backend: Backend,
                                                                  database_url: str) -> None:
    if shutil.which(kind) is None:
        pytest.skip(f"{kind} is not installed")
    backend.replies["single"] = words
    tree = standard_tree(tmp_path / "Public", backend.url)
    ports = [free_port() for _ in range(WORKERS)]

    with ExitStack() as stack:
        def start(port: int) -> Launcher:
            return stack.enter_context(Launcher(
                "run_waitress.py", "--PublicDirectory", tree.public, "--User", USER, "--console", "off",
                "--concurrency", "50", "--drain-seconds", "60", "--port", str(port), "--database", database_url,
                backend=backend))

        workers = [start(port) for port in ports]
        port = stack.enter_context(proxy(kind, tmp_path, ports))
        clients = [Client(port, streamed=number < STREAMS) for number in range(STREAMS + 3)]
        for client in clients:
            client.start()
        for number in range(WORKERS):
            wanted = sum(client.answers for client in clients) + len(clients)
            assert until(partial(answered, clients, wanted), 120)
            process = workers[number].process
            assert process is not None
            process.terminate()
            assert process.wait(120) == 0
            workers[number] = start(ports[number])
            # As an operator waits until the proxy has seen it.
            time.sleep(3)
        for client in clients:
            client.ends.set()
        for client in clients:
            client.join(120)
        assert not [fault for client in clients for fault in client.faults]
