"""Which saves of the console must be confirmed: what they let the server do counts, wherever it is written.

A server with ``--console edit``; each row writes files, then saves one of them over HTTP.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from Middleware.addons.check.file_check import KINDS
from Middleware.addons.console.sign_in import make_code
from Middleware.addons.records.console_folder import ConsoleFolder
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.workflows.handlers.registry import node_types
from Tests.addons.check.config_tree import ENDPOINT, MCP, ROUTES, TEMPLATE, USER, good_files, llm, write_tree
from Tests.amounts import DEEP
from Tests.integration.launcher import Launcher
from Tests.tables import check_all

Node = dict[str, Any]
Files = dict[str, Any]
"""Path below the config root -> content."""

FLOW, CALLER, MIDDLE = "Workflows/alice/Flow.json", "Workflows/alice/Caller.json", "Workflows/alice/Middle.json"
CHILD, REMEMBER = "Workflows/_common/Kid.json", "Workflows/alice/Remember.json"
TEMPLATES = "PromptTemplates/_chatonly.json"
OLD, NEW = "first-text", "second-text"


class Editor:
    """A server whose configuration is saved over HTTP, by an operator."""

    def __init__(self, public: Path, server: Launcher) -> None:
        self.configs, self.api = public / "Configs", f"{server.url}/console/api/"
        self.first = {one: one.read_text("utf-8") for one in self.configs.rglob("*.json")}
        code = make_code(ConsoleFolder(str(public / "Console")).secret(), time.time())
        self.token = ""
        self.token = self.call("POST", "session", {"code": code})[1]["token"]

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        headers = headers if self.token else {"Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.api + path, data, headers, method=method)
            ) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def write(self, files: Files) -> None:
        """Leave the first files and these."""
        wanted = {**self.first, **{self.configs / file: json.dumps(content) for file, content in files.items()}}
        for path in self.configs.rglob("*.json"):
            if path not in wanted:
                path.unlink()
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text("utf-8") != text:
                path.write_text(text, encoding="utf-8")

    def save(self, file: str, content: Any, confirm: str = "") -> tuple[int, Any]:
        status, shown = self.call("GET", f"config/file?path={file}")
        base = shown["base"] if status == 200 else ""
        return self.call(
            "PUT", "config/file", {"path": file, "text": json.dumps(content), "base": base, "confirm": confirm}
        )

    def changed(self, before: Files, after: Files) -> list[str]:
        """Save the one file that differs; return what must be confirmed."""
        self.write(before)
        [file] = [file for file, content in after.items() if before.get(file) != content]
        path = self.configs / file
        kept = path.read_bytes() if path.exists() else b""
        status, answer = self.save(file, after[file])
        powers = [one["text"] for one in answer.get("powers", ())]
        assert status == (428 if powers else 200), answer
        assert status == 200 or kept == (path.read_bytes() if path.exists() else b"")
        return powers


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    public = tmp_path_factory.mktemp("powers") / "Public"
    write_tree(public)
    with Launcher("run_waitress.py", "--PublicDirectory", public, "--User", "alice", "--console", "edit") as server:
        yield Editor(public, server)


def flow(*nodes: Node, **variables: Any) -> dict[str, Any]:
    return {**variables, "nodes": [*nodes]}


def static(text: str) -> Node:
    return {"type": "StaticResponse", "content": text}


def runs(name: str, *inputs: str, **keys: Any) -> Node:
    return {"type": "CustomWorkflow", "workflowName": name, "scoped_variables": [*inputs], **keys}


def user(**keys: Any) -> Any:
    return {**good_files()[USER], **keys}


# -- what acts ---------------------------------------------------------------------------------------------------------

ACTING = [
    (node_type, key)
    for node_type, handler in sorted(node_types().items())
    for key in handler.KEYS[node_type]
    if key.capability and not key.guard
]
# Written by hand: the table above must not lose any of them. The services of articles have one key each.
EXPECTED = {
    "PythonModule": {"module_path", "args", "kwargs"},
    "CurlCommand": {"args", "proxy"},
    "WebFetch": {"url", "method", "headers", "body", "proxy", "caBundle"},
    "MCPToolCall": {"server", "tool", "arguments"},
    "GetCustomFile": {"filepath"},
    "SaveCustomFile": {"filepath", "content", "mode", "find"},
    "ConversationChunkProcessor": {"id", "cursorDirectory", "returnFile"},
    "WriteCurrentSummaryToFileAndReturnIt": {"input"},
}


def acting(node_type: str, key: ConfigKey, text: str, **keys: Any) -> Node:
    value = {"list": ["-x", text], "object": {"a": text}}.get(key.kind, text)
    return {"type": node_type, key.name: value, **keys}


def last(node: Node, *before: Node, **variables: Any) -> Files:
    return {FLOW: flow(*before, node, **variables)}


Made = tuple[Node, str]


def feeds(node_type: str, key: ConfigKey, text: str) -> Iterator[tuple[str, Files]]:
    """Yield the ways on which a text comes to a key."""

    def node(value: str, **keys: Any) -> Node:
        return acting(node_type, key, value, **keys)

    yield "written in it", last(node(text))
    if key.variables != "full":
        return
    joined = {"type": "StringConcatenator", "strings": ["a", "{agent1Output}"], "delimiter": " "}
    output, given = node("x{agent1Output}"), node("{agent1Input}")
    yield "a variable", last(node("{base}"), base=text)
    yield "a variable of a variable", last(node("{base}"), base="{host}:1", host=text)
    yield "a variable in a list", last(node("{base}"), base=["a", {"b": text}])
    yield "an output", last(output, static(text))
    # Placeholders are filled in twice.
    yield "an output in doubled braces", last(node("{base}{{agent1Output}}"), static(text), base="a")
    yield "a variable with an output", last(node("{base}"), static(text), base="{agent1Output}")
    yield "joined texts", last(node("{agent2Output}"), static(text), joined)
    yield "an output of a template", last(output, {**static("{{ base | upper }}"), "jinja2": True}, base=text)
    yield "Jinja", last(node("{{ agent1Output.strip() }}", jinja2=True), static(text))
    yield "Jinja with a statement", last(node("{% set x = agent1Output %}{{ x[1:] }}", jinja2=True), static(text))
    yield (
        "a tag in a text",
        last(output, {"type": "TagTextExtractor", "tagToExtractFrom": f"<a>{text}</a>", "fieldToExtract": "a"}),
    )
    yield (
        "text that a condition chooses",
        last(
            output,
            {
                "type": "ConditionalCustomWorkflow",
                "conditionalKey": "x",
                "conditionalWorkflows": {},
                "UseDefaultContentInsteadOfWorkflow": text,
            },
        ),
    )
    yield "the user", {**last(node("{base}")), USER: user(userWideWorkflowVariables={"base": text})}
    yield (
        "the user, in a variable",
        {
            **last(node("{own}"), own="{base}"),
            USER: user(userWideWorkflowVariables={"base": "{deep}", "deep": text}),
        },
    )
    yield "an input", {**last(given), CALLER: flow(runs("Flow", text))}
    yield "an input with an output", {**last(given), CALLER: flow(static(text), runs("Flow", "{agent1Output}"))}
    yield (
        "an input of an input",
        {
            **last(given),
            MIDDLE: flow(runs("Flow", "{agent2Input}")),
            CALLER: flow(runs("Middle", "x", text)),
        },
    )
    yield (
        "an input of a workflow elsewhere",
        {
            CHILD: flow(given),
            CALLER: flow(runs("kid", text, workflowUserFolderOverride="_common")),
        },
    )
    yield (
        "an input of a workflow in another spelling",
        {
            CHILD: flow(given),
            CALLER: flow(runs("./KID", text, workflowUserFolderOverride="_COMMON//.")),
        },
    )
    yield (
        "an input of the workflow for the word Default, next to a text",
        {
            **last(given),
            CALLER: flow(
                {
                    "type": "ConditionalCustomWorkflow",
                    "conditionalKey": "default",
                    "conditionalWorkflows": {"Default": "Flow"},
                    "UseDefaultContentInsteadOfWorkflow": "x",
                    "scoped_variables": [text],
                }
            ),
        },
    )
    yield (
        "an input of the workflow for a value",
        {
            **last(given),
            CALLER: flow(
                {
                    "type": "ConditionalCustomWorkflow",
                    "conditionalKey": "x",
                    "conditionalWorkflows": {"x": "Flow"},
                    "scoped_variables": [text],
                }
            ),
        },
    )
    yield (
        "an input after the block of messages",
        {
            **last(node("{agent2Input}")),
            CALLER: flow(
                {
                    "type": "ConversationChunkProcessor",
                    "id": "a",
                    "cursorDirectory": "c",
                    "workflowName": "Flow",
                    "scoped_variables": [text],
                }
            ),
        },
    )
    yield "an answer", {**last(output, runs("Kid", workflowUserFolderOverride="_common")), CHILD: flow(static(text))}
    yield (
        "an answer of an answer",
        {
            **last(output, runs("Middle")),
            MIDDLE: flow(
                {**runs("Kid", workflowUserFolderOverride="_common"), "returnToUser": True}, llm(returnToUser=0)
            ),
            CHILD: flow(static(text)),
        },
    )
    yield (
        "the answer of the user's workflow",
        {
            **last(output, {"type": "RecentMemory"}),
            REMEMBER: flow(static(text)),
        },
    )
    yield "the only choice of an LLM", last(output, llm(answerChoices=[text]))
    yield "a choice of an LLM", last(output, llm(answerChoices=f"- a\n- {text}"))
    yield "a choice in a variable", last(output, llm(answerChoices=["{base}", "{base} "]), base=text)
    yield (
        "the choice of an LLM in another workflow",
        {**last(output, runs("Kid", workflowUserFolderOverride="_common")), CHILD: flow(llm(answerChoices=text))},
    )
    template = {TEMPLATES: {**TEMPLATE, "promptTemplateUserPrefix": text}}
    ends = {"endpointName": "Main"}
    yield "a prompt template", {**last(node("{templated_user_prompt_last_one}", **ends)), **template}
    yield (
        "a prompt template around an output",
        {**last(output, {**static("{chat_system_prompt}"), **ends}), **template},
    )
    yield (
        "a prompt template in a variable of Jinja",
        {**last(node("{{ chat_user_prompt_without_system }}", jinja2=True, **ends)), **template},
    )
    yield (
        "between messages",
        {
            **last(node("{base}"), base="{chat_user_prompt_last_five}"),
            USER: user(separateConversationInVariables=True, conversationSeparationDelimiter=text),
        },
    )
    yield (
        "categories",
        {
            **last(node("{category_descriptions}")),
            ROUTES: {**good_files()[ROUTES], "CODE": {"description": text, "workflow": "Coding"}},
        },
    )


def test_every_text_that_comes_to_a_key_that_acts_must_be_confirmed(editor: Editor) -> None:
    found: dict[str, set[str]] = {}
    for node_type, key in ACTING:
        found.setdefault(node_type, set()).add(key.name)
    services = {name: {"promptToSearch"} for name in node_types() if name.startswith("Offline")}
    assert found == {**EXPECTED, **services}

    def check(row: tuple[str, ConfigKey, str, Files, Files]) -> None:
        powers = editor.changed(*row[3:])
        assert any(NEW in text for text in powers), powers

    rows = []
    for number, (node_type, key) in enumerate(ACTING):
        ways = [*zip(feeds(node_type, key, OLD), feeds(node_type, key, NEW), strict=True)]
        # All ways to one key, and to each other key the direct one and one of the others.
        chosen = ways if DEEP or key.name == "module_path" else {0: ways[0], 1: ways[number % len(ways)]}.values()
        rows += [(node_type, key, way, before, after) for (way, before), (_, after) in chosen]
    check_all(rows, check, lambda row: f"{row[0]} {row[1].name}: {row[2]}")


SCRIPT = {"type": "PythonModule", "title": "Run", "module_path": "/x.py"}
# Whatever these names make of a file for the check.
NAMES = (
    "alice/Any",
    "alice/X-Compactor-Settings",
    "alice/XMemoryFile-Workflow-Settings",
    "alice/Memory",
    "alice/deep/er/-Compactor-Settings",
    "_common/_DefaultWorkflow",
    "nobodys/Other.test",
)


def test_the_name_of_a_file_changes_nothing(editor: Editor) -> None:
    def check(name: str) -> None:
        file = f"Workflows/{name}.json"
        before = {"endpointName": "Main", "lookbackStartTurn": 3}
        for content in (flow(SCRIPT), [SCRIPT], {**before, "nodes": [SCRIPT]}):
            assert editor.changed({file: before}, {file: content}) == ["node 1 'Run' runs the script /x.py"], content
            assert editor.changed({}, {file: content}) == ["node 1 'Run' runs the script /x.py"], content

    check_all(NAMES, check)


# -- what must be confirmed, too ---------------------------------------------------------------------------------------

FETCH = {"type": "WebFetch", "url": "{agent1Output}"}
KEY = {"headers": {"X-Key": "my-own"}}
TWO = [{"type": "WebFetch", "url": "http://a", **KEY}, {"type": "WebFetch", "url": "http://b"}]
BRACES = {"open": "{", "begin": "{agent1", "end": "Output}", "whole": "{host}", "host": "a"}
TWO_INPUTS = flow({"type": "WebFetch", "url": "{agent1Input}", "body": "{agent2Input}"})
MCP_FILE = good_files()[MCP]
MAIN = good_files()[ENDPOINT]
TEMPLATED = {**FETCH, "url": "{templated_user_prompt_last_one}"}
ENDED = last({**TEMPLATED, "endpointName": "Main"})
SEVERAL = last({**FETCH, "url": "{chat_user_prompt_last_two}"})
SEPARATED = {"separateConversationInVariables": True, "conversationSeparationDelimiter": "x"}

ELSEWHERE = {
    "Workflows/nobodys/Caller.json": flow(runs("Flow", "a")),
    "Workflows/harmless/Flow.json": flow(llm()),
    "Workflows/_overrides/acting/Flow.json": flow({**FETCH, "url": "{agent1Input}"}),
}

CONFIRMED: Mapping[str, tuple[Files, Files]] = {
    "known values in other company": (
        last(TWO[0], TWO[1]),
        last({**TWO[0], "url": "http://b"}, {**TWO[1], "url": "http://a"}),
    ),
    "no proxy": (last({**FETCH, "proxy": "http://p"}), last(FETCH)),
    "no body": (last({**FETCH, "body": "a"}), last(FETCH)),
    "another mode of saving": (
        last({"type": "SaveCustomFile", "filepath": "a", "content": "b", "mode": "append"}),
        last({"type": "SaveCustomFile", "filepath": "a", "content": "b"}),
    ),
    "an LLM in place of a text": (last(FETCH, static("http://a")), last(FETCH, llm())),
    "a text in place of an LLM": (last(FETCH, llm()), last(FETCH, static("http://a"))),
    "a file in place of an LLM": (last(FETCH, llm()), last(FETCH, {"type": "GetCustomFile", "filepath": "a"})),
    "nodes in another order": (
        last(FETCH, llm(), {"type": "GetCustomFile", "filepath": "a"}),
        last(FETCH, {"type": "GetCustomFile", "filepath": "a"}, llm()),
    ),
    "another node answers": (
        {**last(FETCH, runs("Middle")), MIDDLE: flow({**static("a"), "returnToUser": True}, static("b"))},
        {**last(FETCH, runs("Middle")), MIDDLE: flow(static("a"), {**static("b"), "returnToUser": True})},
    ),
    "two variables change places": (
        last({**FETCH, "url": "{a}/{b}"}, a="x", b="y"),
        last({**FETCH, "url": "{a}/{b}"}, a="y", b="x"),
    ),
    "a template in place of a text": (
        last({**FETCH, "url": "http://{{ 1 + 1 }}"}),
        last({**FETCH, "url": "http://{{ 1 + 1 }}", "jinja2": True}),
    ),
    **{
        f"a placeholder made of two texts: {text}": (
            last({**FETCH, "url": text}, static("a"), **BRACES),
            last({**FETCH, "url": text}, static("b"), **BRACES),
        )
        for text in ("{open}agent1Output}}", "{begin}{end}", "{whole:.1}agent1Output}}", "{whole[0]}agent1Output}}")
    },
    "a category for a placeholder made of two texts": (
        {**last({**FETCH, "url": "{open}category_list}}"}, **BRACES), ROUTES: {}},
        {**last({**FETCH, "url": "{open}category_list}}"}, **BRACES), ROUTES: good_files()[ROUTES]},
    ),
    "an input for a placeholder made of two texts": (
        {FLOW: flow({**FETCH, "url": "{open}agent1Input}}"}, **BRACES), CALLER: flow(runs("Flow", "a"))},
        {FLOW: flow({**FETCH, "url": "{open}agent1Input}}"}, **BRACES), CALLER: flow(runs("Flow", "b"))},
    ),
    "the output of a later node that may be done first": (
        {FLOW: flow(SCRIPT, {**FETCH, "url": "{agent3Output}"}, static("a"), parallelNodes=True)},
        {FLOW: flow(SCRIPT, {**FETCH, "url": "{agent3Output}"}, static("b"), parallelNodes=True)},
    ),
    "inputs change places": (
        {FLOW: TWO_INPUTS, CALLER: flow(runs("Flow", "a", "b"))},
        {FLOW: TWO_INPUTS, CALLER: flow(runs("Flow", "b", "a"))},
    ),
    "an input in place of another": (
        {FLOW: TWO_INPUTS, CALLER: flow(runs("Flow", "a", "b"))},
        {FLOW: TWO_INPUTS, CALLER: flow(runs("Flow", "a", "a"))},
    ),
    "a text for a workflow that acts on it": (
        {CALLER: flow(runs("Middle", "a")), MIDDLE: flow(llm()), FLOW: flow({**FETCH, "url": "{agent1Input}"})},
        {CALLER: flow(runs("Flow", "a")), MIDDLE: flow(llm()), FLOW: flow({**FETCH, "url": "{agent1Input}"})},
    ),
    "workflows of another folder": (
        {**ELSEWHERE, USER: user(workflowConfigsSubDirectoryOverride="harmless")},
        {**ELSEWHERE, USER: user(workflowConfigsSubDirectoryOverride="acting")},
    ),
    "a workflow in front of another": (
        last(FETCH, runs("Kid")),
        {**last(FETCH, runs("Kid")), "Workflows/alice/Kid.json": flow(static("http://a"))},
    ),
    "a variable in a list of hosts": (
        last({**FETCH, "allowedHosts": ["{host}"]}, llm(), host="a"),
        last({**FETCH, "allowedHosts": ["{host}"]}, llm(), host="b"),
    ),
    "an input for a list of hosts": (
        {**last({**FETCH, "allowedHosts": ["{agent1Input}"]}, llm()), CALLER: flow(runs("Flow", "a"))},
        {**last({**FETCH, "allowedHosts": ["{agent1Input}"]}, llm()), CALLER: flow(runs("Flow", "b"))},
    ),
    "choices in place of an LLM": (last(FETCH, llm()), last(FETCH, llm(answerChoices=["http://a"]))),
    "an LLM in place of choices": (last(FETCH, llm(answerChoices=["http://a"])), last(FETCH, llm())),
    "choices for other variables": (
        last(FETCH, static("a"), llm(answerChoices=["{agent1Output}"])),
        last(FETCH, static("b"), llm(answerChoices=["{agent1Output}"])),
    ),
    "an endpoint for a text with a prompt template": (last(TEMPLATED), ENDED),
    "another prompt template of an endpoint": (
        {**ENDED, ENDPOINT: {**MAIN, "promptTemplate": "chatml"}},
        {**ENDED, ENDPOINT: MAIN},
    ),
    "a prompt template of an endpoint": (
        {**ENDED, ENDPOINT: MAIN},
        {**ENDED, ENDPOINT: {**MAIN, "promptTemplate": "chatml"}},
    ),
    "another prompt template of a user": (
        {**ENDED, USER: user()},
        {**ENDED, USER: user(chatPromptTemplateName="chatml")},
    ),
    "a new prompt template": (ENDED, {**ENDED, "PromptTemplates/alpaca.json": TEMPLATE}),
    "other categories": (
        {**last({**FETCH, "url": "{category_list}"}), USER: user()},
        {**last({**FETCH, "url": "{category_list}"}), USER: user(routingConfig="others")},
    ),
    "texts between messages": (
        {**SEVERAL, USER: user(**{**SEPARATED, "separateConversationInVariables": False})},
        {**SEVERAL, USER: user(**SEPARATED)},
    ),
    "headers of an MCP server": ({MCP: MCP_FILE}, {MCP: {**MCP_FILE, "headers": {"A": "b"}}}),
    "another way to an MCP server": ({MCP: MCP_FILE}, {MCP: {**MCP_FILE, "transport": "sse"}}),
}


def test_what_changes_how_values_act_must_be_confirmed(editor: Editor) -> None:
    def check(name: str) -> None:
        assert editor.changed(*CONFIRMED[name])

    check_all([*CONFIRMED], check)


# -- guards ------------------------------------------------------------------------------------------------------------


def guarded(node_type: str, **keys: Any) -> Files:
    key = {"WebFetch": {"url": "{agent1Output}"}, "CurlCommand": {"args": ["{agent1Output}"]}}[node_type]
    return last({"type": node_type, **key, **keys}, llm())


# By the key of a node: the value that guards, and values that do so less.
GUARDS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "blockPrivateAddresses": (True, (False, "false", " False ", None)),
    "verify": (True, (False, "false")),
    "encodeUrlValues": (True, (False,)),
    "allowRedirects": (False, (True, None)),
    "blockOptionInjection": (True, (False, None)),
    "allowSchemeInjection": (False, (True, "true")),
    "allowedHosts": (["a", "b"], (None, ["a", "b", "c"], ["a", "*"], ["a", "{agent1Output}"])),
}
USER_GUARDS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "encryptUsingApiKey": (True, (False, None, "no", "")),
    "redactLogOutput": ("yes", (False, None)),
    "allowedFileDirectories": (["/a"], (None, ["/a", "/"], ["/"])),
}


def guards() -> Iterator[tuple[str, Files, Files]]:
    """Yield what loosens a guard: its name, the files before, and after."""
    for node_type in ("WebFetch", "CurlCommand"):
        for key in (key for key in node_types()[node_type].KEYS[node_type] if key.guard):
            value, less = GUARDS[key.name]
            before = guarded(node_type, **{key.name: value})
            for other in less:
                yield key.name, before, guarded(node_type, **{key.name: other})
            yield (
                key.name,
                before,
                guarded(node_type) if value != key.default else guarded(node_type, **{key.name: less[0]}),
            )
            # Of two nodes, the second; and with a third one that is guarded as the second was.
            two = flow(llm(), TWO[0], *before[FLOW]["nodes"][1:])
            loose = guarded(node_type, **{key.name: less[0]})[FLOW]["nodes"][1]
            # A second node that does the same as the first.
            yield key.name, before, {FLOW: flow(*before[FLOW]["nodes"], loose)}
            yield key.name, {FLOW: two}, {FLOW: flow(llm(), TWO[0], loose)}
            third = {**before[FLOW]["nodes"][1], "url": "http://c", "args": ["http://c"]}
            yield key.name, {FLOW: two}, {FLOW: flow(llm(), TWO[0], loose, third)}
    for name, (value, less) in USER_GUARDS.items():
        for other in less:
            yield name, {USER: user(**{name: value})}, {USER: user(**{name: other})}
        yield name, {USER: user(**{name: value})}, {USER: user()}
    for node in (
        {"type": "Conditional", "condition": "'{agent1Output}' == 'A'"},
        {"type": "ArithmeticProcessor", "expression": "{agent1Output} + 1"},
    ):
        for less in ({"valueSafe": False}, {}):
            yield "valueSafe", last({**node, "valueSafe": True}, llm()), last({**node, **less}, llm())
            safe = {**node, "valueSafe": True}
            yield "valueSafe", last(safe, llm()), last({**node, **less}, llm(), safe)
    endpoint = good_files()[ENDPOINT]
    yield "allowRemoteBackup", {ENDPOINT: endpoint}, {ENDPOINT: {**endpoint, "allowRemoteBackup": True}}


def test_a_looser_guard_must_be_confirmed(editor: Editor) -> None:
    declared = {key.name: key for _, key in ALL_KEYS if key.guard}
    assert {name for name, _, _ in guards()} == set(declared)

    def check(row: tuple[str, Files, Files]) -> None:
        name, before, after = row
        said = declared[name].capability.removesuffix(" the host")
        assert any(said in text for text in editor.changed(before, after)), said
        # The other way round, it is made tighter; only an entry in place of another one is new.
        if declared[name].guard != "entries":
            assert [text for text in editor.changed(after, before) if said in text] == []

    check_all([*guards()], check, lambda row: f"{row[0]}: {row[2]}")


ALL_KEYS = [
    *((name, key) for name, handler in node_types().items() for key in handler.KEYS[name]),
    *(("", key) for kind in KINDS.values() for key in kind.keys),
]

# -- what is saved without a question ----------------------------------------------------------------------------------

ROUTED = {"type": "ConditionalCustomWorkflow", "conditionalKey": "{agent1Output}", "conditionalWorkflows": {"a": "Kid"}}
FED = {**last({**FETCH, "url": "{agent1Input}"}), MIDDLE: flow(llm(prompt="{agent1Input}"))}

SAVED: Mapping[str, tuple[Files, Files]] = {
    "a title": (last({**SCRIPT, "args": ["a"]}), last({**SCRIPT, "args": ["a"], "title": "Other"})),
    "a remark": (last(SCRIPT), last({**SCRIPT, "_comment": "x"}, description="y")),
    "the prompt of an LLM whose answer acts": (
        last(FETCH, llm(prompt="a", systemPrompt="b")),
        last(FETCH, llm(prompt="c", systemPrompt="d", maxResponseSizeInTokens=5, preset="Warm")),
    ),
    "what such a prompt is made of": (
        last({**FETCH, "url": "{agent2Output}"}, static("a"), llm(prompt="{agent1Output} {x}"), x="a"),
        last({**FETCH, "url": "{agent2Output}"}, static("b"), llm(prompt="{agent1Output} {x}"), x="b"),
    ),
    "a text next to a body with braces": (
        last({**FETCH, "body": '{{"q": "{q}", "of": {{"n": 1}}}}'}, llm(), static("a"), q="{host}:1", host="b"),
        last({**FETCH, "body": '{{"q": "{q}", "of": {{"n": 1}}}}'}, llm(), static("b"), q="{host}:1", host="b"),
    ),
    "a text that comes to no key": (
        last(SCRIPT, static("a"), {"type": "StringConcatenator", "strings": ["a"]}, x="y"),
        last(SCRIPT, static("b"), {"type": "StringConcatenator", "strings": ["b"]}, x="z"),
    ),
    "an answer to the client": (
        {FLOW: flow(SCRIPT, static("a {agent1Output}"))},
        {FLOW: flow(SCRIPT, static("b {agent1Output}"))},
    ),
    "an input for an LLM": (
        {**FED, CALLER: flow(runs("Middle", "a"))},
        {**FED, CALLER: flow(runs("Middle", "b"))},
    ),
    "an input that does not act": (
        {**FED, CALLER: flow(runs("Flow", "a", "b"))},
        {**FED, CALLER: flow(runs("Flow", "a", "c", promptOverride="d"))},
    ),
    "an input of a workflow with the same name": (
        {
            **FED,
            "Workflows/other/Flow.json": flow(llm()),
            "Workflows/other/C.json": flow(runs("Flow", "a", workflowUserFolderOverride="other")),
        },
        {
            **FED,
            "Workflows/other/Flow.json": flow(llm()),
            "Workflows/other/C.json": flow(runs("Flow", "b", workflowUserFolderOverride="other")),
        },
    ),
    "an answer that does not act": (
        {**last(SCRIPT, runs("Middle")), MIDDLE: flow(static("a"))},
        {**last(SCRIPT, runs("Middle")), MIDDLE: flow(static("b"))},
    ),
    "an LLM after a node that acts": (last(SCRIPT), {FLOW: flow(SCRIPT, llm(prompt="{agent1Output}"))}),
    "a node less": (last(SCRIPT, SCRIPT), last(SCRIPT)),
    "a caller less": (
        {**FED, CALLER: flow(runs("Flow", "a"), runs("Flow", "b"))},
        {**FED, CALLER: flow(runs("Flow", "b"))},
    ),
    "a condition": (
        last(ROUTED, {"type": "Conditional", "condition": "1 == 1"}),
        last(ROUTED, {"type": "Conditional", "condition": "1 == 2"}),
    ),
    "how an answer is read": (
        last({**FETCH, "timeout": 3, "outputFormat": "text"}, llm()),
        last({**FETCH, "timeout": 4, "outputFormat": "json", "onError": "return"}, llm()),
    ),
    "the user's variables that come to no key": (
        {**last(SCRIPT), USER: user(userWideWorkflowVariables={"x": "a"})},
        {**last(SCRIPT), USER: user(userWideWorkflowVariables={"x": "b", "y": "c"})},
    ),
    "a variable of the user that the file hides": (
        {**last({**FETCH, "url": "{x}"}, x="a"), USER: user(userWideWorkflowVariables={"x": "a"})},
        {**last({**FETCH, "url": "{x}"}, x="a"), USER: user(userWideWorkflowVariables={"x": "b"})},
    ),
    "categories": (
        {**last(SCRIPT), ROUTES: good_files()[ROUTES]},
        {**last(SCRIPT), ROUTES: {**good_files()[ROUTES], "CODE": {"description": "x", "workflow": "Coding"}}},
    ),
    "choices that come to no key": (
        last(SCRIPT, llm(answerChoices=["a"])),
        last(SCRIPT, llm(answerChoices=["b"])),
    ),
    "choices that choose a workflow": (
        last(ROUTED, llm(answerChoices=["a"])),
        last(ROUTED, llm(answerChoices=["a", "b"])),
    ),
    "an answer that is remembered": (
        last(FETCH, llm(answerChoices=["a"])),
        last(FETCH, llm(answerChoices=["a"], rememberChoice=True)),
    ),
    "no choices": (last(FETCH, llm()), last(FETCH, llm(answerChoices=[]))),
    **{
        f"the prompt template of {name}": (
            {**files, TEMPLATES: TEMPLATE},
            {**files, TEMPLATES: {**TEMPLATE, "promptTemplateUserPrefix": "x"}},
        )
        for name, files in {
            "an LLM": last(FETCH, llm(prompt="{templated_user_prompt_last_one}")),
            "a node without an endpoint": last(TEMPLATED),
            "a text that comes to no key": last(
                SCRIPT, {**static("{templated_system_prompt}"), "endpointName": "Main"}
            ),
            "texts without it": last({**FETCH, "url": "{chat_user_prompt_last_one}", "endpointName": "Main"}),
        }.items()
    },
    "an endpoint with another prompt template": (
        {**last(TEMPLATED), ENDPOINT: MAIN},
        {**last(TEMPLATED), ENDPOINT: {**MAIN, "promptTemplate": "chatml"}},
    ),
    "settings of texts that come to no key": (
        {**last(SCRIPT, llm(prompt="{category_list} {chat_user_prompt_last_two}")), USER: user()},
        {
            **last(SCRIPT, llm(prompt="{category_list} {chat_user_prompt_last_two}")),
            USER: user(**SEPARATED, routingConfig="others", chatPromptTemplateName="chatml"),
        },
    ),
    "a text between messages for one message": (
        {**last({**FETCH, "url": "{chat_user_prompt_last_one}"}), USER: user()},
        {**last({**FETCH, "url": "{chat_user_prompt_last_one}"}), USER: user(**SEPARATED)},
    ),
    "a text between messages that is not used": (
        {**SEVERAL, USER: user()},
        {**SEVERAL, USER: user(conversationSeparationDelimiter="x")},
    ),
    "a condition of old": (
        last(ROUTED, {"type": "Conditional", "condition": "'{x}' == 'A'"}),
        last(
            ROUTED, {"type": "Conditional", "condition": "'{x}' == 'B'"}, {"type": "Conditional", "condition": "1 == 1"}
        ),
    ),
    "fewer hosts": (
        guarded("WebFetch", allowedHosts=["a", "b"]),
        guarded("WebFetch", allowedHosts=["b"]),
    ),
    "a list of hosts": (guarded("WebFetch"), guarded("WebFetch", allowedHosts=["a"], blockPrivateAddresses=True)),
    "settings of memories": (
        {"Workflows/alice/Memory.json": {"endpointName": "Main", "preset": "Warm", "prompt": "[TextChunk]"}},
        {"Workflows/alice/Memory.json": {"endpointName": "Main", "preset": "Warm", "prompt": "[TextChunk] x"}},
    ),
}


def test_what_lets_the_server_do_nothing_else_is_saved(editor: Editor) -> None:
    def check(name: str) -> None:
        assert editor.changed(*SAVED[name]) == []

    check_all([*SAVED], check)
