"""What the tests of the gate and of idempotency share: requests under way, and words that the log has of them."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from typing import Any

from Tests.integration.launcher import Launcher, Response
from Tests.patience import CLIENT_PATIENCE, PATIENCE

CHAT = "/v1/chat/completions"
_WAITS = re.compile(r"request ([0-9a-f-]{36}) waits")


class Ask(threading.Thread):
    """A chat completion under way on a connection of its own.

    ``leave`` closes the connection; ``response`` is None until the answer is complete, and for ever after ``leave``.
    """

    def __init__(
        self,
        server: Launcher,
        text: str,
        model: str | None = "Single",
        stream: bool = False,
        path: str = CHAT,
        **headers: str,
    ) -> None:
        super().__init__(daemon=True)
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CLIENT_PATIENCE)
        said = (
            {"input": text}
            if "responses" in path
            else {"messages": [{"role": "user", "content": text}], "prompt": text}
        )
        body: dict[str, Any] = {**said, "stream": stream, **({} if model is None else {"model": model})}
        self._connection.request(
            "POST", path, json.dumps(body).encode(), {name.replace("_", "-"): value for name, value in headers.items()}
        )
        self.response: Response | None = None
        self.start()

    def run(self) -> None:
        started = time.monotonic()
        try:
            response = self._connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            self.response = Response(response.status, headers, response.read(), time.monotonic() - started)
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass  # the connection was closed
        finally:
            self._connection.close()

    def answer(self, timeout: float = PATIENCE) -> Response:
        """The complete answer. Raises AssertionError if there is none in time."""
        self.join(timeout)
        assert self.response is not None, f"no answer within {timeout} s"
        return self.response

    def leave(self) -> None:
        sock = self._connection.sock
        if sock is not None:
            sock.shutdown(2)
        self._connection.close()


def queued_ids(server: Launcher) -> list[str]:
    """The ids of all requests that have ever waited at the gate, in order."""
    return _WAITS.findall(server.output())


def wait_in_queue(server: Launcher, *arguments: Any, **options: Any) -> tuple[Ask, str]:
    """Send a request that has to wait; returns it and its id once it waits."""
    before = len(queued_ids(server))
    ask = Ask(server, *arguments, **options)
    deadline = time.monotonic() + PATIENCE
    while len(ids := queued_ids(server)) == before:
        assert time.monotonic() < deadline, "the request did not wait"
        time.sleep(0.01)
    return ask, ids[-1]
