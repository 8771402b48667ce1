"""Run tests, each in its own sandbox, several at a time."""

from __future__ import annotations

import contextvars
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from Middleware.addons.check.load_check import LoadCheck
from Middleware.addons.workflow_tests.expectations import Failure, Outcome, failures_of
from Middleware.addons.workflow_tests.sandbox import Sandbox, text_of
from Middleware.addons.workflow_tests.suites import WorkflowTest
from Middleware.api.api_helpers import parse_model_field
from Middleware.api.errors import describe_error
from Middleware.api.requests.messages import chat_messages
from Middleware.api.workflow_gateway import start_user_prompt
from Middleware.common.constants import OPENAI_CHAT
from Middleware.exceptions import WilmerError
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.events import Listeners
from Middleware.workflows.managers.workflow_manager import WorkflowManager
from Middleware.workflows.processors.workflows_processor import END
from Middleware.workflows.request_line import routes_of

# No LLM is called, so only an endless loop takes this long.
TIME_LIMIT_SECONDS = 60.0
DEFAULT_JOBS = min(8, 2 * (os.cpu_count() or 1))


@dataclass(frozen=True)
class Result:
    """The result of one test. ``log``: warnings that were logged while it ran."""

    test: WorkflowTest
    seconds: float
    failures: list[Failure] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failures


def run_tests(
    tests: Sequence[WorkflowTest],
    folder: Path,
    jobs: int = DEFAULT_JOBS,
    done: Callable[[Result], object] | None = None,
) -> list[Result]:
    """Run tests and return their results in order.

    ``folder`` is for their data; ``done`` is called with each result in turn.
    """
    # One for all tests: each workflow is checked once, and what is wrong is in the log of each test that loads it.
    load_check = LoadCheck()

    def run(numbered: tuple[int, WorkflowTest]) -> Result:
        number, test = numbered
        # An empty context: a thread of the pool must not know the request of its earlier test.
        return contextvars.Context().run(run_test, test, folder / f"t{number}", load_check)

    results = []
    with ThreadPoolExecutor(max(jobs, 1), "wilmer-test") as pool:
        for result in pool.map(run, enumerate(tests)):
            results.append(result)
            if done is not None:
                done(result)
    return results


def run_test(test: WorkflowTest, folder: Path, load_check: LoadCheck) -> Result:
    """Run one test in ``folder``, which is created. The warnings of ``load_check`` belong to the test's log."""
    started = time.perf_counter()
    sandbox = Sandbox(test, folder)
    request = RequestContext(
        api_type=OPENAI_CHAT,
        user=test.suite.user,
        stream=test.stream,
        outside=sandbox,
        listeners=Listeners([sandbox.recorder, load_check]),
    )
    request.report("request_arrived", request)
    with request_scope(request):
        failures = _failures(test, request, sandbox)
    return Result(test, time.perf_counter() - started, failures, sandbox.log)


def _failures(test: WorkflowTest, request: RequestContext, sandbox: Sandbox) -> list[Failure]:
    try:
        sandbox.write_files(test.files)
    # ValueError is raised for a path that no file can have.
    except (OSError, ValueError) as error:
        return [Failure("files", [f"the files cannot be made: {getattr(error, 'strerror', None) or error}"])]
    return failures_of(test, _run(test, request, sandbox), sandbox)


def _run(test: WorkflowTest, request: RequestContext, sandbox: Sandbox) -> Outcome:
    # A test must end even if its workflow loops for ever.
    limit = threading.Timer(TIME_LIMIT_SECONDS, request.cancel_scope.cancel, ["the time of a test is over"])
    limit.daemon = True
    limit.start()
    outcome = Outcome()
    try:
        outcome.answer = _answer(_start(test, request), test.stream)
    # Any error of a workflow is the result of its test.
    except Exception as error:
        outcome.error, outcome.trace = _describe(error)
    finally:
        limit.cancel()
        too_long = request.cancel_scope.cancelled
        request.cancel_scope.cancel("the test is over")
    outcome.routes = routes_of(request)
    if too_long:
        outcome.error, outcome.trace = f"it was cancelled after {TIME_LIMIT_SECONDS:g} s", ""
    elif outcome.error is None and sandbox.recorder.late_failures:
        name, failure = sandbox.recorder.late_failures[0]
        message, outcome.trace = _describe(failure)
        outcome.error = f"node '{name}' failed after the answer: {message}"
    return outcome


def _describe(error: BaseException) -> tuple[str, str]:
    """Return the message of an error, and the traceback if it is an error in the program."""
    if isinstance(error, WilmerError):
        return describe_error(error).message, ""
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error, limit=-4))


def _start(test: WorkflowTest, request: RequestContext) -> Iterator[object]:
    """Start the request or workflow of a test, as the server would for a client that sends these messages."""
    if test.is_request:
        request.model = test.model
        user, request.workflow_override = parse_model_field(test.model)
        request.user = user or request.user
    messages = chat_messages([dict(message) for message in test.messages])
    tools = [dict(tool) for tool in test.tools] or None
    if test.is_request:
        return start_user_prompt(request, messages, test.stream, tools=tools)
    for message in messages:
        message["content"] = escape_braces(message["content"])
    manager = WorkflowManager(test.suite.workflow, workflow_user_folder_override=test.suite.folder or None)
    return manager.start(request, messages, stream=test.stream, scoped_inputs=test.scoped_inputs, tools=tools)


def _answer(items: Iterator[Any], stream: bool) -> str:
    """Return the answer as a client gets it, after running the later nodes too."""
    if not stream:
        results = list(items)
        return text_of(results[0]) if results else ""
    parts: list[str] = []
    calls: list[Any] = []
    ended = False
    for chunk in items:
        # The nodes after the answer run while the rest is consumed.
        ended = ended or chunk is END
        if not ended:
            parts.append(str(chunk.get("token") or ""))
            calls += chunk.get("tool_calls") or ()
    return text_of({"content": "".join(parts), "tool_calls": calls} if calls else "".join(parts))
