"""WSGI hosts that load ``server:application`` with a state database, over real sockets."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from Tests.integration.launcher import PROJECT, USER, Backend, Launcher, clean_environment, standard_tree
from Tests.postgres_lab import PASSWORD
from Tests.workflows.engine_lab import until

pytestmark = pytest.mark.slow

# The place of the configuration, which a host takes from the project's folder.
LOAD = """\
import os, sys
sys.path.insert(0, os.getcwd())
from Middleware.common import instance_global_variables as instance
instance.PUBLIC_DIRECTORY, instance.USERS = sys.argv[1], [sys.argv[2]]
from server import application
"""
WAITRESS = (
    LOAD
    + """
import waitress
server = waitress.create_server(application, listen="127.0.0.1:0")
print(f"port {server.effective_port}", flush=True)
server.run()
"""
)
# As gunicorn --preload does, and uWSGI without lazy-apps.
FORKS = (
    LOAD
    + """
from wsgiref.simple_server import make_server
server = make_server("127.0.0.1", 0, application)
print(f"port {server.server_port}", flush=True)
child = os.fork()
if not child:
    server.serve_forever()
print(f"child {child}", flush=True)
os.waitpid(child, 0)
"""
)


class Host(Launcher):
    """A program that serves the application."""

    def __init__(self, program: str, public: Path, url: str, backend: Backend) -> None:
        super().__init__("server:application", backend=backend)
        self._program, self._public, self._url = program, public, url

    def __enter__(self) -> Host:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self._program, self._public, USER],
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**clean_environment(), "WILMER_DATABASE_URL": self._url},
            )
        try:
            assert until(self._answers, 120), self.output()
        except BaseException:
            self.stop()
            raise
        return self

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.output()
        found = re.search(r"^port (\d+)$", self.output(), re.MULTILINE)
        self.port = int(found[1]) if found else 0
        with contextlib.suppress(OSError):
            self.request("GET", "/health")
            return True
        return False


@pytest.fixture
def public(tmp_path: Path, backend: Backend) -> Iterator[Path]:
    yield standard_tree(tmp_path / "Public", backend.url).public


def test_each_process_that_loads_the_application_is_a_worker(public: Path, backend: Backend, database_url: str) -> None:
    with Host(WAITRESS, public, database_url, backend) as one, Host(WAITRESS, public, database_url, backend) as two:
        for number, host in ((1, one), (2, two)):
            answer = host.ask("Single")
            assert answer.status == 200 and answer.headers["x-wilmer-worker"] == str(number)
            assert host.request("GET", "/health").json["database"] == "ok"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")
def test_a_process_that_was_forked_after_the_start_says_so(public: Path, backend: Backend, database_url: str) -> None:
    with Host(FORKS, public, database_url, backend) as host:
        child = int(host.wait_output("child ").rpartition("child ")[2].split()[0])
        try:
            for answer in (host.request("GET", "/health"), host.ask("Single"), host.request("GET", "/v1/models")):
                assert answer.status == 500 and "gunicorn without --preload" in answer.error
            # Programs that a workflow starts by forking are no servers, and the first process is not disturbed.
            output = host.output()
            assert "does not answer" not in output and PASSWORD not in output and "Traceback" not in output
        finally:
            os.kill(child, 9)


def test_a_database_that_cannot_be_used_ends_the_host(public: Path, backend: Backend) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WAITRESS, public, USER],
        cwd=PROJECT,
        timeout=120,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        env={**clean_environment(), "WILMER_DATABASE_URL": "postgresql://ann:geheim@127.0.0.1:1/x%zz"},
    )
    assert done.returncode != 0 and "--database: the address cannot be read" in done.stderr
    assert "geheim" not in done.stdout + done.stderr
