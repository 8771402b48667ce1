"""Endpoints of these tests have the same name, and must not be known from other tests."""

from __future__ import annotations

import pytest

from Middleware.llmapis.handlers.base import stream_ends
from Middleware.models.process import process
from Middleware.utilities.once import BoundedCache


@pytest.fixture(autouse=True)
def unknown_endpoints() -> None:
    process().put(stream_ends._marked, BoundedCache[str, bool](8))
