"""Text primitives: brace sentinels, the token estimate, blocks of conversations, parts of texts, nearest names."""

from __future__ import annotations

import difflib
import io
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from Middleware.common.constants import LEFT_BRACE_SENTINEL, RIGHT_BRACE_SENTINEL
from Middleware.models.messages import Message

_T = TypeVar("_T")
logger = logging.getLogger(__name__)


FILL = 0.8
"""The share of a size that is used, so that a text whose estimate is too low still fits."""

SENTINEL_CHARACTER = "_"
"""In each sentinel of a brace."""
_SENTINEL_START = "__WILMER_"
# In characters. A longer text is searched in pieces, as no other thread runs during a call of a string method.
_PIECE = 128 * 1024
ESTIMATION_LEVELS = {"conservative": 1.0, "balanced": 1.25, "aggressive": 1.5, "xaggressive": 1.85}
_WORD = re.compile(r"\w+")
_BETWEEN_WORDS = re.compile(r"[\W_]+")
# ``difflib`` takes time in proportion to the square of the length, and names come from files and requests.
_MAX_COMPARED = 100
_FENCED = re.compile(r"```(?:json|JSON)?(.*)```", re.DOTALL)
# Python refuses to convert more than 4300 digits.
_WHOLE_NUMBER = re.compile(r"[-+]?[0-9]{1,4000}")
ROLE_LABELS = ("User: ", "USER: ", "Assistant: ", "ASSISTANT: ", "systemMes: ", "SYSTEMMES: ")


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun, such as ``2 errors``; ``many`` is the plural if it is not that with an ``s``."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def escape_braces(text: str) -> str:
    """Replace every brace by its sentinel, so that no substitution takes it for a placeholder."""
    if "{" not in text and "}" not in text:
        return text
    return _replace(_replace(text, "{", LEFT_BRACE_SENTINEL), "}", RIGHT_BRACE_SENTINEL)


def restore_braces(text: str) -> str:
    """Return the inverse of ``escape_braces``; a sentinel that a user typed becomes a brace too."""
    if _SENTINEL_START not in text:
        return text
    return _replace(_replace(text, LEFT_BRACE_SENTINEL, "{"), RIGHT_BRACE_SENTINEL, "}")


def _replace(text: str, old: str, new: str) -> str:
    """Return ``text.replace(old, new)``, for long texts in pieces. ``new`` must not contain characters of ``old``."""
    if len(text) <= _PIECE:
        return text.replace(old, new)
    pieces, held = [], ""
    for start in range(0, len(text), _PIECE):
        piece = (held + text[start : start + _PIECE]).replace(old, new)
        held = _beginning_at_the_end(piece, old)
        pieces.append(piece[: len(piece) - len(held)])
        # Let other threads run.
        time.sleep(0)
    return "".join([*pieces, held])


def _beginning_at_the_end(text: str, wanted: str) -> str:
    """Return the longest end of ``text`` that is a beginning of ``wanted``."""
    return next((wanted[:size] for size in range(len(wanted) - 1, 0, -1) if text.endswith(wanted[:size])), "")


def restore_braces_in_data(value: object) -> object:
    """Return a deep copy of JSON-like data with all strings (keys included) restored; other objects are kept."""
    if isinstance(value, str):
        return restore_braces(value)
    if isinstance(value, (list, tuple)):
        return [restore_braces_in_data(item) for item in value]
    if isinstance(value, dict):
        return {restore_braces_in_data(key): restore_braces_in_data(item) for key, item in value.items()}
    return value


# Users' scripts import them under these names.
escape_brackets_in_string = escape_braces
return_brackets_in_string = restore_braces


def replace_brackets_in_list(messages: list[Message]) -> list[Message]:
    """Escape the text content of every message in place; return the same list."""
    for message in messages:
        _change_content(message, escape_braces)
    return messages


def return_brackets(messages: list[Message]) -> list[Message]:
    """Restore the text content of every message in place; return the same list."""
    for message in messages:
        _change_content(message, restore_braces)
    return messages


def rough_estimate_token_length(text: str, safety_margin: float = 1.10) -> int:
    """Return an estimate of the tokens of ``text``, which is rather too high than too low."""
    # Without a tokenizer: 1.35 tokens per word and 3.5 characters per token are high for English text and for code.
    return int(max(_count_words(text) * 1.35, len(text) / 3.5) * safety_margin)


def _count_words(text: str) -> int:
    """Return ``len(text.split())``, for long texts in pieces, as in ``_replace``."""
    if len(text) <= _PIECE:
        return len(text.split())
    count, in_a_word = 0, False
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE]
        count += len(piece.split()) - (in_a_word and not piece[0].isspace())
        in_a_word = not piece[-1].isspace()
        time.sleep(0)
    return count


def split_into_tokenized_chunks(text: str, size: float) -> list[str]:
    """Return the words of ``text`` in pieces of at most ``size`` estimated tokens; a longer word is one piece."""
    pieces: list[list[str]] = []
    used = 0
    for word in text.split():
        cost = rough_estimate_token_length(word + " ")
        if not pieces or used + cost > size:
            pieces.append([])
            used = 0
        pieces[-1].append(word)
        used += cost
    return [" ".join(piece) for piece in pieces]


def reduce_text_to_token_limit(text: str, limit: float) -> str:
    """Return the last words of ``text``, with single spaces, as many as fit ``limit`` estimated tokens."""
    words = text.split()
    return " ".join(words[newest_within(words, limit, lambda word: rough_estimate_token_length(word + " ")) :])


def newest_within(items: Sequence[_T], limit: float, size: Callable[[_T], int]) -> int:
    """Return the smallest index from which the sizes of all items together are at most ``limit``."""
    used, start = 0, len(items)
    while start and (used := used + size(items[start - 1])) <= limit:
        start -= 1
    return start


# --- messages ---


def message_text(message: Mapping[str, object]) -> str:
    """Return the content of a message; "" if it has none."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "" if content is None else str(content)


def estimate_message(message: Mapping[str, object]) -> int:
    """Return the estimated tokens of the content as the model will see it, that is with real braces."""
    return rough_estimate_token_length(restore_braces(message_text(message)))


def tokenize(text: str) -> list[str]:
    """Return all runs of letters, digits and underscores, in order."""
    return _WORD.findall(text)


def chunk_messages_by_token_size(messages: Sequence[Message], size: float) -> list[list[Message]]:
    """Return the messages in groups of at most 80 % of ``size`` estimated tokens, in order.

    Groups are filled from the newest message backwards, so it is the first that stays small. No message is split; one
    that is too large makes a group of its own.
    """
    groups: list[list[Message]] = []
    used = 0
    for message in reversed(messages):
        cost = estimate_message(message)
        if not groups or used + cost > size * FILL:
            groups.append([])
            used = 0
        groups[-1].append(message)
        used += cost
    return [group[::-1] for group in reversed(groups)]


def messages_to_text_block(messages: Iterable[Message]) -> str:
    """Return the contents, separated by line breaks, without roles."""
    return "\n".join(map(message_text, messages))


def messages_into_chunked_text_of_token_size(messages: Sequence[Message], size: float) -> list[str]:
    """Return the text of each group of ``chunk_messages_by_token_size``."""
    return [messages_to_text_block(group) for group in chunk_messages_by_token_size(messages, size)]


def get_message_chunks(messages: Sequence[Message], lookback: int, size: float) -> list[str]:
    """Return the texts of the newest ``lookback`` messages; with 0 or less, of all messages but the newest."""
    chosen = messages[-lookback:] if lookback > 0 else messages[:-1]
    return messages_into_chunked_text_of_token_size(chosen, size)


def clear_out_user_assistant_from_chunks(chunks: Iterable[str | None]) -> list[str]:
    """Return the texts without the labels of roles; those that are None are left out."""
    return [_without_labels(chunk) for chunk in chunks if chunk is not None]


def _without_labels(text: str) -> str:
    for label in ROLE_LABELS:
        text = text.replace(label, "")
    return text


# --- parts of texts ---


def json_field(text: str, field: str) -> str:
    """Return one top-level field of the JSON object in ``text``, which may be in a fenced code block.

    Numbers and booleans are written as in Python, objects and arrays as JSON. The result is empty for null, for an
    absent field, and for a text that is not a JSON object.
    """
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        data = json.loads(fenced.group(1).strip() if fenced else text)
        return _as_text(data.get(field)) if field and isinstance(data, dict) else ""
    # Also for a number with too many digits, and for extreme nesting.
    except (ValueError, RecursionError):
        return ""


def tagged_text(text: str, tag: str) -> str:
    """Return the trimmed text between the first ``<tag>`` and the next ``</tag>``; empty without one."""
    _, opening, rest = text.partition(f"<{tag}>")
    inside, closing, _ = rest.partition(f"</{tag}>")
    return inside.strip() if tag and opening and closing else ""


def first_pieces(text: str, delimiter: str, count: int) -> str:
    """Return the first ``count`` pieces between delimiters, still joined; all of them if there are not so many."""
    return delimiter.join(text.split(delimiter)[: max(count, 0)])


def last_pieces(text: str, delimiter: str, count: int) -> str:
    """Return the last ``count`` pieces; a delimiter at the end makes a last piece that is empty."""
    return delimiter.join(text.split(delimiter)[-count:]) if count > 0 else ""


def lines_without(text: str, unwanted: Callable[[str], bool]) -> tuple[str, int]:
    """Return ``text`` without the ``unwanted`` lines, which it tests without their ends, and their number.

    Lines end with a line feed, a carriage return or both; the ends of the other lines are kept.
    """
    lines = list(io.StringIO(text, newline=""))
    kept = [line for line in lines if not unwanted(line.rstrip("\r\n"))]
    return "".join(kept), len(lines) - len(kept)


def whole_number(text: str) -> int | None:
    """Return the number in ``text``, which may have spaces around it; None for anything else."""
    text = text.strip()
    return int(text) if _WHOLE_NUMBER.fullmatch(text) else None


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, (dict, list)) else str(value)


# --- names ---


def nearest(name: str, candidates: Iterable[str], cutoff: float = 0.75) -> str:
    """Return the candidate most like ``name``, ignoring case and word separators; "" if none is similar."""
    if len(name) > _MAX_COMPARED:
        return ""
    by_plain: dict[str, str] = {}
    for candidate in candidates:
        if len(candidate) <= _MAX_COMPARED:
            by_plain.setdefault(plain(candidate), candidate)
    wanted = plain(name)
    if wanted in by_plain:
        return by_plain[wanted]
    near = difflib.get_close_matches(wanted, list(by_plain), 1, cutoff)
    return by_plain[near[0]] if near else ""


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str = "", cutoff: float = 0.75) -> str:
    """Return the end of an error's sentence that asks for the nearest candidate; ``otherwise`` if none is similar."""
    near = nearest(name, candidates, cutoff)
    return f" Did you mean '{near}'?" if near else otherwise


# Names are compared with the same candidates again and again.
@lru_cache(maxsize=2048)
def plain(name: str) -> str:
    """Return ``name`` without case and word separators."""
    return _BETWEEN_WORDS.sub("", name.casefold())


# --- levels of estimation ---


def estimation_level_multiplier(level: object) -> float:
    """Return the factor of a ``wilmerContextEstimationLevel`` for token limits, as estimates are too high."""
    if level is None:
        return 1.0
    multiplier = ESTIMATION_LEVELS.get(level.strip().lower()) if isinstance(level, str) else None
    if multiplier is None:
        logger.warning(
            "wilmerContextEstimationLevel %r is unknown; using 'conservative'. Known: %s",
            level,
            ", ".join(ESTIMATION_LEVELS),
        )
        return 1.0
    return multiplier


def _change_content(message: Message, change: Callable[[str], str]) -> None:
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = change(content)


def without_surrogates(text: str) -> str:
    """Return ``text`` with the halves of surrogate pairs joined and lone ones replaced by U+FFFD.

    JSON can carry half a pair; no UTF-8 file, SQLite database, process argument or HTTP body can.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def storable(text: str) -> str:
    """Return ``text`` as ``without_surrogates`` does, with NUL replaced too, which no text of PostgreSQL can hold."""
    return without_surrogates(text).replace("\0", "\ufffd")


def encode_text(text: str) -> bytes:
    """Return UTF-8, with surrogates as ``without_surrogates`` leaves them; line ends stay as they are."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return without_surrogates(text).encode("utf-8")
