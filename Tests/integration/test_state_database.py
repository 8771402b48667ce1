"""Servers that share a state database, as processes: what they share, and what a database that fails does to chats."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from Middleware.addons.postgres import state_command
from Tests.amounts import amount
from Tests.integration.launcher import USER, Launcher, Response, run_launcher
from Tests.integration.memory_chat import Exchange, MemoryBackend, conversation, memory_tree
from Tests.integration.test_memory_crash import LOOKBACK, TURN, Stored, check
from Tests.patience import CLIENT_PATIENCE
from Tests.postgres_lab import PASSWORD, Server, StatementLog, name_in, open_database
from Tests.workflows.engine_lab import until

pytestmark = [pytest.mark.slow, pytest.mark.amounts]
# For what must happen in the end, on a machine that is busy.
PATIENCE = 60.0
DONE = " done after "
# Each costs seconds.
KILLS, ROUNDS = amount(2, 12), amount(2, 6)


class Site:
    """A configuration, a database, and the servers on them."""

    def __init__(self, folder: Path, postgres: Server, backend: MemoryBackend, vector: bool) -> None:
        self.folder, self.backend, self.vector = folder, backend, vector
        self.tree = memory_tree(folder / "Public", backend.url, vector=vector)
        self.url = postgres.new_database()
        self.stored, self.sent, self.name = Stored(), 0, "shared"

    def server(self, *arguments: str) -> Launcher:
        return Launcher(
            "run_waitress.py",
            "--PublicDirectory",
            self.tree.public,
            "--User",
            USER,
            "--concurrency",
            "0",
            "--database",
            self.url,
            *arguments,
        )

    def turn(self, server: Launcher, wait: bool = True) -> Exchange:
        """A turn more of the conversation."""
        self.sent += TURN
        exchange = Exchange(server.port, "Chat", conversation(self.name, self.sent))
        return exchange.wait(PATIENCE) if wait else exchange

    def export(self) -> Stored:
        """What a server in file mode would have, which must hold nothing twice and nothing less than before."""
        target = self.folder / "export"
        words = ["export", "--to", str(target), "--replace", "--PublicDirectory", str(self.tree.public)]
        # Not as a process: it is asked after each turn.
        with contextlib.redirect_stdout(io.StringIO()) as told, contextlib.redirect_stderr(told):
            status = state_command.main([*words, "--database", self.url])
        assert status == 0, told.getvalue()
        folder = target / self.name
        if folder.is_dir():
            self.stored = check(folder, self.folder, self.stored, self.sent)
        return self.stored

    def done(self) -> list[int]:
        stored = self.export()
        return stored.rows if self.vector else stored.remembered

    def catches_up(self, *servers: Launcher) -> None:
        """Left alone, turn by turn, everything is remembered that is due."""
        ends = time.monotonic() + 2 * PATIENCE
        number = 0
        while True:
            assert self.turn(servers[number % len(servers)]).answered
            number += 1
            while self.backend.wait_calls("", 1, 0.4):
                pass
            if self.done() == list(range(self.sent - LOOKBACK)):
                return
            assert time.monotonic() < ends, f"not caught up: {self.stored}"


@dataclass
class Crowd:
    """Three servers on one site, which the tests leave running; each has a conversation of its own."""

    site: Site
    servers: list[Launcher]

    def talk(self, name: str) -> tuple[Site, list[Launcher]]:
        self.site.stored, self.site.sent, self.site.name = Stored(), 0, name
        return self.site, self.servers


@pytest.fixture(scope="module", params=[False, True])
def crowd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres: Server
) -> Iterator[Crowd]:
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(MemoryBackend(seed=1, jitter=0.03))
        site = Site(tmp_path_factory.mktemp("crowd"), postgres, backend, request.param)
        yield Crowd(site, [stack.enter_context(site.server()) for _ in range(3)])


@pytest.fixture
def backend() -> Iterator[MemoryBackend]:
    with MemoryBackend(seed=1, jitter=0.03) as running:
        yield running


@pytest.fixture
def site(tmp_path: Path, postgres: Server, backend: MemoryBackend) -> Site:
    return Site(tmp_path, postgres, backend, vector=False)


def health(server: Launcher) -> object:
    answer = server.request("GET", "/health")
    assert answer.status == 200
    return answer.json.get("database")


def until_health(server: Launcher, state: str) -> None:
    assert until(lambda: health(server) == state, PATIENCE)


def test_the_start_and_what_two_servers_share(site: Site) -> None:
    with site.server() as one, site.server() as two:
        name = name_in(site.url)
        for number, server in ((1, one), (2, two)):
            output = server.output()
            assert f"Database:       {name} at 127.0.0.1:" in output and f", this is worker {number}" in output
            assert "Conversations:" not in output and "Lock databases:" not in output and PASSWORD not in output
            assert health(server) == "ok"
        answer: Response = two.request(
            "POST", "/v1/chat/completions", {"model": "Chat", "messages": conversation("other", 1)}
        )
        assert answer.status == 200 and answer.headers["x-wilmer-worker"] == "2"
        site.catches_up(one, two)
        # What one has stored the other one shows.
        call = [None]
        for server in (one, two):
            exchange = Exchange(server.port, "Recall", conversation(site.name, site.sent))
            assert exchange.wait(PATIENCE).answered
            shown = str(site.backend.last_call("answer").json["messages"][0]["content"])
            assert f"#{site.sent - LOOKBACK - 1}#" in shown
            call.append(shown)  # type: ignore[arg-type]
        assert call[1] == call[2]
    # Commands find running servers by a file there.
    assert not [path for path in (site.tree.public / "DiscussionIds").iterdir() if path.is_dir()]
    assert not (site.tree.public / "SqlLiteDBs").exists()


@pytest.mark.parametrize("key", ["", "a key of a client"], ids=["clear", "encrypted"])
def test_what_is_said_through_one_server_is_found_through_the_other(site: Site, key: str) -> None:
    settings = json.loads((site.tree.configs / f"Workflows/{USER}/memory-settings.json").read_text("utf-8"))
    site.tree.write(f"Workflows/{USER}/memory-settings.json", {**settings, "rememberMessages": True})
    user = json.loads((site.tree.configs / f"Users/{USER}.json").read_text("utf-8"))
    site.tree.write(f"Users/{USER}.json", {**user, "encryptUsingApiKey": True})
    shown = {"type": "StaticResponse", "content": "{agent1Output}"}
    site.tree.shared("Find", {"type": "Recall", "whoSaidIt": "off", "dates": False}, shown)
    site.tree.shared("Say", {"type": "StaticResponse", "content": "The mill has answer {chat_user_prompt_last_one}"})
    said: list[dict[str, str]] = []

    def ask(server: Launcher, model: str, *messages: dict[str, str]) -> str:
        first, *others = messages
        first = {**first, "content": f"[DiscussionId]mill[/DiscussionId]{first['content']}"}
        with contextlib.closing(HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_PATIENCE)) as connection:
            body = json.dumps({"model": model, "messages": [first, *others]})
            headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
            connection.request("POST", "/v1/chat/completions", body, headers)
            answer = connection.getresponse()
            assert answer.status == 200
            return str(json.loads(answer.read())["choices"][0]["message"]["content"])

    def finds(server: Launcher, question: str, line: str) -> bool:
        lines = ask(server, "Find", {"role": "user", "content": question}).splitlines()
        return line in lines

    with site.server() as one, site.server() as two:
        for number in range(6):
            server, other = (one, two) if number % 2 == 0 else (two, one)
            said.append({"role": "user", "content": f"heron{number}"})
            answer = ask(server, "Say", *said)
            said.append({"role": "assistant", "content": answer})
            # A conversation of one message is not found yet. The answer is stored behind itself.
            if number:
                assert until(lambda: finds(other, f"heron{number}", f"Assistant: {answer}"), PATIENCE)  # noqa: B023
                assert finds(other, f"heron{number}", f"User: heron{number}")
        # An edit through one server, and what it replaces is found through neither.
        said[2]["content"] = "an egret instead"
        ask(two, "Say", *said, {"role": "user", "content": "And?"})
        for server in (one, two):
            assert finds(server, "egret", "User: an egret instead") and not finds(server, "heron1", "User: heron1")
    database = open_database(site.url)
    with contextlib.closing(database):
        rows = database.read("SELECT text FROM wilmer.messages")
        assert len(rows) >= 13 and all(text.startswith("gAAAA") == bool(key) for (text,) in rows)


# At most 20 with memories in documents, for which the specification has a budget.
@pytest.mark.parametrize(("vector", "most"), [(False, 8), (True, 10)])
def test_statements_of_a_turn(
    tmp_path: Path, postgres: Server, backend: MemoryBackend, vector: bool, most: int
) -> None:
    """A turn that stores times, shows memories and summary, and finds no work to do; the gate has two more."""
    site = Site(tmp_path, postgres, backend, vector)
    log = StatementLog(postgres, site.url)
    messages = conversation(site.name, 3 * TURN)

    def turn(model: str) -> tuple[list[str], list[str]]:
        """The statements of a turn, and the nodes that called."""
        known, statements, ended = len(backend.calls), list[str](), server.output().count(DONE)
        assert Exchange(server.port, model, messages).wait(PATIENCE).answered
        assert until(lambda: server.output().count(DONE) > ended)
        while True:
            called, new = backend.wait_calls("", 1, 0.4), log.take()
            statements += new
            if not called and not new:
                return statements, backend.calls[known:]

    with site.server("--concurrency", "2") as server:
        # Until everything is remembered that is due.
        assert until(lambda: turn("Whole")[1] == ["answer"], PATIENCE)
        statements, _ = turn("Whole")
        assert sum("gate(" in statement for statement in statements) == 2
        assert len(statements) <= most + 2, "\n".join(statements)
        assert len(turn("Recall")[0]) <= (4 if vector else 2) + 2


@pytest.mark.parametrize("vector", [False, True])
def test_memories_survive_kills_of_workers(
    tmp_path: Path, postgres: Server, backend: MemoryBackend, vector: bool
) -> None:
    """Kill -9 in the middle of a pass, and the next turn goes to the other worker at once."""
    site, chance = Site(tmp_path, postgres, backend, vector), random.Random(f"kill {vector}")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(site.server()) for _ in range(2)]
        for number in range(KILLS):
            server, other = servers[number % 2], servers[1 - number % 2]
            exchange = site.turn(server, wait=False)
            site.backend.wait_calls("", chance.randint(1, 7), 2)
            assert server.process is not None
            server.process.kill()
            server.process.wait(PATIENCE)
            exchange.wait(PATIENCE)
            assert site.turn(other).answered
            site.export()
            servers[number % 2] = stack.enter_context(site.server())
        site.catches_up(*servers)


def test_six_turns_at_once_on_three_servers(crowd: Crowd) -> None:
    """Clients repeat requests and people write in two windows: nothing is remembered twice, and nothing is lost."""
    site, servers = crowd.talk("six")
    for _ in range(ROUNDS):
        site.sent += 2 * TURN
        exchanges = [Exchange(server.port, "Chat", conversation(site.name, site.sent)) for server in servers * 2]
        assert all(exchange.wait(PATIENCE).answered for exchange in exchanges)
        while site.backend.wait_calls("", 1, 0.4):
            pass
        site.export()
    site.catches_up(*servers)


def test_the_same_turn_elsewhere_when_all_connections_end_in_a_pass(crowd: Crowd, postgres: Server) -> None:
    site, (one, two, _) = crowd.talk("elsewhere")
    backend, node = site.backend, "facts" if site.vector else "memory"
    site.catches_up(one)
    site.sent += 2 * TURN
    messages = conversation(site.name, site.sent)
    since = [server.output_size() for server in (one, two)]
    # What both write in the same words is not a conflict.
    backend.distinct = True
    backend.hold(node)
    known = backend.count(node)
    first = Exchange(one.port, "Chat", messages)
    assert until(lambda: backend.count(node) >= known + 1, PATIENCE)
    postgres.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid <> pg_backend_pid()",
        name_in(site.url),
    )
    second = Exchange(two.port, "Chat", messages)
    assert until(lambda: backend.count(node) >= known + 2, PATIENCE)
    backend.release()
    assert first.wait(PATIENCE).answered and second.wait(PATIENCE).answered
    while backend.wait_calls("", 1, 0.4):
        pass
    site.export()

    def output() -> str:
        return "".join(server.output(size) for server, size in zip((one, two), since, strict=True))

    # The one that was slower says so in one line, which is no error.
    assert until(lambda: "Something of this turn" in output(), PATIENCE), output()
    told = [line for line in output().splitlines() if re.search(" WARNING | ERROR |Traceback", line)]
    assert all("Something of this turn is not stored, as another worker has changed " in line for line in told), told
    assert len(told) <= 2
    backend.distinct = False
    site.catches_up(one, two)


def test_a_database_that_is_killed_fails_no_chat(tmp_path: Path, own_postgres: Server, backend: MemoryBackend) -> None:
    site = Site(tmp_path, own_postgres, backend, vector=False)
    with site.server() as one, site.server() as two:
        site.catches_up(one, two)
        for _ in range(2):
            during = site.turn(one, wait=False)
            own_postgres.kill()
            assert during.wait(PATIENCE).answered
            for server in (one, two):
                assert site.turn(server).answered
                until_health(server, "unreachable")
            # Nobody asks a database that is down: a wait would be two seconds for each statement.
            for server in (one, two, one, two):
                assert site.turn(server).answered
            unknown = {"request_id": "0123456789abcdef"}
            assert one.request("DELETE", "/api/chat", unknown).status == 503
            own_postgres.start()
            for server in (one, two):
                until_health(server, "ok")
            assert one.request("DELETE", "/api/chat", unknown).status == 200
        site.catches_up(one, two)
        for server in (one, two):
            log = server.output()
            assert log.count(") does not answer: ") == 2 == log.count("The state database answers again after")
            assert "Traceback" not in log and PASSWORD not in log


def test_a_database_that_is_frozen_is_left_alone(tmp_path: Path, own_postgres: Server, backend: MemoryBackend) -> None:
    site = Site(tmp_path, own_postgres, backend, vector=False)
    with site.server() as server:
        site.catches_up(server)
        own_postgres.freeze()
        try:
            turns = [site.turn(server) for _ in range(2)]
            until_health(server, "unreachable")
            turns += [site.turn(server) for _ in range(3)]
        finally:
            own_postgres.thaw()
        assert all(turn.answered for turn in turns), [turn.status for turn in turns]
        until_health(server, "ok")
        site.catches_up(server)


def test_a_stop_reaches_the_other_server(site: Site) -> None:
    with site.server() as one, site.server() as two:
        site.backend.hold("answer")
        exchange = Exchange(one.port, "Recall", conversation("other", 1), stream=True)
        assert until(lambda: site.backend.count("answer") == 1, PATIENCE)
        log = one.wait_output(" arrived: POST /v1/chat/completions", PATIENCE)
        request_id = log.split(" arrived: POST /v1/chat/completions")[-2].rsplit("Request ", 1)[-1]
        assert two.request("DELETE", "/api/chat", {"request_id": request_id}).status == 200
        exchange.wait(PATIENCE)
        assert b"This is" not in exchange.body
        site.backend.release()


def test_conversations_in_files_are_named_until_they_are_in_the_database(site: Site) -> None:
    folder = site.tree.public / "DiscussionIds" / "earlier"
    folder.mkdir(parents=True)
    (folder / "memories.json").write_text('[{"text_block": "long ago", "hash": "h"}]', "utf-8")
    warning = "The folders hold conversations that are not in the state database (1)"
    with site.server() as server:
        assert server.output().count(warning) == 1
    done = run_launcher(
        "run_waitress.py", "state", "import", "--PublicDirectory", site.tree.public, "--database", site.url
    )
    assert done.returncode == 0 and "1 discussions imported" in done.stdout
    with site.server() as server:
        assert "The folders hold" not in server.output()
        with contextlib.closing(open_database(site.url)) as database:
            assert database.read("SELECT count(*) FROM wilmer.workers") == [(1,)]
            assert server.process is not None
            server.process.terminate()
            assert server.process.wait(PATIENCE) == 0
            # It leaves no row that could be taken for that of the next one with its number.
            assert database.read("SELECT count(*) FROM wilmer.workers") == [(0,)]


# -- starts that fail --------------------------------------------------------------------------------------------------


def failure(site: Site, url: str, script: str = "run_waitress.py") -> subprocess.CompletedProcess[str]:
    done = run_launcher(script, "--PublicDirectory", site.tree.public, "--User", USER, "--port", "0", "--database", url)
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr and "geheim" not in done.stdout + done.stderr
    [line] = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("ERROR:")]
    done.stderr = line
    return done


def test_starts_that_fail_say_why_in_one_line(site: Site, postgres: Server) -> None:
    name = name_in(site.url)
    assert "password authentication failed" in failure(site, postgres.url(name, "geheim")).stderr
    assert 'database "nothing" does not exist' in failure(site, postgres.url("nothing")).stderr
    assert failure(site, "mysql://ann:geheim@127.0.0.1/x").stderr == "ERROR: --database: it takes postgresql://..."
    assert "Connection refused" in failure(site, "postgresql://ann:geheim@127.0.0.1:1/x").stderr


def test_eventlet_names_the_other_launcher(site: Site) -> None:
    pytest.importorskip("eventlet")
    assert "start run_waitress.py instead" in failure(site, site.url, "run_eventlet.py").stderr
