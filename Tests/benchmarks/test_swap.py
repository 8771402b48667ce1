"""``benchmarks/swap.py``: its server holds one model, and a cell that changes it too often fails."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import Any

import pytest

from benchmarks import swap
from benchmarks.swap import COLUMNS, ROWS, Cell, SwapBackend
from Tests.patience import PATIENCE
from Tests.workflows.engine_lab import until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "LOAD_SECONDS", 0.0)
    monkeypatch.setattr(swap, "CALLS", {"answer": (0.0, 0.5)})


def call(backend: SwapBackend, model: str) -> threading.Thread:
    def send() -> None:
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "Why?"}]}
        with urllib.request.urlopen(f"{backend.url}/v1/chat/completions", json.dumps(body).encode()) as answer:
            answer.read()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_the_server_answers_in_order_and_counts_its_changes() -> None:
    with SwapBackend() as backend:
        threads = []
        for number, model in enumerate("AABBA", 1):
            threads.append(call(backend, model))
            assert until(lambda: len(backend.requests) == number)  # noqa: B023
        for thread in threads:
            thread.join(PATIENCE)
        assert backend.swaps == 2


def test_a_cell_above_its_limit_fails() -> None:
    cell = Cell(ROWS["assistant"], COLUMNS["rules"], waits=[1.0] * 100, swaps=146)
    assert not cell.is_above and str(cell) == "1.46 / 5.0"
    cell.swaps = 147
    assert cell.is_above and str(cell).endswith("(!)")
    assert not Cell(ROWS["assistant"], COLUMNS["one"], waits=[1.0], swaps=3).is_above
    assert Cell(ROWS["assistant"], COLUMNS["stand-in"], waits=[1.0] * 100, swaps=13).is_above
