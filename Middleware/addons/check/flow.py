"""What flows through workflows: the values of texts and outputs, what makes them change, and inputs.

``Flow`` follows a text through variables, Jinja2, the outputs of nodes, the inputs of its workflow and the workflows
that nodes run. What it does not follow counts as unknown, so that nothing is reported about it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from Middleware.addons.check.findings import Finding, workflow_name
from Middleware.addons.check.lookups import Lookups
from Middleware.addons.check.node_check import (
    NodeView,
    child_folder,
    child_names,
    child_workflows,
    node_label,
    views_of,
)
from Middleware.addons.check.text_check import parsed_template, variables_in
from Middleware.services.llm_calls.prompt_parts import prompt_templates
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.declarations import as_flag
from Middleware.utilities.config.json_source import child
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.json_data import strings_in
from Middleware.utilities.text_utils import counted
from Middleware.workflows.handlers.base.operands import VALUE_SAFE
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.processors.workflows_processor import find_responder
from Middleware.workflows.tools.curl.options import read_arguments

TIMES = frozenset({"current_time_12h", "current_time_24h", "time_context_summary"})
# Nodes that only pass on or take apart the texts in their keys.
PASSING_ON = frozenset(
    {"StaticResponse", "StringConcatenator", "DelimitedChunker", "JsonExtractor", "TagTextExtractor"}
)
# Nodes whose output does not change with the conversation: a number, TRUE or FALSE, a text file such as a persona.
STEADY = frozenset(
    {
        "ArithmeticProcessor",
        "Conditional",
        "GetCustomFile",
        "SaveCustomFile",
        "WorkflowLock",
        "ConversationChunkProcessor",
    }
)
# Nodes whose output is never a text of users, models or tools. A file may be one that a model wrote.
_OWN_OUTPUTS = STEADY - {"GetCustomFile"}
# Far more than any text depends on; each may lead to another one, and Python ends a search that is nested too deeply.
_MOST_SEEN = 100
_SAID = re.compile(r"(chat|templated)_(user|system)_prompt|messages$|Discussion_Id$")
_FIRST = re.compile(r"\{[^{}]+\}|\{\{.*?\}\}")
_SHOWN = re.compile(r"\{\{.*?\}\}", re.DOTALL)
# The variables with the categories of the routing, as `category_variables` of the engine makes them.
CATEGORY_VARIABLES = re.compile(
    r"category_list|category_descriptions|category_colon_descriptions|"
    r"categoriesSeparatedByOr|categoryNameBulletpoints"
)
CHOICES, DEFAULT_CONTENT = "conditionalWorkflows", "UseDefaultContentInsteadOfWorkflow"
# How far texts are followed from node to node. Workflows may run each other in a circle, which is reported itself.
MAX_DEPTH = 10
# The filters and methods that change only what a comparison with keys ignores: case and outer spaces.
_HARMLESS = frozenset({"trim", "strip", "upper", "lower", "string", "capitalize", "title"})
_OUTPUT, _INPUT = (re.compile(rf"agent([1-9][0-9]{{0,5}}){kind}") for kind in ("Output", "Input"))
_ONE_VARIABLE = re.compile(r"\s*\{([^\W\d]\w{0,99})\}\s*")


@dataclass(frozen=True)
class Value:
    """What a text may be. Without arguments: the files do not show it, and nothing that is known makes it change.

    Attributes:
        texts: all texts that it may be, in lower case without outer spaces, each with its spelling; None: not known.
        source: what gives the value, for a message.
        is_open: an LLM writes it, so that it may be any text.
        lists_categories: that LLM is shown the categories of the routing.
        time: the first variable in it that changes with the time; empty without one.
        writer: the first node in it whose output changes from call to call: the file of its workflow, and its label.
    """

    texts: Mapping[str, str] | None = None
    source: str = "the result of the template"
    is_open: bool = False
    lists_categories: bool = False
    time: str = ""
    writer: tuple[str, str] | None = None

    @property
    def is_known(self) -> bool:
        return self.is_open or self.texts is not None

    @property
    def changes(self) -> bool:
        """Whether it differs from call to call."""
        return bool(self.time or self.writer)

    def of(self, parts: Iterable[Value]) -> Value:
        """Return this value as one that changes with its parts."""
        known = list(parts)
        return replace(
            self,
            time=next((part.time for part in known if part.time), ""),
            writer=next((part.writer for part in known if part.writer), None),
        )


UNKNOWN = Value()


def _fixed(*texts: str, source: str = "") -> Value:
    return Value({text.strip().lower(): text.strip() for text in texts}, source or UNKNOWN.source)


def _any_of(values: Sequence[Value], source: str = "") -> Value:
    """Return the value that is one of several; not known if one of them is not."""
    if not values or not all(value.is_known for value in values):
        return UNKNOWN.of(values)
    first_open = next((value for value in values if value.is_open), None)
    texts = {key: text for value in values for key, text in (value.texts or {}).items()}
    return (first_open or Value(texts, source or values[0].source)).of(values)


@dataclass(frozen=True)
class Flow:
    """The values in one workflow, with the settings of the user whose ``lookups`` these are.

    Attributes:
        callers: the nodes that run workflows, by the files of these, each with the flow of its own workflow.
        caller: the node that runs this workflow, if it is the only one that matters.
    """

    loaded: LoadedWorkflow
    lookups: Lookups
    callers: Mapping[str, Sequence[tuple[Flow, NodeView]]] = field(default_factory=dict, repr=False)
    caller: tuple[Flow, NodeView] | None = field(default=None, repr=False)
    _outputs: dict[int, Value] = field(default_factory=dict, repr=False)

    def text(self, text: object, jinja: bool, index: int, depth: int = 0) -> Value:
        """Return what a text of the node ``index`` may be."""
        if not isinstance(text, str) or depth > MAX_DEPTH:
            return UNKNOWN
        return _filled(text, jinja, {name: self._variable(name, index, depth) for name in variables_in(text, jinja)})

    def result(self, depth: int = 0) -> Value:
        """Return what the workflow may answer."""
        nodes = self.loaded.nodes
        return self._output(find_responder(nodes), depth) if nodes else UNKNOWN

    def _variable(self, name: str, index: int, depth: int, is_inside: bool = False) -> Value:
        """Return the value of a variable. ``is_inside``: it is named in the text of another one."""
        output, given = _OUTPUT.fullmatch(name), _INPUT.fullmatch(name)
        if output is not None:
            return self._output(int(output[1]) - 1, depth + 1) if int(output[1]) <= index else UNKNOWN
        own = self.loaded.variables.get(name, self.lookups.user_variables().get(name))
        if isinstance(own, str):
            # Variables in the text of a variable are filled in, too, and no further ones.
            names = () if is_inside else variables_in(own, jinja=False)
            value = _filled(own, False, {one: self._variable(one, index, depth, True) for one in names})
            # The user may write another text tomorrow, and the same workflow serves other users.
            return value if name in self.loaded.variables else UNKNOWN.of([value])
        if given is None:
            return Value(time=name) if name in TIMES else UNKNOWN
        callers = [self.caller] if self.caller else self.callers.get(self.loaded.display, ())
        return UNKNOWN.of(
            flow.text(passed_text(view, int(given[1])), NODE.flag(view.node, "jinja2"), view.index, depth + 1)
            for flow, view in callers
        )

    def _output(self, index: int, depth: int) -> Value:
        if depth > MAX_DEPTH:
            return UNKNOWN
        if index not in self._outputs:
            self._outputs[index] = self._of_node(index, depth)
        return self._outputs[index]

    def _of_node(self, index: int, depth: int) -> Value:
        node = self.loaded.nodes[index]
        node_type = node.get("type", "Standard")
        handler = node_types().get(node_type) if isinstance(node_type, str) else None
        label, jinja = node_label(index, node), NODE.flag(node, "jinja2")
        source = f"the output of {label}"
        if handler is None or node_type in STEADY:
            return _fixed("TRUE", "FALSE", source=source) if node_type == "Conditional" else UNKNOWN
        if node_type in PASSING_ON:
            content = self.text(node.get("content"), jinja, index, depth) if node_type == "StaticResponse" else UNKNOWN
            return replace(content, source=content.source if content.is_open else source).of(
                self.text(text, jinja, index, depth) for _, text in strings_in(node)
            )
        view = NodeView(self.loaded, index, node, node_type, handler.TABLES[node_type])
        writer = (self.loaded.display, label)
        if "workflowName" in view.keys or CHOICES in view.keys:
            value = self._of_children(view, source, depth)
            # For the time, its name is shown; for the rest, the reader of this file sees this node.
            return replace(value, writer=value.writer and writer)
        if handler.needs_endpoint and not node.get("structuredOutputFile"):
            return Value(
                None,
                f"what the LLM of {label} writes",
                True,
                CATEGORY_VARIABLES.search(" ".join(prompt_templates(node))) is not None,
                writer=writer,
            )
        return Value(writer=writer)

    def _of_children(self, view: NodeView, source: str, depth: int) -> Value:
        around, flow = {self.loaded.display}, self
        while flow.caller is not None:
            flow = flow.caller[0]
            around.add(flow.loaded.display)
        children = child_workflows(view, self.lookups)
        if children is None:
            return UNKNOWN
        values = [
            UNKNOWN
            if loaded.display in around
            else Flow(loaded, self.lookups, self.callers, (self, view)).result(depth + 1)
            for loaded in children
        ]
        content = view.node.get(DEFAULT_CONTENT)
        if content is not None:
            values.append(self.text(str(content), NODE.flag(view.node, "jinja2"), view.index, depth))
        return _any_of(values, source)


# -- texts -------------------------------------------------------------------------------------------------------------


def _filled(text: str, jinja: bool, names: Mapping[str, Value]) -> Value:
    """Return what a text with the variables ``names`` may be. A text of several parts is not looked into."""
    if "{" not in text:
        return _fixed(text, source="a fixed text")
    if jinja:
        value = _of_template(text, names)
    else:
        one = _ONE_VARIABLE.fullmatch(text)
        value = names.get(one[1], UNKNOWN) if one else UNKNOWN
    return value.of(names.values())


def _of_template(text: str, names: Mapping[str, Value]) -> Value:
    # Imported here because most workflows have no templates.
    from jinja2 import TemplateError

    try:
        return _of_body(parsed_template(text).body, names)
    # What is wrong with the template is reported with its text.
    except (TemplateError, RecursionError):
        return UNKNOWN


def _of_body(body: Sequence[Any], names: Mapping[str, Value]) -> Value:
    from jinja2 import nodes

    parts = [part for node in body for part in (node.nodes if isinstance(node, nodes.Output) else [node])]
    parts = [part for part in parts if not (isinstance(part, nodes.TemplateData) and not part.data.strip())]
    if len(parts) != 1:
        return UNKNOWN if parts else _fixed("")
    if isinstance(parts[0], nodes.If):
        branches = [parts[0].body, *(one.body for one in parts[0].elif_), parts[0].else_]
        return _any_of([_of_body(branch, names) for branch in branches])
    return _of_expression(parts[0], names)


def _of_expression(node: Any, names: Mapping[str, Value]) -> Value:
    from jinja2 import nodes

    if isinstance(node, (nodes.TemplateData, nodes.Const)):
        return _fixed(str(node.data if isinstance(node, nodes.TemplateData) else node.value))
    if isinstance(node, (nodes.Compare, nodes.Not, nodes.Test)):
        return _fixed("True", "False")
    if isinstance(node, nodes.CondExpr):
        other = _of_expression(node.expr2, names) if node.expr2 is not None else _fixed("")
        return _any_of([_of_expression(node.expr1, names), other])
    if isinstance(node, nodes.Name):
        return names.get(node.name, UNKNOWN)
    if isinstance(node, nodes.Filter) and node.name in _HARMLESS and not node.args:
        return _of_expression(node.node, names)
    called = node.node if isinstance(node, nodes.Call) and not node.args else None
    if isinstance(called, nodes.Getattr) and called.attr in _HARMLESS:
        return _of_expression(called.node, names)
    return UNKNOWN


# -- inputs ------------------------------------------------------------------------------------------------------------

# The prompts of a child that its caller may replace, with the keys of the caller.
REPLACED_BY = {
    "systemPrompt": ("firstNodeSystemPromptOverride", "systemPromptOverride"),
    "prompt": ("firstNodePromptOverride", "promptOverride"),
}
_NAME = re.compile(r"(?<!\{)\{([^\W\d]\w{0,99})")
# In a Jinja2 statement, or with a filter or a test, a missing input may be what the author expects.
_OPTIONAL = re.compile(
    r"\{%[^%]*agent([1-9][0-9]{0,3})Input\b|"
    r"agent([1-9][0-9]{0,3})Input\s*(?:\||is\b|or\b|if\b|and\b)|"
    r"(?:\bif|\bor|\band|\bnot)\s+agent([1-9][0-9]{0,3})Input\b"
)


def passed(view: NodeView) -> Sequence[object]:
    """Return the texts that a node lists for the workflows that it runs."""
    values = NODE.value(view.node, "scoped_variables") if "scoped_variables" in view.keys else None
    return values if isinstance(values, (list, tuple)) else () if values is None else (values,)


def messages_first(view: NodeView) -> int:
    """Return how many inputs a node passes in front of those it lists."""
    # The first input of this type's children is the block of messages.
    return int(view.runs_as == "ConversationChunkProcessor")


def passed_text(view: NodeView, number: int) -> object:
    """Return the text of a node that becomes the input ``number`` of the workflows it runs, or None."""
    index = number - 1 - messages_first(view)
    values = passed(view)
    return values[index] if 0 <= index < len(values) else None


def missing_inputs(
    loaded: LoadedWorkflow, count: float, lookups: Lookups, replaced: Collection[str] = ()
) -> dict[int, tuple[NodeView, str]]:
    """Return the inputs above ``count`` that a workflow uses, each with the first node and JSON path that does.

    ``replaced``: the prompts that the caller replaces in the first node with prompts.
    """
    found: dict[int, tuple[NodeView, str]] = {}
    own = next((index for index, node in enumerate(loaded.nodes) if any(key in node for key in REPLACED_BY)), -1)
    for view, path, number in _used_inputs(loaded):
        is_replaced = view.index == own and path in [child(view.path, key) for key in replaced]
        # A key of the file, or of the user, with the name of an input is what counts where none is passed.
        name = f"agent{number}Input"
        if number > count and not is_replaced and name not in {**loaded.variables, **lookups.user_variables()}:
            found.setdefault(number, (view, path))
    return found


def _used_inputs(loaded: LoadedWorkflow) -> Iterator[tuple[NodeView, str, int]]:
    """Yield the inputs that texts of a workflow cannot do without: the node, the JSON path of the text, the number."""
    for index, node in enumerate(loaded.nodes):
        view = NodeView(loaded, index, node, "Standard", {})
        jinja = NODE.flag(node, "jinja2")
        for keys, text in strings_in(node):
            # A child fills in such a text with its own inputs.
            if "{" in text and not str(keys[-1]).lower().endswith("promptoverride"):
                path = child(view.path, *keys)
                names = _needed_by_template(text) if jinja else _needed_by_text(text, loaded.variables)
                yield from ((view, path, int(found[1])) for name in names if (found := _INPUT.fullmatch(name)))


def _needed_by_text(text: str, variables: Mapping[str, object]) -> Iterator[str]:
    names = _NAME.findall(text)
    yield from names
    # A variable of the file may itself hold variables, one level deep.
    for own in (variables.get(name) for name in names):
        yield from _NAME.findall(own) if isinstance(own, str) else ()


def _needed_by_template(text: str) -> Iterator[str]:
    optional = {f"agent{number}Input" for found in _OPTIONAL.findall(text) for number in found}
    return (name for name in variables_in(text, jinja=True) if name not in optional)


# -- findings about inputs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A node that runs a workflow.

    Attributes:
        path: the JSON path of what names the workflow.
        missing: the inputs that the workflow uses above those that the node passes, each with its node and JSON path.
    """

    view: NodeView
    path: str
    missing: Mapping[int, tuple[NodeView, str]]


class Inputs:
    """The inputs that workflows use, and those that their callers pass."""

    def __init__(self) -> None:
        # By file: its callers, each once, whichever user reaches it.
        self._calls: dict[str, dict[tuple[str, int], _Call]] = defaultdict(dict)
        self._named: set[str] = set()

    def add(self, loaded: LoadedWorkflow, lookups: Lookups) -> None:
        """Add a workflow as a caller of the workflows that it runs."""
        for view in (one for one in views_of(loaded) if not one.is_misread):
            folder = child_folder(view)
            # Nodes without this key pass inputs of their own.
            count = messages_first(view) + len(passed(view)) if "scoped_variables" in view.keys else math.inf
            for path, name in child_names(view) if folder is not None else ():
                child_loaded = None if "{" in name else lookups.child(name, folder or None, loaded)
                if child_loaded is not None:
                    missing = missing_inputs(child_loaded, count, lookups, _replaced_prompts(view))
                    self._calls[child_loaded.display].setdefault(
                        (loaded.display, view.index), _Call(view, path, missing)
                    )

    def named(self, names: Iterable[str]) -> None:
        """Add names in settings: the program itself runs these workflows, and passes inputs to some of them."""
        self._named.update(name.rpartition("/")[2].casefold() for name in names)

    def findings(self) -> Iterator[Finding]:
        """Yield the inputs that no caller passes, where they are used, and those that some pass, at the others."""
        for display, calls in self._calls.items():
            stem = display.rpartition("/")[2].removesuffix(".json").casefold()
            everywhere = set.intersection(*(set(one.missing) for one in calls.values()))
            everywhere = set() if stem in self._named else everywhere
            yield from _passed_by_none([*calls.values()], everywhere)
            for call in calls.values():
                missing = {number: use for number, use in call.missing.items() if number not in everywhere}
                if missing:
                    yield _passed_by_others(call, missing)


def _passed_by_none(calls: Sequence[_Call], numbers: Collection[int]) -> Iterator[Finding]:
    most = max(len(passed(call.view)) + messages_first(call.view) for call in calls)
    for number in sorted(numbers):
        view, path = calls[0].missing[number]
        given = f"pass {most} at most" if most else "pass none"
        entries = "one entry" if number == 1 else f"{number} entries"
        yield view.finding(
            "warning",
            "",
            f"{{agent{number}Input}} is never filled in: the nodes that run this workflow {given}",
            path=path,
            expected=f"'scoped_variables' with {entries} in the node that runs it",
        )


def _passed_by_others(call: _Call, missing: Mapping[int, tuple[NodeView, str]]) -> Finding:
    view, count = call.view, len(passed(call.view))
    user = next(iter(missing.values()))[0]
    where = child(view.path, "scoped_variables") if "scoped_variables" in view.node else call.path
    names = ", ".join(f"{{agent{number}Input}}" for number in sorted(missing))
    other = quoted(workflow_name(user.loaded.display))
    return view.finding(
        "warning",
        "",
        f"{names} in {user.label} of workflow {other} "
        f"{'is' if len(missing) == 1 else 'are'} not filled in when this node runs it: it passes "
        f"{counted(count, 'input') if count else 'no inputs'}",
        path=where,
        expected="'scoped_variables' with " + counted(max(missing) - messages_first(view), "entry", "entries"),
    )


def said_in(
    text: str,
    view: NodeView,
    lookups: Lookups,
    index: int | None = None,
    seen: set[tuple[str, int]] | None = None,
) -> str:
    """Return the first variable in a text that brings what users, models or tools wrote; empty without one.

    ``index``: the node whose text it is, if it is another one than ``view``. ``seen``: the variables that were looked
    at on the way to it, of each node.
    """
    index = view.index if index is None else index
    seen = set() if seen is None else seen
    jinja = NODE.flag(view.loaded.nodes[index], "jinja2")
    # What a template looks at does not stand in the result.
    names = variables_in(" ".join(_SHOWN.findall(text)) if jinja else text, jinja)
    return next((name for name in names if _is_said(name, view, lookups, index, seen)), "")


def _is_said(name: str, view: NodeView, lookups: Lookups, index: int, seen: set[tuple[str, int]]) -> bool:
    # Variables of a file may name each other in a circle. What was looked at brings nothing, or the search had ended.
    if (name, index) in seen or len(seen) > _MOST_SEEN:
        return False
    seen.add((name, index))
    output = _OUTPUT.fullmatch(name)
    if output is not None:
        number = int(output[1]) - 1
        node = view.loaded.nodes[number] if number < index else {"type": "Conditional"}
        if node.get("type") not in PASSING_ON:
            return node.get("type") not in _OWN_OUTPUTS
        return any(said_in(text, view, lookups, number, seen) for _, text in strings_in(node))
    own = view.loaded.variables.get(name, lookups.user_variables().get(name))
    if isinstance(own, str) and not _SAID.match(name):
        return any(_is_said(one, view, lookups, index, seen) for one in variables_in(own, jinja=False))
    return _INPUT.fullmatch(name) is not None or _SAID.match(name) is not None


def check_value_safe(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a note if texts of users, models or tools can change what a condition asks."""
    text = view.node.get("condition")
    if view.runs_as == "Conditional" and isinstance(text, str) and not as_flag(view.node.get(VALUE_SAFE.name)):
        does = "; with quotation marks and OR in it, it makes the condition TRUE"
        expected = f'"{VALUE_SAFE.name}": true, with which each variable is one value'
        yield from _said(text, view, lookups, child(view.path, "condition"), does, expected)


def check_option_injection(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a note if texts of users, models or tools can begin an argument of curl."""
    items = view.node.get("args")
    if view.runs_as != "CurlCommand" or not isinstance(items, list) or as_flag(view.node.get("blockOptionInjection")):
        return
    expected = '"blockOptionInjection": true, with which no variable brings an option'
    for argument in read_arguments([item if isinstance(item, str) else "" for item in items]):
        if argument.positional and (first := _FIRST.match(argument.value or "")):
            path = child(view.path, "args", argument.index)
            yield from _said(first[0], view, lookups, path, ", and may be an option of curl such as '-I'", expected)


def _said(text: str, view: NodeView, lookups: Lookups, path: str, does: str, expected: str) -> Iterator[Finding]:
    name = said_in(text, view, lookups)
    if name:
        about = f"{{{name}}} is the text of a user, a model or a tool{does}"
        yield view.finding("note", "", about, expected=expected, path=path)


def check_request_inputs(loaded: LoadedWorkflow, lookups: Lookups, caller: str = "a request") -> Iterator[Finding]:
    """Yield a finding for each input of a workflow that ``caller`` runs, which passes none."""
    for number, (view, path) in missing_inputs(loaded, 0, lookups).items():
        yield view.finding(
            "warning",
            "",
            f"{{agent{number}Input}} is never filled in where {caller} runs this "
            "workflow: only nodes that run a workflow pass inputs",
            path=path,
            expected="a variable of the conversation, such as {chat_user_prompt_last_one}",
        )


def _replaced_prompts(view: NodeView) -> list[str]:
    """Return the prompts that a node replaces in its child, for some value at least."""
    routes = view.node.get("routeOverrides")
    sources = [view.node, *(routes.values() if isinstance(routes, Mapping) else ())]
    return [
        key
        for key, names in REPLACED_BY.items()
        if any(source.get(name) for source in sources if isinstance(source, Mapping) for name in names)
    ]
