"""Endpoints of these tests have the same name, and must not be known from other tests."""

from __future__ import annotations

import pytest

from Middleware.llmapis.handlers.base import base_llm_api_handler
from Middleware.models.process import process
from Middleware.utilities.once import BoundedCache


@pytest.fixture(autouse=True)
def unknown_endpoints() -> None:
    process().put(base_llm_api_handler._marked, BoundedCache[str, bool](8))
