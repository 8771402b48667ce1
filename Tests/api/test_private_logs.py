"""What reaches the log of a redacted request, whoever writes it."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from Middleware.api.errors import log_error
from Middleware.api.logging_setup import PrivacyFilter, set_up_logging
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import BackendConnectionError, BackendStatusError, ClientError, ConfigNotFoundError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.services.lock_database import CannotOpenDatabaseError
from Middleware.utilities.config.json_source import decode_text
from Middleware.workflows.handlers.impl.specialized.conditional import ConditionSyntaxError
from Tests.llmapis.lab import Lab

OWN, FOREIGN = "Middleware.some.module", "a.library"
SAID = "the owl sleeps"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a handler like those of the launchers writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(PrivacyFilter())
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    loggers = [logging.getLogger(name) for name in (OWN, FOREIGN, "waitress", "Middleware.api.errors")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield stream
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def private(error: Exception) -> Exception:
    error.private = True  # type: ignore[attr-defined]
    return error


def raised() -> Exception:
    try:
        try:
            raise KeyError(SAID)
        except KeyError as cause:
            raise ValueError(SAID) from cause
    except ValueError as error:
        return error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError(SAID), "ValueError"),
        (OSError(2, "No such file", SAID), "No such file"),
        (BackendStatusError(SAID, endpoint="E", status=400), "Endpoint 'E': BackendStatusError, status 400."),
        (BackendStatusError(SAID, status=400), "BackendStatusError, status 400."),
        (BackendConnectionError("refused", endpoint="E"), "refused"),
        (ConfigNotFoundError("no endpoint 'E'"), "'E'"),
        (private(ConfigNotFoundError(SAID)), "ConfigNotFoundError, whose text"),
        (CannotOpenDatabaseError("disk I/O error"), "disk I/O error"),
        (ConditionSyntaxError("a value is missing"), "a value is missing"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("redact", [False, True])
def test_errors_as_arguments(log: io.StringIO, error: Exception, told: str, redact: bool) -> None:
    with request_scope(RequestContext(redact=redact)):
        logging.getLogger(OWN).error("It failed: %s (%d)", error, 7)
    text = log.getvalue()
    assert (SAID in text) is (not redact and SAID in str(error)) and "(7)" in text
    assert told in text or not redact


@pytest.mark.parametrize("redact", [False, True])
def test_tracebacks_keep_their_places(log: io.StringIO, redact: bool) -> None:
    with request_scope(RequestContext(redact=redact)):
        logging.getLogger(OWN).error("It failed", exc_info=raised())
    text = log.getvalue()
    assert (SAID in text) is not redact
    assert "ValueError" in text and "KeyError" in text and "in raised" in text


@pytest.mark.parametrize("name", [FOREIGN, OWN, "waitress"])
def test_foreign_loggers_say_nothing(log: io.StringIO, name: str) -> None:
    with request_scope(RequestContext(redact=True)):
        logging.getLogger(name).warning("It says: %s", "words")
    assert log.getvalue() == ("WARNING [Redacted]\n" if name == FOREIGN else "WARNING It says: words\n")


@pytest.mark.parametrize(
    ("flags", "told"),
    [({}, "words"), ({"redactLogOutput": True}, "[Redacted]"), ({"encryptUsingApiKey": True}, "[Redacted]")],
    ids=["none", "redact", "encrypt"],
)
def test_threads_of_libraries_without_a_request(log: io.StringIO, lab: Lab, flags: dict[str, bool], told: str) -> None:
    lab.user(**flags)
    logging.getLogger(FOREIGN).debug("%s", "words")
    logging.getLogger(OWN).debug("%s", "own")
    assert log.getvalue() == f"DEBUG {told}\nDEBUG own\n"


@pytest.mark.parametrize("redact", [False, True])
def test_tracebacks_outside_of_requests(log: io.StringIO, lab: Lab, redact: bool) -> None:
    lab.user(redactLogOutput=redact)
    logging.getLogger(OWN).error("A connection failed", exc_info=raised())
    assert (SAID in log.getvalue()) is not redact and "in raised" in log.getvalue()


def test_users_that_cannot_be_read_want_privacy(log: io.StringIO, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "USERS", ["nobody"])
    logging.getLogger(FOREIGN).debug("%s", "words")
    assert log.getvalue() == "DEBUG [Redacted]\n"


def test_a_library_that_speaks_while_configuration_is_read(
    log: io.StringIO, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may end a library's object, which says so, at any moment and on any thread."""
    lab.user()
    words = iter(["once"])

    def decode(data: bytes, display: str) -> str:
        for word in words:
            logging.getLogger(FOREIGN).warning(word)
        return decode_text(data, display)

    monkeypatch.setattr("Middleware.utilities.config.store.decode_text", decode)
    reader = threading.Thread(target=logging.getLogger(FOREIGN).warning, args=("twice",), daemon=True)
    reader.start()
    reader.join(60)
    assert not reader.is_alive()
    assert log.getvalue().count("WARNING") == 2


def test_every_handler_of_the_launchers_has_it() -> None:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    try:
        set_up_logging()
        new = [handler for handler in root.handlers if getattr(handler, "wilmer", False)]
        assert new and all(any(isinstance(found, PrivacyFilter) for found in handler.filters) for handler in new)
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def test_what_a_refusal_quotes(log: io.StringIO) -> None:
    """The client's words are in quotes, which may themselves be among the words."""
    error = ClientError("messages.0.role: expected 'user', found 'the owl's friend sleeps'.")
    for redact in (True, False):
        with request_scope(RequestContext(request_id="r", redact=redact)) as request:
            log_error(error, request, "before the answer")
    private_line, open_line = (line for line in log.getvalue().splitlines() if "refused" in line)
    assert private_line.endswith("Request r refused: messages.0.role: expected '...'.") and SAID[:7] in open_line
