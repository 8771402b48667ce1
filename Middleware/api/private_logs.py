"""The last door before the log: records of requests whose text must stay out of it.

The program's own lines are written so that they hold no such text. What they cannot know is what foreign errors and
foreign loggers say: libraries, and users' scripts.
"""
from __future__ import annotations

import logging
from typing import Any

from Middleware.exceptions import WilmerError
from Middleware.llmapis.backend_errors import log_text
from Middleware.models.request_context import current_request
from Middleware.utilities.config.users import configured_users, flag_in, get_current_username, settings_for
from Middleware.utilities.sensitive_logging_utils import REDACTED, is_encryption_active, places_of

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
