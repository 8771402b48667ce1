"""The response cleaner: think blocks, leading prefixes, speaker name and trim, fed piece by piece, without I/O.

One implementation serves streams and whole texts: for any way of cutting a text into pieces the concatenated output
is the same. A text runs through a chain of small filters, each of which holds back only what is still undecided and
leaves the chain once it has nothing more to do, so that a long answer soon passes through untouched.
"""
from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.text_utils import restore_braces, without_surrogates

logger = logging.getLogger(__name__)

DEFAULT_GRACE_PERIOD: int = ENDPOINT["openingTagGracePeriod"].default
TIMESTAMP_PREFIX = "[Sent less than a minute ago]"
ASSISTANT_PREFIX = "Assistant:"
MAX_GENERATION_PROMPT_LENGTH = 99
_SPEAKER_SLACK = 10


def find_generation_prompt(last_message: object) -> str:
    """The open speaker line (``Name:``) that the last input message consists of, or "" if it is something else.

    Its braces are real ones: it becomes a part of the answer.
    """
    text = restore_braces(last_message.strip()) if isinstance(last_message, str) else ""
    fits = 1 <= len(text) <= MAX_GENERATION_PROMPT_LENGTH and text.endswith(":") and len(text.splitlines()) == 1
    return text if fits else ""


def think_tags(endpoint_config: Mapping[str, object]) -> tuple[str, str]:
    """The opening and the closing tag that an endpoint file names, in whatever way; "" for one that is missing."""
    start, end, legacy = (ENDPOINT.text(endpoint_config, key)
                          for key in ("startThinkTag", "endThinkTag", "thinkTagText"))
    return (f"<{legacy}>", f"</{legacy}>") if legacy and not start and not end else (start, end)


@dataclass(frozen=True)
class ThinkRule:
    """How to find the reasoning block of an answer.

    Attributes:
        start_tag, end_tag: literal tags, compared without regard to case.
        grace_period: last 0-based index at which the opening tag may start.
        closing_only: everything through the first closing tag is reasoning; there is no opening tag.
    """

    start_tag: str
    end_tag: str
    grace_period: int = DEFAULT_GRACE_PERIOD
    closing_only: bool = False

    @classmethod
    def build(cls, endpoint_config: Mapping[str, object]) -> ThinkRule | None:
        """The rule of an endpoint file, or None if it removes no thinking (or lacks a tag, which is warned about)."""
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
    """What to clean from the answer of one node.

    Attributes:
        verbatim: the node has no endpoint; only the speaker rule applies.
        think: the reasoning block to remove, if any.
        steps: prefix lists in order; of each at most the first entry that matches is removed.
        generation_prompt: speaker line that an answer without a speaker gets, "" for none.
        trim: strip whitespace at both ends.
    """

    verbatim: bool = False
    think: ThinkRule | None = None
    steps: tuple[tuple[str, ...], ...] = ()
    generation_prompt: str = ""
    trim: bool = False

    @classmethod
    def build(cls, endpoint_config: Mapping[str, object] | None, node_config: Mapping[str, object] | None,
              generation_prompt: str | None = None, strip_assistant_prefix: bool = False, *,
              has_endpoint: bool | None = None) -> CleaningRules:
        """Read the rules from an endpoint file and a node.

        ``has_endpoint`` tells whether the node has an endpoint at all; None: it has one if its file is not empty.
        ``strip_assistant_prefix``: the user's two assistant options are both on.
        """
        endpoint, node, prompt = endpoint_config or {}, node_config or {}, (generation_prompt or "").strip()
        if not (bool(endpoint) if has_endpoint is None else has_endpoint):
            return cls(verbatim=True, generation_prompt=prompt)
        return cls(think=ThinkRule.build(endpoint), steps=_prefix_steps(endpoint, node, strip_assistant_prefix),
                   generation_prompt=prompt, trim=ENDPOINT.flag(endpoint, "trimBeginningAndEndLineBreaks"))


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


def _prefix_steps(endpoint: Mapping[str, object], node: Mapping[str, object],
                  strip_assistant_prefix: bool) -> tuple[tuple[str, ...], ...]:
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
    """Remove case differences character by character: same length, and independent of where a text is cut.

    Neither ``str.lower`` (a final sigma depends on its neighbours) nor ``str.casefold`` (a sharp s grows) is both.
    """
    if text.isascii():
        return text.lower()
    return "".join([_fold_char(char) for char in text])


def _fold_char(char: str) -> str:
    for folded in (char.casefold(), char.lower()):
        if len(folded) == 1:
            return folded
    return char


def has_surrogates(text: str) -> bool:
    """Whether a text holds a surrogate code point, which no UTF-8 output can carry."""
    if text.isascii():
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


class SurrogateJoiner:
    """Joins surrogate halves, also across pieces; a half that stays alone becomes U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    @property
    def holding(self) -> bool:
        return bool(self._half)

    def feed(self, text: str) -> str:
        if not text or (not self._half and not has_surrogates(text)):
            return text
        text, self._half = self._half + text, ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return without_surrogates(text)

    def finish(self) -> str:
        half, self._half = self._half, ""
        return "\ufffd" if half else ""


class Filter(Protocol):
    """One link of the chain. After ``done`` it would return every text unchanged."""

    done: bool

    def feed(self, text: str) -> str:
        """Take a piece, return what can be released."""

    def finish(self) -> str:
        """The text has ended: decide, and release the rest."""

    def flush(self) -> str:
        """Something else follows in the stream: release what is held; with nothing held change nothing."""


class ThinkFilter:
    """Removes one reasoning block. Text before a block is released at once, an unterminated block at the end.

    Attributes:
        removed: what the block said, without its tags; "" until it ended.
    """

    def __init__(self, rule: ThinkRule) -> None:
        self._open, self._close = fold_case(rule.start_tag), fold_case(rule.end_tag)
        self._grace = rule.grace_period
        self._in_block = rule.closing_only
        self._open_length = 0 if rule.closing_only else len(rule.start_tag)
        self.removed = ""
        self._position = 0  # index in the whole text where the held text starts, while an opening tag is sought
        self._held = ""  # a possible start of an opening tag
        self._block: list[str] = []  # an open block, opening tag included
        self._tail = ""  # folded end of the block in which a closing tag may have begun
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
        last = self._grace - self._position  # last index in text at which the tag may start
        if found < 0:
            return self._release(text, self._possible_start(folded, last))
        if found > last:
            return self._release(text, -1, done=True)
        end = found + len(self._open)
        self._held, self._block, self._in_block = "", [text[found:end]], True
        return text[:found] + self._feed_block(text[end:])

    def _possible_start(self, folded: str, last: int) -> int:
        """First index from which the text may go on to be an opening tag in time, or -1."""
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
            self._tail = window[len(window) - len(self._close) + 1:] if len(window) >= len(self._close) else window
            return ""
        rest = text[found + len(self._close) - len(self._tail):]
        block = "".join(self._block) + text
        self.removed = block[self._open_length:len(block) - len(window) + found].strip()
        self._block, self.done = [], True
        return rest


class PrefixFilter:
    """Left-trims and removes leading prefixes, each step at most once, left-trimming after each removal."""

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
        """Length of the prefix to remove in the current step, 0 for none, None if more text must decide."""
        for entry in self._steps[self._step]:
            if held.startswith(entry):
                return len(entry)
            if not ended and entry.startswith(held):
                return None
        return 0


class SpeakerFilter:
    """Puts the generation prompt before an answer that names no speaker itself, then strips prefixes once more."""

    def __init__(self, generation_prompt: str, second_pass: PrefixFilter | None) -> None:
        self._prompt = generation_prompt
        self._second_pass = second_pass
        self._window = len(generation_prompt) + _SPEAKER_SLACK
        self._held = ""
        self.open = True
        self.done = False

    @property
    def empty(self) -> bool:
        """No text has arrived yet."""
        return self.open and not self._held

    def feed(self, text: str) -> str:
        if not self.open:
            return self._pass_on(text)
        self._held = self._held + text if self._held else text.lstrip()
        colon = self._held.find(":")
        if colon < 0 and len(self._held) < self._window:
            return ""
        return self._decide(labelled=1 <= colon < self._window)

    def finish(self) -> str:
        released = self._decide(labelled=False) if self.open else ""
        if not self.done and self._second_pass:
            released += self._second_pass.finish()
        self.done = True
        return released

    def flush(self) -> str:
        if self.open or self.done or not self._second_pass:
            return ""
        released = self._second_pass.flush()
        self.done = self._second_pass.done
        return released

    def _decide(self, labelled: bool) -> str:
        text, self._held, self.open = self._held, "", False
        if labelled:
            self.done = True
            return text
        return self._pass_on(f"{self._prompt} {text}")

    def _pass_on(self, text: str) -> str:
        if self.done or not self._second_pass:
            self.done = True
            return text
        text = self._second_pass.feed(text)
        self.done = self._second_pass.done
        return text


class TrimFilter:
    """Drops whitespace at the end of the text: each run is held until more text follows."""

    def __init__(self) -> None:
        self._spaces: list[str] = []
        self.done = False

    def feed(self, text: str) -> str:
        body = text.rstrip()
        if not body:
            if text:
                self._spaces.append(text)
            return ""
        if self._spaces:
            released = "".join(self._spaces) + body
            self._spaces.clear()
        else:
            released = body
        if len(body) < len(text):
            self._spaces.append(text[len(body):])
        return released

    def finish(self) -> str:
        self._spaces.clear()
        self.done = True
        return ""

    def flush(self) -> str:
        return ""  # whether the run ends the text is still open, and nobody misses it meanwhile


class ResponseCleaner:
    """Cleans one answer: ``feed`` its pieces in order, then ``finish``. Not for use by several threads at once."""

    def __init__(self, rules: CleaningRules) -> None:
        self._joiner = SurrogateJoiner()
        self._speaker: SpeakerFilter | None = None
        self._filters: list[Filter] = []
        self._think = ThinkFilter(rules.think) if rules.think else None
        if self._think:
            self._filters.append(self._think)
        if not rules.verbatim:
            self._filters.append(PrefixFilter(rules.steps))
        if rules.generation_prompt:
            second_pass = None if rules.verbatim else PrefixFilter(rules.steps)
            self._speaker = SpeakerFilter(rules.generation_prompt, second_pass)
            self._filters.append(self._speaker)
        if rules.trim:
            self._filters.append(TrimFilter())

    @property
    def passes_ascii(self) -> bool:
        """From now on ``feed`` returns every ASCII text unchanged, so a caller in a hurry may skip it."""
        return not self._filters and not self._joiner.holding

    def feed(self, text: str) -> str:
        """Take the next piece and return the text that is certain by now (often "")."""
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
        """The reasoning that has been removed since the last time this was asked."""
        if self._think is None or not self._think.removed:
            return ""
        removed, self._think.removed = self._think.removed, ""
        return removed

    def flush(self) -> str:
        """Release held text before a tool call, so that the order of generation is kept.

        With nothing held stripping stays armed. Held are on: a speaker decision that is still open, trailing
        whitespace that a trim may drop, and half a surrogate pair.
        """
        if self._speaker and self._speaker.open:
            return ""
        text = ""
        for link in self._filters:
            text = link.feed(text) + link.flush()
        self._drop_done()
        return text

    def finish(self, tool_calls_seen: bool = False) -> str:
        """End of the text: return the rest. An answer of tool calls alone (``tool_calls_seen``) gets no speaker."""
        text = self._joiner.finish()
        for link in self._filters:
            text = link.feed(text)
            if not (tool_calls_seen and link is self._speaker and self._speaker.empty):
                text += link.finish()
        self._filters = []
        return text

    def _drop_done(self) -> None:
        if any(link.done for link in self._filters):
            self._filters = [link for link in self._filters if not link.done]


def clean_answer(text: str, rules: CleaningRules, tool_calls_seen: bool = False) -> tuple[str, str]:
    """Clean a whole answer; returns it and the reasoning that was removed from it.

    ``tool_calls_seen``: the answer calls tools, too, so that it gets no speaker where it says nothing besides.
    """
    cleaner = ResponseCleaner(rules)
    cleaned = cleaner.feed(text) + cleaner.finish(tool_calls_seen)
    return cleaned, cleaner.take_reasoning()


def clean_text(text: str, rules: CleaningRules) -> str:
    """Clean a whole answer."""
    return clean_answer(text, rules)[0]
