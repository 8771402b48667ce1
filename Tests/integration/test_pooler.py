"""Servers behind a real PgBouncer: in session mode all works as without it, in the other modes no server starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from Tests.free_ports import free_port
from Tests.integration.memory_chat import Exchange, conversation
from Tests.integration.test_recipe_of_workers import accepts
from Tests.integration.test_state_database import PATIENCE, Site, backend, failure, site, until_health
from Tests.postgres_lab import PASSWORD, ROLE, Server, name_in
from Tests.workflows.engine_lab import until

__all__ = ["backend", "site"]

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = md5
auth_file = {folder}/users.txt
pool_mode = {mode}
default_pool_size = {size}
logfile = {folder}/pgbouncer.log
pidfile = {folder}/pgbouncer.pid
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deep,
    pytest.mark.skipif(
        PGBOUNCER is None,
        reason="pgbouncer is not installed (on Debian: apt-get install "
        "pgbouncer): servers behind a pooler are left out",
    ),
]


class Pooler:
    """PgBouncer before a PostgreSQL server."""

    def __init__(self, server: Server, mode: str, size: int = 40) -> None:
        self.server, self.mode, self.size, self.port = server, mode, size, free_port()
        # pytest's own folder is closed to other users, and PgBouncer does not run as root.
        self._folder = Path(tempfile.mkdtemp(prefix="wilmer-pgbouncer-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Pooler:
        (self._folder / "users.txt").write_text(f'"{ROLE}" "{PASSWORD}"\n', "utf-8")
        (self._folder / "pgbouncer.ini").write_text(
            SETTINGS.format(
                server=self.server.port, port=self.port, folder=self._folder, mode=self.mode, size=self.size
            ),
            "utf-8",
        )
        for path in (self._folder, *self._folder.iterdir()):
            self.server.own(path)
        self.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        assert PGBOUNCER is not None
        log = self._folder / "output"
        self._process = process = self.server.popen([PGBOUNCER, self._folder / "pgbouncer.ini"], log)
        assert until(lambda: process.poll() is not None or accepts(self.port))
        assert process.poll() is None, log.read_text("utf-8")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)

    def url(self, database: str) -> str:
        """Return the address of a database by way of the pooler."""
        return database.replace(f":{self.server.port}/", f":{self.port}/")


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_other_modes_are_refused_and_leave_nothing(site: Site, postgres: Server, mode: str) -> None:
    with Pooler(postgres, mode) as pooler:
        for _ in range(2):
            assert failure(site, pooler.url(site.url)).stderr.endswith(
                "notifications do not arrive: a pooler in transaction mode does not work here; connect to PostgreSQL "
                "itself or to a pooler in session mode"
            )
        # The connections that the pooler keeps hold no lock, by which a worker would seem to be alive.
        held = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = "
            f"(SELECT oid FROM pg_database WHERE datname = '{name_in(site.url)}')"
        )
        assert postgres.sql(held) == "0"
        with site.server() as server:
            assert ", this is worker 1" in server.output()


def test_a_pool_that_is_too_small_is_named(site: Site, postgres: Server) -> None:
    with Pooler(postgres, "session", size=2) as pooler:
        line = failure(site, pooler.url(site.url)).stderr
        assert line.endswith(
            "a statement was not answered within 4 s. If this is a pooler, it needs 10 connections to "
            "PostgreSQL for each server (PgBouncer: default_pool_size)"
        )


def test_session_mode_works_wholly(site: Site, postgres: Server) -> None:
    with Pooler(postgres, "session") as pooler:
        site.url = pooler.url(site.url)
        with site.server() as one, site.server() as two:
            assert ", this is worker 2" in two.output()
            site.catches_up(one, two)
            # A stop of a request that the other one has.
            site.backend.hold("answer")
            known = site.backend.count("answer")
            exchange = Exchange(one.port, "Recall", conversation("other", 1), stream=True)
            assert until(lambda: site.backend.count("answer") == known + 1, PATIENCE)
            log = one.wait_output(" arrived: POST /v1/chat/completions", PATIENCE)
            request_id = log.split(" arrived: POST /v1/chat/completions")[-2].rsplit("Request ", 1)[-1]
            assert two.request("DELETE", "/api/chat", {"request_id": request_id}).status == 200
            exchange.wait(PATIENCE)
            site.backend.release()
            # The locks of a killed worker are freed: the pooler resets its connections.
            assert one.process is not None
            one.process.kill()
            one.process.wait(PATIENCE)
            with site.server() as again:
                assert ", this is worker 1" in again.output()
                # The pooler ends, and is back.
                pooler.kill()
                assert site.turn(two).answered
                for server in (two, again):
                    until_health(server, "unreachable")
                pooler.start()
                for server in (two, again):
                    until_health(server, "ok")
                site.catches_up(two, again)
                assert "Traceback" not in two.output() + again.output()
