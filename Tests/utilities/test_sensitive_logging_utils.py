"""Redaction, truncation and masking."""

from __future__ import annotations

import logging

import pytest

from Middleware.models.request_context import RequestContext, current_request, request_scope
from Middleware.utilities.sensitive_logging_utils import (
    MASK,
    clear_encryption_context,
    is_encryption_active,
    log_prompt_content,
    mask_url,
    places_of,
    sensitive_log,
    sensitive_log_lazy,
    set_encryption_context,
    truncate_for_log,
)

logger = logging.getLogger("tests.sensitive")


def test_the_flag_belongs_to_the_request() -> None:
    with request_scope(RequestContext()) as request:
        assert not is_encryption_active()
        set_encryption_context(True)
        assert request.redact and is_encryption_active()
        with request_scope(RequestContext()):
            assert not is_encryption_active()
        clear_encryption_context()
        assert not request.redact


def test_without_a_request() -> None:
    with request_scope(None):  # type: ignore[arg-type]
        clear_encryption_context()
        assert not is_encryption_active() and current_request() is None
        set_encryption_context(True)
        assert is_encryption_active()


def test_sensitive_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), request_scope(RequestContext()):
        sensitive_log(logger, logging.INFO, "said %s", "hello")
        set_encryption_context(True)
        sensitive_log(logger, logging.INFO, "said %s", "secret words")
    assert [record.getMessage() for record in caplog.records] == ["said hello", "[Redacted]"]
    assert {record.funcName for record in caplog.records} == {"test_sensitive_log"}


def test_sensitive_log_lazy_computes_only_what_is_written(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    def expensive() -> str:
        calls.append(1)
        return "text"

    with caplog.at_level(logging.INFO), request_scope(RequestContext()):
        sensitive_log_lazy(logger, logging.DEBUG, "%s", expensive)
        set_encryption_context(True)
        sensitive_log_lazy(logger, logging.INFO, "%s", expensive)
        assert calls == []
        clear_encryption_context()
        sensitive_log_lazy(logger, logging.INFO, "%s!", expensive)
    assert calls == [1]
    assert [record.getMessage() for record in caplog.records] == ["[Redacted]", "text!"]


def test_log_prompt_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), request_scope(RequestContext()):
        log_prompt_content(logger, "System prompt", "be brief")
        set_encryption_context(True)
        log_prompt_content(logger, "System prompt", "be secret")
    first, second = caplog.records
    lines = first.getMessage().splitlines()
    assert lines[0] == "System prompt:" and lines[2] == "be brief"
    assert set(lines[1]) == set(lines[3]) == {"*"}
    assert second.getMessage() == "[System prompt redacted]"
    assert first.levelno == logging.DEBUG


def test_bodies_are_shortened_at_any_depth() -> None:
    image = "data:image/png;base64," + "A" * 60 + "B" * 200 + "C" * 60
    body = {"messages": [{"content": "x" * 1000}, {"content": "a" * 600 + "b" * 401}, {"images": (image,)}], "n": 1}
    short = truncate_for_log(body)
    assert short["messages"][0]["content"] == "x" * 1000
    assert short["messages"][1]["content"] == "a" * 100 + "...[truncated]..." + "b" * 100
    assert short["messages"][2]["images"] == ["data:image/png;base64," + "A" * 50 + "...[truncated]..." + "C" * 50]
    assert short["n"] == 1
    assert len(body["messages"][1]["content"]) == 1001  # type: ignore[index]


def test_short_images_and_image_like_text() -> None:
    image = "data:image/png;base64," + "A" * 178
    assert len(image) == 200 and truncate_for_log(image) == image
    assert truncate_for_log(image + "A") != image + "A"
    assert truncate_for_log("data:image without data " + "y" * 2000).endswith("...[truncated]..." + "y" * 100)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:5001", "http://127.0.0.1:5001"),
        ("https://me:secret@host:1/v1?x=1", "https://host:1/v1?x=1"),
        ("https://host/v1?api_key=abc&x=1&KEY=z", f"https://host/v1?api_key={MASK}&x=1&KEY={MASK}"),
        ("http://[::1]:80/", "http://[::1]:80/"),
        ("http://[bad@", MASK),
    ],
)
def test_urls_lose_their_secrets(url: str, shown: str) -> None:
    assert mask_url(url) == shown


@pytest.mark.parametrize(("how", "told"), [("from", True), ("while", True), ("alone", False)])
def test_places_of_an_error_and_its_cause(how: str, told: bool) -> None:
    said = "dear diary".title()
    try:
        try:
            raise KeyError(said)
        except KeyError as cause:
            if how == "while":
                raise ValueError(said)  # noqa: B904 - as it happens
            raise ValueError(said) from (cause if how == "from" else None)
    except ValueError as error:
        places = places_of(error)
    assert said not in places and places.startswith("ValueError, raised at\n") and __file__ in places
    assert ("\nafter KeyError, raised at\n" in places) is told


def test_places_of_an_error_that_was_never_raised() -> None:
    assert places_of(ValueError("x")) == "ValueError, raised at\n"
