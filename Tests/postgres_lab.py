"""A PostgreSQL server for the tests, of Debian's package: one for each process of pytest, with an empty database for
each test that asks for one."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from Tests.free_ports import free_port

if TYPE_CHECKING:
    from Middleware.addons.postgres.database import Database

INSTALLED = Path("/usr/lib/postgresql")
ROLE, PASSWORD = "wilmer", "Geheim-17"
_START_SECONDS = 60
# What makes it quick and small: the data need not survive.
_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
    "jit": "off",
    "password_encryption": "md5",
    "listen_addresses": "127.0.0.1",
}


def missing() -> str:
    """Return what these tests need and is not here; empty if all is."""
    if sys.platform == "win32":
        return "PostgreSQL is that of Debian"  # whose folder Windows has under Wine
    if not programs():
        return f"PostgreSQL is not installed in {INSTALLED} (on Debian: apt-get install postgresql)"
    if importlib.util.find_spec("psycopg") is None or importlib.util.find_spec("psycopg_pool") is None:
        return "psycopg is not installed (requirements-database.txt)"
    return ""


def programs() -> Path | None:
    """Return the folder of the newest installed server's programs."""
    found = sorted(INSTALLED.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class Server:
    """A server in a folder of its own, on a free port of this machine.

    Its superuser is ``postgres``, without a password over the socket in ``folder``. Tests connect as ``wilmer``, which
    may create tables in its own databases and no more.
    """

    def __init__(self, **settings: str) -> None:
        found = programs()
        assert found is not None
        self.programs = found
        self.settings = {**_SETTINGS, **settings}
        # Not below pytest's folder: that is closed to other users, and the server does not run as root.
        self.folder = Path(tempfile.mkdtemp(prefix="wilmer-pg-"))
        self.log = self.folder / "log"
        self._as: dict[str, object] = {}
        if sys.platform != "win32" and os.geteuid() == 0:
            self._as = {"user": "postgres", "group": "postgres", "extra_groups": []}
        self.own(self.folder)
        self._run(
            "initdb",
            "--pgdata",
            str(self.data),
            "--username",
            "postgres",
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "--locale",
            "C",
            "--no-sync",
            "--no-instructions",
        )
        access = self.data / "pg_hba.conf"
        access.write_text("local all all trust\nhost all all 127.0.0.1/32 md5\n", "utf-8")
        self._databases = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.start()
        self.sql(f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD}'")

    def own(self, path: Path) -> None:
        """Give a file or folder to the account that the server's programs run under."""
        if self._as:
            shutil.chown(path, "postgres", "postgres")

    def popen(self, command: Sequence[str | Path], log: Path) -> subprocess.Popen[bytes]:
        """Start a program under the server's account."""
        with log.open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", **self._as
            )  # type: ignore[call-overload,no-any-return]

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, again on the port that it had. Returns when it takes connections."""
        for _ in range(40):
            port = self.port or free_port()
            if self._started(port):
                self.port = port
                return
            # Another program may have taken the port, or processes of the killed server may not have ended.
            time.sleep(0.5)
        raise AssertionError(f"PostgreSQL does not start: {self.log.read_text('utf-8', 'replace')[-2000:]}")

    def _started(self, port: int) -> bool:
        settings = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        self._process = self.popen(
            [self.programs / "postgres", "-D", self.data, "-p", str(port), "-k", self.folder, *settings], self.log
        )
        ends = time.monotonic() + _START_SECONDS
        while time.monotonic() < ends and self._process.poll() is None:
            # The last line of this file is the server's word for its state.
            state = self.data / "postmaster.pid"
            if state.is_file() and state.read_text("utf-8").rstrip().endswith("ready"):
                return True
            time.sleep(0.02)
        self._end(lambda process: process.kill())
        return False

    def stop(self) -> None:
        """End it as an administrator does, without waiting for its clients."""
        self._end(lambda process: process.send_signal(signal.SIGINT))

    def kill(self) -> None:
        """End all its processes as a crash does."""
        self._end(lambda process: self._signal("SIGKILL"))

    def _end(self, how: Callable[[subprocess.Popen[bytes]], object]) -> None:
        if self._process is not None:
            how(self._process)
            self._process.wait(60)
            self._process = None

    def freeze(self) -> None:
        """Stop all its processes, as a machine does that hangs: its sockets stay open and nothing answers."""
        self._signal("SIGSTOP")

    def thaw(self) -> None:
        self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        # Windows does not have these.
        number = getattr(signal, name)
        # The first process starts those that serve connections. Once it is stopped, no other begins.
        os.kill(self.pid, number)
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.pid)], capture_output=True, encoding="utf-8")
        for pid in map(int, children.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def remove(self) -> None:
        # A test that failed may have left it frozen.
        if self._process is not None:
            self.thaw()
        # Without writing what nobody reads again.
        self._end(lambda process: process.send_signal(getattr(signal, "SIGQUIT", signal.SIGTERM)))
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Return what the superuser's statement prints."""
        return self._run(
            "psql",
            "--no-psqlrc",
            "--quiet",
            "--tuples-only",
            "--no-align",
            "--set",
            "ON_ERROR_STOP=1",
            "--host",
            str(self.folder),
            "--port",
            str(self.port),
            "--username",
            "postgres",
            "--dbname",
            database,
            "--command",
            statement,
        ).strip()

    @property
    def admin(self) -> str:
        """How its superuser connects, for psycopg."""
        return f"host={self.folder} port={self.port} user=postgres dbname=postgres"

    def dump(self, database: str) -> str:
        """Return what ``pg_dump`` writes."""
        return self._run(
            "pg_dump", "--host", str(self.folder), "--port", str(self.port), "--username", "postgres", database
        )

    def new_database(self) -> str:
        """Return the address of a new, empty database."""
        name = f"test_{next(self._databases)}"
        self.sql(f"CREATE DATABASE {name} OWNER {ROLE}")
        return self.url(name)

    def url(self, database: str, password: str = PASSWORD) -> str:
        # A busy machine may take longer than the program's three seconds.
        return f"postgresql://{ROLE}:{password}@127.0.0.1:{self.port}/{database}?connect_timeout=60"

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [self.programs / program, *arguments], capture_output=True, encoding="utf-8", cwd="/", **self._as
        )  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        return str(done.stdout)


class StatementLog:
    """What clients send to one database over connections that are opened from now on."""

    # What workers send by the clock, whoever chats.
    _BY_THE_CLOCK = re.compile(
        r"SELECT 1$|.* FROM wilmer\.live_workers\(\)|.* wilmer\.workers\b|SELECT id FROM wilmer\.gate WHERE worker|"
        r"DELETE FROM wilmer\.cancellations"
    )
    _STATEMENT = re.compile(r"LOG:  (?:execute [^:]+|statement): (.+(?:\n\t.*)*)")

    def __init__(self, server: Server, url: str) -> None:
        self._log, self._read = server.log, 0
        server.sql(f"ALTER DATABASE {name_in(url)} SET log_statement = 'all'")

    def take(self) -> list[str]:
        """Return the statements since the last call, each on one line, without those that workers send by the clock."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        self._read += len(data)
        found = (" ".join(statement.split()) for statement in self._STATEMENT.findall(data.decode("utf-8", "replace")))
        return [statement for statement in found if not self._BY_THE_CLOCK.match(statement)]


def name_in(url: str) -> str:
    """Return the name of the database that ``url`` means."""
    return url.rpartition("/")[2].partition("?")[0]


def need_postgres() -> None:
    """Skip the test where there is no PostgreSQL; with CI set, fail it on Linux, where it can be installed."""
    problem = missing()
    if problem and os.environ.get("CI") and sys.platform == "linux":
        pytest.fail(f"{problem}: with CI set, the tests of database mode must run")
    if problem:
        pytest.skip(f"{problem}: tests of database mode are left out")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """The server that tests share. They leave it running."""
    need_postgres()
    server = Server()
    yield server
    server.remove()


@pytest.fixture
def own_postgres() -> Iterator[Server]:
    """A server that the test may end, freeze and start again."""
    need_postgres()
    # What is committed survives the end of the server's processes, though not that of the machine.
    server = Server(synchronous_commit="on", full_page_writes="on")
    yield server
    server.remove()


@pytest.fixture
def database_url(postgres: Server) -> str:
    """The address of an empty database."""
    return postgres.new_database()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with the present schema, opened."""
    opened = open_database(database_url)
    yield opened
    opened.close()


def open_database(url: str) -> Database:
    """Return a database with the present schema, as one more worker has it, but patient with a busy machine.

    ``impatient`` gives it the limits of a server again.
    """
    from Middleware.addons.postgres.database import Database
    from Middleware.addons.postgres.migrations import migrate

    opened = Database(url)
    opened.statement_seconds = opened.checkout_seconds = 60
    with opened.connect() as connection:
        migrate(connection)
    opened.open()
    return opened


def impatient(database: Database) -> None:
    from Middleware.addons.postgres.database import Database

    database.statement_seconds, database.checkout_seconds = Database.statement_seconds, Database.checkout_seconds


def eventually(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.05)
