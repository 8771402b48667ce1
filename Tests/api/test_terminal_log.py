"""The short log of a terminal: which lines it has, and what they look like."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from Middleware.api.logging_setup import set_up_logging
from Middleware.api.terminal_log import TerminalFormatter
from Middleware.models.llm_call import TokenCounts
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.events import RequestLine
from Tests.integration.launcher import PROJECT, Backend, Launcher, clean_environment, standard_tree
from Tests.workflows.engine_lab import until

TIME = r"\d\d:\d\d:\d\d"


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in before]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().err.splitlines()
    return [re.sub(f"^(\x1b\\[[\\d;]*m)?{TIME}(\x1b\\[0m)?  ", r"\1-\2 ", line) for line in lines]


@pytest.mark.parametrize(
    ("level", "text", "extra", "line"),
    [
        (logging.INFO, "for information", None, None),
        (logging.DEBUG, "a detail", None, None),
        (logging.INFO, "stopped", {"terminal": True}, "- stopped"),
        (logging.INFO, "long", {"terminal": "short"}, "- short"),
        (logging.WARNING, "odd", None, "- warning: odd"),
        (logging.ERROR, "bad", None, "- error: bad"),
        (logging.WARNING, "a\x1b[31mb\x9bc\r", None, "- warning: a?[31mb?c?"),
    ],
)
def test_lines(
    capsys: pytest.CaptureFixture[str], level: int, text: str, extra: dict[str, Any] | None, line: str | None
) -> None:
    set_up_logging(terminal=TerminalFormatter(colour=False))
    logging.getLogger("Middleware.x").log(level, text, extra=extra)
    assert shown(capsys) == ([line] if line else [])


@pytest.mark.parametrize(
    ("level", "extra", "line"),
    [
        (logging.WARNING, None, "\x1b[1;33m-\x1b[0m \x1b[1;33mwarning (ann):\x1b[0m text"),
        (logging.ERROR, None, "\x1b[1;31m-\x1b[0m \x1b[1;31merror (ann):\x1b[0m text"),
        (logging.INFO, {"terminal": "me", "terminal_level": logging.ERROR}, "\x1b[1;31m-\x1b[0m me"),
        (logging.INFO, {"terminal": "me"}, "\x1b[32m-\x1b[0m me"),
    ],
)
def test_colours_and_users(
    capsys: pytest.CaptureFixture[str], level: int, extra: dict[str, Any] | None, line: str
) -> None:
    set_up_logging(terminal=TerminalFormatter(colour=True))
    with request_scope(RequestContext(user="ann")):
        logging.getLogger("Middleware.x").log(level, "text", extra=extra)
    assert shown(capsys) == [line]


def test_the_file_has_everything_in_its_own_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(str(tmp_path), ["ann"], terminal=TerminalFormatter(colour=True))
    logging.getLogger("Middleware.x").info("for information")
    logging.getLogger("Middleware.x").info("long", extra={"terminal": "short"})
    lines = (tmp_path / "wilmerai.log").read_text("utf-8").splitlines()
    assert [re.sub(r"^\[[\d: -]+\] ", "", line).partition(" [Middleware.x.")[0] for line in lines] == [
        "INFO [system]"
    ] * 2
    assert [line.rpartition("] ")[2] for line in lines] == ["for information", "long"]


def test_at_debug_a_terminal_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(level="DEBUG", terminal=TerminalFormatter(colour=True))
    logging.getLogger("Middleware.x").debug("a detail")
    assert capsys.readouterr().err.startswith("[")


def test_a_bug_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(terminal=TerminalFormatter(colour=False))
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("Middleware.x").exception("a bug")
    lines = shown(capsys)
    assert lines[0] == "- error: a bug" and lines[-1] == "ValueError: why"


ANSWERED: dict[str, Any] = {
    "model": "me:assistant",
    "workflow_override": "assistant",
    "route": "shared assistant",
    "branches": ["CODING -> _Coding"],
    "endpoint": "Main",
    "waited": 40.2,
    "first_token_at": 0.5,
    "tokens": 15,
    "answered_at": 1.0,
}


@pytest.mark.parametrize(
    ("changes", "cancelled", "line"),
    [
        (
            ANSWERED,
            False,
            "- me:assistant  CODING -> _Coding  Main  answered after 1.00 s, waited 40.20 s in the queue, "
            "first token after 0.50 s, 30.0 tokens/s",
        ),
        (
            {
                "model": "me",
                "route": "CODE -> Code",
                "route_reason": "named by Sort at attempt 1 of 2",
                "key_name": "laptop",
                "counts": TokenCounts(1, 82, 20),
            },
            False,
            "- me  CODE -> Code (named by Sort at attempt 1 of 2)  laptop  answered after 2.00 s, 1 call, 82 "
            "prompt tokens",
        ),
        (
            {"model": "me", "misspelt_model": "there is no model 'me:chta'; the nearest is 'me:chat'"},
            False,
            "- me  answered after 2.00 s, there is no model 'me:chta'; the nearest is 'me:chat'",
        ),
        ({"failed": True}, False, "- failed after 2.00 s"),
        ({}, True, "- cancelled after 2.00 s"),
        (
            {"model": "me:memory", "answered_at": 0.2, "background_at": 0.5},
            False,
            "- me:memory  nodes after the answer took 1.50 s",
        ),
        (
            {"model": "me:memory", "answered_at": 0.2, "background_at": 1.5, "cancelled_at": 1.7},
            True,
            "- me:memory  nodes after the answer took 0.50 s, cancelled",
        ),
        ({"model": "me:memory", "answered_at": 0.2, "background_at": 1.5}, False, None),
    ],
)
def test_a_request(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    cancelled: bool,
    line: str | None,
) -> None:
    set_up_logging(terminal=TerminalFormatter(colour=False))
    request = RequestContext(request_id="r-1", started=0.0, **changes)
    if cancelled:
        request.cancel_scope.cancel()
    monkeypatch.setattr("Middleware.workflows.events.time.monotonic", lambda: 2.0)
    RequestLine().request_finished(request)
    assert shown(capsys) == ([line] if line else [])


# -- a real terminal ---------------------------------------------------------------------------------------------------


class Terminal(Launcher):
    """A launcher on a pseudo-terminal."""

    def __init__(self, script: str, *arguments: Any, backend: Backend, **environment: str) -> None:
        super().__init__(script, *arguments, backend=backend)
        self._environment = environment

    def __enter__(self) -> Terminal:
        import pty

        self._log.touch()
        self._master, slave = pty.openpty()
        environment = {**clean_environment(), "TERM": "xterm", **self._environment}
        self.process = subprocess.Popen(
            [sys.executable, str(PROJECT / self.script), "--port", "0", *self._arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
        )
        os.close(slave)
        threading.Thread(target=self._copy, daemon=True).start()
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise
        return self

    def _copy(self) -> None:
        with self._log.open("wb", buffering=0) as log:
            # Linux reports the end of the other side as an error.
            try:
                while data := os.read(self._master, 65536):
                    log.write(data)
            except OSError:
                pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
@pytest.mark.parametrize(
    ("flags", "environment", "wanted", "unwanted"),
    [
        ([], {}, rf"\x1b\[32m{TIME}\x1b\[0m  \S+Single  [^\n]*answered after \d+\.\d\d s", r"\[Middleware\.|=== "),
        ([], {"NO_COLOR": "1"}, rf"(?m)^{TIME}  \S+Single  [^\n]*answered after ", r"\x1b|\[Middleware\.|=== "),
        (
            ["-v"],
            {},
            r"\] INFO \[\S+\] \[Middleware\.workflows\.events[^\n]*\] Request \S+: route shared Single",
            r"\x1b",
        ),
    ],
    ids=["colour", "no-colour", "verbose"],
)
def test_a_server_on_a_terminal(
    tmp_path: Path, flags: list[str], environment: dict[str, str], wanted: str, unwanted: str
) -> None:
    with Backend() as backend:
        tree = standard_tree(tmp_path / "Public", backend.url)
        with Terminal("server.py", *flags, "--PublicDirectory", tree.public, backend=backend, **environment) as server:
            before = server.output_size()
            assert server.ask("Single").status == 200
            assert until(lambda: re.search(wanted, server.output(before)) is not None), server.output(before)
            printed = server.output(before)
            assert re.search(unwanted, printed) is None, printed
            # One request is one line, unless something is wrong.
            if not flags:
                assert len(printed.strip().splitlines()) == 1, printed
