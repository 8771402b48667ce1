"""Tries a row: starts its server, lets each client make each call, and ends the server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from Tests import postgres_lab
from Tests.doors.calls import CALLS, PATIENCE, Call, ask, problem_of
from Tests.doors.network import LAN, LAN6, Hosts, Loopback, ipv6_missing, missing, tool
from Tests.doors.places import command, make_clone, nginx_blocks, nginx_configuration, prepare, reply, run_quietly
from Tests.doors.rows import ANSWERED, CLOSED, NO_KEY, NO_TRACES, PROXIED, WITH_KEY, Client, Row
from Tests.free_ports import free_port
from Tests.stub_backend import StubBackend

# A machine with a load of forty took 35 s.
START_SECONDS = 120.0
STOP_SECONDS = 30.0


@dataclass(frozen=True)
class Cell:
    """One call of one client. ``problem``: "" if it got what the row promises; ``left_out``: why it was not made."""

    row: str
    by: str
    client: str
    call: str
    problem: str = ""
    left_out: str = ""

    def __str__(self) -> str:
        return f"{self.row or 'no flag'} | {self.by} | {self.client} | {self.call}: {self.problem}"


class Lab:
    """What the rows of a process share: a folder with a clone, and PostgreSQL, started when first wanted."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        self.clone = self.folder / "clone"
        make_clone(self.clone)
        self._postgres: postgres_lab.Server | None = None
        self._lock = threading.Lock()

    def database(self) -> str:
        """Return the address of an empty database, by a socket in the file system: it is reached from each host."""
        with self._lock:
            if self._postgres is None:
                self._postgres = postgres_lab.Server()
                self._stack.callback(self._postgres.remove)
            server = self._postgres
            name = postgres_lab.name_in(server.new_database())
        return f"postgresql://{postgres_lab.ROLE}@/{name}?host={server.folder}&port={server.port}&connect_timeout=60"

    def close(self) -> None:
        self._stack.close()


@cache
def left_out(row: Row) -> str:
    """Return why a row cannot be tried here; "" if it can."""
    if "database" in row.needs and postgres_lab.missing():
        return postgres_lab.missing()
    if "nginx" in row.needs and (missing() or not tool("nginx")):
        return missing() or "nginx is not installed (on Debian: apt-get install nginx-light)"
    if (row.by.endswith((".sh", ".service", ".plist")) or row.by == "container") and sys.platform == "win32":
        return "not on Windows"
    if "::" in row.flags and ipv6_missing():
        return ipv6_missing()
    if row.host in (LAN, LAN6) and missing():
        return f"there is no such address ({missing()})"
    if "demo" in row.needs and missing():
        return f"the port of the demo back-end may be taken ({missing()})"
    return ""


class Door:
    """A running server of a row."""

    def __init__(self, row: Row, by: str, lab: Lab) -> None:
        self._row, self._by = row, by
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir=lab.folder)))
        self._log = self._folder / "output.txt"
        self._hosts: Hosts | Loopback = Loopback() if missing() else Hosts()
        self._stack.callback(self._hosts.close)
        database = lab.database() if "database" in row.needs else ""
        with self._hosts.server():
            backend = StubBackend()
        backend.responder = reply
        self._stack.callback(backend.start().stop)
        self._place = prepare(row, lab.clone, self._folder, backend, database)

    def __enter__(self) -> Door:
        try:
            self._port = free_port() if missing() else self._row.port
            words = command(self._place, self._by, *(["--port", str(self._port)] if missing() else []))
            with self._hosts.server():
                self._process = run_quietly(words, self._place.app, self._log, self._place.environment)
                self._stack.callback(_end, self._process)
                self._wait()
                if "nginx" in self._row.needs:
                    self._start_nginx()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def output(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def ended(self) -> int:
        """Return the exit status of a server that ends by itself."""
        return self._process.wait(START_SECONDS)

    def cells(self) -> Iterator[Cell]:
        """Let each client make each call."""
        for client in self._row.clients:
            why = missing() if client.far else ""
            model = "" if why or client.expects != ANSWERED else self._model(client)
            for call in CALLS:
                problem = "" if why else self._problem(client, call, model)
                yield Cell(self._row.title, self._by, client.name, call.name, problem, why)

    def _model(self, client: Client) -> str:
        """Return the first model that the server lists, which a client would choose; "" if the list cannot be read."""
        try:
            _, data = self._ask(client, "GET", "/v1/models")
            return str(json.loads(data)["data"][0]["id"])
        except (OSError, http.client.HTTPException, LookupError, TypeError, ValueError):
            return ""

    def _problem(self, client: Client, call: Call, model: str) -> str:
        try:
            status, data = self._ask(client, "POST", call.path, {"model": model or "any", **call.body})
        except ConnectionRefusedError:
            return "" if client.expects == CLOSED else "no connection"
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        if client.expects == CLOSED:
            return f"HTTP {status} in place of no connection"
        # Behind a key that is none, nobody learns what there is, whatever the dialect.
        return problem_of(call, status, data, client.expects)

    def _ask(self, client: Client, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        connection = self._hosts.connect(client.to, client.port or self._port, client.far, PATIENCE)
        return ask(connection, method, client.prefix + path, client.headers, body)

    def _wait(self) -> None:
        """Wait until the server answers, or ends."""
        deadline = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                connection = self._hosts.connect(self._row.host, self._port, False, PATIENCE)
                status, _ = ask(connection, "GET", "/health", WITH_KEY)
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
                continue
            if status in (ANSWERED, NO_KEY):
                return

    def _start_nginx(self) -> None:
        folder = self._folder / "nginx"
        folder.mkdir()
        ports = sorted({client.port for client in PROXIED if client.port})
        blocks = dict(zip(ports, nginx_blocks(), strict=True))
        file = folder / "nginx.conf"
        file.write_text(nginx_configuration(folder, f"127.0.0.1:{self._port}", blocks), "utf-8")
        process = run_quietly(
            [tool("nginx") or "nginx", "-p", str(folder), "-c", str(file)], folder, folder / "log", dict(os.environ)
        )
        self._stack.callback(_end, process)
        deadline = time.monotonic() + START_SECONDS
        for port in ports:
            while True:
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text("utf-8")
                try:
                    self._hosts.connect("127.0.0.1", port, False, PATIENCE).close()
                    break
                except OSError:
                    time.sleep(0.02)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tried(row: Row, by: str, lab: Lab) -> list[Cell]:
    """Return the results of a row; a server that does not start is a cell of its own."""
    why = left_out(row)
    if why:
        return [Cell(row.title, by, "", "start", left_out=why)]
    try:
        with Door(row, by, lab) as door:
            refusal = row.refusals.get(by, "")
            if refusal:
                status = door.ended()
                said = refusal in door.output() and "Traceback" not in door.output()
                said = said and status == (2 if refusal == NO_TRACES else 1)
                return [Cell(row.title, by, "", "start", "" if said else f"status {status}: {door.output()[-500:]}")]
            cells = list(door.cells())
            if all(cell.problem for cell in cells) or "Traceback" in door.output():
                cells.append(Cell(row.title, by, "", "output", f"the server said: {door.output()[-1500:]}"))
            return cells
    # One row that cannot be prepared must not hide the results of the others.
    except Exception as error:
        return [Cell(row.title, by, "", "start", f"not tried: {type(error).__name__}: {error}")]


def runs(rows: Iterable[Row], deep: bool) -> list[tuple[Row, str]]:
    """Return the servers of a run. ``deep``: every row on every launcher."""
    return [(row, by) for row in rows for by in row.launchers(deep)]


def every_row_in(*tables: Iterable[Row], by: Container[str]) -> pytest.MarkDecorator:
    """Give a test the rows of tables that ``by`` starts in an ordinary run."""
    found = [run for rows in tables for run in runs(rows, deep=False) if run[1] in by]
    return pytest.mark.parametrize(("row", "by"), found, ids=[f"{row.title} [{by}]" for row, by in found])


def check(row: Row, by: str, lab: Lab) -> None:
    """Try a row. Fails with each call that got something else, and is skipped if none could be made."""
    cells = tried(row, by, lab)
    problems = [str(cell) for cell in cells if cell.problem]
    assert not problems, "\n".join([f"{len(problems)} of {len(cells)} calls:", *problems])
    if all(cell.left_out for cell in cells):
        pytest.skip(cells[0].left_out)


@contextmanager
def lab() -> Iterator[Lab]:
    made = Lab()
    try:
        yield made
    finally:
        made.close()
