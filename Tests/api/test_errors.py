"""What a client and what the log is told when something fails."""

from __future__ import annotations

import logging

import pytest
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from Middleware.api.dialects import ANTHROPIC_VERSION, Dialect, dialect_of
from Middleware.api.errors import Cause, PublicError, describe_error, error_body, log_error
from Middleware.api.running.running_requests import REQUEST_ID_KEY
from Middleware.exceptions import (
    BackendConnectionError,
    BackendError,
    BackendResponseError,
    BackendStatusError,
    BackendTimeoutError,
    ClientError,
    ConfigNotFoundError,
    ConfigSyntaxError,
    ConfigValueError,
    DataKeyError,
    FailoverError,
    GateTimeoutError,
    WilmerError,
)
from Middleware.models.request_context import RequestContext
from Tests.api.front_dialects import anthropic_message, openai_message, plain_message
from Tests.tables import table


def at(path: str, **environ: str) -> dict[str, str]:
    """The environ of a request."""
    return {"PATH_INFO": path, REQUEST_ID_KEY: "12-34", **environ}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigNotFoundError("gone"), 500),
        (ConfigValueError("bad"), 500),
        (ConfigSyntaxError("f.json", "bad"), 500),
        (BackendConnectionError("refused"), 502),
        (BackendTimeoutError("late"), 502),
        (BackendStatusError("no"), 502),
        (BackendResponseError("what"), 502),
        (GateTimeoutError("busy"), 503),
        (WilmerError("general"), 500),
        (ValueError("internal"), 500),
        (KeyError("internal"), 500),
    ],
)
def test_status(error: Exception, status: int) -> None:
    public = describe_error(error)
    assert public.status == status and public.message


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (RequestEntityTooLarge("/secret/path"), 413, "413 Request Entity Too Large"),
        (ClientDisconnected(), 400, "400 Bad Request"),
    ],
)
def test_a_body_that_could_not_be_read(error: Exception, status: int, message: str) -> None:
    assert describe_error(error) == PublicError(status, message)


@pytest.mark.parametrize("status", [400, 404, 413])
def test_client_errors_are_told_as_they_are(status: int) -> None:
    assert describe_error(ClientError("wrong", status), RequestContext()) == PublicError(status, "wrong")


def test_client_errors_name_the_field_and_have_a_word_for_programs() -> None:
    public = describe_error(ClientError("wrong", param="input[3]", code="unsupported_file"))
    assert public == PublicError(400, "wrong", "input[3]", "unsupported_file")
    assert error_body(public, at("/v1/responses")) == {
        "error": {"message": "wrong", "type": "invalid_request_error", "param": "input[3]", "code": "unsupported_file"}
    }
    assert error_body(public, at("/api/chat")) == {"error": "wrong"}


@table("status", [400, 401, 403, 404, 405, 409, 413, 415, 429, 431, 500, 502, 503])
@table("path", ["/v1/chat/completions", "/completions/", "/v1/models", "/x", "/apix", "/v1/api/chat", ""])
def test_the_json_of_an_error_on_routes_of_openai(path: str, status: int) -> None:
    assert openai_message(error_body(PublicError(status, "wrong"), at(path)), status) == "wrong"


@table("status", [400, 401, 404, 413, 500, 503])
@table("path", ["/api/chat", "//api/chat", "/api", "/api/nope/", "/", "//", "/health", "/health/"])
def test_the_json_of_an_error_on_other_routes(path: str, status: int) -> None:
    assert plain_message(error_body(PublicError(status, "wrong"), at(path))) == "wrong"


@table(
    ("path", "status", "code"),
    [
        ("/v1/models/x", 404, "model_not_found"),
        ("/models/a/b", 404, "model_not_found"),
        ("/v1/models/x", 405, None),
        ("/v1/models/x", 401, "invalid_api_key"),
        ("/v1/models", 404, None),
        ("/v1/x/models/y", 404, None),
    ],
)
def test_the_word_for_programs(path: str, status: int, code: str | None) -> None:
    assert openai_message(error_body(PublicError(status, "wrong"), at(path)), status, code)


@table("status", [400, 401, 403, 404, 405, 409, 413, 415, 429, 500, 502, 503, 504])
@table(
    ("path", "environ"),
    [
        ("/v1/messages", {}),
        ("/messages/", {}),
        ("/v1/v1/messages", {}),
        ("//v1/messages/batches", {}),
        *((path, {ANTHROPIC_VERSION: "2023-06-01"}) for path in ("/v1/models", "/models/x", "/v1/models/")),
    ],
)
def test_the_json_of_an_error_on_routes_of_anthropic(path: str, environ: dict[str, str], status: int) -> None:
    body = error_body(PublicError(status, "wrong"), at(path, **environ))
    assert anthropic_message(body, status) == "wrong" and body["request_id"] == "req_1234"


def test_an_error_of_anthropic_may_have_details() -> None:
    public = describe_error(ClientError("no", details={"error_code": "x"}))
    assert error_body(public, at("/v1/messages"))["error"] == {
        "type": "invalid_request_error",
        "message": "no",
        "details": {"error_code": "x"},
    }


@table(
    ("path", "dialect"),
    [
        ("/v1/messagesx", Dialect.OPENAI),
        ("/x/messages", Dialect.OPENAI),
        ("/v1/models", Dialect.OPENAI),
        ("/v1/responses/x", Dialect.OPENAI),
        ("/api/messages", Dialect.OLLAMA),
        ("/api/v1/generate", Dialect.KOBOLD),
        ("/api/extra/abort/", Dialect.KOBOLD),
        ("/api/v1", Dialect.OLLAMA),
        ("/api/extras", Dialect.OLLAMA),
    ],
)
def test_the_dialect_of_a_path(path: str, dialect: Dialect) -> None:
    assert dialect_of({"PATH_INFO": path}) is dialect


def test_the_header_counts_on_paths_of_models_only() -> None:
    assert dialect_of({"PATH_INFO": "/v1/chat/completions", ANTHROPIC_VERSION: "x"}) is Dialect.OPENAI


def test_the_json_of_an_error_of_koboldcpp() -> None:
    assert error_body(PublicError(400, "wrong"), at("/api/extra/abort")) == {
        "detail": {"msg": "wrong", "type": "invalid_request_error"}
    }


@table(
    ("error", "cause", "lasting"),
    [
        (ConfigValueError("bad"), Cause.LASTING, True),
        (ClientError("wrong"), Cause.OTHER, False),
        (ValueError("internal"), Cause.OTHER, False),
        (BackendConnectionError("refused"), Cause.OTHER, False),
        (GateTimeoutError("busy"), Cause.OTHER, False),
        (BackendTimeoutError("late"), Cause.OTHER, False),
        *((BackendStatusError("no", status=status), Cause.LASTING, True) for status in (400, 401, 403, 404, 413, 422)),
        *((BackendStatusError("no", status=status), Cause.OTHER, False) for status in (408, 500, 502, 503)),
        *(
            (BackendStatusError("no", status=status, body="the context window is 4096"), Cause.PROMPT_TOO_LONG, True)
            for status in (400, 413, 500)
        ),
        (BackendResponseError("no", body="prompt is too long: 9 > 8"), Cause.PROMPT_TOO_LONG, True),
        (BackendStatusError("no", status=429, body="slow down"), Cause.RATE_LIMIT, False),
        (BackendStatusError("no", status=402), Cause.NO_QUOTA, False),
        (
            BackendStatusError("no", status=429, body="You exceeded your current quota, please check"),
            Cause.NO_QUOTA,
            False,
        ),
        (BackendStatusError("no", status=403, body="insufficient_quota"), Cause.NO_QUOTA, True),
        (FailoverError("no backup", status=401), Cause.LASTING, True),
    ],
)
def test_the_cause_of_a_failure(error: Exception, cause: Cause, lasting: bool) -> None:
    public = describe_error(error)
    assert (public.cause, public.lasting) == (cause, lasting)


def test_our_own_errors_tell_place_and_request() -> None:
    error = ConfigValueError("bad value", file="Users/ann.json", json_path="port")
    error.location = "workflow 'Main', node 2 'Ask'"  # type: ignore[attr-defined]
    message = describe_error(error, RequestContext(request_id="r-9")).message
    assert message == "Users/ann.json: bad value (at port). In workflow 'Main', node 2 'Ask'. [request r-9]"


@pytest.mark.parametrize(
    "error",
    [ValueError("/secret/path key=abc"), FileNotFoundError(2, "No", "/secret/path"), ConnectionError("/secret/path")],
)
def test_foreign_errors_tell_no_details(error: Exception) -> None:
    message = describe_error(error).message
    assert "secret" not in message and type(error).__name__ in message


def test_one_line() -> None:
    assert describe_error(WilmerError("a\nb\r\n  c\t")).message == "a b c"
    assert describe_error(ClientError("a\nb")).message == "a b"


@pytest.mark.parametrize(
    ("error", "level", "traceback"),
    [
        (ClientError("wrong"), logging.WARNING, False),
        (ClientDisconnected(), logging.WARNING, False),
        (ConfigValueError("bad"), logging.ERROR, False),
        (BackendStatusError("no"), logging.ERROR, False),
        (GateTimeoutError("busy"), logging.ERROR, False),
        (ValueError("internal"), logging.ERROR, True),
    ],
)
def test_log(error: Exception, level: int, traceback: bool, caplog: pytest.LogCaptureFixture) -> None:
    log_error(error, RequestContext(request_id="r-9"), "in mid-stream")
    (record,) = caplog.records
    assert record.levelno == level
    assert bool(record.exc_info) is traceback
    assert "r-9" in caplog.text and str(error) in caplog.text


@pytest.mark.parametrize("kind", [BackendStatusError, BackendResponseError, FailoverError])
def test_a_redacted_log_holds_nothing_that_a_back_end_said(
    kind: type[BackendError], caplog: pytest.LogCaptureFixture
) -> None:
    error = kind("Endpoint 'Main': cannot parse: dear diary", endpoint="Main", status=400, body="dear diary")
    log_error(error, RequestContext(request_id="r-9", redact=True), "in mid-stream")
    assert "diary" not in caplog.text
    assert all(part in caplog.text for part in ("r-9", "'Main'", kind.__name__, "400"))


def test_a_redacted_log_still_tells_what_the_user_can_mend(caplog: pytest.LogCaptureFixture) -> None:
    for error in (ConfigValueError("bad port"), BackendConnectionError("connection refused")):
        log_error(error, RequestContext(redact=True), "before the answer")
        assert str(error) in caplog.text


@pytest.mark.parametrize("redact", [False, True])
def test_a_redacted_log_has_places_of_foreign_errors_without_their_words(
    caplog: pytest.LogCaptureFixture, redact: bool
) -> None:
    said = ValueError("dear {}".format("diary"))  # a traceback shows lines of code
    try:
        raise said
    except ValueError as error:
        log_error(error, RequestContext(redact=redact), "before the answer")
    assert ("diary" in caplog.text) is not redact
    assert "ValueError" in caplog.text and __file__ in caplog.text


def test_a_redacted_log_goes_without_private_texts(caplog: pytest.LogCaptureFixture) -> None:
    error = ConfigNotFoundError("endpoint 'dear diary' does not exist")
    error.private = True
    log_error(error, RequestContext(redact=True), "before the answer")
    assert "diary" not in caplog.text and "ConfigNotFoundError" in caplog.text
    log_error(error, RequestContext(), "before the answer")
    assert "diary" in caplog.text


def test_log_without_request(caplog: pytest.LogCaptureFixture) -> None:
    log_error(ConfigValueError("bad"), None, "before the answer")
    assert "bad" in caplog.text and "before the answer" in caplog.text


def test_only_the_log_names_the_file_of_another_key(caplog: pytest.LogCaptureFixture) -> None:
    error, request = DataKeyError("not yours"), RequestContext(request_id="r-1")
    error.file = "mill/memories.json"
    log_error(error, request, "before the answer")
    assert "not yours (file 'mill/memories.json')" in caplog.text
    assert describe_error(error, request).message == "not yours [request r-1]"
