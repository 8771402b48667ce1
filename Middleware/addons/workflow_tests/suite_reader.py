"""Read the tests in test files, with a finding for every mistake in them."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from Middleware.addons.check.file_check import syntax_finding
from Middleware.addons.check.findings import Finding
from Middleware.addons.workflow_tests.reach import Reach
from Middleware.addons.workflow_tests.suites import (
    Condition,
    Expectations,
    Pattern,
    PromptPattern,
    Reply,
    Rule,
    Suite,
    WorkflowTest,
    title_of,
)
from Middleware.exceptions import ConfigSyntaxError, ConfigurationError
from Middleware.models.messages import ToolCall
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import KeyCheck, Severity, is_remark, quoted
from Middleware.utilities.config.declarations import DESCRIPTION_KEY, SCHEMA_KEY, ConfigKey, KeyTable
from Middleware.utilities.config.json_source import JsonSource, child, decode_text
from Middleware.utilities.config.keys.node import WORKFLOW_FILE
from Middleware.utilities.config.keys.workflow_test import (
    EXPECT_KEYS,
    MESSAGE_KEYS,
    OPERATIONS,
    PATTERN,
    PATTERN_KEYS,
    PROMPT_KEYS,
    REPLY_KEYS,
    RULE_KEYS,
    TEST_KEYS,
    WORKFLOW_TEST_KEYS,
)
from Middleware.utilities.config.paths import display_path, get_root_config_directory
from Middleware.utilities.config.store import config_store
from Middleware.utilities.config.workflows import TEST_SUFFIX
from Middleware.utilities.text_utils import nearest

NOTHING_DEMANDED = "the pattern demands nothing"
_TEST = KeyTable(TEST_KEYS)


def check_test_files(paths: Iterable[str]) -> list[Finding]:
    """Return the mistakes in test files, except those in their JSON syntax and keys that appear twice."""
    titles, reach = _all_titles(), Reach(display_path(str(path)) for path in _workflow_files())
    findings: list[Finding] = []
    for path in paths:
        # The caller reports these of every file.
        with contextlib.suppress(ConfigSyntaxError, OSError):
            findings += _read(path, titles, reach=reach)[1]
    return findings


def read_tests(
    paths: Iterable[str], texts: Mapping[str, bytes] | None = None
) -> tuple[list[WorkflowTest], list[Finding]]:
    """Return the tests in these files that can be run, and the mistakes in the files.

    ``texts``: what to read in place of the content of a file, which need not exist then.
    """
    titles = _all_titles()
    tests: list[WorkflowTest] = []
    findings: list[Finding] = []
    for path in paths:
        try:
            found, mistakes = _read(path, titles, duplicates=True, text=(texts or {}).get(path))
            tests += found
            findings += mistakes
        except ConfigSyntaxError as error:
            findings.append(syntax_finding(display_path(path), error))
        except OSError as error:
            findings.append(
                Finding("error", display_path(path), "", None, f"the file cannot be read: {error.strerror}")
            )
    return tests, findings


def _read(
    path: str, titles: Collection[str], duplicates: bool = False, text: bytes | None = None, reach: Reach | None = None
) -> tuple[list[WorkflowTest], list[Finding]]:
    display = display_path(path)
    source = JsonSource(decode_text(Path(path).read_bytes() if text is None else text, display), display)
    content = source.parse()
    twice = (
        [
            Finding(
                "error",
                display,
                key.json_path,
                key.line,
                f"the key appears twice in one object, first in line {key.first_line}",
                "each key once",
                column=key.column,
            )
            for key in source.duplicates()
        ]
        if duplicates
        else []
    )
    reader = _Reader(path, source, titles, reach)
    tests = reader.tests(content)
    # Only one of two values was parsed, and nothing says which one is meant.
    return [] if twice else tests, [*twice, *reader.findings]


def _all_titles() -> frozenset[str]:
    """Return the titles of all nodes: alone, and after the name of their workflow with and without its folders."""
    root = Path(get_root_config_directory(), "Workflows")
    found: set[str] = set()
    for path in _workflow_files():
        parts = path.relative_to(root).with_suffix("").parts
        found.update(
            "/".join([*parts[start:], title]) for title in _titles(str(path)) for start in range(len(parts) + 1)
        )
    return frozenset(found)


def _workflow_files() -> Iterator[Path]:
    # Not ``rglob``, which fails for a folder that must not be read; the check of the tree reports that.
    for folder, _, names in os.walk(Path(get_root_config_directory(), "Workflows")):
        yield from (Path(folder, name) for name in names if name.endswith(".json") and not name.endswith(TEST_SUFFIX))


def _titles(path: str) -> Iterator[str]:
    try:
        data = config_store().read_json(path, display=display_path(path))
    # The check of the configuration reports the file.
    except ConfigurationError:
        return
    nodes = WORKFLOW_FILE.value(data, "nodes") if isinstance(data, Mapping) else data
    if isinstance(nodes, (list, tuple)):
        yield from (title_of(node) for node in nodes if isinstance(node, Mapping))


class _Reader:
    """Reads the tests of one file.

    Attributes:
        findings: the mistakes, in the order in which they were found.
    """

    def __init__(self, path: str, source: JsonSource, titles: Collection[str], reach: Reach | None) -> None:
        self.findings: list[Finding] = []
        self._reach = reach
        # The titles in the present test that some workflow has, by their JSON paths.
        self._named: dict[str, str] = {}
        self._source = source
        self._path = path
        self._titles = titles

    def tests(self, content: object) -> list[WorkflowTest]:
        """Return the tests without mistakes; none if there is a mistake in the file as a whole."""
        if not isinstance(content, Mapping):
            self._wrong("", f"a test file must be an object, not {quoted(content)}", expected="an object with 'tests'")
            return []
        entries = self._entries(content, "", WORKFLOW_TEST_KEYS)
        suite = self._suite(entries["user"])
        usable = not self.findings
        if not entries["tests"] and usable:
            self._wrong("tests", "'tests' is empty", expected="at least one test")
        found = []
        for index, entry in enumerate(entries["tests"]):
            before = len(self.findings)
            test = self._test(suite, index, entry)
            if len(self.findings) == before:
                found.append(test)
        return found if usable else []

    def _suite(self, named: str) -> Suite:
        """Return the file's suite. ``named``: the user in the file; without one, the folder's name applies."""
        folder, _, name = self._source.display.removeprefix("Workflows/").rpartition("/")
        workflow = name.removesuffix(TEST_SUFFIX)
        neighbours = [
            path.stem for path in Path(self._path).parent.glob("*.json") if not path.name.endswith(TEST_SUFFIX)
        ]
        if workflow not in neighbours:
            self._wrong(
                "",
                f"there is no workflow '{workflow}.json' next to this file",
                expected="the name of a workflow before .test.json",
                suggestion=nearest(workflow, neighbours),
            )
        user = named or config_utils.user_of_folder(folder) or folder.rpartition("/")[2]
        if not user or not config_utils.is_user(user):
            users = config_utils.existing_users()
            folder_hint = f", and no user is called {quoted(user)} as the folder of the workflow is" if user else ""
            self._wrong(
                "user" if named else "",
                f"there is no user {quoted(user)}" if named else f"the key 'user' is missing{folder_hint}",
                f"one of {', '.join(users)}" if users else "the name of a file in Users",
                nearest(user, users),
            )
        return Suite(self._source.display, workflow, folder, user)

    def _test(self, suite: Suite, index: int, value: object) -> WorkflowTest:
        path = child("tests", index)
        self._named = {}
        entries = self._entries(value, path, TEST_KEYS)
        is_request, inputs = entries["entry"] == "request", _TEST.value(entries, "scoped_variables")
        if is_request and inputs:
            self._wrong(
                child(path, "scoped_variables"), "a request has no 'scoped_variables'", expected='"entry": "workflow"'
            )
        if not is_request and entries["model"]:
            self._wrong(child(path, "model"), "'model' counts only in a request", expected='"entry": "request"')
        for number, message in enumerate(entries["messages"]):
            self._entries(message, child(child(path, "messages"), number), MESSAGE_KEYS, is_open=True)
        for number, tool in enumerate(entries["tools"]):
            self._entries(tool, child(child(path, "tools"), number), (), is_open=True)
        self._check_titles(entries["stubs"], child(path, "stubs"))
        test = WorkflowTest(
            suite=suite,
            number=index,
            name=entries["name"],
            messages=tuple(entries["messages"]),
            model=entries["model"],
            is_request=is_request,
            scoped_inputs=tuple(inputs),
            stream=entries["stream"],
            tools=tuple(entries["tools"]),
            rules=self._rules(entries["replies"], child(path, "replies")),
            stubs=self._stubs(entries["stubs"], child(path, "stubs")),
            files=self._files(entries["files"], child(path, "files")),
            expect=self._expectations(entries["expect"], child(path, "expect")),
        )
        self._check_reach(suite, is_request)
        return test

    def _check_reach(self, suite: Suite, is_request: bool) -> None:
        """Report titles of nodes that other workflows have, and that this test cannot run."""
        titles = self._reach.titles(suite, is_request) if self._reach is not None else None
        for path, title in self._named.items() if titles is not None else ():
            if not any(title == one or title.endswith(f"/{one}") for one in titles or ()):
                which = (
                    "no workflow that a request can lead to has"
                    if is_request
                    else (f"neither '{suite.workflow}' nor a workflow that it runs has")
                )
                self.findings.append(
                    self._at(
                        "warning",
                        path,
                        f"{which} a node {quoted(title)}",
                        "the title of a node that runs in this test",
                        nearest(title, sorted(titles or ())),
                    )
                )

    # -- what the LLM answers ------------------------------------------------------------------------------------
    def _rules(self, value: Any, path: str) -> tuple[Rule, ...]:
        if isinstance(value, Mapping):
            self._check_titles(value, path)
            rules = (
                Rule(node=title, replies=self._replies(entry, child(path, title))) for title, entry in value.items()
            )
            # The first rule that matches answers: a title with its workflow comes before the title alone.
            return tuple(sorted(rules, key=lambda rule: "/" not in rule.node))
        return tuple(self._rule(entry, child(path, index)) for index, entry in enumerate(value))

    def _rule(self, value: object, path: str) -> Rule:
        entries = self._entries(value, path, RULE_KEYS)
        reply, fail = entries["reply"], entries["fail"]
        if isinstance(value, Mapping) and (reply is None) == (fail is None):
            self._wrong(path, "a rule needs either 'reply' or 'fail'")
        if entries["node"]:
            self._check_title(entries["node"], child(path, "node"))
        if entries["endpoint"]:
            self._check_endpoint(entries["endpoint"], child(path, "endpoint"))
        return Rule(
            entries["node"] or "",
            entries["endpoint"] or "",
            self._optional_pattern(entries["prompt"], child(path, "prompt")) or (),
            () if reply is None else self._replies(reply, child(path, "reply")),
            fail,
            entries["times"],
        )

    def _replies(self, value: object, path: str) -> tuple[Reply, ...]:
        if not isinstance(value, list):
            return (self._reply(value, path),)
        if not value:
            self._wrong(path, "the list of replies is empty", expected="at least one text")
        return tuple(self._reply(entry, child(path, index)) for index, entry in enumerate(value))

    def _reply(self, value: object, path: str) -> Reply:
        if isinstance(value, str):
            return Reply(value)
        if not isinstance(value, Mapping):
            self._wrong(path, f"{quoted(value)} is not a reply", expected="a text, or an object with 'tool_calls'")
            return Reply()
        entries = self._entries(value, path, REPLY_KEYS)
        calls = [
            self._tool_call(entry, child(child(path, "tool_calls"), index), index)
            for index, entry in enumerate(entries["tool_calls"])
        ]
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
            # Python raises the latter for a text that nests too deeply.
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            self._wrong(
                path,
                "a tool call needs a name, and arguments that are an object",
                expected='{"name": "search", "arguments": {"query": "owls"}}',
            )
        return {
            "id": str(call.get("id") or f"call_{index + 1}"),
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }

    def _stubs(self, value: Mapping[str, Any], path: str) -> dict[str, tuple[str, ...]]:
        return {title: self._outputs(entry, child(path, title)) for title, entry in value.items()}

    def _outputs(self, value: object, path: str) -> tuple[str, ...]:
        outputs = value if isinstance(value, list) else [value]
        if outputs and all(isinstance(output, str) for output in outputs):
            return tuple(outputs)
        self._wrong(path, f"{quoted(value)} is not an output", expected="a text, or a list with one for each run")
        return ()

    def _files(self, value: Mapping[str, Any], path: str) -> dict[str, str]:
        """Return the texts of files; other values are written as JSON."""
        for name, entry in value.items():
            if not isinstance(entry, (str, list, Mapping)):
                self._wrong(
                    child(path, name),
                    f"{quoted(entry)} is not the content of a file",
                    expected="a text, or a list or an object, which is written as JSON",
                )
        return {
            name: entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False, indent=2)
            for name, entry in value.items()
        }

    # -- what must hold ------------------------------------------------------------------------------------------
    def _expectations(self, value: object, path: str) -> Expectations:
        entries = self._entries(value, path, EXPECT_KEYS)
        for name in ("outputs", "prompts", "endpoints"):
            self._check_titles(entries[name], child(path, name))
        order = entries["order"]
        for index, title in enumerate(order or ()):
            self._check_title(title, child(child(path, "order"), index))
        one, several = self._optional_pattern, self._patterns
        return Expectations(
            answer=one(entries["answer"], child(path, "answer")),
            route=one(entries["route"], child(path, "route")),
            order=None if order is None else tuple(order),
            outputs=several(entries["outputs"], child(path, "outputs")),
            prompts={
                title: self._prompt(entry, child(child(path, "prompts"), title))
                for title, entry in entries["prompts"].items()
            },
            endpoints=entries["endpoints"],
            files=several(entries["files"], child(path, "files")),
            error=one(entries["error"], child(path, "error")),
        )

    def _prompt(self, value: object, path: str) -> PromptPattern:
        entries = self._entries(value, path, PROMPT_KEYS)
        if isinstance(value, Mapping) and all(map(is_remark, value)):
            self._wrong(path, NOTHING_DEMANDED, expected=" or ".join(key.name for key in PROMPT_KEYS))
        return PromptPattern(
            self._optional_pattern(entries["system"], child(path, "system")) or (),
            self._optional_pattern(entries["prompt"], child(path, "prompt")) or (),
        )

    # -- patterns ------------------------------------------------------------------------------------------------
    def _patterns(self, value: Mapping[str, Any], path: str) -> dict[str, Pattern]:
        return {name: self._pattern(entry, child(path, name)) for name, entry in value.items()}

    def _optional_pattern(self, value: object, path: str) -> Pattern | None:
        return None if value is None else self._pattern(value, path)

    def _pattern(self, value: object, path: str) -> Pattern:
        """Return the conditions in a string, an object or a list of these."""
        if isinstance(value, str):
            return (self._condition("contains", value, path),)
        if isinstance(value, Mapping):
            return self._conditions(value, path)
        if not isinstance(value, list):
            self._wrong(path, f"{quoted(value)} is not a pattern", expected=PATTERN)
            return ()
        if not value:
            self._wrong(path, NOTHING_DEMANDED, expected=PATTERN)
        found: list[Condition] = []
        for index, entry in enumerate(value):
            if isinstance(entry, list):
                self._wrong(child(path, index), "a list in a list is not a pattern", expected=PATTERN)
            else:
                found += self._pattern(entry, child(path, index))
        return tuple(found)

    def _conditions(self, value: Mapping[str, object], path: str) -> Pattern:
        entries = self._entries(value, path, PATTERN_KEYS)
        if all(name not in OPERATIONS and is_remark(name) for name in value):
            self._wrong(path, NOTHING_DEMANDED, expected=PATTERN)
        return tuple(
            self._condition(name, entries[name], child(path, name)) for name in OPERATIONS if entries[name] is not None
        )

    def _condition(self, operation: str, text: str, path: str) -> Condition:
        if not text and operation != "equals":
            self._wrong(path, "an empty text is found in every text", expected='{"equals": ""} if it has to be empty')
        if operation == "matches":
            try:
                re.compile(text)
            # Python raises the latter two for patterns that nest too deeply, or repeat too often.
            except (re.error, RecursionError, OverflowError) as error:
                self._wrong(path, f"'matches' is not a regular expression: {error}")
        return Condition(operation, text)

    # -- names ---------------------------------------------------------------------------------------------------
    def _check_titles(self, titles: Iterable[str], path: str) -> None:
        for title in titles:
            self._check_title(title, child(path, title))

    def _check_title(self, title: object, path: str) -> None:
        """Report a title that no node of any workflow has."""
        if isinstance(title, str) and title in self._titles:
            self._named[path] = title
        elif isinstance(title, str):
            self._wrong(
                path,
                f"no workflow has a node {quoted(title)}",
                expected="the title of a node, or Workflow/title",
                suggestion=nearest(title, sorted(self._titles)),
            )

    def _check_endpoint(self, name: str, path: str) -> None:
        """Report an endpoint that no user has."""
        known = sorted(file.stem for file in Path(get_root_config_directory(), "Endpoints").rglob("*.json"))
        if name.rpartition("/")[2].casefold() not in map(str.casefold, known):
            self._wrong(
                path,
                f"there is no endpoint {quoted(name)}",
                expected="the name of a file in Endpoints",
                suggestion=nearest(name, known),
            )

    # -- objects -------------------------------------------------------------------------------------------------
    def _entries(self, value: object, path: str, keys: Sequence[ConfigKey], is_open: bool = False) -> dict[str, Any]:
        """Return the entries of an object, with defaults for missing entries and those of the wrong type."""
        if not isinstance(value, Mapping):
            self._wrong(
                path,
                f"must be an object, not {quoted(value)}",
                expected=f"an object with {', '.join(key.name for key in keys)}",
            )
            return {key.name: key.default for key in keys}
        # Only the file as a whole has these two keys.
        table = KeyTable(keys if path else (SCHEMA_KEY, DESCRIPTION_KEY, *keys))
        check = KeyCheck(self._at, strict=True)
        self.findings += check.findings(value, table, path, is_open)
        usable = {
            name: value[name]
            for name, key in table.items()
            if value.get(name) is not None and not any(check.value(key, value[name], path))
        }
        return {
            name: table.number(usable, name) if key.kind == "int" else table.value(usable, name)
            for name, key in table.items()
        }

    def _wrong(self, path: str, message: str, expected: str = "", suggestion: str = "") -> None:
        """Report that the value at ``path`` cannot be used."""
        self.findings.append(self._at("error", path, message, expected, suggestion))

    def _at(self, severity: Severity, path: str, message: str, expected: str, suggestion: str) -> Finding:
        return Finding(severity, self._source.display, path, None, message, expected, suggestion).located(self._source)
