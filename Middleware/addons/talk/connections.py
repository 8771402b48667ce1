"""The two ways to a model: a running server, over HTTP, or the engine in this process."""

from __future__ import annotations

import io
import json
import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Protocol
from wsgiref.types import WSGIApplication, WSGIEnvironment

from Middleware.api.running.running_requests import running_requests
from Middleware.api.running.shutdown import shut_down
from Middleware.exceptions import OperatorError
from Middleware.utilities.answers.stream_parsers import SSEParser
from Middleware.utilities.http.client import HttpClient
from Middleware.utilities.http.problems import HttpError
from Middleware.utilities.http.wire import HttpRequest, Route, parse_target

# Processing a long prompt on a slow computer can take hours.
READ_SECONDS = 14400.0
# On Windows, a wait without a limit cannot be interrupted by Ctrl-C.
SLICE_SECONDS = 0.2
# What is cancelled ends within this time, or is left behind.
STOP_SECONDS = 10.0


class TalkError(OperatorError):
    """There is no answer; the message is for the user. ``status``: of the response, 0 without one."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Reply:
    """A response while it arrives. ``status`` is 0 until the first block has arrived."""

    def __init__(self) -> None:
        self.status = 0
        self.route = ""


class Connection(Protocol):
    """Sends requests to WilmerAI."""

    def send(self, reply: Reply, method: str, path: str, body: bytes | None = None) -> Generator[bytes, None, None]:
        """Send a request and yield the response in blocks, which may be empty. Closing the iterator stops the request.

        Raises TalkError.
        """

    def finish(self) -> None:
        """Wait for the nodes that run after answers, as far as they end with this process."""


class ServerConnection:
    """Requests to a running server. It cancels a request when the connection of the request ends."""

    def __init__(self, url: str, api_key: str) -> None:
        self.url = url
        self._headers = headers_of(api_key)
        self._client = HttpClient()

    def send(self, reply: Reply, method: str, path: str, body: bytes | None = None) -> Generator[bytes, None, None]:
        # The server is on this machine, where no proxy leads.
        request = HttpRequest(
            parse_target(self.url + path),
            method,
            self._headers,
            connect_timeout=5,
            read_timeout=READ_SECONDS,
            route=Route(environment=False),
        )
        stream = self._client.stream(request, body)
        try:
            for block in stream:
                if stream.head is not None and not reply.status:
                    reply.status = stream.head.status
                    reply.route = stream.head.headers.get("x-wilmer-route", "")
                yield block
        except HttpError as error:
            raise TalkError(f"The server at {self.url} does not answer: {error.problem.text}") from error
        finally:
            stream.close()

    def finish(self) -> None:
        """Return at once: the server goes on by itself."""


class EngineConnection:
    """Requests to the application in this process, without a socket, so that no other program can use it."""

    def __init__(self, application: WSGIApplication, api_key: str) -> None:
        self._application = application
        self._headers = headers_of(api_key)

    def send(self, reply: Reply, method: str, path: str, body: bytes | None = None) -> Generator[bytes, None, None]:
        blocks: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        gone = threading.Event()
        environ = self._environ(method, path, body or b"", gone)
        thread = threading.Thread(target=self._run, args=(environ, reply, blocks), name="own-engine", daemon=True)
        thread.start()
        try:
            while (block := _next(blocks)) is not None:
                if isinstance(block, BaseException):
                    raise TalkError(f"The engine failed: {type(block).__name__}: {block}") from block
                yield block
        finally:
            gone.set()
            thread.join(STOP_SECONDS)

    def _run(
        self, environ: WSGIEnvironment, reply: Reply, blocks: queue.SimpleQueue[bytes | BaseException | None]
    ) -> None:
        def start_response(status: str, headers: list[tuple[str, str]], failure: object = None) -> object:
            reply.status = int(status.partition(" ")[0])
            reply.route = {name.lower(): value for name, value in headers}.get("x-wilmer-route", "")
            return lambda data: None

        try:
            answer: Iterable[bytes] = self._application(environ, start_response)  # type: ignore[arg-type]
            try:
                for block in answer:
                    blocks.put(block)
            finally:
                if hasattr(answer, "close"):
                    answer.close()
        # The thread that reads the blocks reports it.
        except BaseException as error:
            blocks.put(error)
        blocks.put(None)

    def _environ(self, method: str, path: str, body: bytes, gone: threading.Event) -> WSGIEnvironment:
        headers = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self._headers.items()}
        return {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "HTTP_HOST": "127.0.0.1",
            **headers,
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
            # As under Waitress: the request is cancelled when its client has gone.
            "waitress.client_disconnected": gone.is_set,
        }

    def finish(self) -> None:
        while running_requests().count():
            time.sleep(SLICE_SECONDS / 4)

    def close(self) -> None:
        """Cancel what still runs, and release the resources of the engine."""
        shut_down(STOP_SECONDS)


def _next(blocks: queue.SimpleQueue[bytes | BaseException | None]) -> bytes | BaseException | None:
    while True:
        try:
            return blocks.get(timeout=SLICE_SECONDS)
        except queue.Empty:
            continue


def headers_of(api_key: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    return {**headers, "Authorization": f"Bearer {api_key}"} if api_key else headers


def model_ids(connection: Connection) -> list[str]:
    """Return the ids of the models that a client can choose. Raises TalkError."""
    content = _json(connection, "/v1/models")
    models = content.get("data") if isinstance(content, Mapping) else None
    return [str(model["id"]) for model in models or () if isinstance(model, Mapping) and "id" in model]


def _json(connection: Connection, path: str) -> object:
    reply = Reply()
    body = b"".join(connection.send(reply, "GET", path))
    content = _parsed(body)
    if reply.status != 200:
        raise TalkError(_error_in(content, reply.status), reply.status)
    return content


def answer(
    connection: Connection, reply: Reply, model: str, messages: Sequence[Mapping[str, str]]
) -> Generator[str, None, None]:
    """Yield the text of an answer as it arrives. Raises TalkError. Closing the iterator stops the request."""
    body = json.dumps({"model": model, "messages": list(messages), "stream": True}).encode("utf-8")
    blocks = connection.send(reply, "POST", "/v1/chat/completions", body)
    parser, refused = SSEParser(), b""
    try:
        for block in blocks:
            if reply.status == 200:
                for _, data in parser.feed(block):
                    yield from _texts(data)
            else:
                refused += block
    finally:
        blocks.close()
    if reply.status != 200:
        raise TalkError(_error_in(_parsed(refused), reply.status), reply.status)


def _texts(data: str) -> Iterator[str]:
    """Yield the text in one event of a stream. Raises TalkError for an error."""
    chunk = _parsed(data) if data != "[DONE]" else {}
    if not isinstance(chunk, Mapping):
        return
    if chunk.get("error"):
        raise TalkError(_error_in(chunk, 500), 500)
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if delta.get("content"):
            yield str(delta["content"])
        for call in delta.get("tool_calls") or ():
            yield f"[tool call: {json.dumps(call.get('function'), ensure_ascii=False)}]"


def _parsed(data: bytes | str) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _error_in(content: object, status: int) -> str:
    """Return the message of an error response."""
    error = content.get("error") if isinstance(content, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message) if message else f"The server answered with status {status}."
