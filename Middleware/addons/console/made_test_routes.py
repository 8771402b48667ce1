"""The calls that make a workflow test of a recorded run, run it, and save it next to its workflow."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from Middleware.addons.console.calls import Call, ConsoleError, Role, Routes
from Middleware.addons.console.command_process import CommandTooSlowError, Turns, run_command
from Middleware.addons.console.editing.saved_files import save_file
from Middleware.addons.console.exported_test import EXPECTATIONS, ExportedTest, OmittedExpectation, exported
from Middleware.addons.console.replays import is_replaced
from Middleware.addons.console.run_routes import known_run
from Middleware.addons.records.recorded_request import NotKeptError
from Middleware.api.requests.messages import without_user_options
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.paths import get_root_config_directory
from Middleware.utilities.config.workflows import TEST_SUFFIX
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.managers.variable_table import VARIABLES

MOST_NAME = 200
# Each round leaves out what fails; what fails then does not depend on expectations.
MOST_ROUNDS = 4
TEST_SECONDS = 120.0
# Their values depend on the clock.
CHANGING = frozenset({name for name, spec in VARIABLES.items() if spec.overridable} | {"time_context_summary"})
_EXPECTATION = re.compile(r"expect\.(\w+)(?:\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\])?(?:\.(\w+))?")


def made_test_turns() -> Turns:
    """Return whose turn it is to run a made test."""
    return Turns()


def register(routes: Routes) -> None:
    routes.add("POST", "runs/ID/test", Role.OWN, make)
    routes.add("POST", "runs/ID/test/run", Role.OWN, run)
    routes.add("POST", "runs/ID/test/save", Role.OPERATOR, save, edit=True)


def make(call: Call) -> dict[str, object]:
    test = _exported(call)
    why = _why_not_writable(call, test)
    return {**_shown(test), "writable": not why, "why": why}


def run(call: Call) -> dict[str, object]:
    """Run the test in a process of its own, without the expectations that cannot hold."""
    test = _exported(call)
    with process().one(made_test_turns).taken("Another test"):
        for _ in range(MOST_ROUNDS):
            result = _run(test)
            smaller = _without_failures(test, result)
            if smaller is None:
                break
            test = smaller
    return {**_shown(test), **result}


def save(call: Call) -> dict[str, object]:
    """Append the test to the file next to its workflow."""
    test = _exported(call)
    why = _why_not_writable(call, test)
    if why:
        raise ConsoleError(409, why)
    before, records = _text_of(_file_of(test)), call.records
    try:
        save_file(
            records.folder,
            records.store,
            test.path,
            appended(before, test),
            call.session.id,
            f"a test of run {call.parts['ID'][:8]} was added",
        )
    except OSError as error:
        raise ConsoleError(409, f"{test.path} cannot be written: {error.strerror}.") from None
    return {"path": test.path}


# -- the test ----------------------------------------------------------------------------------------------------------


def _exported(call: Call) -> ExportedTest:
    body, document = call.checked_body("name", "expect", "without"), known_run(call)
    if not document.finished:
        raise ConsoleError(409, "This run is still at work. Wait for its end.", where="ID")
    name: Any = body.get("name")
    expected: Any = body.get("expect", list(EXPECTATIONS))
    without: Any = body.get("without", [])
    if not isinstance(name, str) or not name.strip() or len(name) > MOST_NAME:
        raise ConsoleError(
            400, f"'name' is a sentence of at most {MOST_NAME} characters that says what must be true.", where="name"
        )
    if not isinstance(expected, list) or not all(one in EXPECTATIONS for one in expected):
        raise ConsoleError(400, f"'expect' is a list of {', '.join(EXPECTATIONS)}.", where="expect")
    if not isinstance(without, list) or not all(isinstance(path, str) for path in without):
        raise ConsoleError(400, "'without' is a list of expectations, as 'unticked' names them.", where="without")
    try:
        with request_scope(RequestContext(user=document.facts["user"])):
            test = exported(
                document,
                name.strip(),
                expected,
                needs_stub,
                CHANGING,
                without_user_options,
                shows_files=call.role >= Role.ALL,
            )
    except NotKeptError as error:
        raise ConsoleError(409, str(error), where="ID") from None
    for path in without:
        test = without_expectation(test, path, "it was left out")
    return test


def needs_stub(node_type: str) -> bool:
    """Return whether nodes of a type do not run in a test that was made of a run."""
    handler = node_types().get(node_type)
    return handler is None or is_replaced(handler)


def _shown(test: ExportedTest) -> dict[str, object]:
    return {
        "path": test.path,
        "user": test.user,
        "test": test.test,
        "unticked": test.omitted,
        "file": json.dumps(test.file(), indent=2, ensure_ascii=False) + "\n",
    }


def _run(test: ExportedTest) -> dict[str, Any]:
    text = json.dumps(test.file(), ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        result = run_command(["test", "--json", "--stdin-as", _file_of(test)], text, TEST_SECONDS)
    except CommandTooSlowError as error:
        return {"passed": False, "seconds": TEST_SECONDS, "lines": [str(error)], "failures": []}
    except OSError as error:
        raise ConsoleError(500, f"The test cannot be run: {error.strerror}.") from None
    try:
        report = json.loads(result.output)
    except ValueError:
        lines = [line for line in (result.errors or result.output).splitlines() if line.strip()]
        return {"passed": False, "seconds": 0.0, "lines": lines[-20:], "failures": []}
    return {**_summary_of(report), "failures": report["tests"][0]["failures"] if report["tests"] else []}


def _summary_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows of the report of the command."""
    failed: dict[str, Any] = {"passed": False, "seconds": 0.0, "failures": [], "log": []}
    outcome = report["tests"][0] if report["tests"] else failed
    lines = [f"{mistake['jsonPath']}: {mistake['message']}" for mistake in report["mistakes"]]
    for failure in outcome["failures"]:
        first, *rest = failure["lines"] or [""]
        lines += [
            f"{failure['expectation']}: {first}" if failure["expectation"] else first,
            *(f"  {line}" for line in rest),
        ]
    if outcome["failures"]:
        lines += [f"log: {line}" for line in outcome["log"]]
    return {"passed": outcome["passed"] and not report["mistakes"], "seconds": outcome["seconds"], "lines": lines}


def _without_failures(test: ExportedTest, result: dict[str, Any]) -> ExportedTest | None:
    """Return the test without what failed; None if there is nothing to leave out. Takes ``failures`` out of the
    result."""
    smaller = test
    for failure in result.pop("failures"):
        smaller = without_expectation(smaller, failure["expectation"], _reason(failure["lines"]))
    return None if smaller is test or result["passed"] else smaller


def _reason(lines: Sequence[str]) -> str:
    first = lines[0] if lines else "it failed"
    return f"it is not the same the next time: {first}"


def without_expectation(test: ExportedTest, path: str, reason: str) -> ExportedTest:
    """Return a test without one expectation; the test itself if it has no such expectation."""
    found = _EXPECTATION.fullmatch(path)
    expect = test.test["expect"]
    if found is None or not isinstance(expect, Mapping) or found[1] not in expect:
        return test
    name, title = found[1], found[2] if found[2] is not None else found[3]
    left = {key: value for key, value in expect.items() if key != name}
    entries = expect[name]
    if title is not None and isinstance(entries, dict):
        title = re.sub(r"\\(.)", r"\1", title)
        if title not in entries:
            return test
        one = entries[title]
        entry = (
            {key: value for key, value in one.items() if key != found[4]} if found[4] and isinstance(one, dict) else {}
        )
        kept = {key: entry if key == title else value for key, value in entries.items() if key != title or entry}
        # In its old place, so that the page shows the same order.
        left = {key: kept if key == name else value for key, value in expect.items() if key != name or kept}
    omitted: OmittedExpectation = {"expectation": path, "reason": reason}
    return replace(test, test={**test.test, "expect": left}, omitted=[*test.omitted, omitted])


# -- the file ----------------------------------------------------------------------------------------------------------


def _file_of(test: ExportedTest) -> str:
    return os.path.join(get_root_config_directory(), *test.path.split("/"))


def _text_of(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConsoleError(409, f"The file cannot be read: {error}") from None


def _why_not_writable(call: Call, test: ExportedTest) -> str:
    """Return why the test cannot be saved; "" if it can."""
    if call.role < Role.OPERATOR:
        return "Only a user who is signed in with a link can save a test."
    if call.records.mode != "edit":
        return "Saving is off: start WilmerAI with --console edit."
    path = _file_of(test)
    if not os.path.isfile(path.removesuffix(TEST_SUFFIX) + ".json"):
        return "The workflow of this run is no longer there."
    before = _text_of(path)
    if before is None:
        return ""
    try:
        content = json.loads(before)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("tests"), list):
        return f"{test.path} is not a file with tests."
    of_folder = config_utils.user_of_folder("/".join(test.path.split("/")[1:-1]))
    user, mine = content.get("user") or of_folder, test.user or of_folder
    if user != mine:
        return f"The tests in {test.path} are for the user '{user}', and this run was made by '{mine}'."
    return ""


def appended(before: str | None, test: ExportedTest) -> str:
    """Return the text of the file with the test as its last one; the rest stays as it is written."""
    if before is None:
        return json.dumps(test.file(), indent=2, ensure_ascii=False) + "\n"
    content = json.loads(before)
    wanted = {**content, "tests": [*content["tests"], test.test]}
    entry = "\n".join(f"    {line}" for line in json.dumps(test.test, indent=2, ensure_ascii=False).splitlines())
    end = before.rfind("]")
    comma = "," if content["tests"] else ""
    text = f"{before[:end].rstrip()}{comma}\n{entry}\n  {before[end:]}"
    try:
        # The last bracket may be another one.
        if json.loads(text) == wanted:
            return text
    except ValueError:
        pass
    return json.dumps(wanted, indent=2, ensure_ascii=False) + "\n"
