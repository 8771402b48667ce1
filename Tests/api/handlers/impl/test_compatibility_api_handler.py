"""The root page and the health check."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from Middleware.api.app import create_app
from Middleware.common import instance_global_variables as instance


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlaskClient]:
    """An application whose configuration is missing altogether."""
    monkeypatch.setattr(instance, "CONFIG_DIRECTORY", str(tmp_path / "nowhere"))
    monkeypatch.setattr(instance, "USERS", ["nobody", "no one"])
    with create_app().test_client() as client:
        yield client


def test_root(client: FlaskClient) -> None:
    response = client.get("/")
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    assert "Ollama is running" in response.text and "WilmerAI" in response.text


def test_health(client: FlaskClient) -> None:
    response = client.get("/health")
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    assert response.get_json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/", "/health", "/health/"])
def test_other_methods(client: FlaskClient, path: str) -> None:
    head = client.head(path)
    assert (head.status_code, head.data) == (200, b"")
    assert head.headers["Content-Length"] == client.get(path).headers["Content-Length"]
    options = client.options(path)
    assert options.status_code == 200 and "GET" in options.headers["Allow"]
    assert client.post(path).status_code == 405
