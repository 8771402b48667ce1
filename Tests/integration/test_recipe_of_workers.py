"""The recipe in ``deploy/several-workers``: three workers, one database, and the proxies that stand before them."""

from __future__ import annotations

import http.client
import json
import os
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

from Tests.free_ports import free_port
from Tests.integration.launcher import USER, Backend, Launcher, run_launcher, standard_tree
from Tests.stub_backend import RecordedRequest, Reply, chat_chunk, chat_reply, sse_reply
from Tests.workflows.engine_lab import until

RECIPE = Path(__file__).parents[2] / "deploy" / "several-workers"
WORKERS = 3
PROXIES = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg", "caddy": "Caddyfile"}
# Debian's Caddy is older than the one that the recipe names: it fails requests while a worker restarts.
RESTARTED = ("nginx", "haproxy")
STREAMS = 9
# On Debian, they are where only administrators look.
PATH = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
PIECES = 30

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deep,
    pytest.mark.skipif(sys.platform == "win32", reason="the proxies are those of Debian"),
]


def written(folder: Path, name: str, port: int, workers: list[int]) -> str:
    """Return a file of the recipe with the addresses of this machine."""
    text = (RECIPE / name).read_text("utf-8")
    text = re.sub(r"worker-(\d):5000", lambda found: f"127.0.0.1:{workers[int(found[1]) - 1]}", text)
    text = re.sub(r"(listen |bind ):?5000", rf"\g<1>127.0.0.1:{port}", text)
    return re.sub(r"^:5000 {$", f":{port} {{\n\tbind 127.0.0.1", text, flags=re.MULTILINE)


@contextmanager
def proxy(kind: str, folder: Path, workers: list[int]) -> Iterator[int]:
    """Run a proxy of the recipe and yield its port."""
    port = free_port()
    text, file = written(folder, PROXIES[kind], port, workers), folder / PROXIES[kind]
    if kind == "nginx":
        places = "".join(
            f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        text = (
            f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{places}{text}\n}}\n"
        )
    if kind == "caddy":
        # Two of them on one machine would have the same place for it.
        text = f"{{\n\tadmin off\n}}\n{text}"
    file.write_text(text, encoding="utf-8")
    command = {
        "nginx": ["nginx", "-p", str(folder), "-c", str(file)],
        "haproxy": ["haproxy", "-f", str(file)],
        "caddy": ["caddy", "run", "--adapter", "caddyfile", "--config", str(file)],
    }[kind]
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": PATH, "HOME": str(folder)},
        )
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
                connection.request(
                    "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
                )
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


class Site:
    """The three workers of the recipe, started one by one, and a proxy before them."""

    def __init__(self, kind: str, folder: Path, backend: Backend, url: str, stack: ExitStack) -> None:
        if shutil.which(kind, path=PATH) is None:
            pytest.skip(f"{kind} is not installed (on Debian: apt-get install {kind}): the recipe with it is left out")
        backend.replies["single"] = words
        self._backend, self._url, self._stack, self._folder = backend, url, stack, folder
        self._tree = standard_tree(folder / "Public", backend.url)
        self.ports = [free_port() for _ in range(WORKERS)]
        self.workers = [self._started(port) for port in self.ports]
        self.port = stack.enter_context(proxy(kind, folder, self.ports))

    def _started(self, port: int) -> Launcher:
        return self._stack.enter_context(
            Launcher(
                "run_waitress.py",
                "--PublicDirectory",
                self._tree.public,
                "--User",
                USER,
                "--console",
                "off",
                "--concurrency",
                "50",
                "--drain-seconds",
                "60",
                "--port",
                str(port),
                "--database",
                self._url,
                backend=self._backend,
            )
        )

    def stop(self, number: int) -> None:
        process = self.workers[number].process
        assert process is not None
        process.terminate()
        assert process.wait(120) == 0

    def start(self, number: int) -> None:
        self.workers[number] = self._started(self.ports[number])

    def check(self, workers: int) -> None:
        """The recipe's own check: what the page says to type."""
        done = run_launcher(
            "run_waitress.py", "state", "status", "--PublicDirectory", self._tree.public, "--database", self._url
        )
        assert done.returncode == 0 and f"\n{workers} workers:\n" in done.stdout, done.stdout + done.stderr

    def log(self) -> str:
        return (self._folder / "proxy.log").read_text("utf-8")


@pytest.mark.parametrize("kind", RESTARTED)
def test_workers_restart_one_after_the_other_without_a_cut_answer(
    kind: str, tmp_path: Path, backend: Backend, database_url: str
) -> None:
    with ExitStack() as stack:
        site = Site(kind, tmp_path, backend, database_url, stack)
        site.check(WORKERS)
        clients = [Client(site.port, streamed=number < STREAMS) for number in range(STREAMS + 3)]
        for client in clients:
            client.start()
        for number in range(WORKERS):
            wanted = sum(client.answers for client in clients) + len(clients)
            assert until(partial(answered, clients, wanted), 120)
            site.stop(number)
            site.start(number)
            # As an operator waits until the proxy has seen it.
            time.sleep(3)
        for client in clients:
            client.ends.set()
        for client in clients:
            client.join(120)
        assert not [fault for client in clients for fault in client.faults]
        site.check(WORKERS)


def asked(port: int) -> str:
    """Ask for a short answer and return the number of the worker that gave it."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps({"model": "Single", "messages": [{"role": "user", "content": "hi"}]}),
            {"Content-Type": "application/json"},
        )
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read().count(b"word") == PIECES
        return answer.headers["X-Wilmer-Worker"]
    finally:
        connection.close()


def test_caddy_passes_streams_on_and_asks_no_worker_that_is_stopped(
    tmp_path: Path, backend: Backend, database_url: str
) -> None:
    with ExitStack() as stack:
        site = Site("caddy", tmp_path, backend, database_url, stack)
        site.check(WORKERS)
        clients = [Client(site.port, streamed=True) for _ in range(STREAMS)]
        for client in clients:
            client.start()
        assert until(partial(answered, clients, 2 * STREAMS), 120)
        for client in clients:
            client.ends.set()
        for client in clients:
            client.join(120)
        assert not [fault for client in clients for fault in client.faults]

        # One by one, each is the one with the fewest streams.
        assert until(lambda: asked(site.port) == "2", 120)
        # Every two seconds it looks who is there.
        site.stop(1)
        assert until(
            lambda: any(
                "health_checker" in line and f"127.0.0.1:{site.ports[1]}" in line for line in site.log().splitlines()
            ),
            60,
        ), site.log()
        site.check(WORKERS - 1)
        assert "2" not in {asked(site.port) for _ in range(10)}
        site.start(1)
        assert until(lambda: asked(site.port) == "2", 120)
        site.check(WORKERS)
