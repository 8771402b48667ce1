"""Log lines and log files."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import sys
import threading

import pytest

from Middleware.api import logging_setup
from Middleware.api.logging_setup import PerUserFileHandler, log_level, set_up_logging
from Middleware.models.llm_call import NodeSite, enter_node, leave_node
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.workflows.events import Listeners
from Tests.patience import PATIENCE

LINE = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] INFO \[(.+?)\] \[some\.module\.\w+:\d+\] (.*)")


@pytest.fixture(autouse=True)
def restore_logging():
    root = logging.getLogger()
    before, waitress = (list(root.handlers), root.level), logging.getLogger("waitress").level
    yield
    logging.getLogger("waitress").setLevel(waitress)
    for handler in [handler for handler in root.handlers if handler not in before[0]]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(before[1])


def lines(path):
    return path.read_text("utf-8").splitlines()


def test_format_and_user_on_stderr(capsys):
    set_up_logging()
    logging.getLogger("some.module").info("grüß %s", "Gott")
    with request_scope(RequestContext(user="ann")):
        logging.getLogger("some.module").info("mine")
    first, second = (LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines())
    assert first and first.groups() == ("system", "grüß Gott")
    assert second and second.groups() == ("ann", "mine")


class Slow(io.FileIO):
    """A file on which the first write waits, and each takes only so many bytes."""

    def __init__(self, path, most=1 << 20):
        super().__init__(path, "w")
        self.most, self.begun, self.go_on = most, threading.Event(), threading.Event()

    def write(self, data):
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(PATIENCE)
        return super().write(data[: self.most])


@contextlib.contextmanager
def errors_on(raw, monkeypatch):
    with io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", line_buffering=True) as stream:
        monkeypatch.setattr("sys.stderr", stream)
        set_up_logging()
        yield


def test_a_thread_that_writes_a_line_holds_up_no_other(tmp_path, monkeypatch):
    raw = Slow(tmp_path / "log")
    with errors_on(raw, monkeypatch):
        first = threading.Thread(target=logging.getLogger("some.module").info, args=("first",))
        first.start()
        assert raw.begun.wait(PATIENCE)
        logging.getLogger("some.module").info("second")
        raw.go_on.set()
        first.join(PATIENCE)
    assert [line.split()[-1] for line in lines(tmp_path / "log")] == ["second", "first"]


def test_a_line_that_is_written_in_part_is_completed(tmp_path, monkeypatch):
    raw = Slow(tmp_path / "log", most=7)
    raw.begun.set()
    with errors_on(raw, monkeypatch):
        logging.getLogger("some.module").info("grüß Gott")
    assert LINE.fullmatch(lines(tmp_path / "log")[0])[2] == "grüß Gott"


def test_one_file_in_single_user_mode(tmp_path):
    set_up_logging(str(tmp_path / "a" / "b"), ["ann"])
    with request_scope(RequestContext(user="ann")):
        logging.getLogger("some.module").info("über")
    assert lines(tmp_path / "a" / "b" / "wilmerai.log")[0].endswith("über")
    assert not (tmp_path / "a" / "b" / "ann").exists()


@pytest.mark.parametrize("user", ["../evil", "/evil", "a/../../evil", "..\\evil"])
def test_no_user_writes_a_log_elsewhere(tmp_path, capsys, user):
    set_up_logging(str(tmp_path / "logs"), [user, "bob"])
    with request_scope(RequestContext(user=user)):
        logging.getLogger("some.module").info("mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["logs", "wilmerai.log"]
    assert "mine" in capsys.readouterr().err


def test_a_file_per_user_with_several_users(tmp_path):
    set_up_logging(str(tmp_path), ["ann", "bob"])
    log = logging.getLogger("some.module")
    log.info("for all")
    with request_scope(RequestContext(user="ann")):
        log.info("for ann")
    with request_scope(RequestContext(user="../evil")):
        log.info("of nobody")
    assert [LINE.fullmatch(line).group(2) for line in lines(tmp_path / "wilmerai.log")] == ["for all", "of nobody"]
    assert [LINE.fullmatch(line).group(2) for line in lines(tmp_path / "ann" / "wilmerai.log")] == ["for ann"]
    assert not (tmp_path / "bob").exists()


def test_a_library_that_speaks_while_a_file_is_opened(tmp_path, monkeypatch):
    """The garbage collector may end a library's object, which says so, at any moment and on any thread."""
    handler, open_file = PerUserFileHandler(str(tmp_path), ["ann", "bob"]), logging_setup.LogFile._open

    def open_and_log(file):
        handler.handle(logging.makeLogRecord({"msg": "closed"}))
        return open_file(file)

    monkeypatch.setattr(logging_setup.LogFile, "_open", open_and_log)
    record = logging.makeLogRecord({"msg": "hello", "user": "ann"})
    writer = threading.Thread(target=handler.handle, args=(record,), daemon=True)
    writer.start()
    writer.join(PATIENCE)
    assert not writer.is_alive()
    handler.close()
    assert lines(tmp_path / "ann" / "wilmerai.log") == ["hello"] and lines(tmp_path / "wilmerai.log") == ["closed"]


def test_rotation(tmp_path, monkeypatch):
    monkeypatch.setattr(logging_setup, "MAX_BYTES", 500)
    set_up_logging(str(tmp_path), [])
    for number in range(100):
        logging.getLogger("some.module").info("line %d", number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["wilmerai.log", *(f"wilmerai.log.{n}" for n in range(1, 8))]
    assert (logging_setup.BACKUP_COUNT, 3 * 1024 * 1024) == (7, 3_145_728)


@pytest.fixture
def hold(monkeypatch):
    """Return a function that keeps a file from being renamed, as a program does on Windows; it returns its end."""
    held, rename = set(), {name: getattr(os, name) for name in ("rename", "replace")}

    def hold_file(path):
        if sys.platform == "win32":
            return open(path, encoding="utf-8").close
        held.add(str(path))
        return lambda: held.discard(str(path))

    def refuse(name):
        def move(source, target):
            if not held.isdisjoint(map(str, (source, target))):
                raise PermissionError(errno.EACCES, "The process cannot access the file")
            rename[name](source, target)

        return move

    if sys.platform != "win32":
        for name in rename:
            monkeypatch.setattr(os, name, refuse(name))
    return hold_file


@pytest.mark.parametrize(
    ("held", "backups"),
    [("wilmerai.log", backups) for backups in (0, 3, 7)]
    + [(f"wilmerai.log.{number}", 7) for number in (1, 3, 7)]
    + [("wilmerai.log.1", 1), ("wilmerai.log.2", 3), ("wilmerai.log.3", 3)],
)
def test_a_file_that_another_program_has_open_loses_no_line(tmp_path, monkeypatch, capsys, hold, held, backups):
    monkeypatch.setattr(logging_setup, "MAX_BYTES", 500)
    set_up_logging(str(tmp_path), [])
    log, written = logging.getLogger("some.module"), []

    def write_until(is_done):
        while not is_done():
            assert len(written) < 400
            written.append(f"line {len(written)}.")
            log.info(written[-1])

    write_until(lambda: len(list(tmp_path.iterdir())) == backups + 1)
    end = hold(tmp_path / held)
    older = {path.name: path.read_text("utf-8") for path in tmp_path.glob("wilmerai.log.?")}
    write_until(lambda: (tmp_path / "wilmerai.log").stat().st_size > 2000)
    kept = [path.read_text("utf-8") for path in tmp_path.iterdir()]
    # The oldest one had its turn already where a backup in the middle is held.
    lost = [text for text in older.values() if text not in kept]
    assert lost in ([], [older.get("wilmerai.log.7")])
    assert held != "wilmerai.log" or not lost
    assert capsys.readouterr().err.count("cannot be renamed") == 1
    end()
    monkeypatch.setattr(logging_setup, "ROTATION_RETRY_SECONDS", 0.0)
    file = next(handler for handler in logging.getLogger().handlers if isinstance(handler, logging_setup.LogFile))
    file._next_rotation = 0.0
    write_until(lambda: (tmp_path / "wilmerai.log").stat().st_size < 500 and not (tmp_path / "wilmerai.log.0").exists())
    order = [f"wilmerai.log.{number}" for number in range(7, 0, -1)] + ["wilmerai.log"]
    text = "".join((tmp_path / name).read_text("utf-8") for name in order if (tmp_path / name).exists())
    found = [line for line in written if line in text]
    assert found == written[-len(found) :] and found == sorted(found, key=text.index)
    assert len(found) == len(written) or len(older) == 7


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such permissions there")
def test_only_the_owner_reads_a_new_log_file(tmp_path, monkeypatch):
    """Also after a rotation, at DEBUG, and of a user; a file that is there, and those that follow it, stay readable."""
    monkeypatch.setattr(logging_setup, "MAX_BYTES", 500)
    known = tmp_path / "bob" / "wilmerai.log"
    known.parent.mkdir()
    known.touch(mode=0o640)
    known.chmod(0o640)
    set_up_logging(str(tmp_path), ["ann", "bob"])
    for number in range(20):
        logging.getLogger("some.module").warning("line %d", number)
        for name in ("ann", "bob"):
            with request_scope(RequestContext(user=name)):
                logging.getLogger("some.module").warning("line %d", number)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.log*")}
    assert len(modes) > 10 and {mode for name, mode in modes.items() if name.startswith("bob")} == {0o640}
    assert {mode for name, mode in modes.items() if not name.startswith("bob")} == {0o600}


def test_a_line_is_formatted_once_for_all_handlers(tmp_path, capsys, monkeypatch):
    made = []
    format_time = logging_setup.LineFormatter.formatTime
    monkeypatch.setattr(
        logging_setup.LineFormatter, "formatTime", lambda *arguments: made.append(arguments) or format_time(*arguments)
    )
    set_up_logging(str(tmp_path), [])
    logging.getLogger("some.module").info("line")
    assert len(made) == 1
    assert lines(tmp_path / "wilmerai.log") == capsys.readouterr().err.splitlines()


class FullDisk(io.StringIO):
    """Takes what is written, and fails to bring it to the disk."""

    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_cannot_be_written_is_told_once(tmp_path, capsys):
    set_up_logging(str(tmp_path), ["ann"])
    file = next(handler for handler in logging.getLogger().handlers if isinstance(handler, logging_setup.LogFile))
    log, real = logging.getLogger("some.module"), file.stream
    file.stream = FullDisk()
    for number in range(3):
        log.info("line %d", number)
    file.stream = real
    log.info("line 3")
    told = capsys.readouterr().err
    assert "Traceback" not in told and told.count(f"cannot be written: {os.strerror(errno.ENOSPC)}") == 1
    assert told.count("is written again") == 1 and all(f"line {number}" in told for number in range(4))
    assert [line.partition("] ")[2].endswith("line 3") for line in lines(tmp_path / "wilmerai.log")] == [True, False]


def test_a_file_of_one_user_that_cannot_be_opened_is_told_once(tmp_path, capsys):
    set_up_logging(str(tmp_path), ["ann", "bob"])
    (tmp_path / "ann").write_text("in the way", "utf-8")
    for user in ("ann", "bob", "ann", "ann"):
        with request_scope(RequestContext(user=user)):
            logging.getLogger("some.module").info("for %s", user)
    told = capsys.readouterr().err
    assert "Traceback" not in told and told.count("cannot be written") == 1
    assert told.count("for ann") == 3 and lines(tmp_path / "bob" / "wilmerai.log")[0].endswith("for bob")


def test_a_library_that_names_users_of_its_own_in_its_records(tmp_path):
    set_up_logging(str(tmp_path), ["ann", "bob"])
    for number, user in enumerate(("carol", {"id": 5}, ["ann"])):
        logging.getLogger("some.module").info("line %d", number, extra={"user": user})
    assert [line.partition("] ")[2].rpartition(" ")[2] for line in lines(tmp_path / "wilmerai.log")] == ["0", "1", "2"]


def test_level(monkeypatch):
    monkeypatch.delenv("WILMER_LOG_LEVEL", raising=False)
    assert log_level() == logging.INFO
    monkeypatch.setenv("WILMER_LOG_LEVEL", "debug")
    assert log_level() == logging.DEBUG
    assert log_level("ERROR") == logging.ERROR
    assert log_level("nonsense") == logging.INFO


@pytest.mark.parametrize(("value", "told"), [("trace", True), ("NOTSET", True), ("warning", False), ("  ", False)])
def test_a_level_of_the_environment_that_is_none_is_told(monkeypatch, capsys, value, told):
    monkeypatch.setenv("WILMER_LOG_LEVEL", value)
    set_up_logging()
    assert logging.getLogger().level == (logging.WARNING if value == "warning" else logging.INFO)
    assert (f"WILMER_LOG_LEVEL is {value!r}, which is not a level" in capsys.readouterr().err) == told
    set_up_logging(level="ERROR")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("level", "library"), [("DEBUG", logging.DEBUG), ("INFO", logging.WARNING), ("ERROR", logging.ERROR)]
)
def test_waitress_repeats_no_client_that_left(level, library):
    set_up_logging(level=level)
    assert logging.getLogger("waitress").getEffectiveLevel() == library


def test_setting_up_twice_does_not_double_lines(capsys):
    set_up_logging()
    set_up_logging()
    logging.getLogger("some.module").info("once")
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "level", "text", "added"),
    [
        ("Middleware.x", logging.WARNING, "skipped a part", " [workflow me/chat/Main, node 2 'Ask']"),
        ("Middleware.x", logging.ERROR, "Node 'Ask': bad", " [workflow me/chat/Main, node 2]"),
        ("Middleware.x", logging.WARNING, "workflow me/chat/Main, node 2 'Ask' is odd", ""),
        ("Middleware.x", logging.INFO, "for information", ""),
        ("urllib3.pool", logging.WARNING, "of a library", ""),
    ],
)
def test_warnings_name_workflow_and_node(tmp_path, capsys, name, level, text, added):
    set_up_logging(str(tmp_path), ["ann"])
    site = NodeSite(Listeners(), "r-1", "Main", 2, "Ask", ("me/chat/Main",))
    before = enter_node(site)
    with request_scope(RequestContext(request_id="r-1")):
        logging.getLogger(name).log(level, "%s", text)
    with request_scope(RequestContext(request_id="r-2")):
        logging.getLogger("Middleware.x").warning("of another request")
    leave_node(site, before)
    logging.getLogger("Middleware.x").warning("outside")
    printed = [line.partition("] [")[2].partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert printed == [text + added, "of another request", "outside"]
    assert [line.partition("] [")[2].partition("] ")[2] for line in lines(tmp_path / "wilmerai.log")] == printed
