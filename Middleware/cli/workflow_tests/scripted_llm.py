"""Stands where the requests to LLM servers would leave: notes each call and answers it from a script.

Endpoint, preset, API type, template and the reading of the answer are the real ones, as only the transport is another.
"""
from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.cli.workflow_tests.dialects import DIALECTS, EMBEDDINGS, Dialect
from Middleware.cli.workflow_tests.patterns import fits
from Middleware.cli.workflow_tests.suites import Reply, Rule
from Middleware.cli.workflow_tests.titles import is_title
from Middleware.exceptions import BackendError, BackendResponseError, BackendStatusError, EarlyTerminationException
from Middleware.llmapis.transport import BackendRequest, Transport, encode_payload
from Middleware.models.cancel_scope import CancelScope
from Middleware.utilities.http.wire import parse_target

DIMENSIONS = 32
_WORD = re.compile(r"\w+")


@dataclass
class Call:
    """One call of an LLM.

    Attributes:
        workflow, node: the name and title of the node that calls; "" outside a node.
        system: the system prompt as sent; with back-ends that take one text, that text.
        prompt: what was sent after it; with back-ends that take one text, that text.
        answered: a reply was found; False too for a scripted failure.
    """

    workflow: str
    node: str
    endpoint: str
    system: str
    prompt: str
    answered: bool = False

    @property
    def text(self) -> str:
        return self.prompt if self.system == self.prompt else f"{self.system}\n\n{self.prompt}"


class MissingReplyError(BackendError):
    """No reply fits a call."""


class Script:
    """The replies of one test. Thread-safe.

    Attributes:
        missing: the calls that no reply fitted.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = sorted(rules, key=lambda rule: "/" not in rule.node) if _by_title_only(rules) else list(rules)
        self._used = [0] * len(self._rules)
        self._lock = threading.Lock()
        self.missing: list[Call] = []

    def answer(self, call: Call) -> Reply:
        """The reply to a call. Raises BackendStatusError where a rule says so, MissingReplyError without a rule."""
        with self._lock:
            number = next((place for place, rule in enumerate(self._rules) if self._answers(place, rule, call)), None)
            if number is None:
                self.missing.append(call)
                raise MissingReplyError(f"the test has no reply for {described(call)}", endpoint=call.endpoint)
            turn, rule = self._used[number], self._rules[number]
            self._used[number] += 1
        if rule.fail is not None:
            raise BackendStatusError(f"Endpoint '{call.endpoint}': the server answered with status 500: {rule.fail}",
                                     endpoint=call.endpoint, status=500, body=rule.fail)
        call.answered = True
        return rule.replies[min(turn, len(rule.replies) - 1)]

    def _answers(self, number: int, rule: Rule, call: Call) -> bool:
        if rule.times is not None and self._used[number] >= rule.times:
            return False
        if rule.node and not is_title(rule.node, call.workflow, call.node):
            return False
        return (not rule.endpoint or rule.endpoint == call.endpoint) and fits(rule.prompt, call.text)


class ScriptedTransport(Transport):
    """The transport of one test.

    Attributes:
        calls: all calls but those for embeddings, in the order in which they were made.

    Args:
        caller: gives workflow and title of the node for which the current thread works.
    """

    def __init__(self, script: Script, caller: Callable[[], tuple[str, str]]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._script = script
        self._caller = caller

    def post_json(self, request: BackendRequest, scope: CancelScope | None = None) -> object:
        """The body of an answer in the dialect that the request is made in."""
        if scope is not None and scope.cancelled:
            raise EarlyTerminationException("The request was cancelled.")
        encode_payload(request.payload)  # raises as sending it would
        path = parse_target(request.url).path.partition("?")[0]
        for ending, shape in EMBEDDINGS.items():
            if path.endswith(ending):
                return shape([vector(text) for text in request.payload["input"]])
        dialect = next((dialect for ending, dialect in DIALECTS.items() if path.endswith(ending)), None)
        if dialect is None:
            raise BackendResponseError(f"Endpoint '{request.endpoint_name}': tests cannot answer a call of {path}",
                                       endpoint=request.endpoint_name)
        return self._answer(request, dialect)

    def open_stream(self, request: BackendRequest, scope: CancelScope | None = None) -> Any:
        """A stream that delivers the whole answer at once, as some servers do."""
        return ScriptedStream(lambda: self.post_json(request, scope))

    def _answer(self, request: BackendRequest, dialect: Dialect) -> object:
        system, prompt = dialect.read(request.payload)
        call = Call(*self._caller(), request.endpoint_name, system, prompt)
        self.calls.append(call)
        return dialect.write(self._script.answer(call))


class ScriptedStream:
    """A streamed answer that is one block. Asks for it when the first block is wanted."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def __iter__(self) -> Iterator[bytes]:
        yield json.dumps(self._ask(), ensure_ascii=False).encode("utf-8", "replace")

    def drain(self, max_seconds: float = 0.0, max_bytes: int = 0) -> list[bytes]:
        """Nothing follows the answer."""
        return []

    def close(self) -> None:
        """Nothing is open."""

    abort = close


def described(call: Call) -> str:
    """Which call is meant, in words."""
    node = f"node '{call.workflow}/{call.node}'" if call.node else "a call outside any node"
    return f"{node} (endpoint '{call.endpoint}')"


def vector(text: str) -> list[float]:
    """A vector of length 1 that depends on nothing but the text; texts that share words have similar ones."""
    numbers = [0.0] * DIMENSIONS
    for word in _WORD.findall(text.casefold()) or [""]:
        digest = hashlib.sha256(word.encode("utf-8", "replace")).digest()
        numbers[digest[0] % DIMENSIONS] += 1.0
        numbers[digest[1] % DIMENSIONS] += 0.5
    length = math.sqrt(sum(number * number for number in numbers))
    return [number / length for number in numbers]


def _by_title_only(rules: Sequence[Rule]) -> bool:
    """Whether the rules are titles with their replies, of which the more exact title counts, not the first."""
    return all(rule.node and not rule.endpoint and not rule.prompt and rule.times is None and rule.fail is None
               for rule in rules)
