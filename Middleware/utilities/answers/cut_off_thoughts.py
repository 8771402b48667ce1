"""Detection of answers that ended at the token limit while the model was still thinking."""

from __future__ import annotations

import re
from collections.abc import Mapping

from Middleware.utilities.answers.text_cleaner import fold_case, think_tags
from Middleware.utilities.config.keys.endpoint import ENDPOINT

# Reasoning never begins with these, but an answer that is data does.
_DATA = ("{", "[", "```")
# Mistral writes its tag as [THINK]; other words in square brackets are ordinary text.
THOUGHT_TAG = re.compile(r"(?:<|\[(?=/?THINK]))(/?)((?i:think|thinking|thoughts?|reasoning))[>\]]")
"""The usual tags around reasoning, whatever an endpoint file says. Groups: the slash of a closing tag, the name."""


def is_cut_off_thought(
    text: str, endpoint: Mapping[str, object] | None = None, finish_reason: str | None = None
) -> bool:
    """Return whether a cleaned answer consists of reasoning that was cut off before its end.

    ``endpoint`` is the file of the endpoint that answered, if it is known: its own tags count too. If the endpoint
    expects only closing tags, an answer without one was cut off if its ``finish_reason`` is "length".
    """
    text = text.strip()
    return bool(text) and (_opens_and_never_closes(text) or _never_closes(text, endpoint or {}, finish_reason))


def _opens_and_never_closes(text: str) -> bool:
    return _thoughts(text)[1] == 0


def _thoughts(text: str) -> tuple[list[tuple[int, int]], int | None]:
    """Return where blocks of reasoning begin and end, and where one begins that is not closed."""
    closed, name, start = list[tuple[int, int]](), "", 0
    for tag in THOUGHT_TAG.finditer(text):
        if not name and not tag[1]:
            name, start = tag[2].lower(), tag.start()
        elif tag[1] and name == tag[2].lower():
            closed.append((start, tag.end()))
            name = ""
    return closed, start if name else None


def without_thoughts(text: str) -> str:
    """Return ``text`` without blocks of reasoning. One that is not closed is the whole text, or is a word of it."""
    closed, opened = _thoughts(text)
    starts, ends = [*(start for start, _ in closed), len(text)], [0, *(end for _, end in closed)]
    kept = [text[end:start] for start, end in zip(starts, ends, strict=True)]
    if opened is not None and not "".join((*kept[:-1], text[ends[-1] : opened])).strip():
        return ""
    return "".join(kept)


def _never_closes(text: str, endpoint: Mapping[str, object], finish_reason: str | None) -> bool:
    start, end = (fold_case(tag.strip()) for tag in think_tags(endpoint))
    folded = fold_case(text)
    if not end or end in folded:
        return False
    if start and folded.startswith(start):
        return True
    keys = ("removeThinking", "expectOnlyClosingThinkTag")
    closing_only = all(ENDPOINT.flag(endpoint, key) for key in keys)
    return closing_only and finish_reason == "length" and not text.startswith(_DATA)
