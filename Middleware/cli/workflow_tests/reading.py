"""Read the tests in a test file, with a finding for every mistake in it."""
from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from Middleware.cli.check.file_checks import syntax_finding
from Middleware.cli.check.findings import Finding
from Middleware.cli.workflow_tests.suites import Expectations, PromptPattern, Reply, Rule, Suite, WorkflowTest
from Middleware.cli.workflow_tests.titles import Titles
from Middleware.cli.workflow_tests.values import NOTHING_DEMANDED, Values
from Middleware.exceptions import ConfigSyntaxError, ConfigurationError
from Middleware.models.messages import ToolCall
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import is_remark, quoted
from Middleware.utilities.config.json_source import JsonSource, child, decode_text
from Middleware.utilities.config.keys.workflow_test import (
    EXPECT_KEYS,
    MESSAGE_KEYS,
    PROMPT_KEYS,
    REPLY_KEYS,
    RULE_KEYS,
    TEST_KEYS,
    WORKFLOW_TEST_KEYS,
)
from Middleware.utilities.config.paths import display_path, get_root_config_directory
from Middleware.utilities.config.workflows import TEST_SUFFIX
from Middleware.utilities.text_utils import nearest


def check_test_files(paths: Iterable[str]) -> list[Finding]:
    """Return the mistakes in test files, except in their JSON syntax."""
    titles = Titles.of_all_workflows()
    findings: list[Finding] = []
    for path in paths:
        with contextlib.suppress(ConfigSyntaxError, OSError):
            findings += _read(path, titles)[1]
    return findings


def read_tests(path: str, titles: Titles) -> tuple[list[WorkflowTest], list[Finding]]:
    """Return the tests in a file that can be run, and the mistakes in the file. ``titles``: the titles of all nodes."""
    try:
        return _read(path, titles, duplicates=True)
    except ConfigSyntaxError as error:
        return [], [syntax_finding(display_path(path), error)]
    except OSError as error:
        return [], [Finding("error", display_path(path), "", None, f"the file cannot be read: {error.strerror}")]


def _read(path: str, titles: Titles, duplicates: bool = False) -> tuple[list[WorkflowTest], list[Finding]]:
    display = display_path(path)
    with open(path, "rb") as file:
        source = JsonSource(decode_text(file.read(), display), display)
    content = source.parse()
    twice = [Finding("error", display, key.json_path, key.line, "the key appears twice in one object, first in line "
                     f"{key.first_line}", "each key once", column=key.column)
             for key in source.duplicates()] if duplicates else []
    reader = _Reader(path, source, titles)
    tests = reader.tests(content)
    return [] if twice else tests, [*twice, *reader.values.findings]


def suite_of(path: str) -> Suite:
    """Return what a test file's path tells about it. ``user`` applies if the file names none."""
    display = display_path(path)
    folder, _, name = display.removeprefix("Workflows/").rpartition("/")
    return Suite(path, display, name.removesuffix(TEST_SUFFIX), folder, folder.rpartition("/")[2])


class _Reader:
    def __init__(self, path: str, source: JsonSource, titles: Titles) -> None:
        self.values = Values(source)
        self._suite = suite_of(path)
        self._titles = titles

    def tests(self, content: object) -> list[WorkflowTest]:
        """Return the tests without mistakes; none if there is a mistake in the file as a whole."""
        if not isinstance(content, Mapping):
            self.values.wrong("", f"a test file must be an object, not {quoted(content)}",
                              expected="an object with 'tests'")
            return []
        entries = self.values.entries(content, "", WORKFLOW_TEST_KEYS)
        self._check_workflow()
        suite = self._with_user(entries["user"])
        usable = not self.values.findings
        if not entries["tests"] and usable:
            self.values.wrong("tests", "'tests' is empty", expected="at least one test")
        found = []
        for index, entry in enumerate(entries["tests"]):
            before = len(self.values.findings)
            test = self._test(suite, index, entry)
            if len(self.values.findings) == before:
                found.append(test)
        return found if usable else []

    def _check_workflow(self) -> None:
        suite = self._suite
        if os.path.isfile(os.path.join(os.path.dirname(suite.path), f"{suite.workflow}.json")):
            return
        names = [name[:-len(".json")] for name in os.listdir(os.path.dirname(suite.path))
                 if name.endswith(".json") and not name.endswith(TEST_SUFFIX)]
        self.values.wrong("", f"there is no workflow '{suite.workflow}.json' beside this file",
                          expected="the name of a workflow before .test.json",
                          suggestion=nearest(suite.workflow, names))

    def _with_user(self, named: str) -> Suite:
        suite = self._suite
        user = named or suite.user
        if not user or not _user_exists(user):
            users = config_utils.existing_users()
            expected = f"one of {', '.join(users)}" if users else "the name of a file in Users"
            if not user:
                self.values.wrong("", "the key 'user' is missing", expected)
            elif named:
                self.values.wrong("user", f"there is no user {quoted(user)}", expected, nearest(user, users))
            else:
                self.values.wrong("", f"the key 'user' is missing, and no user is called {quoted(user)} as the folder "
                                  "of the workflow is", expected, nearest(user, users))
        return Suite(suite.path, suite.display, suite.workflow, suite.folder, user)

    def _test(self, suite: Suite, index: int, value: object) -> WorkflowTest:
        path = child("tests", index)
        entries = self.values.entries(value, path, TEST_KEYS)
        is_request = entries["entry"] == "request"
        self._check_entry(value, path, is_request)
        for number, message in enumerate(entries["messages"]):
            self.values.entries(message, child(child(path, "messages"), number), MESSAGE_KEYS, is_open=True)
        for number, tool in enumerate(entries["tools"]):
            self.values.entries(tool, child(child(path, "tools"), number), (), is_open=True)
        self._check_titles(entries["stubs"], child(path, "stubs"))
        return WorkflowTest(
            suite=suite, number=index, name=entries["name"], messages=tuple(entries["messages"]),
            model=entries["model"], is_request=is_request, scoped_inputs=tuple(entries["scoped_variables"]),
            stream=entries["stream"], tools=tuple(entries["tools"]),
            rules=self._rules(entries["replies"], child(path, "replies")), stubs=entries["stubs"],
            files=entries["files"], expect=self._expectations(entries["expect"], child(path, "expect")))

    def _check_entry(self, value: object, path: str, is_request: bool) -> None:
        if not isinstance(value, Mapping):
            return
        if is_request and value.get("scoped_variables"):
            self.values.wrong(child(path, "scoped_variables"), "a request has no 'scoped_variables'",
                              expected="\"entry\": \"workflow\"")
        if not is_request and value.get("model"):
            self.values.wrong(child(path, "model"), "'model' counts only in a request",
                              expected="\"entry\": \"request\"")

    # -- what the LLM answers ------------------------------------------------------------------------------------
    def _rules(self, value: Any, path: str) -> tuple[Rule, ...]:
        if isinstance(value, Mapping):
            self._check_titles(value, path)
            return tuple(Rule(node=title, replies=self._replies(entry, child(path, title)))
                         for title, entry in value.items())
        return tuple(self._rule(entry, child(path, index)) for index, entry in enumerate(value))

    def _rule(self, value: object, path: str) -> Rule:
        entries = self.values.entries(value, path, RULE_KEYS)
        reply, fail = entries["reply"], entries["fail"]
        if isinstance(value, Mapping) and (reply is None) == (fail is None):
            self.values.wrong(path, "a rule needs either 'reply' or 'fail'")
        if entries["node"]:
            self._check_title(entries["node"], child(path, "node"))
        if entries["endpoint"]:
            self._check_endpoint(entries["endpoint"], child(path, "endpoint"))
        return Rule(entries["node"] or "", entries["endpoint"] or "",
                    self.values.optional_pattern(entries["prompt"], child(path, "prompt")) or (),
                    () if reply is None else self._replies(reply, child(path, "reply")), fail, entries["times"])

    def _check_endpoint(self, name: str, path: str) -> None:
        """Report an endpoint that no user has."""
        known = _endpoints()
        if name.rpartition("/")[2].casefold() not in map(str.casefold, known):
            self.values.wrong(path, f"there is no endpoint {quoted(name)}", expected="the name of a file in Endpoints",
                              suggestion=nearest(name, known))

    def _replies(self, value: object, path: str) -> tuple[Reply, ...]:
        if not isinstance(value, list):
            return (self._reply(value, path),)
        if not value:
            self.values.wrong(path, "the list of replies is empty", expected="at least one text")
        return tuple(self._reply(entry, child(path, index)) for index, entry in enumerate(value))

    def _reply(self, value: object, path: str) -> Reply:
        if isinstance(value, str):
            return Reply(value)
        if not isinstance(value, Mapping):
            self.values.wrong(path, f"{quoted(value)} is not a reply",
                              expected="a text, or an object with 'tool_calls'")
            return Reply()
        entries = self.values.entries(value, path, REPLY_KEYS)
        calls = [self._tool_call(entry, child(child(path, "tool_calls"), index), index)
                 for index, entry in enumerate(entries["tool_calls"])]
        return Reply(entries["content"], tuple(calls))

    def _tool_call(self, value: object, path: str, index: int) -> ToolCall:
        """Return a call in OpenAI's form; the arguments may be an object or a JSON string."""
        call = value if isinstance(value, Mapping) else {}
        inner = call.get("function")
        function = inner if isinstance(inner, Mapping) else call
        name, arguments = function.get("name"), function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            self.values.wrong(path, "a tool call needs a name, and arguments that are an object",
                              expected='{"name": "search", "arguments": {"query": "owls"}}')
        return {"id": str(call.get("id") or f"call_{index + 1}"), "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}

    # -- what must hold ------------------------------------------------------------------------------------------
    def _expectations(self, value: object, path: str) -> Expectations:
        entries = self.values.entries(value, path, EXPECT_KEYS)
        for name in ("outputs", "prompts", "endpoints"):
            self._check_titles(entries[name], child(path, name))
        order = entries["order"]
        for index, title in enumerate(order or ()):
            self._check_title(title, child(child(path, "order"), index))
        one, several = self.values.optional_pattern, self.values.patterns
        return Expectations(
            answer=one(entries["answer"], child(path, "answer")), route=one(entries["route"], child(path, "route")),
            order=None if order is None else tuple(order),
            outputs=several(entries["outputs"], child(path, "outputs")),
            prompts={title: self._prompt(entry, child(child(path, "prompts"), title))
                     for title, entry in entries["prompts"].items()},
            endpoints=entries["endpoints"], files=several(entries["files"], child(path, "files")),
            error=one(entries["error"], child(path, "error")))

    def _prompt(self, value: object, path: str) -> PromptPattern:
        entries = self.values.entries(value, path, PROMPT_KEYS)
        if isinstance(value, Mapping) and all(map(is_remark, value)):
            self.values.wrong(path, NOTHING_DEMANDED, expected=" or ".join(key.name for key in PROMPT_KEYS))
        return PromptPattern(self.values.optional_pattern(entries["system"], child(path, "system")) or (),
                             self.values.optional_pattern(entries["prompt"], child(path, "prompt")) or ())

    def _check_titles(self, by_title: Mapping[str, object], path: str) -> None:
        for title in by_title:
            self._check_title(title, child(path, title))

    def _check_title(self, title: object, path: str) -> None:
        """Report a title that no node of any workflow has."""
        if isinstance(title, str) and not self._titles.knows(title):
            self.values.wrong(path, f"no workflow has a node {quoted(title)}",
                              expected="the title of a node, or Workflow/title",
                              suggestion=self._titles.nearest(title, self._suite.display))


def _endpoints() -> list[str]:
    folders = os.walk(os.path.join(get_root_config_directory(), "Endpoints"))
    return sorted(name[:-len(".json")] for _, _, names in folders for name in names if name.endswith(".json"))


def _user_exists(user: str) -> bool:
    try:
        return config_utils.user_config_exists(user)
    except ConfigurationError:
        return False
