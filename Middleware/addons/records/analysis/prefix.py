"""How much of a prompt is the same as in the call before of the same conversation, node and endpoint.

What is the same from the first character on can be in the server's cache; what follows is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TypedDict

from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.model import RunDocument, Span, number
from Middleware.addons.records.payloads import PromptPart, prompt_parts
from Middleware.utilities.text_utils import counted

# The excerpts around a difference: enough to recognise both, on one line of a phone.
BEFORE, AFTER = 24, 36
# A word that is longer is cut like any text.
LONGEST_WORD = 16

NO_CALL_BEFORE = "No earlier call of this conversation, node and endpoint is recorded."
NOT_KEPT = "The text of this call or of the call before was not kept, so they cannot be compared."


class EarlierCall(TypedDict):
    run: str
    span: int


class PrefixOfCall(TypedDict):
    """The comparison of one call with the one before, as the API sends it.

    Attributes:
        text: all of it in words.
        difference: the comparison in words, without what the back-end said.
        reused, of: prompt tokens from the cache and in all, as the back-end said; None if it did not.
        same, characters: how much of the prompt is the same from its beginning; None without a comparison.
        message, role: where the first difference is; ``message`` 0 is the prompt or the tools.
    """

    text: str
    difference: str
    reused: int | None
    of: int | None
    same: int | None
    characters: int | None
    earlier: EarlierCall | None
    message: int | None
    role: str


class Difference(TypedDict):
    """The first difference of two prompts.

    Attributes:
        same: characters before it.
        characters: those of the newer prompt.
        part: the part of the newer prompt in which it is; None if one prompt is the beginning of the other.
        old, new: the texts around it.
        left_out: the parts of the older prompt that are missing here, while what follows them is the same.
    """

    same: int
    characters: int
    part: PromptPart | None
    old: str
    new: str
    left_out: int


def prefixes(document: RunDocument, earlier: Iterable[RunDocument]) -> dict[str, PrefixOfCall]:
    """Return the comparison for each LLM call of a run, by the id of its span as a string.

    Args:
        earlier: the runs before it in the same conversation, the newest first. They are asked for one by one, until
            every call has found the one before it.
    """
    tree, before = SpanTree(document.spans), _Before(earlier)
    result: dict[str, PrefixOfCall] = {}
    known: dict[tuple[object, ...], Span] = {}
    for call in (span for span in document.spans if span.kind == "llm"):
        place = _place(tree, call)
        here = known.get(place)
        found = (document, tree, here) if here is not None else before.find(place)
        result[str(call.id)] = _compared(tree, call, found)
        known[place] = call
    return result


class _Before:
    """The last call at each place in earlier runs, read as far as they are needed."""

    def __init__(self, earlier: Iterable[RunDocument]) -> None:
        self._documents = iter(earlier)
        self._found: dict[tuple[object, ...], tuple[RunDocument, SpanTree, Span]] = {}

    def find(self, place: tuple[object, ...]) -> tuple[RunDocument, SpanTree, Span] | None:
        while place not in self._found:
            document = next(self._documents, None)
            if document is None:
                return None
            tree = SpanTree(document.spans)
            calls = {_place(tree, span): (document, tree, span) for span in document.spans if span.kind == "llm"}
            # What is there is from a newer run.
            self._found = {**calls, **self._found}
        return self._found[place]


def _place(tree: SpanTree, call: Span) -> tuple[object, ...]:
    """Return what two calls must have in common: endpoint, node, and the workflows around it."""
    names: list[object] = [call.attributes.get("endpoint") or call.name]
    span = tree.parent(call)
    while span is not None:
        if span.kind == "node":
            names.append((span.attributes.get("node.index"), span.attributes.get("node.title") or span.name))
        elif span.kind in ("workflow", "memory"):
            names.append(span.name)
        span = tree.parent(span)
    return tuple(names)


def _compared(tree: SpanTree, call: Span, found: tuple[RunDocument, SpanTree, Span] | None) -> PrefixOfCall:
    attempt = last_attempt(tree, call)
    reused, of = (
        (number(attempt.attributes.get(f"usage.{name}")) for name in ("cache_read.input_tokens", "input_tokens"))
        if attempt is not None
        else (None, None)
    )
    said = (
        f"{reused:,} of {of:,} prompt tokens reused."
        if reused is not None and of is not None
        else "Reused prompt tokens: not reported."
    )
    result: PrefixOfCall = {
        "text": f"{said} {NO_CALL_BEFORE}",
        "difference": NO_CALL_BEFORE,
        "reused": reused,
        "of": of,
        "same": None,
        "characters": None,
        "earlier": None,
        "message": None,
        "role": "",
    }
    if found is None:
        return result
    document, earlier_tree, earlier_call = found
    result["earlier"] = {"run": document.facts["id"], "span": earlier_call.id}
    new, old = payload_of(tree, call), payload_of(earlier_tree, earlier_call)
    if new is None or old is None:
        result["text"], result["difference"] = f"{said} {NOT_KEPT}", NOT_KEPT
        return result
    difference = compare_prompts(list(prompt_parts(old)), list(prompt_parts(new)))
    part = difference["part"]
    words = in_words(difference)
    return {
        **result,
        "text": f"{said} {words}",
        "difference": words,
        "same": difference["same"],
        "characters": difference["characters"],
        "message": None if part is None else part.number,
        "role": "" if part is None else part.role,
    }


def last_attempt(tree: SpanTree, call: Span) -> Span | None:
    """Return the attempt of a call that was answered, or else its last one."""
    attempts = [span for span in tree.children(call) if span.kind == "attempt"]
    return next((span for span in reversed(attempts) if span.status == "ok"), attempts[-1] if attempts else None)


def payload_of(tree: SpanTree, call: Span) -> Mapping[str, object] | None:
    """Return the payload that was sent last in a call; None if it was not kept."""
    attempt = last_attempt(tree, call)
    payload = attempt.texts.get("payload") if attempt is not None else None
    return payload if isinstance(payload, Mapping) else None


# -- two prompts -------------------------------------------------------------------------------------------------------


def compare_prompts(old: Sequence[PromptPart], new: Sequence[PromptPart]) -> Difference:
    """Return the first difference of two prompts."""
    characters = sum(len(part.text) for part in new)
    same = 0
    for index, (before, part) in enumerate(zip_longest(old, new)):
        if before is not None and part is not None and (before.role, before.text) == (part.role, part.text):
            same += len(part.text)
            continue
        if before is None or part is None:
            break
        # Texts of different roles have different marks around them.
        common = common_prefix(before.text, part.text) if before.role == part.role else 0
        return {
            "same": same + common,
            "characters": characters,
            "part": part,
            "old": excerpt(before.text, common),
            "new": excerpt(part.text, common),
            "left_out": _left_out(old[index:], part),
        }
    return {"same": same, "characters": characters, "part": None, "old": "", "new": "", "left_out": 0}


def _left_out(old: Sequence[PromptPart], part: PromptPart) -> int:
    """Return how many older parts stand before the one that is ``part``; 0 without one."""
    return next((index for index, before in enumerate(old) if (before.role, before.text) == (part.role, part.text)), 0)


def common_prefix(first: str, second: str) -> int:
    """Return the number of characters at the beginning that two texts have in common."""
    low, high = 0, min(len(first), len(second))
    # By halves, as comparing slices is a thousand times as fast as comparing characters in a loop.
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def excerpt(text: str, place: int) -> str:
    """Return the text around a place on one line, from the beginning of a line or a word to the end of a word."""
    start = max(place - BEFORE, text.rfind("\n", 0, place) + 1, 0)
    if start and text[start - 1] != "\n":
        space = text.find(" ", start, min(place, start + LONGEST_WORD))
        start = space + 1 if space >= 0 else start
    end = text.find("\n", place)
    end = min(place + AFTER, len(text) if end < 0 else end)
    if end < len(text) and text[end] != "\n":
        space = text.rfind(" ", max(place + 1, end - LONGEST_WORD), end)
        end = space if space > 0 else end
    return " ".join(text[start:end].split())


def in_words(difference: Difference) -> str:
    """Return the comparison of two prompts in words."""
    same, characters, part = difference["same"], difference["characters"], difference["part"]
    if part is None:
        return (
            f"All of its {characters:,} characters are the same as in the call before."
            if same == characters
            else f"Same up to character {same:,} of {characters:,} ({_percent(same, characters)}); what follows is new."
        )
    start = f"Same up to character {same:,} of {characters:,} ({_percent(same, characters)})."
    if difference["left_out"]:
        count = difference["left_out"]
        return (
            f"{start} First difference in {part.name}: {counted(count, 'message')} of the call before "
            f"{'is' if count == 1 else 'are'} left out here."
        )
    return f'{start} First difference in {part.name}: "{difference["old"]}" / "{difference["new"]}".'


def _percent(same: int, characters: int) -> str:
    # Rounded down: 100% would say that nothing differs.
    return f"{same * 100 // characters}%" if characters else "0%"
