"""The log: one line format, stderr always, rotating files on request, one file per user with several users."""
from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from logging.handlers import RotatingFileHandler
from typing import Any

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import WilmerError
from Middleware.llmapis.backend_errors import log_text
from Middleware.models.request_context import current_request
from Middleware.utilities.config.users import configured_users, flag_in, get_current_username, settings_for
from Middleware.utilities.files.path_utils import safe_join
from Middleware.utilities.once import Once
from Middleware.utilities.sensitive_logging_utils import REDACTED, is_encryption_active, places_of

logger = logging.getLogger(__name__)

LINE_FORMAT = "[%(asctime)s] %(levelname)s [%(user)s] [%(name)s.%(funcName)s:%(lineno)d] %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S"
FILE_NAME = "wilmerai.log"
MAX_BYTES = 3 * 1024 * 1024
BACKUP_COUNT = 7
SYSTEM = "system"
LEVEL_VARIABLE = "WILMER_LOG_LEVEL"
_CHATTY = ("werkzeug", "urllib3", "waitress.queue", "eventlet")


_OWN = ("Middleware.", "__main__")
_SERVERS = ("waitress", "werkzeug", "eventlet")
_PRIVATE_FLAGS = ("encryptUsingApiKey", "redactLogOutput")


class PrivacyFilter(logging.Filter):
    """Takes what may be said in a conversation out of a record; lets every record through.

    In a redacted request, errors lose their messages and foreign loggers theirs. Outside of requests, where nobody
    knows whom a line is about, so do tracebacks and foreign loggers if any configured user wants privacy.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        own = f"{record.name}.".startswith(_OWN)
        unknown = current_request() is None and (not own or bool(record.exc_info))
        if is_encryption_active() or (unknown and _somebody_wants_privacy()):
            _clean(record, own)
        return True


def _clean(record: logging.LogRecord, own: bool) -> None:
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = places_of(record.exc_info[1])
    record.exc_info = None
    if own or record.name.partition(".")[0] in _SERVERS:
        record.args = _without_messages(record.args)
    else:
        record.msg, record.args = REDACTED, None


def _without_messages(args: object) -> Any:
    return tuple(map(_without_message, args)) if isinstance(args, tuple) else args


def _without_message(value: Any) -> Any:
    """An error as the log may have it; anything else as it is. Errors that say so are not ``private``."""
    if isinstance(value, WilmerError):
        return log_text(value, redact=True)
    if getattr(value, "private", True) is False:
        return value
    if isinstance(value, OSError):
        return value.strerror or type(value).__name__
    return type(value).__name__ if isinstance(value, BaseException) else value


def _somebody_wants_privacy() -> bool:
    try:
        users = configured_users() or [get_current_username()]
        return any(flag_in(settings_for(user), flag, user) for user in users for flag in _PRIVATE_FLAGS)
    except Exception:  # whatever is wrong with a user's file, it is not said here
        return True


class UserFilter(logging.Filter):
    """Gives each record ``user``: whom the request of the current thread belongs to, else ``system``."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "user"):
            record.user = instance.get_request_user() or SYSTEM
        return True


class _WriteErrors:
    """Logs when files can no longer be written, and when they can again, for the handlers that can write."""

    def __init__(self) -> None:
        self._reported: Once[str] = Once()

    def failed(self, path: str, error: OSError) -> None:
        # Noted before it is logged: the same file is asked to hold that line.
        if self._reported.first(path):
            logger.error("The log file %s cannot be written: %s", path, error.strerror or error)

    def succeeded(self, path: str) -> None:
        if self._reported.over(path):
            logger.info("The log file %s is written again", path)


class LogFile(RotatingFileHandler):
    """A rotating file. That it cannot be written (the disk is full, the folder is gone) is told once, not per line."""

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=BACKUP_COUNT, encoding="utf-8",
                         errors="backslashreplace")
        self._path, self._errors = path, _WriteErrors()
        self._failures = 0

    def emit(self, record: logging.LogRecord) -> None:
        before = self._failures
        super().emit(record)
        if self._failures == before:
            self._errors.succeeded(self._path)

    def handleError(self, record: logging.LogRecord) -> None:
        self._failures += 1
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self._errors.failed(self._path, error)
        else:
            super().handleError(record)


class PerUserFileHandler(logging.Handler):
    """Routes records with a user to ``<directory>/<user>/wilmerai.log``, the rest to ``<directory>/wilmerai.log``.

    Only configured users get a folder; their files are opened at their first record.
    """

    def __init__(self, directory: str, users: Sequence[str]) -> None:
        super().__init__()
        self._directory, self._users = directory, frozenset(users)
        self._files: dict[str, LogFile] = {}
        self._errors = _WriteErrors()
        self._files_lock = threading.RLock()  # garbage collected meanwhile may log
        self._file_of("")  # an unwritable folder shows at start

    def emit(self, record: logging.LogRecord) -> None:
        user = getattr(record, "user", SYSTEM)
        name = user if isinstance(user, str) and user in self._users else ""  # a library may mean others by it
        shown = f"of {name or SYSTEM} in {self._directory}"
        try:
            file = self._file_of(name)
        except OSError as error:
            self._errors.failed(shown, error)
        except Exception:
            self.handleError(record)
        else:
            self._errors.succeeded(shown)
            file.handle(record)

    def setFormatter(self, fmt: logging.Formatter | None) -> None:
        super().setFormatter(fmt)
        with self._files_lock:
            for handler in self._files.values():
                handler.setFormatter(fmt)

    def close(self) -> None:
        with self._files_lock:
            for handler in self._files.values():
                handler.close()
        super().close()

    def _file_of(self, name: str) -> LogFile:
        """The file of a configured user; "": the common one."""
        with self._files_lock:
            handler = self._files.get(name)
            if handler is None:
                handler = _file_handler(safe_join(self._directory, name) if name else self._directory)
                handler.setFormatter(self.formatter)
                self._files[name] = handler
        return handler


def set_up_logging(directory: str | None = None, users: Sequence[str] = (), level: str | None = None) -> None:
    """Configure the root logger. May be called again: the handlers of the earlier call are replaced.

    Args:
        directory: where log files go, ``~`` expanded; None: no files. OSError if it cannot be written.
        users: the configured users; two or more get a file each.
        level: name of the lowest level logged; None: environment ``WILMER_LOG_LEVEL``, else INFO.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)]
    if directory:
        folder = os.path.expanduser(directory)
        handlers.append(PerUserFileHandler(folder, users) if len(users) > 1 else _file_handler(folder))
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if getattr(handler, "wilmer", False)]:
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        handler.wilmer = True  # type: ignore[attr-defined]
        handler.addFilter(UserFilter())
        handler.addFilter(PrivacyFilter())
        handler.setFormatter(logging.Formatter(LINE_FORMAT, DATE_FORMAT))
        root.addHandler(handler)
    root.setLevel(log_level(level))
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    logging.getLogger("waitress").setLevel(  # it repeats, without an id, which clients have left
        logging.NOTSET if root.level <= logging.DEBUG else max(root.level, logging.WARNING))
    if not level and not _level_named(_wanted_level(None)):
        logger.warning("The environment variable %s is %r, which is no level; INFO is used. Expected: DEBUG, INFO, "
                       "WARNING or ERROR.", LEVEL_VARIABLE, os.environ[LEVEL_VARIABLE])


def log_level(name: str | None = None) -> int:
    """The number of a level name; the environment's if None; INFO if that is no level."""
    return _level_named(_wanted_level(name)) or logging.INFO


def _wanted_level(name: str | None) -> str:
    return (name or os.environ.get(LEVEL_VARIABLE, "")).strip().upper() or "INFO"


def _level_named(name: str) -> int:
    """0 for what is no level, and for NOTSET: everything is logged by the name DEBUG only."""
    return logging.getLevelNamesMapping().get(name, logging.NOTSET)


def _file_handler(directory: str) -> LogFile:
    os.makedirs(directory, exist_ok=True)
    return LogFile(os.path.join(directory, FILE_NAME))
