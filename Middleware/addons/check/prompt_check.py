"""Checks of prompts: of what a server reads again with each message, and of what an LLM needs to choose a category.

What is read again shows only in all workflows of a user, so that it is found in the check of a whole configuration.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from Middleware.addons.check.findings import Finding, workflow_name
from Middleware.addons.check.flow import CATEGORY_VARIABLES, UNKNOWN, Flow, Value
from Middleware.addons.check.lookups import Lookups
from Middleware.addons.check.node_check import NodeView, child_workflows, views_of
from Middleware.llmapis.call_turns import group_of, model_of, server_of
from Middleware.services.prompt_categorization_service import UNKNOWN as NO_CATEGORY
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.declarations import number_from
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.config.keys.user import USER
from Middleware.utilities.config.workflows import LoadedWorkflow
from Middleware.utilities.json_data import strings_in
from Middleware.utilities.prompt_extraction_utils import block_size
from Middleware.utilities.templates.substitution import Field, SubstitutionError, parse
from Middleware.workflows.handlers.registry import node_types
from Middleware.workflows.processors.workflows_processor import find_responder

_CONVERSATION = re.compile(r"(?:chat|templated)_user_prompt_\w+|messages")
_JINJA_TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
COUNT, LIMIT = "lastMessagesToSendInsteadOfPrompt", "lastMessagesToSendInsteadOfPromptMaxTokenSize"
BLOCK_SIZE = "messageBlockSize"
EXAMPLES = "exampleTurns"
# Five messages and less, such as those of a router, are read in a moment.
FEWEST_SLIDING = 6
# So many mean all messages: no context window holds more.
ALL_MESSAGES = 1000
# Less is read in a moment.
MOST_CONSTANT = 300
_AFTER = "so that the server reads the whole conversation after it again"


class Beginnings:
    """The prompts of all LLM nodes that one user reaches."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups
        self._prompts: list[_Prompt] = []
        self._callers: dict[str, list[tuple[Flow, NodeView]]] = defaultdict(list)

    def add(self, loaded: LoadedWorkflow) -> None:
        """Add the nodes of a workflow."""
        flow = Flow(loaded, self._lookups, self._callers)
        for view in views_of(loaded):
            for child in child_workflows(view, self._lookups) or ():
                self._callers[child.display].append((flow, view))
            if "systemPrompt" in view.keys:
                self._prompts.append(_Prompt(view, flow))

    def findings(self) -> Iterator[Finding]:
        """Yield the findings about all nodes."""
        files: dict[str, list[_Place]] = defaultdict(list)
        for prompt in self._prompts:
            yield from prompt.constant_text_last()
            if _messages_follow(prompt.view):
                yield from prompt.changing_beginning()
                yield from prompt.sliding_window()
            endpoint = self._lookups.endpoint_config(_endpoint_name(prompt.view))
            if endpoint is not None:
                files[prompt.view.loaded.display].append(_Place(prompt.view, endpoint))
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
    reported: set[tuple[str, str]] = set()
    # Other types call their LLM only at times: when memories are due, or for a picture.
    for place in (place for place in places if place.view.runs_as == "Standard"):
        view, other = place.view, first.setdefault(place.model, place.view)
        if (
            place.model in reported
            or place.model[0] not in single
            or NODE.value(view.node, "systemPrompt") == NODE.value(other.node, "systemPrompt")
        ):
            continue
        reported.add(place.model)
        key = "systemPrompt" if "systemPrompt" in view.node else ""
        yield view.advice(
            key,
            f"the node begins with another system prompt than {other.label}, and the server runs "
            "one call at a time, so that each reads all of its prompt again",
            "the same 'systemPrompt' in both, with what each is to do in 'lateInstruction'; or a server "
            "with two slots, and 'parallelCalls' 2",
        )


def _alternating_models(places: Sequence[_Place]) -> Iterator[Finding]:
    """Yield a finding for each endpoint whose model is loaded between two calls of another one."""
    reported: set[str] = set()
    for index, place in enumerate(places):
        group, name = group_of(place.endpoint), _endpoint_name(place.view)
        if not group or name.casefold() in reported or ENDPOINT.text(place.endpoint, "swapStandIn").strip():
            continue
        others = {
            number: model_of(one.endpoint)
            for number, one in enumerate(places)
            if group_of(one.endpoint) == group and model_of(one.endpoint) != model_of(place.endpoint)
        }
        later = {model for number, model in others.items() if number > index}
        around = next((places[number] for number, model in others.items() if number < index and model in later), None)
        if around is not None:
            reported.add(name.casefold())
            yield place.view.advice(
                "endpointName",
                f"the model of endpoint '{name}' is loaded between two calls of endpoint "
                f"'{_endpoint_name(around.view)}', which has the same memory ('swapGroup' {quoted(group)})",
                expected=f"'swapStandIn' in the file of endpoint '{name}', or all calls of a model one after the other",
            )


def check_block_size(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if windows of messages would begin with the assistant every second time."""
    if BLOCK_SIZE in view.keys:
        for message, expected in odd_block_size(view.node.get(BLOCK_SIZE)):
            yield view.finding("note", BLOCK_SIZE, message, expected=expected)


def check_relative_times(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the time of each message that is sent changes with every call."""
    relative = "useRelativeTimestamps"
    if (
        _messages_follow(view)
        and NODE.flag(view.node, relative)
        and NODE.flag(view.node, "addDiscussionIdTimestampsForLLM")
    ):
        yield view.advice(
            relative,
            "the messages say how long ago they were sent, which changes from call to call, so "
            "that the server reads the whole conversation again",
            f"times that stay the same, without '{relative}'",
        )


def _messages_follow(view: NodeView) -> bool:
    """Return whether the node sends the conversation after its system prompt."""
    return COUNT in view.keys and not NODE.value(view.node, "prompt")


def odd_block_size(value: object) -> Iterator[tuple[str, str]]:
    """Yield message and expectation if ``value`` is an odd number of messages above 1."""
    size = number_from(value, whole=True)
    if size is not None and size > 1 and size % 2:
        yield (
            f"'{BLOCK_SIZE}' is {size}, which is odd, so that every second window begins with a message of the "
            "assistant",
            f"an even number, such as {size + 1}",
        )


@dataclass(frozen=True)
class _Prompt:
    """The prompt of one LLM node."""

    view: NodeView
    flow: Flow

    def changing_beginning(self) -> Iterator[Finding]:
        """Yield what changes in front of the messages."""
        yield from self._changing("systemPrompt", "the system prompt holds", [self.view.node.get("systemPrompt")])
        examples = [text for _, text in example_texts(self.view.node)]
        yield from self._changing(EXAMPLES, "an example holds", examples)

    def _changing(self, key: str, subject: str, texts: Iterable[object]) -> Iterator[Finding]:
        value = UNKNOWN.of(map(self._value, texts))
        if value.time:
            yield self.view.advice(
                key,
                f"{subject} the time ({{{value.time}}}), which changes from call to call, {_AFTER}",
                "the time in 'lateSystemPrompt'; the date may stay",
            )
        if value.writer is not None:
            file, label = value.writer
            where = "" if file == self.view.loaded.display else f" of workflow {quoted(workflow_name(file))}"
            yield self.view.advice(
                key,
                f"{subject} the output of {label}{where}, which changes from call to call, {_AFTER}",
                "that output in 'lateSystemPrompt'",
            )

    def _value(self, text: object) -> Value:
        return self.flow.text(text, NODE.flag(self.view.node, "jinja2"), self.view.index)

    def sliding_window(self) -> Iterator[Finding]:
        """Yield a finding if each new message moves the beginning of what is sent."""
        node = self.view.node
        # Without a user, the size for all nodes is not known; and a variable may give it.
        if not self.flow.lookups.has_user or "{" in str(node.get(BLOCK_SIZE)):
            return
        if block_size(node, USER.value(self.flow.lookups.user_file().content, BLOCK_SIZE)) > 1:
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
        yield self.view.advice(
            key,
            f"in a conversation with {size}, each message moves the beginning of what is sent, "
            "so that the server reads all of it again",
            f"'{BLOCK_SIZE}' in the node or the user file, such as 10",
        )

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
                name = next(
                    (
                        one
                        for one in names
                        if _CONVERSATION.fullmatch(one) or (key == EXAMPLES and self._value(f"{{{one}}}").changes)
                    ),
                    "",
                )
                where = key if name else ""
        if constant > MOST_CONSTANT:
            yield self.view.advice(
                where,
                f"{constant} characters that never change stand behind {{{name}}}, so that "
                "the server reads them again with each message",
                "examples that never change, or that one as the last"
                if where == EXAMPLES
                else "text that never changes in 'systemPrompt', or at the beginning of 'prompt'",
            )

    def _variables(self) -> Mapping[str, object]:
        return {**self.flow.lookups.user_variables(), **self.view.loaded.variables}


def example_texts(node: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return the texts of the examples of a node in their order, with keys. Wrong ones are reported themselves."""
    turns = node.get(EXAMPLES)
    return [
        (EXAMPLES, text)
        for turn in (turns if isinstance(turns, (list, tuple)) else ())
        if isinstance(turn, Mapping)
        for text in (turn.get("user"), turn.get("assistant"))
        if isinstance(text, str)
    ]


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
        yield text[end : tag.start()] if not depth else "", names
        word = names[0] if names and tag[0].startswith("{%") else ""
        depth += (word in ("if", "for")) - (word in ("endif", "endfor"))
        end = tag.end()
    yield text[end:], []


# -- routes ------------------------------------------------------------------------------------------------------------


def check_category_prompt(loaded: LoadedWorkflow, routing: Mapping[str, object], lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if no text of a workflow whose LLM chooses a category says what the categories are."""
    texts = _all_texts(loaded, lookups) if Flow(loaded, lookups).result().is_open else None
    names = [name.casefold() for name in routing if name != NO_CATEGORY]
    if texts is None or any(
        CATEGORY_VARIABLES.search(text) or any(name in text.casefold() for name in names) for text in texts
    ):
        return
    index = find_responder(loaded.nodes)
    node = loaded.nodes[index]
    view = NodeView(loaded, index, node, "Standard", {})
    yield view.finding(
        "warning",
        next((key for key in ("prompt", "systemPrompt") if node.get(key)), ""),
        "nothing in this workflow, which chooses the category, tells the LLM what the categories are "
        f"({', '.join(routing)})",
        expected="{category_colon_descriptions} in a prompt",
    )


def _all_texts(loaded: LoadedWorkflow, lookups: Lookups) -> list[str] | None:
    """Return all texts of a workflow and of those that it runs; None if one of its nodes may bring others."""
    texts = [text for _, text in strings_in(lookups.user_variables())]
    waiting, known = [loaded], {loaded.display}
    while waiting:
        one = waiting.pop()
        texts += [text for _, text in strings_in([one.variables, *one.nodes])]
        for index, node in enumerate(one.nodes):
            children = _brought_by(one, index, node, lookups)
            if children is None:
                return None
            waiting += [following for following in children if following.display not in known]
            known.update(following.display for following in children)
    return texts


def _brought_by(
    loaded: LoadedWorkflow, index: int, node: Mapping[str, Any], lookups: Lookups
) -> list[LoadedWorkflow] | None:
    """Return the workflows that a node runs; None if it may read texts that no file of a workflow shows."""
    node_type = node.get("type", "Standard")
    handler = node_types().get(node_type) if isinstance(node_type, str) else None
    if handler is None or handler.reaches_outside or node_type == "GetCustomFile" or node.get("structuredOutputFile"):
        return None
    return child_workflows(NodeView(loaded, index, node, node_type, handler.TABLES[node_type]), lookups)
