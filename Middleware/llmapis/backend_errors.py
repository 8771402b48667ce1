"""The messages for failed back-end calls: the endpoint, the failure, and what to check.

Messages contain the URL without user, password and query, and none of the request's keys.
"""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import socket
import ssl
from collections.abc import Mapping, Sequence

from Middleware.exceptions import (
    BackendConnectionError,
    BackendError,
    BackendLoopError,
    BackendResponseError,
    BackendStatusError,
    BackendTimeoutError,
    WilmerError,
)
from Middleware.llmapis.addresses import NO_SUCH_PATH
from Middleware.models.request_context import current_request
from Middleware.utilities.command_lines import in_container
from Middleware.utilities.http.addresses import is_loopback
from Middleware.utilities.http.problems import HttpProblem, Kind
from Middleware.utilities.http.wire import ResponseHead, Target

# The message has to stay readable in one line of a chat or a log.
MAX_BODY_CHARACTERS = 500
MAX_REASON_CHARACTERS = 60
# Of a list of mistakes; more do not fit into the message.
MAX_ENTRIES = 20
# A page shows its title and first text within this size; searching more of it takes time.
MAX_PAGE_CHARACTERS = 16384
# The texts of these errors contain nothing that the server sent.
_OWN_WORDS = (BackendConnectionError, BackendLoopError, BackendTimeoutError)
# The numbers of these errors are not those of the operating system.
_OWN_NUMBERS = (ssl.SSLError, socket.gaierror, socket.herror)
_SECRET_HEADERS = ("authorization", "x-api-key", "api-key", "proxy-authorization", "x-goog-api-key")
# The first ones are those of most servers; the others are asked for where these say nothing.
_MESSAGE_KEYS = (
    *("error", "message", "detail", "msg", "error_description", "errors"),
    *("metadata", "raw", "status_msg", "error_msg", "err_msg", "reason", "info", "base_resp", "failure", "description"),
)
_DOCKER_HOST = "host.docker.internal"
_CLASSES: dict[Kind, type[BackendError]] = {
    Kind.CONNECT_TIMEOUT: BackendTimeoutError,
    Kind.READ_TIMEOUT: BackendTimeoutError,
    Kind.UNREADABLE: BackendResponseError,
    Kind.TOO_LARGE: BackendResponseError,
}

_TITLE = re.compile(r"<title\b[^<>]*>(.*?)</title\b", re.IGNORECASE | re.DOTALL)
_TOO_LONG = re.compile(
    r"context (?:size|length|window)|maximum context|(?:prompt|input) is too long|too many tokens", re.IGNORECASE
)
# Some servers say it with a failure of their own; within a stream there is no status.
_TOO_LONG_STATUSES = (400, 413, 500, None)
# OpenAI's word and sentence, and those of others that are paid in advance.
_NO_QUOTA = re.compile(r"insufficient[_ ](?:quota|balance|credits|funds)|exceeded your current quota", re.IGNORECASE)
# Servers that count the requested answer, such as vLLM, name it.
_NAMES_LIMIT = re.compile(r"max_(?:completion_|new_)?tokens|in the completion|output tokens", re.IGNORECASE)
_NO_MODEL = re.compile(r"\bmodel\b.{0,200}\b(?:not found|not exist)\b|\b(?:no such|unknown) model\b", re.IGNORECASE)
# What the templates of Gemma, Mistral and others raise; llama.cpp and vLLM pass it on.
STRICT_TEMPLATE = re.compile(
    r"roles must alternate|system message must be (?:the first|at the beginning)", re.IGNORECASE
)
# What this program answers to a request that comes back, and to one whose back-end has answered so.
_LOOP = re.compile(r"this WilmerAI is already answering this request|leads back to this WilmerAI")
_CANNOT_SEE = re.compile(
    r"(?:not|n't) support(?:ed)?\b[^.,;:]{0,20}\b(?:image|vision|multimodal)"
    r"|\bimages? (?:inputs? )?(?:is|are) not supported|not a multimodal model|image_url is only supported"
    r"|no endpoints found that support image|missing data required for image",
    re.IGNORECASE,
)
# llama.cpp's type, and the words of others. A model that cannot be loaded is not waited for.
_LOADING = re.compile(r"loading|starting up|not ready|warming|unavailable_error", re.IGNORECASE)
_NOT_LOADING = re.compile(r"error loading|fail|unable|cannot|could not|terminated", re.IGNORECASE)
# Claude's words within a stream.
_STATUS_WORDS = {"overloaded_error": "529", "rate_limit_error": "429"}
_PASSED_ON = re.compile(r"provider returned error", re.IGNORECASE)
_UNSEEN = re.compile(r"<(script|style)\b.*?(?:</\1[^<>]*>|\Z)|<!--.*?(?:-->|\Z)", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^<>]*>?")


def short_body(body: bytes, secrets: tuple[str, ...] = ()) -> str:
    """Return the server's own message in an error body: one line, at most 500 characters, without ``secrets``."""
    text = readable_text(body)
    with contextlib.suppress(ValueError, RecursionError):
        text = _message_in(json.loads(text)) or text
    if text.strip() in ("{}", "[]", "null", '""'):
        return ""
    return _one_line(masked(text, secrets), MAX_BODY_CHARACTERS)


def said_in(body: object, secrets: tuple[str, ...] = ()) -> str:
    """Return the server's own message in a decoded body, as ``short_body`` does; "" without one."""
    return _one_line(masked(_message_in(body), secrets), MAX_BODY_CHARACTERS)


def readable_text(body: bytes) -> str:
    """Return an error body as text; of an HTML page, what a browser shows first."""
    text = body.decode("utf-8-sig", "replace")
    return _page_text(text) if text.lstrip().startswith("<") else text


def masked(text: str, secrets: tuple[str, ...]) -> str:
    """Return ``text`` with each secret replaced by asterisks."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def log_text(error: Exception, redact: bool | None = None) -> str:
    """Return the text of an error for the log, without anything that the back-end sent if the log is redacted.

    A back-end may quote the conversation in an error, and so may other errors that are ``private``. ``redact``: None
    for the setting of the current request.
    """
    if redact is None:
        request = current_request()
        redact = request is not None and request.redact
    if redact and getattr(error, "private", False) and not isinstance(error, BackendError):
        return f"{type(error).__name__}, whose text may quote the conversation"
    if not redact or not isinstance(error, BackendError) or isinstance(error, _OWN_WORDS):
        return str(error)
    status = "" if error.status is None else f", status {error.status}"
    where = f"Endpoint '{error.endpoint}': " if error.endpoint else ""
    return f"{where}{type(error).__name__}{status}."


def status_of(error: BackendError) -> int | None:
    """Return the status of an error, that of an error object within a status of success included; None for none."""
    if isinstance(error, BackendStatusError):
        return error.status
    body = error.data if isinstance(error.data, Mapping) else {}
    parts = [part for part in (body, body.get("error")) if isinstance(part, Mapping)]
    codes = (str(part.get(key)) for part in parts for key in ("code", "status", "status_code", "type"))
    numbers = (_STATUS_WORDS.get(code, code) for code in codes)
    return next((int(number) for number in numbers if re.fullmatch(r"[45]\d\d", number)), None)


def says_loading(error: BackendError) -> bool:
    """Return whether a server says that it loads its model, and not that this has failed."""
    said = error.body if error.data is None else json.dumps(error.data, ensure_ascii=False, default=str)
    return _LOADING.search(said) is not None and _NOT_LOADING.search(said) is None


def _one_line(text: str, limit: int) -> str:
    """Return ``text`` in one line, without repeated spaces and without control characters for a terminal."""
    text = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _page_text(page: str) -> str:
    """Return the title of an HTML page, or the visible text at its beginning."""
    page = page[:MAX_PAGE_CHARACTERS]
    title = _TITLE.search(page)
    for part in (title[1] if title else "", _UNSEEN.sub(" ", page)):
        text = html.unescape(_TAG.sub(" ", part)).strip()
        if text:
            return text
    return ""


def _message_in(data: object, depth: int = 0) -> str:
    if isinstance(data, str):
        return data
    if isinstance(data, list) and depth < 4:
        return "; ".join(filter(None, (_message_in(entry, depth + 1) for entry in data[:MAX_ENTRIES])))
    if isinstance(data, dict) and depth < 4:
        meta = data.get("metadata")
        if isinstance(meta, dict) and meta.get("raw") and _PASSED_ON.match(str(data.get("message"))):
            return f"{meta['provider_name']}: {_raw(meta)}" if meta.get("provider_name") else _raw(meta)
        for key in _MESSAGE_KEYS:
            found = _raw(data) if key == "raw" else _message_in(data.get(key), depth + 1)
            path = data.get("loc") if key == "msg" and found else None
            if isinstance(path, list) and (steps := [str(step) for step in path if step != "body"]):
                return f"{'.'.join(steps)}: {found}"
            if found:
                return found
    return ""


def _raw(meta: Mapping[str, object]) -> str:
    """Return the message of another server, which OpenRouter passes on as a text."""
    raw = meta.get("raw")
    if isinstance(raw, str):
        with contextlib.suppress(ValueError, RecursionError):
            raw = json.loads(raw)
    return _message_in(raw)


def secrets_of(headers: Mapping[str, str], target: Target) -> tuple[str, ...]:
    """Return the strings of a request that must not appear in messages, longest first."""
    found = set(target.secrets)
    for name, value in headers.items():
        if name.lower() in _SECRET_HEADERS:
            value = value.strip()
            found.update((value, value.partition(" ")[2].strip() or value))
    # Replacing shorter strings would garble the message. Longest first, so that none is replaced in parts.
    return tuple(sorted((text for text in found if len(text) >= 4), key=len, reverse=True))


def call_error(endpoint: str, target: Target, problem: HttpProblem) -> BackendError:
    """Return the error for a call without a readable answer."""
    text = sentence(f"{_where(endpoint, target)}: {problem.text}")
    whole = f"{text} {_advice(problem.kind)} {_container_hint(problem.kind, target.host)}".strip()
    return _CLASSES.get(problem.kind, BackendConnectionError)(whole, endpoint=endpoint)


def _advice(kind: Kind) -> str:
    return {
        Kind.CONNECT_TIMEOUT: "Is the host reachable from here, and is the port open?",
        Kind.NOT_LOCAL: "Set 'allowRemoteBackup' to true in the backup's endpoint file to permit that.",
        Kind.REFUSED: "Is the LLM server running, and is this its port?",
        Kind.UNKNOWN_HOST: "Check the URL of the endpoint.",
        Kind.LOST: "It may have crashed or run out of memory; see its log.",
        Kind.UNREADABLE: "Check host, port and http:// or https:// in the URL.",
    }.get(kind, "")


def _container_hint(kind: Kind, host: str) -> str:
    if not in_container():
        return ""
    if kind is Kind.REFUSED and is_loopback(host):
        return f"Inside a container, localhost means the container itself; try {_DOCKER_HOST}."
    if kind is Kind.UNKNOWN_HOST and host == _DOCKER_HOST:
        return f"Inside a container on Linux, start it with --add-host={_DOCKER_HOST}:host-gateway."
    return ""


def loop_error(endpoint: str, target: Target) -> BackendLoopError:
    """Return the error for an endpoint that leads back to this server."""
    return BackendLoopError(f"{_where(endpoint, target)} leads back to this WilmerAI", endpoint=endpoint)


def says_loop(said: str) -> bool:
    """Return whether a back-end's answer says that the request has come back, to it or to a server behind it."""
    return _LOOP.search(said) is not None


def not_json_error(endpoint: str, target: Target, status: int, content_type: str, size: int) -> BackendResponseError:
    kind = content_type.partition(";")[0].strip()[:60] or "no content type"
    return BackendResponseError(
        f"{_where(endpoint, target)}: the answer is not JSON ({kind}, {size} bytes). Is this "
        "the URL of the API, and the right ApiType?",
        endpoint=endpoint,
        status=status,
    )


def status_error(
    endpoint: str, target: Target, head: ResponseHead, body: str, file: str = "", asked: Sequence[str] = ()
) -> BackendError:
    """Return the error for an answer with an error status and the server's words in ``body``.

    ``file``: the endpoint's file. ``asked``: the URLs that were asked, if it was more than one.
    """
    if says_loop(body):
        return loop_error(endpoint, target)
    said = f": {body}" if body else ""
    tried = f"Asked at {' and '.join(asked)}. " if asked else ""
    place = f"Check 'endpoint', 'apiPath' and the ApiType in {file or 'the endpoint file'}, and the model name."
    status, reason = head.status, _one_line(head.reason, MAX_REASON_CHARACTERS)
    hint = _hint(status, head.headers.get("location", ""), body)
    hint = hint or (tried + place if status in NO_SUCH_PATH else "")
    text = f"{_where(endpoint, target)}: status {status}{f' {reason}' if reason else ''}{said}"
    if hint:
        text = f"{sentence(text)} {hint}"
    return BackendStatusError(text, endpoint=endpoint, status=status, body=body)


def too_long_hint(said: str) -> str:
    """Return advice if the text says that a prompt is too long, else ""."""
    if not _TOO_LONG.search(said):
        return ""
    if _NAMES_LIMIT.search(said):
        return (
            "The prompt and the response limit ('maxResponseSizeInTokens' of the node) do not fit into the model's "
            "context window together. Lower the limit, or shorten the prompt: set 'maxContextTokenSize' of the "
            "endpoint to that of the server, and 'clampPromptToContextWindow' to true in the user file."
        )
    return (
        "The prompt is longer than the model's context window. Set 'maxContextTokenSize' of the endpoint to that "
        "of the server, and 'clampPromptToContextWindow' to true in the user file. That shortens "
        "conversations, not the 'prompt' of a node."
    )


def says_too_long(status: int | None, said: str) -> bool:
    """Return whether a back-end's answer says that the prompt is too long for it. ``status``: None within a stream."""
    return status in _TOO_LONG_STATUSES and _TOO_LONG.search(said) is not None


def says_no_quota(said: str) -> bool:
    """Return whether a back-end's answer says that the account must be paid for before it is served again."""
    return _NO_QUOTA.search(said) is not None


def sentence(text: str) -> str:
    """Return ``text`` with a full stop, unless it ends with a punctuation mark."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _hint(status: int, location: str, body: str) -> str:
    if status in _TOO_LONG_STATUSES and (hint := too_long_hint(body)):
        return hint
    if status in (400, 404, 415, 422, 500, 501) and _CANNOT_SEE.search(body):
        return "The model cannot see images. Remove 'acceptImages' from the node, or use an endpoint whose model can."
    if status in (400, 422, 500) and STRICT_TEMPLATE.search(body):
        return (
            "The model's chat template accepts only users and assistants in turn. Set 'alternateRoles' of the "
            "endpoint to true."
        )
    if status in (400, 404) and _NO_MODEL.search(body):
        return (
            "Check 'modelNameToSendToAPI' of the endpoint: it must be a model that the server has ('ollama list' "
            "shows those of Ollama, 'ollama pull' gets another)."
        )
    if _LOADING.search(body) and not _NOT_LOADING.search(body) and status in (500, 503):
        return (
            "The server is still loading its model. Set 'loadingTimeoutInSeconds' of the endpoint to wait for longer."
        )
    if 300 <= status < 400:
        where = f" (to {location.partition('?')[0][:200]})" if location and "@" not in location else ""
        return f"The server redirects{where}; put the final URL into the endpoint."
    return {
        401: "Check 'apiKey' of the endpoint.",
        403: "Check 'apiKey' of the endpoint and what it may do.",
        413: "The request is too large for the server.",
        429: "The server limits the rate of requests.",
        503: "The server takes no calls at the moment; see its log.",
    }.get(status, "")


def _where(endpoint: str, target: Target) -> str:
    return f"Endpoint '{endpoint}' ({target.display})"


def public_text(error: Exception) -> str:
    """Return the text of any error for the log; for errors of libraries, which may quote anything, only the type.

    A system error also has a number with a fixed text: ``OSError: No space left on device``.
    """
    if isinstance(error, WilmerError):
        return log_text(error)
    number = error.errno if isinstance(error, OSError) and not isinstance(error, _OWN_NUMBERS) else None
    return type(error).__name__ + (f": {os.strerror(number)}" if number and number > 0 else "")
