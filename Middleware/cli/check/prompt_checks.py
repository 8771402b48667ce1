"""Prompts that a server reads again with each message, because what changes stands before what stays.

These findings need all workflows of a user, so they are part of the check of a whole configuration only.
"""
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from Middleware.cli.check.call_checks import passed_text
from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups
from Middleware.cli.check.node_checks import NodeView, child_workflows, node_label, texts_in
from Middleware.cli.check.text_checks import variables_in
from Middleware.llmapis.call_turns import group_of, model_of, server_of
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.declarations import number_from
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.prompt_extraction_utils import block_size
from Middleware.utilities.templates.substitution import Field, SubstitutionError, parse
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.processors.workflows_processor import find_responder

TIMES = frozenset({"current_time_12h", "current_time_24h", "time_context_summary"})
_OUTPUT, _INPUT = (re.compile(rf"agent([1-9][0-9]{{0,3}}){kind}") for kind in ("Output", "Input"))
_CONVERSATION = re.compile(r"(?:chat|templated)_user_prompt_\w+|messages")
_JINJA_TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
# Nodes that only pass on or take apart the texts in their keys.
PASSING_ON = frozenset({"StaticResponse", "StringConcatenator", "DelimitedChunker", "JsonExtractor",
                        "TagTextExtractor"})
# Nodes whose output does not change with the conversation: a number, TRUE or FALSE, a text file such as a persona.
STEADY = frozenset({"ArithmeticProcessor", "Conditional", "GetCustomFile", "SaveCustomFile", "WorkflowLock",
                    "ConversationChunkProcessor"})
# How deep workflows that run each other are followed.
MAX_DEPTH = 10

COUNT, LIMIT = "lastMessagesToSendInsteadOfPrompt", "lastMessagesToSendInsteadOfPromptMaxTokenSize"
BLOCK_SIZE = "messageBlockSize"
EXAMPLES = "exampleTurns"
# Five messages and less, such as those of a router, are read in a moment.
FEWEST_SLIDING = 6
# Whoever writes so many means all messages, and no context window holds more.
ALL_MESSAGES = 1000
# Less is read in a moment.
MOST_CONSTANT = 300

_AFTER = "so that the server reads the whole conversation after it again"


_Calls = Mapping[str, list[tuple[NodeView, Lookups]]]
"""By the file of a workflow: the nodes that run it."""


class Beginnings:
    """The prompts of all LLM nodes that one user reaches."""

    def __init__(self) -> None:
        self._nodes: list[tuple[NodeView, Lookups]] = []
        self._calls: _Calls = defaultdict(list)

    def add(self, views: Iterable[NodeView], lookups: Lookups) -> None:
        """Add the nodes of a workflow."""
        for view in views:
            for child in child_workflows(view, lookups) or ():
                self._calls[child.display].append((view, lookups))
            if "systemPrompt" in view.keys:
                self._nodes.append((view, lookups))

    def findings(self) -> Iterator[Finding]:
        """Yield the findings about all nodes."""
        for view, lookups in self._nodes:
            prompt = _Prompt(view, lookups, self._calls)
            yield from prompt.constant_text_last()
            if _messages_follow(view):
                yield from prompt.changing_beginning()
                yield from prompt.sliding_window()
        files: dict[str, list[_Place]] = defaultdict(list)
        for view, lookups in self._nodes:
            endpoint = lookups.endpoint_config(_endpoint_name(view))
            if endpoint is not None:
                files[view.loaded.display].append(_Place(view, endpoint))
        for places in files.values():
            yield from _different_beginnings(places)
            yield from _alternating_models(places)


def _endpoint_name(view: NodeView) -> str:
    return str(view.node.get("endpointName") or "").strip()


# -- several nodes of one workflow -------------------------------------------------------------------------------------

@dataclass(frozen=True)
class _Place:
    """An LLM node and the content of the endpoint file that it names."""

    view: NodeView
    endpoint: Mapping[str, object]

    @property
    def model(self) -> tuple[str, str]:
        """The server and the model: a server that has several models keeps the prompts of each."""
        return server_of(self.endpoint), model_of(self.endpoint)


def _different_beginnings(places: Sequence[_Place]) -> Iterator[Finding]:
    """Yield a finding for the first node whose prompts throw those of another one out of the server's memory."""
    single = {server_of(place.endpoint) for place in places if ENDPOINT.number(place.endpoint, "parallelCalls") == 1}
    first: dict[tuple[str, str], NodeView] = {}
    told: set[tuple[str, str]] = set()
    # Other types call their LLM only at times: when memories are due, or for a picture.
    for place in (place for place in places if place.view.runs_as == "Standard"):
        view, other = place.view, first.setdefault(place.model, place.view)
        if place.model in told or place.model[0] not in single or NODE.value(
                view.node, "systemPrompt") == NODE.value(other.node, "systemPrompt"):
            continue
        told.add(place.model)
        key = "systemPrompt" if "systemPrompt" in view.node else ""
        yield view.advice(key, f"the node begins with another system prompt than {other.label}, and the server runs "
                          "one call at a time, so that each reads all of its prompt again",
                          "the same 'systemPrompt' in both, with what each is to do in 'lateInstruction'; or a server "
                          "with two slots, and 'parallelCalls' 2")


def _alternating_models(places: Sequence[_Place]) -> Iterator[Finding]:
    """Yield a finding for each endpoint whose model is loaded between two calls of another one."""
    told: set[str] = set()
    for index, place in enumerate(places):
        group, name = group_of(place.endpoint), _endpoint_name(place.view)
        if not group or name.casefold() in told or ENDPOINT.text(place.endpoint, "swapStandIn").strip():
            continue
        others = {number: model_of(one.endpoint) for number, one in enumerate(places)
                  if group_of(one.endpoint) == group and model_of(one.endpoint) != model_of(place.endpoint)}
        later = {model for number, model in others.items() if number > index}
        around = next((places[number] for number, model in others.items() if number < index and model in later), None)
        if around is not None:
            told.add(name.casefold())
            yield place.view.advice(
                "endpointName", f"the model of endpoint '{name}' is loaded between two calls of endpoint "
                f"'{_endpoint_name(around.view)}', which has the same memory ('swapGroup' {quoted(group)})",
                expected=f"'swapStandIn' in the file of endpoint '{name}', or all calls of a model one after the other")


def check_block_size(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if windows of messages would begin with the assistant every second time."""
    if BLOCK_SIZE in view.keys:
        for message, expected in odd_block_size(view.node.get(BLOCK_SIZE)):
            yield view.finding("note", BLOCK_SIZE, message, expected=expected)


def check_relative_times(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the time of each message that is sent changes with every call."""
    relative = "useRelativeTimestamps"
    if _messages_follow(view) and NODE.flag(view.node, relative) and NODE.flag(
            view.node, "addDiscussionIdTimestampsForLLM"):
        yield view.advice(relative, "the messages say how long ago they were sent, which changes from call to call, so "
                          "that the server reads the whole conversation again",
                          f"times that stay the same, without '{relative}'")


def _messages_follow(view: NodeView) -> bool:
    """Return whether the node sends the conversation after its system prompt."""
    return COUNT in view.keys and not NODE.value(view.node, "prompt")


def odd_block_size(value: object) -> Iterator[tuple[str, str]]:
    """Yield message and expectation if ``value`` is an odd number of messages above 1."""
    size = number_from(value, whole=True)
    if size is not None and size > 1 and size % 2:
        yield (f"'{BLOCK_SIZE}' is {size}, which is odd, so that every second window begins with a message of the "
               "assistant", f"an even number, such as {size + 1}")


@dataclass(frozen=True)
class _Prompt:
    """The prompt of one LLM node."""

    view: NodeView
    lookups: Lookups
    calls: _Calls

    def changing_beginning(self) -> Iterator[Finding]:
        """Yield what changes in front of the messages."""
        yield from self._changing("systemPrompt", "the system prompt holds", [self.view.node.get("systemPrompt")])
        examples = [text for _, text in example_texts(self.view.node)]
        yield from self._changing(EXAMPLES, "an example holds", examples)

    def _changing(self, key: str, subject: str, texts: Iterable[object]) -> Iterator[Finding]:
        found = self._origins(texts)
        time = next((name for name in found if name in TIMES), "")
        if time:
            yield self.view.advice(key, f"{subject} the time ({{{time}}}), which changes from call to call, {_AFTER}",
                                   "the time in 'lateSystemPrompt'; the date may stay")
        others = [label for label in found if label not in TIMES]
        if others:
            yield self.view.advice(key, f"{subject} the output of {others[0]}, which changes from call to call, "
                                   f"{_AFTER}", "that output in 'lateSystemPrompt'")

    def _origins(self, texts: Iterable[object]) -> list[str]:
        origins = _Origins(self.view.loaded, self.lookups, self.calls, self.view.loaded.display)
        jinja = NODE.flag(self.view.node, "jinja2")
        return [one for text in texts for one in origins.of_text(text, jinja, self.view.index)]

    def sliding_window(self) -> Iterator[Finding]:
        """Yield a finding if each new message moves the beginning of what is sent."""
        node = self.view.node
        # Without a user, the size for all nodes is not known; and a variable may give it.
        if not self.lookups.has_user or "{" in str(node.get(BLOCK_SIZE)):
            return
        if block_size(node, USER.value(self.lookups.user_file().content, BLOCK_SIZE)) > 1:
            return
        count, limit = (number_from(node.get(key), whole=True) for key in (COUNT, LIMIT))
        written = node.get(LIMIT)
        # A limit below 1 is reported as out of range.
        if limit is not None and limit > 0:
            key, size = LIMIT, f"more than {limit} tokens"
        elif isinstance(written, str) and "{" in written:
            key, size = LIMIT, f"more tokens than {written}"
        elif count is not None and FEWEST_SLIDING <= count < ALL_MESSAGES:
            key, size = COUNT, f"more than {count} messages"
        else:
            return
        yield self.view.advice(key, f"in a conversation with {size}, each message moves the beginning of what is sent, "
                               "so that the server reads all of it again",
                               f"'{BLOCK_SIZE}' in the node or the user file, such as 10")

    def constant_text_last(self) -> Iterator[Finding]:
        """Yield a finding if much text that never changes stands behind the conversation, which always does."""
        prompt = self.view.node.get("prompt")
        if not prompt or not isinstance(prompt, str):
            return
        jinja = NODE.flag(self.view.node, "jinja2")
        where, name, constant = "", "", 0
        for key, text in (*example_texts(self.view.node), ("prompt", prompt)):
            for literal, names in _jinja_pieces(text) if jinja else _pieces(text, self._variables()):
                if name:
                    constant += len(literal)
                    continue
                name = next((one for one in names if _CONVERSATION.fullmatch(one) or (
                    key == EXAMPLES and self._origins([f"{{{one}}}"]))), "")
                where = key if name else ""
        if constant > MOST_CONSTANT:
            yield self.view.advice(where, f"{constant} characters that never change stand behind {{{name}}}, so that "
                                   "the server reads them again with each message",
                                   "examples that never change, or that one as the last" if where == EXAMPLES else
                                   "text that never changes in 'systemPrompt', or at the beginning of 'prompt'")

    def _variables(self) -> Mapping[str, object]:
        return {**self.lookups.user_variables(), **self.view.loaded.variables}


def example_texts(node: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the texts of the examples of a node in their order, each with the key. Wrong ones are reported themselves.
    """
    turns = node.get(EXAMPLES)
    return [(EXAMPLES, text) for turn in (turns if isinstance(turns, (list, tuple)) else ())
            if isinstance(turn, Mapping) for text in (turn.get("user"), turn.get("assistant")) if isinstance(text, str)]


def _pieces(text: str, variables: Mapping[str, object]) -> Iterator[tuple[str, list[str]]]:
    """Yield the pieces of a text: literal text, or the name of a variable. The author's own texts are literal."""
    try:
        parts = parse(text).parts
    # Reported with the text, which is sent as it is written.
    except SubstitutionError:
        return
    for part in parts:
        if not isinstance(part, Field):
            yield part, []
            continue
        own = variables.get(part.name)
        yield (own, []) if isinstance(own, str) and "{" not in own else ("", [part.name])


def _jinja_pieces(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the pieces of a template: literal text, or the names in a tag."""
    end = depth = 0
    for tag in _JINJA_TAG.finditer(text):
        names = re.findall(r"[^\W\d]\w*", tag[0])
        # What stands in a condition or a loop is there at times only.
        yield text[end:tag.start()] if not depth else "", names
        word = names[0] if names and tag[0].startswith("{%") else ""
        depth += (word in ("if", "for")) - (word in ("endif", "endfor"))
        end = tag.end()
    yield text[end:], []


@dataclass(frozen=True)
class _Origins:
    """Where the changing parts of texts in one workflow come from.

    Attributes:
        calls: who runs which workflow.
        root: the file whose prompt it is.
        within: the files of the workflows that run this one.
        caller: the node that runs this one, if only that one matters.
    """

    loaded: LoadedWorkflow
    lookups: Lookups
    calls: _Calls
    root: str
    within: tuple[str, ...] = ()
    caller: tuple[_Origins, NodeView] | None = None

    def of_text(self, text: object, jinja: bool, index: int, depth: int = 0) -> list[str]:
        """Return the names of times, and the nodes that write something, in a text of the node ``index``."""
        found: list[str] = []
        variables = {**self.lookups.user_variables(), **self.loaded.variables}
        for name in variables_in(text, jinja) if isinstance(text, str) else ():
            own = variables.get(name)
            # A variable of the file or of the user may itself hold variables, one level deep.
            for inner in variables_in(own, jinja=False) if isinstance(own, str) else (name,):
                output, passed = _OUTPUT.fullmatch(inner), _INPUT.fullmatch(inner)
                if inner in TIMES:
                    found.append(inner)
                elif output is not None and int(output[1]) <= index:
                    found += self._of_node(int(output[1]) - 1, depth + 1)
                elif passed is not None:
                    found += self._of_input(int(passed[1]), depth + 1)
        return list(dict.fromkeys(found))

    def _of_input(self, number: int, depth: int) -> list[str]:
        """Return the same for what the nodes pass that run the workflow."""
        # Workflows that run each other in a circle are reported themselves.
        if depth > MAX_DEPTH:
            return []
        callers = [self.caller] if self.caller is not None else [
            (_Origins(view.loaded, lookups, self.calls, self.root), view)
            for view, lookups in self.calls.get(self.loaded.display, ())]
        return [one for origins, view in callers for one in origins.of_text(
            passed_text(view, number), NODE.flag(view.node, "jinja2"), view.index, depth)]

    def _of_node(self, index: int, depth: int) -> list[str]:
        node = self.loaded.nodes[index]
        node_type = node.get("type", "Standard")
        if depth > MAX_DEPTH or node_type in STEADY or not isinstance(node_type, str):
            return []
        if node_type in PASSING_ON:
            texts = texts_in(node, "", frozenset())
            return [one for _, text, _ in texts for one in self.of_text(text, NODE.flag(node, "jinja2"), index, depth)]
        # An unknown type is reported itself, and nobody knows what such a node would write.
        if node_type not in node_types():
            return []
        label = node_label(index, node)
        if self.loaded.display != self.root:
            label += f" of workflow {quoted(self.loaded.display.removeprefix('Workflows/').removesuffix('.json'))}"
        view = NodeView(self.loaded, index, node, node_type, node_types()[node_type].TABLES[node_type])
        if "workflowName" in view.keys or "conditionalWorkflows" in view.keys:
            within = (*self.within, self.loaded.display)
            # Workflows that run each other in a circle are reported themselves.
            children = [loaded for loaded in child_workflows(view, self.lookups) or [] if loaded.display not in within]
            found = [one for loaded in children
                     for one in _Origins(loaded, self.lookups, self.calls, self.root, within, (self, view)).of_result(
                         depth + 1)]
            # The time is named as such; for the rest, the node of this file is what its reader sees.
            return [one for one in found if one in TIMES] + ([label] if any(one not in TIMES for one in found) else [])
        return [label]

    def of_result(self, depth: int) -> list[str]:
        """Return the same for the result of the whole workflow."""
        nodes = self.loaded.nodes
        return self._of_node(find_responder(nodes), depth) if nodes else []
