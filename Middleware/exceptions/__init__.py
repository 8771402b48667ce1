"""All errors that WilmerAI raises on purpose.

    WilmerError
    |-- ConfigurationError              something the user wrote in a config file
    |   |-- ConfigNotFoundError         (also FileNotFoundError)
    |   |-- ConfigSyntaxError           (also json.JSONDecodeError, a ValueError)
    |   |-- ConfigValueError            (also ValueError)
    |   |   `-- ConditionSyntaxError    workflows/handlers/impl/specialized/conditional
    |   |-- MissingInvokeError          (also AttributeError) workflows/tools/dynamic_module_loader
    |   |-- InvokeNotCallableError      (also TypeError) workflows/tools/dynamic_module_loader
    |   |-- ScriptSyntaxError           (also SyntaxError) workflows/tools/dynamic_module_loader
    |   `-- ScriptImportError           (also ModuleNotFoundError) workflows/tools/dynamic_module_loader
    |-- BackendError                    an LLM server did not do what it was asked
    |   |-- BackendConnectionError      (also ConnectionError) could not reach it, or lost it
    |   |-- BackendTimeoutError         (also TimeoutError)
    |   |-- BackendStatusError          answered with a status of 400 or more
    |   |-- BackendResponseError        (also ValueError) answered something unreadable, or an error object
    |   |   |-- BackendLoopError        the request came back to this server
    |   |   `-- InvalidLlmResponseError answered without the form of an answer
    |   |-- FailoverError               (also RuntimeError) it failed, and its backup must not or cannot be used
    |   |-- CurlError                   (also RuntimeError) workflows/tools/curl/tool
    |   |   |-- CurlExitError
    |   |   `-- CurlTimeoutError        (also TimeoutError)
    |   `-- WebFetchError               workflows/tools/web/fetch
    |       |-- WebFetchConnectionError (also ConnectionError)
    |       |-- WebFetchTimeoutError    (also TimeoutError)
    |       |-- WebFetchUrlError        (also ValueError)
    |       `-- ResponseTooLargeError
    |-- GateTimeoutError                (also TimeoutError) no slot of the concurrency gate became free
    |-- ClientError                     the request itself is wrong
    |   `-- ServerStoppingError         the server stops before the answer is complete
    |-- StoredDataError                 a file of a conversation cannot be used; it is left as it is
    |   |-- UnreadableDataError         (also ValueError) it does not hold what it should
    |   |-- DataKeyError                it is encrypted for another API key or user
    |   `-- KeySaltError                the salt that leads from an API key to its data
    |-- StateUnavailableError           (also OSError) the state database does not answer
    |   `-- StateConflictError          another worker has changed what was to be written
    |-- EarlyTerminationException       a run ended on purpose: cancellation or a held lock
    |-- CurlMissingError                (also FileNotFoundError) workflows/tools/curl/tool
    |-- MCPToolCallError                workflows/tools/mcp/server_file
    |-- DynamicModuleError              workflows/tools/dynamic_module_loader; users' scripts raise it
    |
    |   The callers of these handle them, or raise another error of this tree in their place.
    |
    |-- DatabaseBusyError               services/lock_database
    |-- CannotOpenDatabaseError         services/lock_database
    |-- SessionError                    workflows/tools/mcp/mcp_sessions
    |-- SessionTimeoutError             workflows/tools/mcp/mcp_sessions
    |-- SubstitutionError               (also ValueError) utilities/templates/substitution
    |   `-- UnknownVariableError
    |-- RenderLimitError                utilities/templates/jinja_limits
    |-- LineTooLongError                (also ValueError) utilities/answers/stream_parsers
    |-- DeadlineError                   utilities/daemon_threads
    |-- NoRoomError                     api/edge/body_budget
    |-- HttpError                       utilities/http/problems
    |-- NotLocalError                   (also OSError) utilities/http/problems
    `-- WireError                       (also ValueError) utilities/http/body
        `-- TooLargeError               utilities/http/wire

    OperatorError                       a start, a command or a file for them cannot do what the operator wants
    |-- AccessKeysError                 api/edge/access_keys
    |   `-- NoKeysError
    |-- UnusableKeyError                (also ValueError) cli/keys
    |-- StartError                      cli/program
    |   `-- FlagError
    `-- NotDoneError                    cli/program

A path names the module below ``Middleware`` that defines the class. Add-ons derive theirs from one of these, too.

``str(error)`` of a WilmerError is fit for a client: one line, config files named relative to the config root, no
absolute paths, no keys. What only the operator may see goes to the log where the error is raised. That of an
OperatorError is for a terminal or the log alone, as it may name absolute paths.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence

CANCELLED = "cancelled"
LOCKED = "locked"


class WilmerError(Exception):
    """Any error that WilmerAI raises on purpose."""

    # Whether the text may hold words of a conversation, which the log of a redacted request leaves out.
    private = False


class OperatorError(Exception):
    """What an operator wants of a start or a command cannot be done. The text says why; no client may see it."""


class EarlyTerminationException(WilmerError):  # noqa: N818 - users' scripts know it by this name
    """A run was stopped on purpose. ``reason`` is ``CANCELLED`` or ``LOCKED``."""

    def __init__(self, message: str = "", reason: str = CANCELLED) -> None:
        self.reason = reason
        super().__init__(message)

    @property
    def is_cancellation(self) -> bool:
        return self.reason == CANCELLED


class ConfigurationError(WilmerError):
    """A configuration mistake.

    Attributes:
        file: path relative to the config root, with forward slashes ("" when no single file is meant).
        json_path: where in the file, for example ``nodes[2].type``.
        expected: what would have been right, for example a list of valid names.
        suggestion: the nearest valid name, if one is near.
    """

    def __init__(
        self, message: str, *, file: str = "", json_path: str = "", expected: str = "", suggestion: str = ""
    ) -> None:
        self.file, self.json_path, self.expected, self.suggestion = file, json_path, expected, suggestion
        where = f"{file}: " if file else ""
        at = f" (at {json_path})" if json_path else ""
        wanted = f" Expected: {expected}." if expected else ""
        hint = f" Did you mean '{suggestion}'?" if suggestion else ""
        # A full stop ends the message only if another sentence follows.
        self.text = f"{where}{message}{at}{'.' if (wanted or hint) and not message.endswith('.') else ''}{wanted}{hint}"
        super().__init__(self.text)

    def __str__(self) -> str:
        return self.text


# The built-in types among the bases are those that users' scripts catch.
class ConfigNotFoundError(ConfigurationError, FileNotFoundError):
    """A named config file does not exist. ``tried`` lists every path that was looked at, relative to the root."""

    def __init__(
        self,
        message: str,
        *,
        tried: Sequence[str] = (),
        file: str = "",
        json_path: str = "",
        expected: str = "",
        suggestion: str = "",
    ) -> None:
        self.tried = list(tried)
        looked = f" Looked for: {', '.join(self.tried)}." if self.tried else ""
        super().__init__(
            message.rstrip(".") + "." + looked, file=file, json_path=json_path, expected=expected, suggestion=suggestion
        )


class ConfigSyntaxError(ConfigurationError, json.JSONDecodeError):
    """A config file is not JSON. Carries ``lineno`` and ``colno`` as ``json.JSONDecodeError`` does."""

    def __init__(self, file: str, problem: str, doc: str = "", pos: int = 0) -> None:
        json.JSONDecodeError.__init__(self, problem, doc, pos)
        # Some mistakes have no position, such as nesting that is too deep.
        where = f", line {self.lineno}, column {self.colno}" if doc else ""
        self.file, self.json_path, self.expected, self.suggestion = file, "", "valid JSON", ""
        self.text = f"{file}{where}: not valid JSON: {problem}"

    # JSONDecodeError would pickle its own three arguments.
    def __reduce__(self) -> tuple[object, ...]:
        return self.__class__, (self.file, self.msg, self.doc, self.pos)


class ConfigValueError(ConfigurationError, ValueError):
    """A config value cannot be used: wrong type, unknown name, forbidden path."""


class BackendError(WilmerError):
    """An LLM server failed.

    Attributes:
        endpoint: name of the endpoint file.
        status: HTTP status, if there was one.
        body: the server's own message, shortened to one line.
        data: the error as the server sent it, a text or its JSON, which decides about another attempt.
        retry_after: the seconds that the server asks for; None without such a wish.
        lost: ``new`` or ``stale`` (used before) for a connection that was lost before the answer began, else "".
    """

    data: object = None
    retry_after: float | None = None
    lost = ""

    def __init__(self, message: str, *, endpoint: str = "", status: int | None = None, body: str = "") -> None:
        self.endpoint, self.status, self.body = endpoint, status, body
        super().__init__(message)


class BackendConnectionError(BackendError, ConnectionError):
    """The server could not be reached, or the connection was lost."""


class BackendTimeoutError(BackendError, TimeoutError):
    """The server accepted the request and then sent no data for too long, or could not be connected in time."""


class BackendStatusError(BackendError):
    """The server answered with a status of 400 or more."""


class BackendResponseError(BackendError, ValueError):
    """The server's answer cannot be read, or is an error object with a good status."""


class BackendLoopError(BackendResponseError):
    """The endpoint leads back to this server. Neither a retry nor a backup helps: the request would come back again."""


class InvalidLlmResponseError(BackendResponseError):
    """The server's answer has not the form of an answer of its API."""


class FailoverError(BackendError, RuntimeError):
    """An endpoint failed and its backup must not or cannot be used. The endpoint's own failure is the cause."""


class GateTimeoutError(WilmerError, TimeoutError):
    """No slot of the concurrency gate became free in time."""


class ClientError(WilmerError):
    """The request is wrong.

    Attributes:
        status: the HTTP status to answer with.
        param: the JSON path of the field that is wrong, such as ``input[3].content``, where the dialect names it.
        code: a word for programs, such as ``unsupported_parameter``, where the dialect has one.
        details: what Anthropic's clients read in addition to the message, by name.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        self.status, self.param, self.code, self.details = status, param, code, details
        super().__init__(message)


class ServerStoppingError(ClientError):
    """The server stops before the answer is complete. What there is of it must not look like all of it."""

    def __init__(self) -> None:
        super().__init__("The server is stopping.", 503)


class StoredDataError(WilmerError):
    """A file in the folder of a conversation cannot be used. It is not overwritten, moved or deleted."""

    # For the log only, as the names of stored files are not the client's business.
    file = ""


class UnreadableDataError(StoredDataError, ValueError):
    """The file is not JSON, or its JSON has another shape. The text names file and line."""


class DataKeyError(StoredDataError):
    """The file is encrypted for another API key or user than the present one."""


class KeySaltError(StoredDataError):
    """The salt of format 2 is missing or cannot be used. Without it, no API key leads to its data."""

    def __init__(self, message: str, file: str) -> None:
        self.file = file
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return self.__class__, (str(self), self.file)


class StateUnavailableError(WilmerError, OSError):
    """The state database does not answer. It is an OSError, as code that stores something lives with a full disk."""

    def __init__(self, message: str = "the state database does not answer") -> None:
        super().__init__(errno.EIO, message)

    def __str__(self) -> str:
        return str(self.strerror)


class StateConflictError(StateUnavailableError):
    """Another worker has changed what was to be replaced since it was read. Nothing was written."""

    def __init__(self, message: str = "another worker has changed it in the meantime") -> None:
        super().__init__(message)
