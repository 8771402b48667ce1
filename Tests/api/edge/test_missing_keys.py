"""What the operator is told of clients without a usable key."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.api.handlers.base.base_api_handler import MissingKeys
from Middleware.exceptions import ClientError
from Middleware.models.process import process
from Tests.api.api_lab import ApiLab, settled
from Tests.stub_backend import StubBackend

SPELLING = "in place of 'Bearer'"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiLab]:
    with StubBackend() as backend:
        made = ApiLab(tmp_path, monkeypatch, backend)
        # Earlier tests may have had the warnings of this process already.
        process().put(MissingKeys, MissingKeys())
        made.default([{"type": "StaticResponse", "content": "hello"}])
        yield made
        assert settled()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and record.name.endswith("base_api_handler")
    ]


@pytest.mark.parametrize(
    "headers",
    [{}, *({"Authorization": value} for value in ("bearer x", "x", "", "Bearer "))],
    ids=["none", "lower-case", "bare", "empty", "no-key"],
)
def test_data_in_clear_in_spite_of_the_setting(
    lab: ApiLab, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    lab.user(encryptUsingApiKey=True)
    for path in ("/v1/chat/completions", "/api/chat"):
        assert lab.chat(headers=headers, path=path, model="any").status == 200
    (told,) = [line for line in warnings(caplog) if SPELLING not in line]
    assert "encryptUsingApiKey" in told and told.endswith("what it stores is not encrypted.")
    assert "Authorization: Bearer KEY" in told


@pytest.mark.parametrize(("setting", "headers"), [(True, {"Authorization": "Bearer x"}), (False, {})])
def test_nothing_to_tell(lab: ApiLab, caplog: pytest.LogCaptureFixture, setting: bool, headers: dict[str, str]) -> None:
    lab.user(encryptUsingApiKey=setting)
    lab.chat(headers=headers)
    assert warnings(caplog) == []


def test_every_user_has_a_warning(lab: ApiLab, caplog: pytest.LogCaptureFixture) -> None:
    lab.users("ann", "bob")
    for name in ("ann", "bob"):
        lab.user_file(name, encryptUsingApiKey=True)
    for name in ("ann", "bob", "ann"):
        lab.chat(model=name)
    assert [line.split()[1] for line in warnings(caplog)] == ["ann", "bob"]


@pytest.mark.parametrize(
    ("value", "listed", "told"),
    [
        ("bearer x", False, 1),
        ("BEARER x", False, 1),
        ("bearer x", True, 0),
        ("Basic x", False, 0),
        ("Bearer x", False, 0),
    ],
)
def test_another_spelling(lab: ApiLab, caplog: pytest.LogCaptureFixture, value: str, listed: bool, told: int) -> None:
    """With a list of accepted keys, that list tells of it."""
    environ = {"wilmer.permitted_users": None} if listed else {}
    for _ in range(2):
        lab.post(
            {"messages": [{"role": "user", "content": "hi"}]},
            headers={"Authorization": value},
            environ_overrides=environ,
        )
    assert len([line for line in warnings(caplog) if SPELLING in line]) == told


def test_a_refusal_without_a_workflow_has_its_id(
    lab: ApiLab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request_id: str) -> None:
        raise ClientError("not yours", 403)

    monkeypatch.setattr("Middleware.api.api_helpers.require_permitted_request", refuse)
    answer = lab.client.delete(
        "/api/chat", json={"request_id": "other"}, environ_overrides={"wilmer.request_id": "r-5"}
    )
    assert answer.status_code == 403
    assert "Request r-5 refused: not yours" in caplog.text
