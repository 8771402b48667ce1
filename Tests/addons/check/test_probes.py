"""Whether ``check --online`` reaches what real calls reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from Middleware.addons.check import check_command
from Middleware.addons.check.check_command import why_silent
from Middleware.exceptions import BackendConnectionError
from Middleware.llmapis.transport import BackendRequest, Transport
from Middleware.utilities.http.via import comes_back
from Tests.patience import PATIENCE
from Tests.stub_backend import Reply, StubBackend
from Tests.utilities.http.lab import Tunnels, certificate, tls_backend

__all__ = ["certificate", "tls_backend"]  # fixtures


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server that answers does so in time."""
    monkeypatch.setattr(check_command, "PROBE_SECONDS", PATIENCE)


def call(url: str) -> object:
    return Transport().post_json(BackendRequest("e", f"{url}/v1", {}, single_attempt=True))


def test_a_proxy_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    with StubBackend() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert why_silent("http://llm.invalid:8000") == "" and call("http://llm.invalid:8000") == {"ok": True}
        assert proxy.requests[0].path == "http://llm.invalid:8000/"
        monkeypatch.setenv("no_proxy", "llm.invalid")
        assert "'llm.invalid' cannot be resolved" in why_silent("http://llm.invalid:8000")


def test_the_bundle_of_the_environment_counts(
    tls_backend: StubBackend, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "certificate was not accepted" in why_silent(tls_backend.url)
    with pytest.raises(BackendConnectionError, match="certificate was not accepted"):
        call(tls_backend.url)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert why_silent(tls_backend.url) == "" and call(tls_backend.url) == {"ok": True}


def test_proxy_and_bundle_together(
    tls_backend: StubBackend, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    with Tunnels(tls_backend.port) as proxy:
        monkeypatch.setenv("https_proxy", f"http://{proxy.address}")
        assert why_silent("https://far.example") == "" and call("https://far.example") == {"ok": True}
        assert [head.split()[1] for head in proxy.asked] == ["far.example:443"] * 2
        proxy.refuses = True
        assert "403 Forbidden" in why_silent("https://far.example")
        proxy.shutdown()


def test_a_server_that_is_this_one() -> None:
    with StubBackend() as server:
        server.default = Reply(status=508)
        assert why_silent(server.url) == "leads back to this WilmerAI"
        assert comes_back(server.requests[0].headers["x-wilmer-via"])


@pytest.mark.parametrize("reply", [Reply(status=404), Reply(status=500), Reply(pieces=[b"a"], hang=True)])
def test_any_answer_will_do(reply: Reply) -> None:
    with StubBackend() as server:
        server.default = reply
        assert why_silent(server.url) == ""
        assert (server.requests[0].method, server.requests[0].path) == ("GET", "/")


@pytest.mark.parametrize(
    ("reply", "seconds", "reason"),
    [
        (Reply(never=True), 0.5, "no data for 0.5 seconds"),
        (Reply(raw=b"SSH-2.0-x\r\n"), PATIENCE, "not proper HTTP"),
    ],
)
def test_what_is_no_answer(reply: Reply, seconds: float, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_command, "PROBE_SECONDS", seconds)
    with StubBackend() as server:
        server.default = reply
        assert reason in why_silent(server.url)
