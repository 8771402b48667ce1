"""A recorded run as a workflow test: the same request, what the LLM answered, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict, get_args

from Middleware.addons.records.analysis.comparison import own_calls, title_of, type_of
from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.analysis.prefix import payload_of
from Middleware.addons.records.model import RunDocument, Span, number
from Middleware.addons.records.payloads import message_text, output_text, read_payload
from Middleware.addons.records.recorded_request import NotKeptError, recorded_request
from Middleware.utilities import config_utils
from Middleware.utilities.config.workflows import TEST_SUFFIX

ExpectationName: TypeAlias = Literal["route", "order", "answer", "prompts", "outputs", "endpoints"]
EXPECTATIONS: tuple[ExpectationName, ...] = get_args(ExpectationName)

SCHEMA = "workflow-test.schema.json"
# A line of a prompt that is shorter says little about which call it belongs to.
LEAST_LINE = 8


class OmittedExpectation(TypedDict):
    """An expectation that a test cannot have: its JSON path, and the reason in a sentence."""

    expectation: str
    reason: str


@dataclass(frozen=True)
class ExportedTest:
    """A test and where it belongs.

    Attributes:
        path: the file relative to the config root, with forward slashes.
        user: the user whose settings apply; "" if it is the one that the folder is named after.
        test: one entry of ``tests``.
    """

    path: str
    user: str
    test: dict[str, object]
    omitted: list[OmittedExpectation]

    def file(self) -> dict[str, object]:
        """Return a whole test file with this test alone."""
        depth = self.path.count("/")
        schema = {"$schema": f"{'../' * (depth + 1)}Schemas/{SCHEMA}"}
        return {**schema, **({"user": self.user} if self.user else {}), "tests": [self.test]}


Messages: TypeAlias = Sequence[Mapping[str, object]]


def exported(
    document: RunDocument,
    name: str,
    expected: Collection[str],
    needs_stub: Callable[[str], bool],
    changing: Collection[str] = (),
    as_sent: Callable[[Messages], Messages] = lambda messages: messages,
    shows_files: bool = True,
) -> ExportedTest:
    """Return a run as a test. Raises NotKeptError if its texts are not there.

    Args:
        expected: what to expect of the next run, of ``EXPECTATIONS``.
        needs_stub: whether nodes of a type do not run in the test.
        changing: names of variables whose value is another one tomorrow.
        as_sent: returns the messages as the client had sent them, without what the user's settings have added.
        shows_files: reasons may say what is in workflow files.
    """
    return _Export(document, needs_stub, changing, shows_files).test(name, expected, as_sent)


class _Export:
    def __init__(
        self, document: RunDocument, needs_stub: Callable[[str], bool], changing: Collection[str], shows_files: bool
    ) -> None:
        self._document, self._shows_files = document, shows_files
        self._tree = SpanTree(document.spans)
        self._needs_stub = needs_stub
        self._changing = tuple(changing)
        self._request = recorded_request(document)
        self._nodes = list(self._in_order(None))
        titles: dict[str, set[str]] = {}
        for node in self._nodes:
            titles.setdefault(title(node), set()).add(self._workflow(node))
        self._ambiguous = {name for name, workflows in titles.items() if len(workflows) > 1}
        self._omitted: list[OmittedExpectation] = []

    def test(self, name: str, expected: Collection[str], as_sent: Callable[[Messages], Messages]) -> ExportedTest:
        outermost = self._outermost()
        folder = str(outermost.attributes.get("folder") or "")
        workflow = str(outermost.attributes.get("workflow.name") or outermost.name)
        path = "/".join(["Workflows", *([folder] if folder else []), f"{workflow}{TEST_SUFFIX}"])
        user = self._document.facts["user"] or ""
        expect = {key: value for key, value in self._expectations(expected).items() if value not in ({}, [], None)}
        facts = self._document.facts
        model = facts["model"] or ""
        test: dict[str, object] = {
            "name": name,
            "entry": "request",
            **({"model": model} if model else {}),
            "messages": [_message(message) for message in as_sent(self._request.messages)],
            **({"stream": True} if facts["stream"] else {}),
            **({"tools": list(self._request.tools)} if self._request.tools else {}),
            "replies": self._replies(),
            **({"stubs": stubs} if (stubs := self._stubs()) else {}),
            "expect": expect,
        }
        return ExportedTest(path, "" if config_utils.user_of_folder(folder) == user else user, test, self._omitted)

    def _outermost(self) -> Span:
        """Return the workflow that answered: the last one of the run itself, as a categorization runs before it."""
        found = [span for span in self._tree.children(None) if span.kind == "workflow"]
        if not found:
            raise NotKeptError("This run ended before its workflow began, so that there is nothing to test.")
        return found[-1]

    # -- nodes ---------------------------------------------------------------------------------------------------
    def _in_order(self, span: Span | None) -> Iterator[Span]:
        """Yield the nodes as tests see them: in the order of their file, each before those that it starts, and none
        in a node that has a stub."""
        children = self._tree.children(span)
        nodes = [child for child in children if child.kind == "node"]
        for child in children:
            if child.kind not in ("node", "llm", "note"):
                yield from self._in_order(child)
        for node in sorted(nodes, key=lambda node: (number(node.attributes.get("node.index")) or 0, node.id)):
            yield node
            if not self._has_stub(node):
                yield from self._in_order(node)

    def _has_stub(self, node: Span) -> bool:
        return self._needs_stub(type_of(node)) and node.status in ("ok", "stand-in")

    def _workflow(self, span: Span) -> str:
        around = self._tree.around(span, "workflow")
        return str(around.attributes.get("workflow.name") or around.name) if around is not None else ""

    def _name(self, node: Span) -> str:
        """Return the name of a node in the test: its title, with its workflow if another one has such a node."""
        return f"{self._workflow(node)}/{title(node)}" if title(node) in self._ambiguous else title(node)

    # -- what the LLM answers ------------------------------------------------------------------------------------
    def _replies(self) -> dict[str, object] | list[dict[str, object]]:
        in_nodes = [
            (node, call) for node in self._nodes if not self._has_stub(node) for call in own_calls(self._tree, node)
        ]
        outside = [
            span for span in self._document.spans if span.kind == "llm" and self._tree.around(span, "node") is None
        ]
        if not outside and not any(self._needs_rules(call) for _, call in in_nodes):
            by_name: dict[str, list[object]] = {}
            for node, call in in_nodes:
                by_name.setdefault(self._name(node), []).append(self._reply(call))
            for node in self._nodes:
                if self._was_remembered(node):
                    by_name.setdefault(self._name(node), []).append(node.texts["output"])
            return {name: replies[0] if len(replies) == 1 else replies for name, replies in by_name.items()}
        calls = [*in_nodes, *((None, call) for call in outside)]
        rules = [
            rule for node, call in sorted(calls, key=lambda entry: entry[1].id) for rule in self._rules(node, call)
        ]
        return [
            *rules,
            *(
                {"node": self._name(node), "reply": node.texts["output"]}
                for node in self._nodes
                if self._was_remembered(node)
            ),
        ]

    def _was_remembered(self, node: Span) -> bool:
        """Return whether a node has an answer of its endpoint without a call: an earlier one, which was remembered."""
        return (
            bool(node.attributes.get("endpoint"))
            and isinstance(node.texts.get("output"), str)
            and not self._has_stub(node)
            and not any(self._tree.children(node))
        )

    def _needs_rules(self, call: Span) -> bool:
        """Return whether a list of replies cannot say what a call got: one failed, or several ran at the same time."""
        return bool(self._failures(call)) or any(
            other is not call
            and other.start < call.start + call.duration
            and call.start < other.start + other.duration
            and self._caller(other) == self._caller(call)
            for other in self._document.spans
            if other.kind == "llm"
        )

    def _caller(self, call: Span) -> str:
        """Return the name of the node that makes a call, "" for none."""
        node = self._tree.around(call, "node")
        return "" if node is None else self._name(node)

    def _rules(self, node: Span | None, call: Span) -> Iterator[dict[str, object]]:
        of_node: dict[str, object] = {} if node is None else {"node": self._name(node)}
        line = self._line_of(call) if node is None or self._needs_rules(call) else None
        prompt: dict[str, object] = {"prompt": {"contains": line}} if line else {}
        for endpoint, error in self._failures(call):
            yield {**of_node, "endpoint": endpoint, **prompt, "fail": error, "times": 1}
        if self._answered(call):
            endpoint = _endpoint(call)
            yield {
                **of_node,
                **({"endpoint": endpoint} if endpoint else {}),
                **prompt,
                "reply": self._reply(call),
                **({} if line else {"times": 1}),
            }

    def _failures(self, call: Span) -> list[tuple[str, str]]:
        """Return the endpoints that did not answer a call, with their error. Retries that helped do not count."""
        found: dict[str, str] = {}
        for attempt in self._tree.children(call):
            if attempt.kind == "attempt":
                endpoint = _endpoint(attempt) or attempt.name
                found.pop(endpoint, None)
                if attempt.status == "error":
                    error = attempt.texts.get("error")
                    found[endpoint] = error if isinstance(error, str) and error else "the server failed"
        return list(found.items())

    def _answered(self, call: Span) -> bool:
        return call.status == "ok" or any(name in call.texts for name in ("answer", "tool_calls"))

    def _reply(self, call: Span) -> object:
        text, calls = call.texts.get("answer"), call.texts.get("tool_calls")
        content = text if isinstance(text, str) else ""
        if not isinstance(calls, Sequence) or isinstance(calls, str) or not calls:
            return content
        return {"content": content, "tool_calls": list(calls)}

    def _line_of(self, call: Span) -> str | None:
        """Return a line of a call's prompt that no other prompt has, or None."""
        payload = payload_of(self._tree, call)
        if payload is None:
            return None
        others = "\n".join(
            "\n".join(read_payload(other))
            for span in self._document.spans
            if span.kind == "llm" and span is not call and (other := payload_of(self._tree, span)) is not None
        )
        lines = "\n".join(read_payload(payload)).splitlines()
        # The end of a prompt is what distinguishes it as a rule.
        return next((line for line in reversed(lines) if len(line) >= LEAST_LINE and line not in others), None)

    def _stubs(self) -> dict[str, object]:
        found: dict[str, list[str]] = {}
        for node in self._nodes:
            if self._has_stub(node):
                output = node.texts.get("output")
                if output is not None and not isinstance(output, str):
                    self._omit(
                        f"stubs[{self._name(node)!r}]",
                        f"the output of '{self._name(node)}' is not a text, and the test has its JSON in its place",
                    )
                found.setdefault(self._name(node), []).append(output_text(output))
        return {name: outputs[0] if len(set(outputs)) == 1 else outputs for name, outputs in found.items()}

    # -- what must hold ------------------------------------------------------------------------------------------
    def _expectations(self, expected: Collection[str]) -> dict[str, object]:
        facts = self._document.facts
        expect: dict[str, object] = {}
        if facts["status"] == "failed" and facts["answered"] is None:
            expect["error"] = (facts["error"] or "").splitlines()[0][:200] if facts["error"] else {"matches": "."}
        elif "answer" in expected:
            expect["answer"] = self._answer()
        if "route" in expected:
            expect["route"] = {"equals": self._route()} if facts["route"] else None
        if "order" in expected:
            expect["order"] = [self._name(node) for node in self._nodes]
        if "outputs" in expected:
            expect["outputs"] = self._outputs()
        if "prompts" in expected:
            expect["prompts"] = self._prompts()
        if "endpoints" in expected:
            expect["endpoints"] = self._endpoints()
        return expect

    def _route(self) -> str:
        """Return the route as the log names it: without the branches behind it, and a shared workflow by its name."""
        route = (self._document.facts["route"] or "").split(" > ")[0]
        if (self._document.facts["route.reason"] or "").startswith("model "):
            return f"shared {route.partition(':')[2] or route}"
        return route

    def _answer(self) -> dict[str, object] | None:
        outermost = self._outermost()
        responder = next(
            (
                node
                for node in self._tree.children(outermost)
                if node.kind == "node" and node.attributes.get("responder")
            ),
            None,
        )
        if responder is None or not responder.texts:
            return None
        return {"equals": output_text(responder.texts.get("output"))}

    def _outputs(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for node in self._nodes:
            name, output = self._name(node), node.texts.get("output")
            if (
                name not in found
                and output is not None
                and not self._has_stub(node)
                and self._is_constant(self._written(node), f"expect.outputs[{name!r}]")
            ):
                found[name] = {"equals": output_text(output)}
        return found

    def _prompts(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for node in self._nodes:
            name = self._name(node)
            calls = [] if name in found or self._has_stub(node) else own_calls(self._tree, node)
            payload = payload_of(self._tree, calls[0]) if calls else None
            if payload is not None and (parts := self._parts(node, f"expect.prompts[{name!r}]", payload)):
                found[name] = parts
        return found

    def _parts(self, node: Span, expectation: str, payload: Mapping[str, object]) -> dict[str, object]:
        """Return what a prompt must be: a date in the system prompt says nothing of the messages behind it."""
        system, prompt = read_payload(payload)
        written = self._written(node)
        apart = bool(system) and system != prompt and isinstance(written, Mapping)
        rest = (
            {key: value for key, value in written.items() if key != "systemPrompt"}
            if apart and isinstance(written, Mapping)
            else written
        )
        if not self._is_constant(rest, expectation):
            return {}
        parts: dict[str, object] = {"prompt": {"equals": prompt}}
        if not apart or self._is_constant(written, f"{expectation}.system"):
            parts = {"system": {"equals": system}, **parts}
        return parts

    def _endpoints(self) -> dict[str, object]:
        found: dict[str, set[str]] = {}
        for node in self._nodes:
            for call in [] if self._has_stub(node) else own_calls(self._tree, node):
                if self._answered(call):
                    found.setdefault(self._name(node), set()).add(_endpoint(call))
        return {name: min(endpoints) for name, endpoints in found.items() if len(endpoints) == 1 and min(endpoints)}

    # -- what will not hold tomorrow -----------------------------------------------------------------------------
    def _is_constant(self, written: object, expectation: str) -> bool:
        """Return whether texts of a node name no variable whose value changes; omit the expectation if they do."""
        text = json.dumps(written, ensure_ascii=False)
        variable = next((name for name in self._changing if name in text), None)
        if variable is not None:
            name = f"{{{variable}}}" if self._shows_files else "a variable"
            self._omit(expectation, f"the node uses {name}, whose value is another one at another time")
        return variable is None

    def _written(self, node: Span) -> object:
        """Return a node as it stood in its workflow file; None if the file was not kept."""
        workflow = self._tree.around(node, "workflow")
        if workflow is None:
            return None
        folder, name = workflow.attributes.get("folder"), workflow.attributes.get("workflow.name") or workflow.name
        path = "/".join(["Workflows", *([str(folder)] if folder else []), f"{name}.json"])
        version = next((version["hash"] for version in self._document.config if version["path"] == path), "")
        try:
            content = json.loads(self._document.config_texts.get(version, ""))
        except (ValueError, RecursionError):
            return None
        nodes = content.get("nodes") if isinstance(content, Mapping) else content
        index = (number(node.attributes.get("node.index")) or 0) - 1
        return nodes[index] if isinstance(nodes, list) and 0 <= index < len(nodes) else None

    def _omit(self, expectation: str, reason: str) -> None:
        self._omitted.append({"expectation": expectation, "reason": reason})


def title(node: Span) -> str:
    """Return the title by which tests name a node, its type if it has none."""
    found = title_of(node)
    return found if found and found != "N/A" else type_of(node)


def _endpoint(span: Span) -> str:
    found = span.attributes.get("endpoint")
    return found if isinstance(found, str) else ""


def _message(message: Mapping[str, object]) -> dict[str, object]:
    content = message.get("content")
    # Without its images, a message of parts is its text.
    return {**message, "content": content if isinstance(content, str) else message_text({"content": content})}
