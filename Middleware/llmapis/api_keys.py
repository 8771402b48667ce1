"""The ``apiKey`` of an endpoint: the key itself, or a reference to it."""

from __future__ import annotations

import logging
import os

from Middleware.exceptions import ConfigValueError
from Middleware.models.process import process
from Middleware.models.request_context import current_outside
from Middleware.utilities import config_utils
from Middleware.utilities.once import Once

logger = logging.getLogger(__name__)

ENVIRONMENT = "env:"
FILE = "file:"
# Far above the size of any key: a device or a log file that was named by mistake is not read to its end.
MAX_FILE_BYTES = 65536
WANTED = "a key, 'env:' with the name of an environment variable or 'file:' with the path of a text file"


def _reported() -> Once[tuple[str, str, str]]:
    """The endpoint file, value and problem of each key file that was reported."""
    return Once()


def resolve_api_key(value: object, file: str) -> str:
    """Return the key for an ``apiKey`` value, ``""`` for none.

    ``env:NAME`` is the content of an environment variable, ``file:PATH`` that of a UTF-8 text file with one line; ``~``
    is the home directory, and a relative path counts from the config root. Both are read on every call and trimmed.
    Any other string is the key, trimmed too; a key that starts with ``env:`` or ``file:`` must be given by reference.

    ``file`` is the endpoint file relative to the config root. Raises ConfigValueError with the name of the file and of
    the variable, but never its content. The path of a key file appears only in the log. Where no server is called, no
    key is needed.
    """
    if value is None or not current_outside().calls_servers:
        return ""
    try:
        return _resolve(value)
    except _NoKeyError as problem:
        text = str(value).strip()
        path = text.removeprefix(FILE).strip() if text.startswith(FILE) else ""
        if path and process().one(_reported).first((file, text, str(problem))):
            logger.error("%s: %s: '%s'", file, problem, path)
        raise ConfigValueError(str(problem), file=file, json_path="apiKey", expected=WANTED) from None


class _NoKeyError(Exception):
    """The reason why there is no key."""


def _resolve(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise _NoKeyError("the API key is not a string")
    reference = value.strip()
    if reference.startswith(ENVIRONMENT):
        return _from_environment(reference[len(ENVIRONMENT) :].strip())
    if reference.startswith(FILE):
        return _from_file(reference[len(FILE) :].strip())
    return reference


def _from_environment(name: str) -> str:
    if not name:
        raise _NoKeyError(f"'{ENVIRONMENT}' names no environment variable")
    try:
        text = os.environ.get(name)
    # The name contains half a surrogate pair.
    except ValueError:
        text = None
    if text is None:
        raise _NoKeyError(f"the environment variable '{name}' is not set")
    return _single_line(text, f"the environment variable '{name}'")


def _from_file(path: str) -> str:
    if not path:
        raise _NoKeyError(f"'{FILE}' names no file")
    what = "the key file named in 'apiKey'"
    data = _read(os.path.join(config_utils.get_root_config_directory(), os.path.expanduser(path)), what)
    if len(data) > MAX_FILE_BYTES:
        raise _NoKeyError(f"{what} is too large to hold a key")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _NoKeyError(f"{what} is not a UTF-8 text") from None
    return _single_line(text, what)


def _read(path: str, what: str) -> bytes:
    try:
        if os.path.isdir(path):
            raise _NoKeyError(f"{what} is a directory")
        if os.path.exists(path) and not os.path.isfile(path):
            # Reading from a pipe could block for ever.
            raise _NoKeyError(f"{what} is not an ordinary file")
        with open(path, "rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _NoKeyError(f"{what} does not exist") from None
    except OSError as error:
        raise _NoKeyError(f"{what} cannot be read ({error.strerror or type(error).__name__})") from None
    # The path contains a NUL character.
    except ValueError:
        raise _NoKeyError(f"{what} has an invalid name") from None


def _single_line(text: str, what: str) -> str:
    key = text.strip()
    if not key:
        raise _NoKeyError(f"{what} is empty")
    if len(key.splitlines()) > 1:
        raise _NoKeyError(f"{what} holds more than one line")
    # UTF-16, for example, has NUL characters when it is decoded as UTF-8.
    if not key.isprintable():
        raise _NoKeyError(f"{what} holds control characters")
    return key
