"""The log: one line format, stderr always, rotating files on request, one file per user with several users."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import sys
import time
from collections.abc import Sequence
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Any, TextIO

from Middleware.api.terminal_log import TerminalFilter, TerminalFormatter
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import ConfigValueError, WilmerError
from Middleware.llmapis.backend_errors import log_text
from Middleware.models.request_context import current_node, current_request
from Middleware.utilities.config.users import configured_users, flag_in, get_current_username, settings_for
from Middleware.utilities.files.path_utils import safe_join
from Middleware.utilities.sensitive_logging_utils import REDACTED, places_of

logger = logging.getLogger(__name__)

LINE_FORMAT = "[%(asctime)s] %(levelname)s [%(user)s] [%(name)s.%(funcName)s:%(lineno)d] %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
FILE_NAME = "wilmerai.log"
# The current file and its backups take at most 24 MB, so that a log cannot fill a disk.
MAX_BYTES = 3 * 1024 * 1024
BACKUP_COUNT = 7
# A file cannot be renamed in a folder that this account may not change, or, on Windows, while a program has it open.
# Each attempt closes and opens the file.
ROTATION_RETRY_SECONDS = 60.0
# The permissions of a new file.
OWNER_ONLY = 0o600
SYSTEM = "system"
LEVEL_VARIABLE = "WILMER_LOG_LEVEL"
# These libraries log every request or connection at INFO or DEBUG.
_VERBOSE = ("werkzeug", "urllib3", "waitress.queue", "eventlet")
_OWN = ("Middleware.", "__main__")
_SERVERS = ("waitress", "werkzeug", "eventlet")
_PRIVATE_FLAGS = ("encryptUsingApiKey", "redactLogOutput")


class PrivacyFilter(logging.Filter):
    """Removes text that may come from a conversation from each record; lets every record pass.

    In a redacted request, the messages of errors and of other libraries' loggers are removed. Outside of requests,
    where the user that a line concerns is unknown, tracebacks and the messages of other libraries are removed if any
    configured user wants privacy.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        request = current_request()
        if request is not None:
            if request.redact:
                _clean(record, _is_own(record))
            return True
        own = _is_own(record)
        if (not own or record.exc_info) and _any_user_wants_privacy():
            _clean(record, own)
        return True


def _is_own(record: logging.LogRecord) -> bool:
    return f"{record.name}.".startswith(_OWN)


def _clean(record: logging.LogRecord, own: bool) -> None:
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = places_of(record.exc_info[1])
    record.exc_info = None
    if own or record.name.partition(".")[0] in _SERVERS:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_without_message, record.args))
    else:
        record.msg, record.args = REDACTED, None


def _without_message(value: Any) -> Any:
    """Return an error without private text; other values are unchanged."""
    if isinstance(value, WilmerError):
        return log_text(value, redact=True)
    if isinstance(value, OSError):
        return value.strerror or type(value).__name__
    return type(value).__name__ if isinstance(value, BaseException) else value


def _any_user_wants_privacy() -> bool:
    try:
        users = configured_users() or [get_current_username()]
        return any(flag_in(settings_for(user), flag, user) for user in users for flag in _PRIVATE_FLAGS)
    # An unreadable user file is reported elsewhere; until then the safe answer is yes.
    except Exception:
        return True


class NodeFilter(logging.Filter):
    """Adds the workflow and node at work to warnings and errors that do not name them; lets every record pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        node = current_node(current_request()) if record.levelno >= logging.WARNING else None
        # Several handlers filter the same record.
        if node is not None and _is_own(record) and not hasattr(record, "node"):
            record.node, text = node, record.getMessage()
            where = node.chain[-1] if node.chain else node.workflow_name
            title = "" if f"'{node.node_name}'" in text else f" '{node.node_name}'"
            if where not in text:
                record.msg, record.args = f"{text} [workflow {where}, node {node.node_index}{title}]", None
        return True


class UserFilter(logging.Filter):
    """Sets each record's ``user``: the user of the current thread's request, else ``system``."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "user"):
            record.user = instance.get_request_user() or SYSTEM
        return True


class LineFormatter(logging.Formatter):
    """The form of the lines on stderr and in files, which is made once for all of them."""

    def __init__(self) -> None:
        super().__init__(LINE_FORMAT, DATE_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        line: str | None = getattr(record, "wilmer_line", None)
        # Each handler asks for it, and a file once more, for its length.
        if line is None:
            line = record.wilmer_line = super().format(record)
        return line


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes each record to a stream in one piece, and without a lock where the stream has a file behind it.

    After a write, a thread waits until the interpreter's lock is free. With hundreds of streams, and with a lock of the
    handler's own around both, all requests that log would queue behind it: 2 to 10 ms for each line.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        # What a test or a program without a terminal puts in the place of stderr may have none.
        self._raw = getattr(getattr(stream, "buffer", None), "raw", None)

    def handle(self, record: logging.LogRecord) -> bool:
        if self._raw is None:
            return bool(super().handle(record))
        passes = bool(self.filter(record))
        if passes:
            self.emit(record)
        return passes

    def emit(self, record: logging.LogRecord) -> None:
        if self._raw is None:
            super().emit(record)
            return
        try:
            line = (self.format(record) + self.terminator).encode(self.stream.encoding, self.stream.errors or "strict")
            written = self._raw.write(line)
            # A pipe that is full, for example; the stream knows what to do with the rest.
            if written != len(line):
                self.stream.buffer.write(line[written or 0 :])
                self.flush()
        # As in the inherited method.
        except RecursionError:
            raise
        # A failure to log must not end a request.
        except Exception:
            self.handleError(record)


def file_name() -> str:
    """Return the name of this process's log files. No two processes may rotate one file."""
    name, ending = os.path.splitext(FILE_NAME)
    return f"{name}-{instance.WORKER_NUMBER}{ending}" if instance.WORKER_NUMBER else FILE_NAME


class LogFile(RotatingFileHandler):
    """The rotating log file of a folder, which is created if needed.

    A failure to write (a full disk, a deleted folder) is reported once, not for every line. If the file cannot be
    renamed, it grows, and its backups stay as they are, until a later attempt succeeds. With ``delay``, the file is
    opened at its first record.
    """

    def __init__(self, directory: str, delay: bool = False) -> None:
        self._directory = directory
        self._permissions = OWNER_ONLY
        super().__init__(
            os.path.join(directory, file_name()),
            maxBytes=MAX_BYTES,
            backupCount=BACKUP_COUNT,
            encoding="utf-8",
            delay=delay,
            errors="backslashreplace",
        )
        self._is_failing = self._failed_now = self._is_held = False
        self._next_rotation = 0.0

    def _open(self) -> TextIOWrapper:
        os.makedirs(self._directory, exist_ok=True)
        # Lines may quote a conversation: a new file is for its owner; after a rotation, for those who read the old one.
        os.close(os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, self._permissions))
        stream = super()._open()
        self._permissions = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
        return stream

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        # With one look at the file, where the inherited method takes six, at every line.
        try:
            file = os.stat(self.baseFilename)
        # It is not there yet, or it was deleted.
        except OSError:
            return False
        # In its place there may be a link to a device, which cannot be renamed.
        is_full = stat.S_ISREG(file.st_mode) and 0 < file.st_size >= self.maxBytes - len(self.format(record)) - 1
        return is_full and time.monotonic() >= self._next_rotation

    def doRollover(self) -> None:
        # The inherited method moves the backups first, each time, also if the file itself cannot be renamed.
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        aside = f"{self.baseFilename}.0"
        try:
            # A backup could not be moved the last time, or the process ended.
            if not os.path.lexists(aside):
                os.rename(self.baseFilename, aside)
            self._free_first_backup()
            os.rename(aside, f"{self.baseFilename}.1")
        except OSError as error:
            self._next_rotation = time.monotonic() + ROTATION_RETRY_SECONDS
            if not self._is_held:
                self._is_held = True
                logger.warning(
                    "The log file %s or one of its backups cannot be renamed (%s): another program has it open, or "
                    "this account may not change the folder. The log goes on in this file",
                    self.baseFilename,
                    error.strerror or error,
                )
        else:
            self._is_held = False

    def _free_first_backup(self) -> None:
        """Move each backup up by one, to the first number that is free; the last one is deleted if none is."""
        names = [f"{self.baseFilename}.{number}" for number in range(1, self.backupCount + 1)]
        free = next((place for place, name in enumerate(names) if not os.path.lexists(name)), len(names) - 1)
        for place in range(free, 0, -1):
            os.replace(names[place - 1], names[place])

    def emit(self, record: logging.LogRecord) -> None:
        self._failed_now = False
        super().emit(record)
        if self._is_failing and not self._failed_now:
            self._is_failing = False
            logger.info("The log file %s is written again", self.baseFilename)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        reported, self._is_failing = self._is_failing, True
        # Noted before it is logged, because this line is sent to the same file.
        if not reported:
            logger.error("The log file %s cannot be written: %s", self.baseFilename, error.strerror or error)
        # Last, because writing that line has reset it.
        self._failed_now = True


class PerUserFileHandler(logging.Handler):
    """Writes records with a user to ``<directory>/<user>/wilmerai.log``, others to ``<directory>/wilmerai.log``.

    Only configured users have a folder, from their first record on.
    """

    def __init__(self, directory: str, users: Sequence[str]) -> None:
        super().__init__()
        # The common file is opened at once, so that an unwritable folder ends the start.
        self._files = {"": LogFile(directory)}
        for user in users:
            # A name that cannot be a folder is refused elsewhere; until then, its lines are in the common file.
            with contextlib.suppress(ConfigValueError):
                self._files[user] = LogFile(safe_join(directory, user), delay=True)

    def emit(self, record: logging.LogRecord) -> None:
        user = getattr(record, "user", SYSTEM)
        # A library may use this attribute for its own purposes.
        self._files[user if isinstance(user, str) and user in self._files else ""].handle(record)

    def setFormatter(self, fmt: logging.Formatter | None) -> None:
        super().setFormatter(fmt)
        for file in self._files.values():
            file.setFormatter(fmt)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        super().close()


def set_up_logging(
    directory: str | None = None,
    users: Sequence[str] = (),
    level: str | None = None,
    terminal: TerminalFormatter | None = None,
) -> None:
    """Configure the root logger. Another call replaces the handlers of the earlier one.

    Args:
        directory: the folder of the log files, ``~`` expanded; None for no files. OSError if it cannot be written.
        users: the configured users; two or more get a file each.
        level: name of the lowest level logged; None for the environment's ``WILMER_LOG_LEVEL``, else INFO.
        terminal: the form of the short log for a terminal, in place of the lines on stderr. It has no effect at DEBUG,
            which is asked for by people who want to see everything.
    """
    handlers: list[logging.Handler] = [LineHandler(sys.stderr)]
    if directory:
        folder = os.path.expanduser(directory)
        handlers.append(PerUserFileHandler(folder, users) if len(users) > 1 else LogFile(folder))
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if getattr(handler, "wilmer", False)]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        # A line that has one reader need not be kept for another.
        _add(handler, LineFormatter() if directory else logging.Formatter(LINE_FORMAT, DATE_FORMAT))
    if terminal is not None and log_level(level) > logging.DEBUG:
        handlers[0].setFormatter(terminal)
        handlers[0].addFilter(TerminalFilter())
    root.setLevel(log_level(level))
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    # Waitress logs disconnected clients too, without the request's id.
    logging.getLogger("waitress").setLevel(
        logging.NOTSET if root.level <= logging.DEBUG else max(root.level, logging.WARNING)
    )
    if not level and not _level_named(_wanted_level(None)):
        logger.warning(
            "The environment variable %s is %r, which is not a level; INFO is used. Expected: DEBUG, INFO, "
            "WARNING or ERROR.",
            LEVEL_VARIABLE,
            os.environ[LEVEL_VARIABLE],
        )


def _add(handler: logging.Handler, formatter: logging.Formatter) -> None:
    handler.wilmer = True  # type: ignore[attr-defined]
    handler.addFilter(UserFilter())
    handler.addFilter(PrivacyFilter())
    # After the one that reads the arguments of the message.
    handler.addFilter(NodeFilter())
    handler.setFormatter(formatter)
    logging.getLogger().addHandler(handler)


def log_level(name: str | None = None) -> int:
    """Return the number of a level name, the environment's if None; INFO if it is not a level."""
    return _level_named(_wanted_level(name)) or logging.INFO


def _wanted_level(name: str | None) -> str:
    return (name or os.environ.get(LEVEL_VARIABLE, "")).strip().upper() or "INFO"


def _level_named(name: str) -> int:
    """Return the number of a level; 0 if it is not one. NOTSET counts as none: DEBUG is the name for everything."""
    return logging.getLevelNamesMapping().get(name, logging.NOTSET)
