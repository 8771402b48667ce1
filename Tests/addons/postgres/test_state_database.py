"""The start of a worker's connections: what it finds, and what it says in one line if it cannot start."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from Middleware.addons.postgres.database_address import is_encrypted_or_local, problem_of
from Middleware.addons.postgres.state_database import StateStartError, StateWorker
from Middleware.models.process import Process, install
from Middleware.utilities.http.via import chain, comes_back
from Tests.postgres_lab import PASSWORD, Server, eventually, name_in
from Tests.tables import table

pytestmark = pytest.mark.slow


@contextlib.contextmanager
def started(url: str, tell: Callable[[str], object] = lambda text: None) -> Iterator[StateWorker]:
    worker = StateWorker(url)
    worker.database.statement_seconds = worker.database.checkout_seconds = 60
    worker.start(tell, 60)
    try:
        yield worker
    finally:
        worker.stop()


def refusal(url: str, patience: float = 0) -> str:
    """Return what a start says that fails. It must be one line without the password."""
    with pytest.raises(StateStartError) as refused:
        StateWorker(url).start(lambda text: None, patience)
    text = str(refused.value)
    assert PASSWORD not in text and "geheim" not in text and "\n" not in text
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    return text


def test_the_servers_of_a_database_know_each_others_requests(database_url: str, own_process: None) -> None:
    alone = chain("")
    with started(database_url):
        sent = chain("")
        assert not comes_back(alone)
    install(Process())
    assert not comes_back(sent)
    with started(database_url):
        assert comes_back(sent)


@pytest.fixture
def own_process() -> Iterator[None]:
    replaced = install(Process())
    yield
    install(replaced)


def test_two_workers_that_start_at_once_on_an_empty_database(database_url: str) -> None:
    numbers: list[int] = []
    stop, errors = threading.Event(), []

    def run() -> None:
        try:
            with started(database_url) as worker:
                numbers.append(worker.session.number)
                stop.wait(60)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(numbers) == 2 or bool(errors))
    with started(database_url) as third:
        assert sorted(numbers) == [1, 2] and third.session.number == 3
        assert third.database.read("SELECT current_setting('application_name')") == [("wilmer-3",)]
        name = name_in(database_url)
        assert third.description.startswith(f"{name} at 127.0.0.1:") and "(PostgreSQL 1" in third.description
        stop.set()
        for thread in threads:
            thread.join(60)
        eventually(lambda: third.database.read("SELECT wilmer.live_workers()") == [(3,)])
    assert errors == []


def test_what_cannot_be_right(postgres: Server, database_url: str) -> None:
    assert "password authentication failed" in refusal(postgres.url(name_in(database_url), "geheim"), 60)
    assert 'database "nothing" does not exist' in refusal(postgres.url("nothing"), 60)
    assert "Connection refused" in refusal("postgresql://ann:geheim@127.0.0.1:1/wilmer")
    for url in (
        "postgresql://ann:geheim@127.0.0.1/x?nonsense=1",
        "postgresql://ann:geheim@[::1/x",
        "postgresql://ann@127.0.0.1:geheim/x",
    ):
        assert refusal(url).startswith("the address cannot be read")


SPECIAL = (
    "special characters in user and password must be percent-encoded: @ is %40, / is %2F, ? is %3F, # is %23, % is %25"
)


@table(
    "url, problem",
    [
        ("postgresql://db/wilmer", ""),
        ("postgres:///wilmer", ""),
        ("postgresql://ann:x@db/wilmer?sslmode=require", ""),
        ("mysql://ann:x@db/wilmer", "it takes postgresql://..."),
        ("db", "it takes postgresql://..."),
        ("", "it takes postgresql://..."),
        ("postgresql://ann:x@db/wilmer@home", ""),
        ("postgresql://ann:x@db/wilmer?options=-c%20a@b", ""),
        ("postgresql://ann:a/b@db/wilmer", SPECIAL),
        ("postgresql://ann:a@b@db/wilmer", SPECIAL),
        ("postgresql://ann:a@b/c@db/wilmer", SPECIAL),
        ("postgresql://ann:x@db/wilmer?passfile=/a@b/c", ""),
    ],
)
def test_addresses(url: str, problem: str) -> None:
    assert problem_of(url) == problem


@table(
    "sslmode, hosts, safe",
    [
        ("", "", True),
        ("", "/run/postgresql", True),
        ("", "localhost", True),
        ("prefer", "127.0.0.1", True),
        ("", "db.example.com", False),
        ("prefer", "10.0.0.5", False),
        ("require", "10.0.0.5", True),
        ("verify-full", "a,b", True),
        ("", "localhost,db", False),
        ("allow", "::1", True),
    ],
)
def test_who_may_read_on_the_way(sslmode: str, hosts: str, safe: bool) -> None:
    assert is_encrypted_or_local(sslmode, hosts) is safe


def test_a_database_that_is_not_there_yet_is_waited_for(own_postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("Middleware.addons.postgres.state_database._QUIET_SECONDS", 0)
    url = own_postgres.new_database()
    own_postgres.stop()
    told: list[str] = []

    def start_server(text: str) -> None:
        told.append(text)
        own_postgres.start()

    with started(url, start_server) as worker:
        assert worker.session.number == 1
    assert len(told) == 1 and "Connection refused" in told[0] and PASSWORD not in told[0]


def test_another_program_on_the_port_is_named() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = server.accept()[0]
                with connection:
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    text = refusal(f"postgresql://ann:geheim@127.0.0.1:{server.getsockname()[1]}/wilmer?connect_timeout=60", 60)
    # Ends the thread's wait, too.
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(60)
    assert "is not PostgreSQL: " in text


def test_notifications_that_do_not_arrive(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("Middleware.addons.postgres.state_database.notifications_arrive", lambda *arguments: False)
    assert "a pooler in transaction mode does not work here" in refusal(database_url, 60)


def test_too_old_or_without_unicode(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 OWNER wilmer")
    assert "has the encoding LATIN1" in refusal(postgres.url("latin"), 60)
    monkeypatch.setattr("Middleware.addons.postgres.state_database.OLDEST_SERVER", 99)
    assert "99 or newer is needed" in refusal(postgres.new_database(), 60)


def test_a_role_that_may_not_and_a_schema_that_is_too_new(postgres: Server, database_url: str) -> None:
    with started(database_url) as worker:
        worker.database.write("INSERT INTO wilmer.schema_version (version, oldest_program) VALUES (9000, 9000)")
    assert "this one knows" in refusal(database_url, 60)
    other = postgres.new_database()
    postgres.sql(f"ALTER DATABASE {name_in(other)} OWNER TO postgres")
    assert "the role wilmer may not make the tables" in refusal(other, 60)


def test_nothing_is_said_of_a_connection_on_this_machine(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with started(database_url):
        pass
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
