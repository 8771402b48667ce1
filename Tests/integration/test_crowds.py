"""Many connections and bodies at once: what is not whole has limits, and whole requests have none by their address."""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from Tests.integration.client_faults import START, Heard, chat, listen
from Tests.integration.launcher import USER, Backend, Launcher, read_until, standard_tree
from Tests.integration.prelude import launcher_after, patience
from Tests.integration.process_figures import figures_of
from Tests.patience import BEFORE_BYTES, CLIENT_PATIENCE, PATIENCE
from Tests.stub_backend import chat_reply, chat_stream_reply
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.slow

MEGABYTE = 1024 * 1024
CONNECTIONS = 40
# Of all bodies together.
BUDGET = 2 * MEGABYTE
# How soon another client is answered, whatever the others do.
SOON = 30.0
# Linux takes every 127.x.y.z for its own; elsewhere all clients have one address.
OTHER = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"


@pytest.fixture(scope="module")
def crowded(script: str, shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A server with little room for connections and bodies, where requests do not wait for each other."""
    folder = tmp_path_factory.mktemp("crowded")
    tree = standard_tree(folder / "Public", shared_backend.url)
    changed = launcher_after(
        folder,
        script,
        "from Middleware.api.edge import body_budget",
        f"body_budget._LEAST = body_budget._MOST = {BUDGET}",
        *patience(
            CONNECTIONS=CONNECTIONS,
            CONNECTIONS_WITH_SELECT=CONNECTIONS,
            EVENTLET_CONNECTIONS=CONNECTIONS,
            SWEEP_SECONDS=0.2,
            CROWDED_SECONDS=2.0,
            CROWDED_GRACE_SECONDS=0.5,
            LINGER_SECONDS=60.0,
        ),
    )
    with Launcher(
        changed, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0", backend=shared_backend
    ) as server:
        yield server


def connect(server: Launcher, source: str = "127.0.0.1") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", server.port), timeout=60, source_address=(source, 0))
    sock.settimeout(60)
    return sock


def post(size: int, held: bytes = b"") -> bytes:
    """The head of a chat with a body of ``size`` bytes, and the beginning of that."""
    return START + b"Content-Length: %d\r\n\r\n" % size + held


def large_chat(text: str, size: int) -> bytes:
    start = json.dumps({"model": "Single", "messages": [{"role": "user", "content": text}], "padding": ""}).encode()
    return start[:-2] + b"x" * (size - len(start)) + b'"}'


def ask(server: Launcher, backend: Backend, source: str = OTHER) -> Heard:
    """A whole chat of another peer."""
    data = chat(backend.hello)
    with connect(server, source) as sock:
        sock.sendall(post(len(data), data))
        return listen(sock)


def send_in_vain(sock: socket.socket, data: bytes) -> None:
    """Send what the server may have stopped to read."""
    with contextlib.suppress(OSError):
        sock.sendall(data)


HOLDING = {
    "nothing": b"",
    "a part of the first line": b"GET /v1",
    "half a head": START + b"A: b\r\n",
    "a head without its last line": START + b"Content-Length: 5\r\n",
    "half a body": post(100, b"{"),
    "half a chunk": START + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    "a whole request before, and half a head": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + START,
    "a whole request before, and nothing": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.contract
@pytest.mark.parametrize("data", HOLDING.values(), ids=HOLDING.keys())
def test_unfinished_connections_do_not_lock_others_out(crowded: Launcher, backend: Backend, data: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS + 10):
            with contextlib.suppress(OSError):
                stack.enter_context(connect(crowded)).sendall(data)
        for source in (OTHER, "127.0.0.1"):
            started = time.monotonic()
            assert ask(crowded, backend, source).status == 200
            assert time.monotonic() - started < SOON


@pytest.mark.contract
def test_running_answers_of_one_address_are_never_limited(crowded: Launcher, backend: Backend) -> None:
    count, go_on = CONNECTIONS // 2 - 4, threading.Event()
    backend.replies["single"] = chat_stream_reply(["one "] * 40, held=go_on, held_piece=2)
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(crowded.open("Single", stream=True)) for _ in range(count)]
        for stream in streams:
            assert b" 200 " in read_until(stream, b"one")
        # More than half of all, of the same address: some of them must go.
        heads = [stack.enter_context(connect(crowded)) for _ in range(CONNECTIONS // 2 + 4)]
        for head in heads:
            send_in_vain(head, START)
        assert until(lambda: bool(answered(heads)), BEFORE_BYTES)
        go_on.set()
        for stream in streams:
            read_until(stream, b"[DONE]")


@pytest.mark.contract
def test_bodies_have_a_budget_together(crowded: Launcher, backend: Backend) -> None:
    """The largest ends when there is too much, so that small ones always pass."""
    size = MEGABYTE * 5 // 2
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(crowded)) for _ in range(6)]
        for sock in socks:
            send_in_vain(sock, post(size, b"{" + b" " * (MEGABYTE * 3 // 4)))
        # Two of them fit.
        assert until(lambda: len(answered(socks)) >= 4)
        answers = [listen(sock) for sock in answered(socks)]
        assert {answer.status for answer in answers} == {503}
        assert all(b"retry-after" in answer.head.lower() for answer in answers)
        assert ask(crowded, backend).status == 200


def answered(socks: list[socket.socket]) -> list[socket.socket]:
    """Those on which the server has said something."""
    with selectors.DefaultSelector() as waiting:
        for sock in socks:
            waiting.register(sock, selectors.EVENT_READ, sock)
        return [key.data for key, _ in waiting.select(0)]


def early_answer(sock: socket.socket) -> Heard | None:
    """The answer to a body that is not whole; None if the server waits for the rest."""
    sock.settimeout(2.0)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return None
    sock.settimeout(60)
    return listen(sock)


@pytest.mark.contract
def test_a_body_that_is_alone_passes(crowded: Launcher, backend: Backend) -> None:
    data = large_chat(backend.hello, 3 * BUDGET)
    for _ in range(2):
        with connect(crowded) as sock:
            sock.sendall(post(len(data), data))
            assert listen(sock).status == 200


@pytest.mark.contract
def test_while_the_budget_is_full_a_body_is_refused_unread(crowded: Launcher, backend: Backend) -> None:
    """The largest one under way ends, too, and what has no body is answered."""
    with connect(crowded) as large:
        large.sendall(post(4 * BUDGET, b"{" + b" " * (2 * BUDGET)))
        answer = wait_until_refused(crowded)
        assert answer.status == 503 and b"retry-after" in answer.head.lower()
        assert listen(large).status == 503
    assert ask(crowded, backend).status == 200


def wait_until_refused(server: Launcher) -> Heard:
    """Send heads of small bodies until one is answered before its body has come."""
    deadline = time.monotonic() + 4 * SOON
    while time.monotonic() < deadline:
        with connect(server) as sock:
            sock.sendall(post(100))
            assert server.request("GET", "/health").status == 200
            if (answer := early_answer(sock)) is not None:
                return answer
    pytest.fail("the server waits for each body")


CHUNKED = START + b"Transfer-Encoding: chunked\r\n"
REST = b" " * (6 * BUDGET)
SENDERS = {
    "a length": (post(8 * BUDGET, b" " * 2 * BUDGET), REST),
    "a length, and it is not reached": (post(99 * BUDGET, b" " * 2 * BUDGET), REST),
    "one chunk": (CHUNKED + b"\r\n%x\r\n" % (8 * BUDGET) + b" " * 2 * BUDGET, REST + b"\r\n0\r\n\r\n"),
    "small chunks": (CHUNKED + b"\r\n" + (b"1000\r\n" + b" " * 4096 + b"\r\n") * 1024, b"1\r\n \r\n" * BUDGET),
    "half of a chunk's first line": (CHUNKED + b"\r\n%x\r\n" % (2 * BUDGET) + b" " * 2 * BUDGET + b"\r\n12", REST),
}


@pytest.mark.contract
@pytest.mark.parametrize(("before", "after"), SENDERS.values(), ids=SENDERS.keys())
def test_a_client_that_sends_on_reads_why_its_body_was_refused(crowded: Launcher, before: bytes, after: bytes) -> None:
    """It reads only after it has sent everything, far more than the system's buffers hold."""
    with connect(crowded) as sock:
        sock.sendall(before)
        wait_until_refused(crowded)
        sock.sendall(after)
        answer = listen(sock)
        assert (answer.status, b"retry-after" in answer.head.lower()) == (503, True)
        assert b"Send it again later" in answer.body and sock.recv(1) == b""


# More than what the system takes on both sides of a connection.
LARGE_ANSWER = chat_reply("word " * 200_000)


def ask_for_much(server: Launcher, request: bytes, source: str = "127.0.0.1") -> socket.socket:
    """Ask for something large, and read nothing of it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.bind((source, 0))
    sock.connect(("127.0.0.1", server.port))
    send_in_vain(sock, request)
    return sock


def begun(sock: socket.socket) -> bool:
    """Whether the answer has begun to come."""
    return bool(answered([sock]))


@pytest.mark.contract
def test_unread_answers_do_not_lock_others_out(crowded: Launcher, backend: Backend) -> None:
    backend.replies["single"], data = LARGE_ANSWER, chat(backend.hello)
    with contextlib.ExitStack() as stack:
        paused = stack.enter_context(ask_for_much(crowded, post(len(data), data), OTHER))
        assert until(lambda: begun(paused))
        for _ in range(CONNECTIONS + 10):
            stack.enter_context(ask_for_much(crowded, post(len(data), data)))
        for source in (OTHER, "127.0.0.1"):
            started = time.monotonic()
            assert ask(crowded, backend, source).status == 200
            assert time.monotonic() - started < SOON
        # It has paused for longer than all of them, and reads on.
        if OTHER != "127.0.0.1":
            assert len(listen(paused).body) > 1_000_000


@pytest.mark.contract
def test_while_there_is_room_a_client_may_pause(crowded: Launcher, backend: Backend) -> None:
    """For longer than the time after which it counts, and however many do so from one address."""
    backend.replies["single"], data = LARGE_ANSWER, chat(backend.hello)
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(ask_for_much(crowded, post(len(data), data))) for _ in range(CONNECTIONS // 2 - 4)]
        assert until(lambda: len(answered(socks)) == len(socks))
        # Most connections are in use, these by requests that are at work.
        backend.replies["single"] = chat_stream_reply(["one "] * 40, delay=0.5)
        streams = [stack.enter_context(crowded.open("Single", stream=True)) for _ in range(CONNECTIONS // 2 - 4)]
        for _ in range(8):
            read_until(streams[0], b"one")
        assert all(len(listen(sock).body) > 1_000_000 for sock in socks)


@pytest.fixture(scope="module")
def queued(script: str, shared_backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A server with little room for bodies, where one request runs at a time."""
    folder = tmp_path_factory.mktemp("queued")
    tree = standard_tree(folder / "Public", shared_backend.url)
    changed = launcher_after(
        folder,
        script,
        "from Middleware.api import concurrency_middleware",
        "concurrency_middleware.HANDOVER_SECONDS = 1.0",
        "from Middleware.api.edge import body_budget",
        f"body_budget._LEAST = body_budget._MOST = {BUDGET}",
    )
    with Launcher(changed, "--PublicDirectory", tree.public, "--User", USER, backend=shared_backend) as server:
        yield server


@pytest.mark.contract
@pytest.mark.parametrize("later", [False, True], ids=["at the gate", "handed over"])
def test_bodies_that_wait_for_their_turn_have_the_same_budget(queued: Launcher, backend: Backend, later: bool) -> None:
    """A large one waits along with small ones; the largest goes when there is too much."""
    gate = threading.Event()
    backend.replies["single"] = chat_reply("At last.", held=gate)
    with contextlib.ExitStack() as stack:
        stack.callback(gate.set)

        def send(size: int) -> socket.socket:
            sock, data = stack.enter_context(connect(queued)), large_chat(backend.hello, size)
            sock.sendall(post(len(data), data))
            return sock

        running = send(3 * BUDGET)
        backend.wait_call("single")
        waits = queued.output().count(" waits, ")
        large = send(3 * BUDGET)
        # It is whole.
        assert until(lambda: queued.output().count(" waits, ") > waits)
        small = [send(1000 + number) for number in range(3)]
        if later:
            time.sleep(2.0)  # more than the time until the application waits in place of the gate
        assert not answered([large, *small])
        medium = [send(MEGABYTE * 3 // 4) for _ in range(6)]
        # Two of them fit.
        assert until(lambda: len(answered([large, *medium])) == 5)
        refused = answered([large, *medium])
        assert large in refused and not answered(small)
        for answer in map(listen, refused):
            assert (answer.status, b"retry-after" in answer.head.lower()) == (503, True)
        gate.set()
        assert {listen(sock).status for sock in (running, *small, *set(medium).difference(refused))} == {200}


def test_a_large_body_behind_a_request_at_work_is_read_when_that_has_ended(crowded: Launcher, backend: Backend) -> None:
    """Before, it would wait in memory, and be in no sum."""
    gate, size = threading.Event(), 64 * MEGABYTE
    backend.replies["single"] = chat_reply("First.", held=gate)
    first, second = chat(backend.hello), large_chat(backend.hello, size)
    with connect(crowded) as sock, selectors.DefaultSelector() as waiting:
        sock.sendall(post(len(first), first) + post(len(second)))
        backend.wait_call("single")
        waiting.register(sock, selectors.EVENT_WRITE)
        sent, view = 0, memoryview(second)
        # Until the system takes no more.
        while waiting.select(2) and sent < size:
            sent += sock.send(view[sent : sent + 65536])
        assert sent < size
        gate.set()
        sock.sendall(view[sent:])
        assert read_until(sock, b"First.", CLIENT_PATIENCE).count(b" 200 ") == 1
        read_until(sock, b" 200 ", CLIENT_PATIENCE)


@pytest.fixture
def full_size(script: str, shared_backend: Backend, tmp_path: Path) -> Iterator[Launcher]:
    """A server as it is delivered, but for requests that do not wait for each other."""
    tree = standard_tree(tmp_path / "Public", shared_backend.url)
    if sys.platform != "win32":
        import resource

        # Clients, the back-end and its callers share this process.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with Launcher(
        script, "--PublicDirectory", tree.public, "--User", USER, "--concurrency", "0", backend=shared_backend
    ) as server:
        yield server


class Watch:
    """The most memory that a server has taken, in MB above what it had, and how long another peer waited."""

    def __init__(self, server: Launcher, backend: Backend) -> None:
        self._server, self._backend = server, backend
        self._before = self.rss
        self.most, self.slowest = 0.0, 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._look, self._ask)]

    @property
    def rss(self) -> float:
        assert self._server.process is not None
        figures = figures_of(self._server.process.pid)
        return figures.rss / 1024 if figures else 0.0

    @property
    def grown(self) -> float:
        return self.rss - self._before

    def _look(self) -> None:
        while not self._stop.wait(0.02):
            self.most = max(self.most, self.grown)
            # Other work goes on on this machine.
            if self.most > 8000 and self._server.process is not None:
                self._server.process.kill()

    def _ask(self) -> None:
        while not self._stop.wait(0.5):
            started, answer = time.monotonic(), None
            # A 503 is an answer: the bodies of others fill the budget, and the next try may pass.
            while answer != 200:
                with contextlib.suppress(OSError):
                    answer = ask(self._server, self._backend).status
            self.slowest = max(self.slowest, time.monotonic() - started)

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        print(
            f"\n{self._server.script}: at most {self.most:.0f} MB, {self.grown:.0f} MB at the end; "
            f"others waited {self.slowest:.1f} s at most"
        )


def upload(server: Launcher, data: bytes, count: int, stop_at: Callable[[int], int]) -> list[int]:
    """Send ``data`` on so many connections at a time, of each at most ``stop_at(number)`` bytes; return the statuses.

    0 stands for those that were stopped, or closed by the server without an answer.
    """
    view, statuses, waiting = memoryview(data), [0] * count, selectors.DefaultSelector()
    for number in range(count):
        sock = connect(server)
        sock.setblocking(False)
        waiting.register(sock, selectors.EVENT_WRITE | selectors.EVENT_READ, [number, 0])
    while waiting.get_map():
        for key, events in waiting.select(60):
            sock, state = key.fileobj, key.data
            assert isinstance(sock, socket.socket)
            try:
                if events & selectors.EVENT_READ:
                    answer = sock.recv(65536)
                    statuses[state[0]] = int(answer.split(b" ")[1]) if answer else 0
                    state[1] = sys.maxsize
                else:
                    state[1] += sock.send(view[state[1] : state[1] + MEGABYTE])
            except OSError:
                state[1] = sys.maxsize
            if state[1] >= stop_at(state[0]):
                waiting.unregister(sock)
                sock.close()
            elif state[1] == len(data):
                waiting.modify(sock, selectors.EVENT_READ, state)
    return statuses


@pytest.mark.deep
@pytest.mark.contract
def test_a_thousand_bodies_of_20_megabytes_half_of_them_aborted(full_size: Launcher, backend: Backend) -> None:
    body = large_chat(backend.hello, 20 * MEGABYTE)
    data = post(len(body), body)
    with Watch(full_size, backend) as watch:
        statuses = upload(full_size, data, 950, lambda number: len(data) // 2 if number % 2 else len(data) + 1)
        statuses += upload(full_size, data, 50, lambda number: len(data) // 2 if number % 2 else len(data) + 1)
    assert set(statuses) <= {0, 200, 503} and 200 in statuses
    # A gigabyte is the budget; whole ones are at work.
    assert watch.most < 3000
    # All these bodies are parsed, too, on as few processors as there are.
    assert watch.slowest < 6 * SOON
    # Once nothing is at work.
    assert until(lambda: watch.grown < 100, 2 * SOON)


@pytest.mark.deep
def test_aborted_bodies_one_after_the_other_leave_nothing(full_size: Launcher, backend: Backend) -> None:
    body = large_chat(backend.hello, 20 * MEGABYTE)
    data = post(len(body), body)
    upload(full_size, data, 1, lambda number: len(data) - 1)
    with Watch(full_size, backend) as watch:
        for _ in range(20):
            upload(full_size, data, 1, lambda number: len(data) - 1)
    assert watch.most < 150
    with Watch(full_size, backend) as watch:
        body = large_chat(backend.hello, 40 * MEGABYTE)
        data = post(len(body), body)
        upload(full_size, data, 12, lambda number: len(data) - 1)
    assert until(lambda: watch.grown < 150)


@pytest.mark.deep
@pytest.mark.contract
def test_a_thousand_half_open_heads_of_one_peer(full_size: Launcher, backend: Backend) -> None:
    with contextlib.ExitStack() as stack, Watch(full_size, backend) as watch:
        for _ in range(1010):
            with contextlib.suppress(OSError):
                stack.enter_context(connect(full_size)).sendall(START)
        time.sleep(2 * SOON)  # the time in which somebody has to be answered, twice
    assert 0 < watch.slowest < SOON


@pytest.mark.deep
@pytest.mark.contract
def test_a_thousand_unread_answers_of_one_peer(full_size: Launcher, backend: Backend) -> None:
    page = full_size.request("GET", "/console/").body
    version = re.search(rb"static/(\w+)/", page)
    assert version is not None
    path = b"/console/static/%s/vendor/@codemirror/view/dist/index.js" % version[1]
    request = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % path
    assert len(full_size.request("GET", path.decode()).body) > 400_000
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(ask_for_much(full_size, request)) for _ in range(1010)]
        # All pages are made first, which takes time of the processor only.
        assert until(lambda: len(answered(socks)) >= 990, 2 * PATIENCE)
        with Watch(full_size, backend) as watch:
            time.sleep(SOON)
    assert 0 < watch.slowest < SOON


@pytest.mark.deep
@pytest.mark.contract
def test_three_hundred_streams_of_one_peer(full_size: Launcher, backend: Backend) -> None:
    backend.replies["single"] = chat_stream_reply(["one "] * 60, delay=0.5)
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(full_size.open("Single", stream=True)) for _ in range(300)]
        # The back-end here can look at 1,024 descriptors only, those of all clients included.
        for _ in range(200):
            with contextlib.suppress(OSError):
                stack.enter_context(connect(full_size)).sendall(START)
        for stream in streams:
            assert b"[DONE]" in read_until(stream, b"[DONE]", 300.0)
