"""The response cleaner, which removes reasoning, prefixes and white space from answers, piece by piece, without I/O.

Streams and whole texts use the same implementation: the output does not depend on how a text is cut into pieces. A text
passes through a chain of small filters. Each holds back only what is still undecided and leaves the chain once its work
is done, so that a long answer soon passes through unchanged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.text_utils import restore_braces, without_surrogates

logger = logging.getLogger(__name__)

DEFAULT_GRACE_PERIOD: int = ENDPOINT["openingTagGracePeriod"].default
# The engine writes these before the messages of a prompt, and an answer may begin in the same way.
TIMESTAMP_PREFIX = "[Sent less than a minute ago]"
ASSISTANT_PREFIX = "Assistant:"
# A longer line that ends in a colon is a sentence of the user, not the name of a speaker.
MAX_GENERATION_PROMPT_LENGTH = 99
# An answer may name a speaker whose name is longer than the expected one by this number of characters.
_SPEAKER_SLACK = 10
_SURROGATE = re.compile("[\ud800-\udfff]")


def find_generation_prompt(last_message: object) -> str:
    """Return the open speaker line (``Name:``) that the last input message consists of; "" for any other message."""
    # It becomes a part of the answer, so its braces are restored.
    text = restore_braces(last_message.strip()) if isinstance(last_message, str) else ""
    fits = 1 <= len(text) <= MAX_GENERATION_PROMPT_LENGTH and text.endswith(":") and len(text.splitlines()) == 1
    return text if fits else ""


def think_tags(endpoint_config: Mapping[str, object]) -> tuple[str, str]:
    """Return the opening and the closing tag of an endpoint file, by new or old keys; "" for a missing one."""
    start, end, legacy = (
        ENDPOINT.text(endpoint_config, key) for key in ("startThinkTag", "endThinkTag", "thinkTagText")
    )
    return (f"<{legacy}>", f"</{legacy}>") if legacy and not start and not end else (start, end)


@dataclass(frozen=True)
class ThinkRule:
    """The rule for finding the reasoning block of an answer.

    Attributes:
        start_tag, end_tag: literal tags, compared without regard to case.
        grace_period: last 0-based index at which the opening tag may start.
        closing_only: everything through the first closing tag is reasoning; there is no opening tag.
    """

    start_tag: str
    end_tag: str
    grace_period: int = DEFAULT_GRACE_PERIOD
    closing_only: bool = False

    @property
    def has_channels(self) -> bool:
        """Whether the tags are those of the format of channels, in which a mark ends each message."""
        return "<|channel|>" in fold_case(self.start_tag + self.end_tag)

    @classmethod
    def build(cls, endpoint_config: Mapping[str, object]) -> ThinkRule | None:
        """Return the rule of an endpoint file; None if it keeps thinking, or lacks a tag (with a warning)."""
        if not ENDPOINT.flag(endpoint_config, "removeThinking"):
            return None
        start, end = think_tags(endpoint_config)
        if not start or not end:
            logger.warning("removeThinking is on, but startThinkTag or endThinkTag is missing: thinking is kept.")
            return None
        closing_only = ENDPOINT.flag(endpoint_config, "expectOnlyClosingThinkTag")
        return cls(start, end, _grace_period(endpoint_config), closing_only)


@dataclass(frozen=True)
class CleaningRules:
    """The rules for cleaning the answer of one node.

    Attributes:
        verbatim: the node has no endpoint; only the speaker rule applies.
        think: the reasoning block to remove, if any.
        steps: lists of prefixes; of each list at most the first entry that matches is removed.
        generation_prompt: the speaker line that is added to an answer without a speaker; "" for none.
        trim: strip whitespace at both ends.
    """

    verbatim: bool = False
    think: ThinkRule | None = None
    steps: tuple[tuple[str, ...], ...] = ()
    generation_prompt: str = ""
    trim: bool = False

    @classmethod
    def build(
        cls,
        endpoint_config: Mapping[str, object] | None,
        node_config: Mapping[str, object] | None,
        generation_prompt: str | None = None,
        strip_assistant_prefix: bool = False,
        *,
        has_endpoint: bool = True,
    ) -> CleaningRules:
        """Read the rules from an endpoint file and a node.

        ``strip_assistant_prefix``: the user's two assistant options are both on.
        """
        endpoint, node, prompt = endpoint_config or {}, node_config or {}, (generation_prompt or "").strip()
        if not has_endpoint:
            return cls(verbatim=True, generation_prompt=prompt)
        return cls(
            think=ThinkRule.build(endpoint),
            steps=_prefix_steps(endpoint, node, strip_assistant_prefix),
            generation_prompt=prompt,
            trim=ENDPOINT.flag(endpoint, "trimBeginningAndEndLineBreaks"),
        )


def _grace_period(endpoint_config: Mapping[str, object]) -> int:
    value = ENDPOINT.value(endpoint_config, "openingTagGracePeriod")
    try:
        return DEFAULT_GRACE_PERIOD if value == "" else int(value)
    except (TypeError, ValueError, OverflowError):
        logger.warning("openingTagGracePeriod is not a number; %d is used.", DEFAULT_GRACE_PERIOD)
        return DEFAULT_GRACE_PERIOD


def _entries(value: object, *, trimmed: bool = False) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value if isinstance(value, (list, tuple)) else []
    texts = [entry.strip() if trimmed else entry for entry in listed if isinstance(entry, str)]
    return tuple(text for text in texts if text)


def _prefix_steps(
    endpoint: Mapping[str, object], node: Mapping[str, object], strip_assistant_prefix: bool
) -> tuple[tuple[str, ...], ...]:
    steps: list[tuple[str, ...]] = []
    if NODE.flag(node, "removeCustomTextFromResponseStart"):
        steps.append(_entries(NODE.value(node, "responseStartTextToRemove")))
    if ENDPOINT.flag(endpoint, "removeCustomTextFromResponseStartEndpointWide"):
        steps.append(_entries(ENDPOINT.value(endpoint, "responseStartTextToRemoveEndpointWide"), trimmed=True))
    if NODE.flag(node, "addDiscussionIdTimestampsForLLM"):
        steps.append((TIMESTAMP_PREFIX,))
    if strip_assistant_prefix:
        steps.append((ASSISTANT_PREFIX,))
    return tuple(step for step in steps if step)


def fold_case(text: str) -> str:
    """Remove case differences character by character: the length stays, and the text may be cut anywhere."""
    # ``str.lower`` converts a final sigma by its neighbours, and ``str.casefold`` makes two letters of a sharp s.
    # Most texts are ASCII, and this runs for each piece of a stream.
    if text.isascii():
        return text.lower()
    return "".join([_fold_char(char) for char in text])


def _fold_char(char: str) -> str:
    for folded in (char.casefold(), char.lower()):
        if len(folded) == 1:
            return folded
    return char


class SurrogateJoiner:
    """Joins the halves of surrogate pairs, also across pieces; a lone half becomes U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    @property
    def holding(self) -> bool:
        return bool(self._half)

    def feed(self, text: str) -> str:
        if not self._half and (text.isascii() or not _SURROGATE.search(text)):
            return text
        # Nothing arrived, so whether the other half follows is still open.
        if not text:
            return ""
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return without_surrogates(text)

    def finish(self) -> str:
        half, self._half = self._half, ""
        return "\ufffd" if half else ""


class Filter(Protocol):
    """One filter of the chain. Once it is ``done`` it returns every text unchanged."""

    done: bool

    def feed(self, text: str) -> str:
        """Add a piece and return the text that is decided."""

    def finish(self) -> str:
        """Decide at the end of the text, and return the rest."""

    def flush(self) -> str:
        """Return the held text because something else follows in the stream; without held text change nothing."""


class ThinkFilter:
    """Removes one reasoning block. Text before it is returned at once, an unterminated block at the end.

    Attributes:
        removed: the content of the block without its tags; "" until it ended.
    """

    def __init__(self, rule: ThinkRule) -> None:
        self._open, self._close = fold_case(rule.start_tag), fold_case(rule.end_tag)
        self._grace = rule.grace_period
        # Without an opening tag the whole answer is reasoning until a closing tag comes.
        self._in_block = rule.closing_only
        self._open_length = 0 if rule.closing_only else len(rule.start_tag)
        self.removed = ""
        # Before the block: the index of the held text in the whole text, and the possible start of an opening tag.
        self._position = 0
        self._held = ""
        # In the block: its text with the opening tag, and its folded end, in which a closing tag may begin.
        self._block: list[str] = []
        self._tail = ""
        self.done = False

    def feed(self, text: str) -> str:
        if self.done:
            return text
        return self._feed_block(text) if self._in_block else self._seek_opening(self._held + text)

    def finish(self) -> str:
        rest = self._held + "".join(self._block)
        self._held, self._block, self.done = "", [], True
        return rest

    def flush(self) -> str:
        return self.finish() if self._held or self._block else ""

    def _seek_opening(self, text: str) -> str:
        folded = fold_case(text)
        found = folded.find(self._open)
        # The last index in ``text`` at which the tag may start.
        last = self._grace - self._position
        if found < 0:
            return self._release(text, self._possible_start(folded, last))
        if found > last:
            return self._release(text, -1, done=True)
        end = found + len(self._open)
        self._held, self._block, self._in_block = "", [text[found:end]], True
        return text[:found] + self._feed_block(text[end:])

    def _possible_start(self, folded: str, last: int) -> int:
        """Return the first index at which an opening tag may begin that the text does not complete; -1 if none."""
        first = max(0, len(folded) - len(self._open) + 1)
        for index in range(first, min(len(folded), last + 1)):
            if self._open.startswith(folded[index:]):
                return index
        return -1

    def _release(self, text: str, hold_from: int, done: bool = False) -> str:
        cut = len(text) if hold_from < 0 else hold_from
        self._held = text[cut:]
        self._position += cut
        self.done = done or (not self._held and self._position > self._grace)
        return text[:cut]

    def _feed_block(self, text: str) -> str:
        window = self._tail + fold_case(text)
        found = window.find(self._close)
        if found < 0:
            if text:
                self._block.append(text)
            self._tail = window[len(window) - len(self._close) + 1 :] if len(window) >= len(self._close) else window
            return ""
        rest = text[found + len(self._close) - len(self._tail) :]
        block = "".join(self._block) + text
        self.removed = block[self._open_length : len(block) - len(window) + found].strip()
        self._block, self.done = [], True
        return rest


class PrefixFilter:
    """Removes white space and prefixes at the start, each step at most once, and white space after each prefix."""

    def __init__(self, steps: tuple[tuple[str, ...], ...]) -> None:
        self._steps = steps
        self._step = 0
        self._held = ""
        self.done = False

    def feed(self, text: str) -> str:
        return text if self.done else self._decide(text, ended=False)

    def finish(self) -> str:
        return "" if self.done else self._decide("", ended=True)

    def flush(self) -> str:
        return self.finish() if self._held else ""

    def _decide(self, text: str, ended: bool) -> str:
        held = self._held + text if self._held else text.lstrip()
        while self._step < len(self._steps):
            matched = self._match(held, ended)
            if matched is None:
                self._held = held
                return ""
            held = held[matched:].lstrip() if matched else held
            self._step += 1
        self._held, self.done = "", ended or bool(held)
        return held

    def _match(self, held: str, ended: bool) -> int | None:
        """Return the length of the prefix to remove in the current step; 0 for none, None if more text is needed."""
        for entry in self._steps[self._step]:
            if held.startswith(entry):
                return len(entry)
            if not ended and entry.startswith(held):
                return None
        return 0


class SpeakerFilter:
    """Adds the generation prompt to an answer that names no speaker.

    Only then ``second_pass``, the next filter of the chain, has work: it removes prefixes behind the added name.
    """

    def __init__(self, generation_prompt: str, second_pass: PrefixFilter) -> None:
        self._prompt, self._second_pass = generation_prompt, second_pass
        self._window = len(generation_prompt) + _SPEAKER_SLACK
        self._held = ""
        self.done = False

    @property
    def empty(self) -> bool:
        """True if no text has arrived yet."""
        return not self.done and not self._held

    def feed(self, text: str) -> str:
        if self.done:
            return text
        self._held = self._held + text if self._held else text.lstrip()
        colon = self._held.find(":")
        if colon < 0 and len(self._held) < self._window:
            return ""
        return self._decide(labelled=1 <= colon < self._window)

    def finish(self) -> str:
        return "" if self.done else self._decide(labelled=False)

    def flush(self) -> str:
        # Whether the answer names a speaker is still open, and its text must not appear without one.
        return ""

    def _decide(self, labelled: bool) -> str:
        text, self._held, self.done = self._held, "", True
        if labelled:
            self._second_pass.done = True
            return text
        return f"{self._prompt} {text}"


class EndMarkFilter:
    """Removes the marks with which the format of channels ends a message, at the end of the text only."""

    _MARKS = ("<|return|>", "<|end|>", "<|call|>")
    _AT_END = re.compile(r"(?:<\|(?:return|end|call)\|>\s*)+\Z")

    def __init__(self) -> None:
        # Marks, which text may follow, and the possible start of another one.
        self._held = ""
        self.done = False

    def feed(self, text: str) -> str:
        text = self._held + text
        start = text.rfind("<")
        is_open = start >= 0 and any(mark.startswith(text[start:]) and mark != text[start:] for mark in self._MARKS)
        end = start if is_open else len(text)
        marks = self._AT_END.search(text, 0, end)
        cut = marks.start() if marks else end
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        rest, self._held, self.done = self._AT_END.sub("", self._held), "", True
        return rest

    def flush(self) -> str:
        # A mark may still end the text, and nothing of it is missed in the meantime.
        return ""


class TrimFilter:
    """Removes white space at the end of the text: each run is held until more text follows."""

    def __init__(self) -> None:
        self._spaces = ""
        self.done = False

    def feed(self, text: str) -> str:
        body = text.rstrip()
        if not body:
            self._spaces += text
            return ""
        released, self._spaces = self._spaces + body, text[len(body) :]
        return released

    def finish(self) -> str:
        self._spaces, self.done = "", True
        return ""

    def flush(self) -> str:
        # The run may still end the text, and no client misses white space in the meantime.
        return ""


class ResponseCleaner:
    """Cleans one answer: ``feed`` its pieces in order, then ``finish``. Not for use by several threads at once."""

    def __init__(self, rules: CleaningRules) -> None:
        self._joiner = SurrogateJoiner()
        self._speaker: SpeakerFilter | None = None
        self._filters: list[Filter] = []
        self._think = ThinkFilter(rules.think) if rules.think else None
        # The order counts: a prefix or a name may follow the reasoning, and only the last filter sees the whole end.
        if self._think:
            self._filters.append(self._think)
        if not rules.verbatim:
            self._filters.append(PrefixFilter(rules.steps))
        if rules.generation_prompt:
            second_pass = PrefixFilter(rules.steps)
            self._speaker = SpeakerFilter(rules.generation_prompt, second_pass)
            self._filters += (self._speaker, second_pass)
        if rules.think and rules.think.has_channels:
            self._filters.append(EndMarkFilter())
        if rules.trim:
            self._filters.append(TrimFilter())

    @property
    def ascii_rest(self) -> Callable[[str], str] | None:
        """The function that does what ``feed`` does to ASCII text from now on; None while there is more to decide."""
        if self._joiner.holding or len(self._filters) > 1:
            return None
        if not self._filters:
            # It returns a string itself.
            return str
        last = self._filters[0]
        return last.feed if isinstance(last, TrimFilter) else None

    @property
    def finds_reasoning(self) -> bool:
        """True as long as a piece of text may bring reasoning for ``take_reasoning``."""
        return self._think is not None and not self._think.done

    def feed(self, text: str) -> str:
        """Add the next piece and return the text that is decided (often "")."""
        text = self._joiner.feed(text)
        if not self._filters or not text:
            return text
        for link in self._filters:
            text = link.feed(text)
            if not text:
                break
        self._drop_done()
        return text

    def take_reasoning(self) -> str:
        """Return the reasoning that was removed since the last call."""
        if self._think is None or not self._think.removed:
            return ""
        removed, self._think.removed = self._think.removed, ""
        return removed

    def flush(self) -> str:
        """Return held text before a tool call, so that the order of generation is kept.

        Without held text the filters stay active. Not returned are the text of an open decision about a speaker,
        trailing white space that a trim may remove, and half a surrogate pair.
        """
        if self._speaker and not self._speaker.done:
            return ""
        text = ""
        for link in self._filters:
            text = link.feed(text) + link.flush()
        self._drop_done()
        return text

    def finish(self, tool_calls_seen: bool = False) -> str:
        """Return the rest at the end of the text. With tool calls only (``tool_calls_seen``) it gets no speaker."""
        text = self._joiner.finish()
        for link in self._filters:
            text = link.feed(text)
            # An answer of tool calls alone must not become a message that consists of a name.
            if not (tool_calls_seen and link is self._speaker and self._speaker.empty):
                text += link.finish()
        self._filters = []
        return text

    def _drop_done(self) -> None:
        for link in self._filters:
            if link.done:
                self._filters = [each for each in self._filters if not each.done]
                return


def clean_answer(text: str, rules: CleaningRules, tool_calls_seen: bool = False) -> tuple[str, str]:
    """Clean a whole answer. Return it and the reasoning that was removed from it.

    ``tool_calls_seen``: the answer also calls tools, so that it gets no speaker if it has no text.
    """
    cleaner = ResponseCleaner(rules)
    cleaned = cleaner.feed(text) + cleaner.finish(tool_calls_seen)
    return cleaned, cleaner.take_reasoning()


def clean_text(text: str, rules: CleaningRules) -> str:
    """Clean a whole answer."""
    return clean_answer(text, rules)[0]
