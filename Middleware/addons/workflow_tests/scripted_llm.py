"""Answer the LLM calls of one test from a script, and record each call.

Endpoint, preset, API type and template are the real ones: the request is built as it would be sent. The reply replaces
the answer that the back-end handler would have read from the server.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.addons.records.payloads import read_payload
from Middleware.addons.workflow_tests.suites import Reply, Rule, fits, is_title
from Middleware.exceptions import BackendError, BackendStatusError
from Middleware.llmapis.embedding_api import Embeddings
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.transport import BackendRequest, encode_payload
from Middleware.models.messages import Answer, Chunk
from Middleware.utilities.text_utils import restore_braces

# Small vectors are fast, and large enough to tell the texts of a test apart.
DIMENSIONS = 32
_WORD = re.compile(r"\w+")


@dataclass
class Call:
    """One call of an LLM.

    Attributes:
        workflow, node: the workflow's name and the title of the calling node; "" outside a node.
        system: the system prompt as sent; with back-ends that take a single string, that string.
        prompt: the messages after it; with back-ends that take a single string, that string.
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
    """There is no reply for a call."""


class Script:
    """The replies of one test. Thread-safe.

    Attributes:
        missing: the calls without a reply.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._used = [0] * len(self._rules)
        self._lock = threading.Lock()
        self.missing: list[Call] = []

    def answer(self, call: Call) -> Reply:
        """Return the reply to a call. Raises BackendStatusError if a rule says so, MissingReplyError without a rule."""
        with self._lock:
            number = next((index for index, rule in enumerate(self._rules) if self._answers(index, rule, call)), None)
            if number is None:
                self.missing.append(call)
                raise MissingReplyError(f"the test has no reply for {described(call)}", endpoint=call.endpoint)
            count, rule = self._used[number], self._rules[number]
            self._used[number] += 1
        if rule.fail is not None:
            raise BackendStatusError(
                f"Endpoint '{call.endpoint}': the server answered with status 500: {rule.fail}",
                endpoint=call.endpoint,
                status=500,
                body=rule.fail,
            )
        call.answered = True
        return rule.replies[min(count, len(rule.replies) - 1)]

    def _answers(self, number: int, rule: Rule, call: Call) -> bool:
        if rule.times is not None and self._used[number] >= rule.times:
            return False
        if rule.node and not is_title(rule.node, call.workflow, call.node):
            return False
        return (not rule.endpoint or rule.endpoint == call.endpoint) and fits(rule.prompt, call.text)


class ScriptedLlm:
    """The LLMs of one test. Back-end handlers answer from the script, and nothing is sent.

    Attributes:
        calls: all calls except those for embeddings, in the order in which they were made.

    Args:
        caller: returns workflow and title of the node that the current thread runs.
    """

    def __init__(self, script: Script, caller: Callable[[], tuple[str, str]]) -> None:
        self.calls: list[Call] = []
        self._script = script
        self._caller = caller

    def caller(self, handler: Any) -> Any:
        """Return the scripted replacement of a handler."""
        return ScriptedHandler(handler, self.answer) if isinstance(handler, BaseLlmApiHandler) else ScriptedEmbeddings()

    def answer(self, request: BackendRequest) -> Reply:
        """Return the reply to a request. Raises the errors of ``Script.answer``, and those of encoding the payload."""
        # A payload that could not be sent must fail here, too.
        encode_payload(request.payload)
        system, prompt = read_payload(request.payload)
        call = Call(*self._caller(), request.endpoint_name, system, prompt)
        self.calls.append(call)
        reply = self._script.answer(call)
        # A back-end that takes a single string has no tools.
        return reply if "messages" in request.payload else Reply(reply.content)


class ScriptedHandler:
    """A back-end handler whose request is the real one and whose answer is a reply of the script."""

    def __init__(self, handler: BaseLlmApiHandler, answer: Callable[[BackendRequest], Reply]) -> None:
        self._handler = handler
        self._answer = answer
        self.settings, self.outcome = handler.settings, handler.outcome

    def handle_non_streaming(self, prompt: Prompt) -> Answer:
        """Return the whole answer, as ``BaseLlmApiHandler.handle_non_streaming`` does."""
        if self._handler.is_cancelled:
            return ""
        reply = self._answer(self._handler.request(prompt, stream=False))
        reason = self.outcome.finish_reason = _finish_reason(reply)
        if not reply.tool_calls:
            return reply.content
        return {"content": reply.content, "tool_calls": list(reply.tool_calls), "finish_reason": reason}

    def handle_streaming(self, prompt: Prompt) -> Iterator[Chunk]:
        """Yield the whole answer in one chunk, as some servers send it."""
        if self._handler.is_cancelled:
            return
        reply = self._answer(self._handler.request(prompt, stream=True))
        self.outcome.finish_reason = _finish_reason(reply)
        chunk: Chunk = {"token": reply.content, "finish_reason": _finish_reason(reply)}
        if reply.tool_calls:
            chunk["tool_calls"] = [{"index": index, **call} for index, call in enumerate(reply.tool_calls)]
        yield chunk

    def abort(self) -> None:
        """Do nothing, as no call is running."""


class ScriptedEmbeddings:
    """Creates vectors without a server."""

    def embed(self, texts: Sequence[str], dimensions: int | None = None) -> Embeddings:
        """Return one vector for each string, in order, of a length of their own."""
        return Embeddings([vector(restore_braces(text)) for text in texts])


def _finish_reason(reply: Reply) -> str:
    return "tool_calls" if reply.tool_calls else "stop"


def described(call: Call) -> str:
    """Return a description of a call for messages."""
    node = f"node '{call.workflow}/{call.node}'" if call.node else "a call outside any node"
    return f"{node} (endpoint '{call.endpoint}')"


def vector(text: str) -> list[float]:
    """Return a vector of length 1 that depends only on the text; texts that share words have similar vectors."""
    numbers = [0.0] * DIMENSIONS
    for word in _WORD.findall(text.casefold()) or [""]:
        digest = hashlib.sha256(word.encode("utf-8", "replace")).digest()
        numbers[digest[0] % DIMENSIONS] += 1.0
        numbers[digest[1] % DIMENSIONS] += 0.5
    length = math.sqrt(sum(number * number for number in numbers))
    return [number / length for number in numbers]
