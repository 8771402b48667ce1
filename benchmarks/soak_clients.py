"""The clients of ``benchmarks/soak.py``: each does one thing after the other, and checks what it hears."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.soak_backend import USERS
from Tests.api.front_dialects import FRONTS, OLLAMA_CHAT, OPENAI_CHAT, Front
from Tests.integration.memory_chat import ANSWER, conversation

PATIENCE_SECONDS = 60.0
WORDS = 12
KEPT_TALKS = 10
MOST_MESSAGES = 40
NEW_TALK_MESSAGES = 12
MOST_TROUBLES = 20

Message = dict[str, str]


class Unexpected(Exception):
    """A client did not hear what it should."""


class Exchange:
    """A request under way. ``body`` is read by ``rest``; ``close`` leaves."""

    def __init__(self, port: int, front: Front, fields: dict[str, Any], key: str = "") -> None:
        self.front, self.stream = front, bool(fields["stream"])
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        headers = {"Content-Type": "application/json", **({"X-Idempotency-Key": key} if key else {})}
        self._connection.request("POST", front.path, json.dumps(fields), headers)
        self._response: http.client.HTTPResponse | None = None

    @property
    def response(self) -> http.client.HTTPResponse:
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    @property
    def request_id(self) -> str:
        return str(self.response.headers["X-Request-Id"])

    def some(self) -> bytes:
        """The next bytes."""
        return self.response.read1(200)

    def rest(self) -> bytes:
        return self.response.read()

    def text(self) -> str:
        """The whole answer. Raises Unexpected unless it is complete and well-formed."""
        status, data = self.response.status, self.rest()
        if status != 200:
            raise Unexpected(f"status {status}: {data[:200]!r}")
        try:
            return self.front.answer(data, self.stream)
        except (AssertionError, ValueError, KeyError, IndexError) as error:
            raise Unexpected(f"{type(error).__name__} in {data[-200:]!r}") from error

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """One client. ``actions`` are what it does, with how often in a hundred times."""

    def __init__(self, port: int, seed: int, numbers: itertools.count[int]) -> None:
        self._port, self._numbers, self.chance = port, numbers, random.Random(seed)
        self.actions: dict[str, tuple[Callable[[], None], int]] = {
            "streams": (self.stream, 20),
            "whole answers": (self.whole, 14),
            "left in mid-answer": (self.leave, 14),
            "left while waiting": (self.leave_early, 5),
            "stopped by id": (self.stop, 6),
            "nested workflows": (self.nested, 7),
            "background nodes": (self.background, 6),
            "background nodes stopped by id": (self.stop_background, 3),
            "retries": (self.retry, 5),
            "workflow locks": (self.lock, 5),
            "kept conversations": (self.kept_talk, 4),
            "new conversations": (self.new_talk, 3),
            "memories recalled": (self.recall, 3),
            "errors of the back-end": (self.failing, 3),
            "bad requests": (self.bad, 2),
        }

    def choose(self) -> tuple[str, Callable[[], None]]:
        names = list(self.actions)
        name = self.chance.choices(names, [self.actions[name][1] for name in names])[0]
        return name, self.actions[name][0]

    # -- asking ------------------------------------------------------------------------------------------------------
    def ask(self, workflow: str, text: str, stream: bool = True, front: Front | None = None, key: str = "") -> Exchange:
        front = front or self.chance.choice(FRONTS)
        return Exchange(self._port, front, front.body(text, model=self._model(workflow), stream=stream), key)

    def talk(self, workflow: str, messages: Sequence[Message], user: str) -> str:
        front = self.chance.choice([OPENAI_CHAT, OLLAMA_CHAT])
        fields = {"model": f"{user}:{workflow}", "messages": list(messages), "stream": self.chance.random() < 0.5}
        with Exchange(self._port, front, fields) as exchange:
            return exchange.text()

    def said(self) -> str:
        """A text that nobody else sends."""
        return " ".join(f"{next(self._numbers):x}-{self.chance.getrandbits(32):x}" for _ in range(WORDS))

    def _model(self, workflow: str) -> str:
        return f"{self.chance.choice(USERS)}:{workflow}"

    def _whole_answer(self, workflow: str, stream: bool, may_be_empty: bool = False) -> None:
        text = self.said()
        with self.ask(workflow, text, stream) as exchange:
            _expect(exchange.text(), text, *([""] if may_be_empty else []))

    # -- what it does --------------------------------------------------------------------------------------------------
    def stream(self) -> None:
        self._whole_answer("Echo", True)

    def whole(self) -> None:
        self._whole_answer("Echo", False)

    def nested(self) -> None:
        self._whole_answer(self.chance.choice(["Nested", "NestedSpeaker"]), self.chance.random() < 0.5)

    def background(self) -> None:
        self._whole_answer("Background", self.chance.random() < 0.5)

    def lock(self) -> None:
        """Somebody else may hold the lock."""
        self._whole_answer("Locked", self.chance.random() < 0.5, may_be_empty=True)

    def leave(self) -> None:
        with self.ask(self.chance.choice(["Echo", "NestedSpeaker", "Locked"]), self.said()) as exchange:
            for _ in range(self.chance.randrange(1, 6)):
                exchange.some()

    def leave_early(self) -> None:
        with self.ask("Slow", self.said(), stream=False):
            time.sleep(self.chance.uniform(0, 0.3))

    def stop(self) -> None:
        text = self.said()
        with self.ask("Echo", text, front=OPENAI_CHAT) as exchange:
            begun = exchange.some()
            self._delete(exchange.request_id)
            data = begun + exchange.rest()
            if not text.startswith(OPENAI_CHAT.streamed(data)):
                raise Unexpected(f"{data!r} is not the beginning of {text!r}")

    def stop_background(self) -> None:
        text = self.said()
        with self.ask("Background", text, self.chance.random() < 0.5) as exchange:
            _expect(exchange.text(), text)
            self._delete(exchange.request_id)

    def retry(self) -> None:
        """A second attempt with the key of the first, which ends in some way."""
        text, key = self.said(), self.said()[:60]
        with self.ask("Echo", text, front=OPENAI_CHAT, key=key) as first:
            first.some()
            with self.ask("Echo", text, front=OPENAI_CHAT, key=key) as second:
                _expect(second.text(), text)
            first.rest()

    def kept_talk(self) -> None:
        """One of some conversations that everybody takes part in and that stop growing."""
        count = min(MOST_MESSAGES, 4 + next(self._numbers) % (2 * MOST_MESSAGES))
        messages = conversation(f"kept-{self.chance.randrange(KEPT_TALKS)}", count)
        _expect(self.talk("Chat", messages, self._user()), ANSWER)

    def new_talk(self) -> None:
        messages = conversation(f"new-{next(self._numbers)}", NEW_TALK_MESSAGES)
        _expect(self.talk("Chat", messages, self._user()), ANSWER)

    def recall(self) -> None:
        name = conversation(f"kept-{self.chance.randrange(KEPT_TALKS)}", 4)
        for user, workflow in zip(USERS, ("RecallFiles", "RecallVectors"), strict=True):
            _expect(self.talk(workflow, name, user), ANSWER)

    def failing(self) -> None:
        with self.ask("Failing", self.said(), self.chance.random() < 0.7) as exchange:
            status, data = exchange.response.status, exchange.rest()
            if status != 502 and b'"error"' not in data:
                raise Unexpected(f"status {status}, no error: {data!r}")

    def bad(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_SECONDS)
        connection.request("POST", OPENAI_CHAT.path, self.chance.choice(['{"mess', "[]", '{"model": 5}']))
        status = connection.getresponse().status
        connection.close()
        if status != 400:
            raise Unexpected(f"status {status} for a bad request")

    def _user(self) -> str:
        return self.chance.choice(USERS)

    def _delete(self, request_id: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_SECONDS)
        connection.request("DELETE", "/api/chat", json.dumps({"request_id": request_id}))
        status = connection.getresponse().status
        connection.close()
        if status != 200:
            raise Unexpected(f"status {status} for a stop")


def _expect(heard: str, *wanted: str) -> None:
    if heard not in wanted:
        raise Unexpected(f"{heard!r} instead of {wanted[0]!r}")


class Clients:
    """Many clients at work, each on a thread of its own, between ``start`` and ``stop``.

    Attributes:
        done: how often each thing was done.
        failures: how many went wrong; ``troubles`` has the first of them in words.

    ``rate``: the most requests per second of all of them together; 0: as many as the server answers.
    """

    def __init__(self, port: int, count: int, rate: float = 0.0) -> None:
        self.done: Counter[str] = Counter()
        self.failures = 0
        self.troubles: list[str] = []
        self._lock = threading.Lock()
        self._interval = 1 / rate if rate else 0.0
        self._next = 0.0
        self._resting = threading.Event()
        numbers = itertools.count()
        self._clients = [Client(port, seed, numbers) for seed in range(count)]
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._resting.clear()
        self._threads = [threading.Thread(target=self._work, args=(client,), daemon=True) for client in self._clients]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Have them finish what they do, and wait for that."""
        self._resting.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_SECONDS)
        if any(thread.is_alive() for thread in self._threads):
            self._note("a client", RuntimeError("it has not come to an end"))

    def _work(self, client: Client) -> None:
        while not self._resting.wait(self._pause()):
            name, action = client.choose()
            try:
                action()
            except Exception as error:  # whatever it is, it counts, and the others go on
                self._note(name, error)
            with self._lock:
                self.done[name] += 1

    def _pause(self) -> float:
        """Take the next turn and return the seconds until it. A server that lags is not asked faster afterwards."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._interval
        return turn - now

    def _note(self, name: str, error: Exception) -> None:
        with self._lock:
            self.failures += 1
            if len(self.troubles) < MOST_TROUBLES:
                self.troubles.append(f"{name}: {type(error).__name__}: {error}")
