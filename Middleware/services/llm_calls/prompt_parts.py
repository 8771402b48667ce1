"""The texts of a node that it has in addition to its system prompt and its prompt or conversation.

What is the same from one call to the next belongs at the beginning of a prompt, so that a back-end finds it in its
cache; what changes belongs as near to the end as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

from Middleware.exceptions import ConfigValueError
from Middleware.llmapis.handlers.base.alternate_roles import alternate_roles, alternating_turns, joined_contents
from Middleware.llmapis.handlers.base.backend_call import BackendMessage
from Middleware.models.messages import Message
from Middleware.models.node_context import NodeContext
from Middleware.models.process import process
from Middleware.services.llm_calls.message_selection import MESSAGE_OVERHEAD
from Middleware.utilities import prompt_template_utils as templates
from Middleware.utilities.config.keys.node import EXAMPLE_TURN, NODE
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.prompt_extraction_utils import leading_systems
from Middleware.utilities.text_utils import estimate_message, message_text, nearest, rough_estimate_token_length

LATE_SYSTEM, FOR_NOW, LATE_INSTRUCTION, EXAMPLES = (
    NODE[name].name for name in ("lateSystemPrompt", "lateSystemPromptForNow", "lateInstruction", "exampleTurns")
)
PART_KEYS = (LATE_SYSTEM, FOR_NOW, LATE_INSTRUCTION, EXAMPLES)
# Nodes of discussions; a place takes about 200 bytes.
MAX_PLACES = 1000
TURN_FORM = 'a list of objects such as {"user": "a message", "assistant": "its answer"}'


@dataclass(frozen=True)
class PromptParts:
    """The late texts and example turns of one call, with their variables filled in.

    Attributes:
        late_system: stands in front of the newest user message.
        late_instruction: stands behind it.
        examples: alternating messages of users and assistants, which stand before all others but the system prompt.
        node: the node of a discussion whose ``late_system`` stays where it first stood; None if it moves on.
        for_now: stands in front of the newest user message as well, behind ``late_system``, and never stays.
    """

    late_system: str = ""
    late_instruction: str = ""
    examples: tuple[Message, ...] = ()
    node: tuple[object, ...] | None = None
    for_now: str = ""

    @staticmethod
    def of(node: Mapping[str, object], fill: Callable[[str], str]) -> PromptParts:
        """Return the parts of ``node``; ``fill`` fills in the variables. Raises ConfigValueError for other shapes."""
        # Nearly every call is one of a node without parts, so this is not a loop.
        if not (node.get(LATE_SYSTEM) or node.get(FOR_NOW) or node.get(LATE_INSTRUCTION) or node.get(EXAMPLES)):
            return NO_PARTS
        system, for_now, instruction = (
            fill(str(text)).strip() if (text := NODE.value(node, key)) else ""
            for key in (LATE_SYSTEM, FOR_NOW, LATE_INSTRUCTION)
        )
        examples = tuple(_example_messages(node.get(EXAMPLES) or (), fill))
        return PromptParts(system, instruction, examples, for_now=for_now)

    def staying(self, context: NodeContext) -> PromptParts:
        """Return the parts so that the text in front stays at its message, if the node in ``context`` wants that."""
        if not (
            self.late_system
            and NODE.flag(context.config, "lateSystemPromptStays")
            and context.discussion_id
            and context.run is not None
            and context.request.outside.remembers
        ):
            return self
        return replace(self, node=(context.api_key_hash, context.discussion_id, context.run.where, context.node_name))

    @property
    def tokens(self) -> int:
        """The estimated tokens that the parts take from the context window."""
        if self is NO_PARTS:
            return 0
        texts = self.late_system, self.for_now, self.late_instruction
        return sum(map(rough_estimate_token_length, texts)) + sum(
            estimate_message(message) + MESSAGE_OVERHEAD for message in self.examples
        )

    def around(self, content: str) -> str:
        """Return the content of a user message with the late texts in front of it and behind it."""
        if not self._is_late:
            return content
        # A user's script may have made content blocks, to which blocks of text are added.
        before = joined_contents(self.late_system, joined_contents(self.for_now, content))
        return cast(str, joined_contents(before, self.late_instruction))

    @property
    def _is_late(self) -> bool:
        return bool(self.late_system or self.for_now or self.late_instruction)

    def in_newest_user_message(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with the late texts in the newest one of a user.

        Without a user message, they become one of their own after the system messages at the beginning.
        """
        out = list(messages)
        if not self._is_late:
            return out
        newest = next((index for index in reversed(range(len(out))) if out[index].get("role") == "user"), None)
        if newest is None:
            out.insert(leading_systems(out), {"role": "user", "content": self.around("")})
            return out
        place = newest if self.node is None else process().one(_LatePlaces).of(self.node, self.late_system, out, newest)
        if place != newest:
            in_front, behind = replace(self, for_now="", late_instruction=""), replace(self, late_system="")
            out[place] = in_front._around_message(out[place])
            out[newest] = behind._around_message(out[newest])
        else:
            out[newest] = self._around_message(out[newest])
        return out

    def _around_message(self, message: Message) -> Message:
        return {**message, "content": self.around(message.get("content") or "")}

    def in_conversation(self, messages: Sequence[Message], alternate: bool) -> list[Message]:
        """Return the messages for a chat back-end, which begin with the node's system prompt if it has one.

        ``alternate``: the endpoint's template accepts only alternating messages of users and assistants.
        """
        out = self.in_newest_user_message(messages)
        if self.examples:
            start = leading_systems(out)
            if alternate:
                # Otherwise a greeting would become a part of the last example's answer.
                out[start:] = cast(list[Message], alternate_roles(cast(list[BackendMessage], out[start:])))
            out[start:start] = self.examples
        return out

    def rendered_examples(self, system: str, template: templates.Template | None, alternate: bool) -> tuple[str, str]:
        """Return the system prompt and the text of the example turns for a completion back-end.

        The system prompt is empty if the first turn contains it.
        """
        if not self.examples:
            return system, ""
        turns: Sequence[Message] = self.examples
        if alternate:
            system, turns = alternating_turns(system, turns, template)
        return system, templates.flatten_messages(turns, template, closed=True)


NO_PARTS = PromptParts()


class _LatePlaces:
    """The messages in front of which the texts of nodes stand, as hashes and in memory only."""

    def __init__(self) -> None:
        # Hash of the text, number of the message behind the system messages, hash of the message.
        self._places: BoundedCache[tuple[object, ...], tuple[int, int, int]] = BoundedCache(MAX_PLACES)

    def of(self, node: tuple[object, ...], text: str, messages: Sequence[Message], newest: int) -> int:
        """Return the index of the user message where the text already stood at the node's last call, else of the
        newest.
        """
        start, said = leading_systems(messages), hash(text)
        known = self._places.get(node)
        if known is not None and known[0] == said:
            index = start + known[1]
            # A window that has moved, or an edited message, makes the back-end read everything again anyway.
            if index <= newest and messages[index].get("role") == "user" and _hash(messages[index]) == known[2]:
                return index
        self._places.put(node, (said, newest - start, _hash(messages[newest])))
        return newest


def _hash(message: Message) -> int:
    return hash(message_text(message))


def prompt_templates(node: Mapping[str, object]) -> list[str]:
    """Return all texts of a node's prompt as written: system prompt, prompt, late texts and example turns."""
    turns = node.get(EXAMPLES)
    inside = [
        turn.get(role)
        for turn in (turns if isinstance(turns, (list, tuple)) else ())
        if isinstance(turn, Mapping)
        for role in EXAMPLE_TURN
    ]
    # The first two are always there, so that the description of an image is found by them.
    return [
        *(str(node.get(key) or "") for key in ("systemPrompt", "prompt")),
        *(
            str(text)
            for text in (node.get(LATE_SYSTEM), node.get(FOR_NOW), node.get(LATE_INSTRUCTION), *inside)
            if text
        ),
    ]


def example_answers(node: Mapping[str, object]) -> list[str]:
    """Return the answers in the example turns of a node as written. Raises ConfigValueError for other shapes."""
    return [
        str(message["content"])
        for message in _example_messages(NODE.value(node, EXAMPLES), str)
        if message["role"] == "assistant"
    ]


def _example_messages(turns: object, fill: Callable[[str], str]) -> Iterator[Message]:
    if not isinstance(turns, (list, tuple)):
        raise _wrong("exampleTurns is not a list", EXAMPLES)
    for index, turn in enumerate(turns):
        path = f"{EXAMPLES}[{index}]"
        if not isinstance(turn, Mapping):
            raise _wrong(f"entry {index + 1} of exampleTurns is not an object", path)
        for role in EXAMPLE_TURN:
            text = turn.get(role)
            # As in all texts of a node, a number needs no quotes: {"user": "2+2", "assistant": 4}.
            if isinstance(text, (int, float)):
                text = str(text)
            # An example without its question or its answer would teach the model something else.
            if not isinstance(text, str) or not text:
                unknown = [name for name in turn if name not in EXAMPLE_TURN]
                near = next((name for name in unknown if nearest(name, [role])), None)
                found = f", but one under {near!r}" if near is not None else ""
                raise _wrong(
                    f"entry {index + 1} of exampleTurns has no text under '{role}'{found}",
                    path,
                    role if near is not None else "",
                )
            yield {"role": role, "content": fill(text)}


def _wrong(message: str, path: str, suggestion: str = "") -> ConfigValueError:
    return ConfigValueError(message, json_path=path, expected=TURN_FORM, suggestion=suggestion)
