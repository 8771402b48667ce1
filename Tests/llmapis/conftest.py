"""What tests of this layer share: a scripted server and a transport of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from Middleware.llmapis import repeats
from Middleware.llmapis.transport import Transport
from Tests.stub_backend import StubBackend


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with StubBackend() as stub:
        yield stub


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = Transport()
    yield made
    made.close_all()


@pytest.fixture
def short_retry_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "WAITS", (0.02, 0.04))
    monkeypatch.setattr(repeats, "BUSY_WAITS", (0.02, 0.04))
