"""``/metrics`` of a real server: what Prometheus' own parser reads there, and whether the store says the same."""

from __future__ import annotations

import http.client
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from Middleware.common.constants import VERSION
from Tests.integration.launcher import (
    USER,
    Backend,
    Launcher,
    Response,
    child_node,
    endpoint,
    llm_node,
    run_launcher,
    says,
    standard_tree,
    stuck,
)
from Tests.patience import CLIENT_PATIENCE
from Tests.stub_backend import RecordedRequest, Reply, status_reply
from Tests.workflows.engine_lab import until

Sample = tuple[str, tuple[tuple[str, str], ...]]


class Measured:
    """A server with ``--metrics``, and its store."""

    def __init__(self, script: str, public: Path, backend: Backend, *words: str) -> None:
        self.tree = standard_tree(public, backend.url)
        self.backend = backend
        respond = {"returnToUser": True}
        self.tree.write(
            "Endpoints/Broken.json", endpoint(backend.url, modelNameToSendToAPI="broken", backupEndpointName="Stub")
        )
        self.tree.shared("Backed", llm_node("backed", endpointName="Broken", **respond))
        self.tree.shared("Outer", child_node("Steps"), llm_node("outer", **respond))
        self.server = Launcher(
            script, "--PublicDirectory", public, "--User", USER, "--metrics", *words, backend=backend
        )

    def samples(self) -> dict[Sample, float]:
        """Return the value of each sample, by name and labels, as Prometheus' parser reads them."""
        answer = self.server.request("GET", "/metrics")
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain; version=")
        return {
            (one.name, tuple(sorted(one.labels.items()))): one.value
            for family in text_string_to_metric_families(answer.body.decode())
            for one in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with these labels."""
        return sum(
            value
            for (known, pairs), value in self.samples().items()
            if known == name and labels.items() <= dict(pairs).items()
        )

    def stored(self, columns: str) -> list[tuple[Any, ...]]:
        """Return these columns of all runs in the store."""
        path = self.tree.public / "Console" / "index.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            # The server may be about to make the tables.
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'run'").fetchall():
                return []
            return database.execute(f"SELECT {columns} FROM run WHERE ended IS NOT NULL").fetchall()

    def cancel(self) -> None:
        """Leave in the middle of an answer."""
        self.backend.replies["single"] = stuck("one ", "two ")
        with self.server.open("Single", True) as sock:
            self.backend.wait_call("single")
            sock.recv(100)
        del self.backend.replies["single"]


@pytest.fixture(scope="module", params=["run_waitress.py", "run_eventlet.py"])
def after_some_runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """A server that has answered whole, streamed, failed, was repeated, left, and helped by a backup."""
    if request.param == "run_eventlet.py":
        pytest.importorskip("eventlet")
    with Backend() as backend:
        measured = Measured(request.param, tmp_path_factory.mktemp("metrics") / "Public", backend)
        with measured.server as server:
            assert server.ask("Single").status == 200
            assert server.ask("Single", stream=True).status == 200
            assert server.ask("Outer").status == 200
            backend.replies["backed"] = _broken
            assert server.ask("Backed").status == 200
            assert server.ask("Nobody-named-this").status in (200, 400, 404)
            backend.replies["single"] = status_reply(400, "a secret of the back-end")
            assert server.ask("Single").status >= 400
            backend.replies["single"] = _busy_once()
            assert server.ask("Single").status == 200
            del backend.replies["single"]
            measured.cancel()
            assert until(lambda: len(measured.stored("id")) >= 8 and measured.value("wilmer_requests_total") >= 8, 60)
            yield measured


def _broken(request: RecordedRequest) -> Reply:
    return status_reply(500, "out of memory") if request.json["model"] == "broken" else says(request, "backed")


def _busy_once() -> Any:
    answers: list[Reply] = [status_reply(503, "busy")]
    return lambda request: answers.pop() if answers else says(request, "single")


def test_it_agrees_with_the_store(after_some_runs: Measured) -> None:
    samples = after_some_runs.samples()
    counted = {
        tuple(dict(pairs)[label] for label in ("user", "kind", "status")): value
        for (name, pairs), value in samples.items()
        if name == "wilmer_requests_total"
    }
    assert counted == Counter(after_some_runs.stored("user, kind, status"))
    assert {status for _, _, status in counted} >= {"ok", "failed", "cancelled"}
    sums = {
        name: sum(row[0] or 0 for row in after_some_runs.stored(name))
        for name in ("tokens_in", "tokens_out", "tokens_cached", "calls", "nodes")
    }
    measured = after_some_runs
    assert measured.value("wilmer_tokens_total", type="input") == sums["tokens_in"] > 0
    assert measured.value("wilmer_tokens_total", type="output") == sums["tokens_out"] > 0
    assert measured.value("wilmer_tokens_total", type="cached") == sums["tokens_cached"]
    assert measured.value("wilmer_llm_calls_total") == sums["calls"]
    assert measured.value("wilmer_llm_call_seconds_count") == sums["calls"]
    assert measured.value("wilmer_node_seconds_count") == sums["nodes"]
    seconds = sum((ended - started) / 1e6 for started, ended in measured.stored("started, ended"))
    assert measured.value("wilmer_request_seconds_sum") == pytest.approx(seconds)


def test_what_went_wrong_is_counted(after_some_runs: Measured) -> None:
    measured = after_some_runs
    assert measured.value("wilmer_llm_calls_total", endpoint="Stub", model="stub", status="error") == 1
    assert measured.value("wilmer_llm_calls_total", endpoint="Stub", model="stub", status="cancelled") == 1
    assert measured.value("wilmer_failovers_total", endpoint="Broken", backup="Stub") == 1
    assert measured.value("wilmer_failovers_total") == measured.value("wilmer_retries_total") == 1
    assert measured.value("wilmer_time_to_first_token_seconds_count", endpoint="Stub") >= 1
    assert measured.value("wilmer_node_seconds_count", workflow="Steps", node_type="Standard") == 2
    assert measured.value("wilmer_gate_running") == measured.value("wilmer_gate_waiting") == 0
    assert measured.value("wilmer_records_dropped_total") == 0
    assert measured.value("wilmer_build_info", version=VERSION) == 1


def test_nothing_that_was_said_or_sent_is_in_it(after_some_runs: Measured) -> None:
    text = after_some_runs.server.request("GET", "/metrics").body.decode()
    assert not [word for word in ("Nobody-named", "Hello", "hello", "secret", "127.0.0.1") if word in text]


def test_prometheus_gets_the_form_that_it_asks_for(after_some_runs: Measured) -> None:
    def ask(accept: str) -> tuple[str, str]:
        answer = asked(after_some_runs.server, "GET", Accept=accept)
        return answer.headers["content-type"], answer.body.decode()

    kind, text = ask("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5")
    assert kind.startswith("application/openmetrics-text") and text.endswith("# EOF\n")
    assert {family.name for family in parse_openmetrics(text)} >= {"wilmer_requests", "wilmer_request_seconds"}
    for accept in ("*/*", "text/plain;version=never", "\t", "application/json"):
        kind, text = ask(accept)
        assert kind.startswith("text/plain") and list(text_string_to_metric_families(text))
    assert asked(after_some_runs.server, "HEAD").body == b""
    assert after_some_runs.server.request("POST", "/metrics", {}).status == 405


def asked(server: Launcher, method: str, **headers: str) -> Response:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_PATIENCE)) as connection:
        connection.request(method, "/metrics", headers=headers)
        answer = connection.getresponse()
        return Response(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def test_it_needs_a_key_where_all_routes_need_one(tmp_path: Path, shared_backend: Backend) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("a-key-of-forty-characters-for-prometheus  # Prometheus\n", "utf-8")
    measured = Measured("run_waitress.py", tmp_path / "Public", shared_backend, "--accepted-keys-file", str(keys))
    with measured.server as server:
        assert asked(server, "GET").status == asked(server, "GET", Authorization="Bearer wrong").status == 401
        answer = asked(server, "GET", Authorization="Bearer a-key-of-forty-characters-for-prometheus")
        assert answer.status == 200 and b"wilmer_build_info" in answer.body
        foreign = asked(
            server,
            "GET",
            Authorization="Bearer a-key-of-forty-characters-for-prometheus",
            Origin="https://elsewhere.example.com",
        )
        assert foreign.status == 403 and b"wilmer_build_info" not in foreign.body
        assert f"  Metrics:        {server.url}/metrics" in server.output()


def test_it_counts_without_a_console(tmp_path: Path, shared_backend: Backend) -> None:
    measured = Measured("run_waitress.py", tmp_path / "Public", shared_backend, "--console", "off", "--record", "texts")
    with measured.server as server:
        assert server.ask("Single").status == 200
        assert until(lambda: measured.value("wilmer_requests_total", user=USER, status="ok") == 1)
        assert server.request("GET", "/console/").status == 404
        assert "Console" not in server.output()
    assert not (tmp_path / "Public" / "Console").exists()


def test_without_the_flag_there_is_no_such_route(tmp_path: Path, shared_backend: Backend) -> None:
    tree = standard_tree(tmp_path / "Public", shared_backend.url)
    words = "--PublicDirectory", tree.public, "--User", USER
    with Launcher("run_waitress.py", *words, backend=shared_backend) as server:
        assert server.request("GET", "/metrics").status == 404


def test_a_missing_package_is_told_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'prometheus_client' else find(name, *more)\n",
        "utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_launcher("run_waitress.py", "--metrics")
    assert done.returncode == 1
    assert "ERROR: --metrics needs packages that are not installed. Install them with: " in done.stderr
    assert done.stderr.rstrip().endswith("requirements.lock")
