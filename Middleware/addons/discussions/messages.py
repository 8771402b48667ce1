"""The messages of a discussion that are remembered word for word, for their owner."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from contextlib import closing
from datetime import datetime
from typing import Any

from Middleware.addons.discussions.catalog import DiscussionWithoutFiles
from Middleware.addons.discussions.discussion_reader import Reader
from Middleware.exceptions import DataKeyError
from Middleware.services.memory.chunks import chunks_elsewhere
from Middleware.services.memory.memory_settings import quiet_memory_settings
from Middleware.services.memory.message_texts import MOST_PARTS
from Middleware.services.memory.recall import FACTS, MESSAGES, Found, Recall, Recalled, recall
from Middleware.utilities.discussion_state import MESSAGE_INDEX
from Middleware.utilities.discussions.message_index import message_tables as tables
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex, MessageRow
from Middleware.utilities.discussions.message_index.message_tables import ELSEWHERE, ON_PATH
from Middleware.utilities.said_times import Calendar, calendar_of
from Middleware.utilities.text_utils import counted

# Characters of a text in a list.
SHOWN = 160
STATES = {
    ON_PATH: "in the conversation",
    ELSEWHERE: "elsewhere",
    tables.PROVISIONAL: "provisional",
}
"""How the state of a row is shown."""


def calendar() -> Calendar:
    return calendar_of(quiet_memory_settings().time_zone)


def count(reader: Reader, *, stored: bool = False) -> tuple[int, bool]:
    """Return how many messages the conversations have now, and whether they are encrypted.

    A file is counted without its key. ``stored``: how many are stored, those that are elsewhere included.
    """
    if isinstance(reader.discussion, DiscussionWithoutFiles):
        try:
            with reader.messages() as index:
                return (index.message_count(stored=stored), index.cipher.active) if index is not None else (0, False)
        except DataKeyError:
            return reader.discussion.searchable.messages, True
    path = os.path.join(reader.state.place, MESSAGE_INDEX)
    if not os.path.isfile(path):
        return 0, False
    with closing(tables.connect(path)) as database:
        names = tables.table_names(database)
        statement = tables.COUNT_STORED if stored else tables.COUNT_MESSAGES
        found = database.execute(statement).fetchone()[0] if names else 0
        return found, bool(names) and tables.WORDS not in names


def about(reader: Reader) -> str:
    """Return how many messages are stored, and of when, as a sentence; "" without any."""
    with reader.messages() as index:
        if index is None:
            return ""
        found = index.survey()
        long = sum(len(rows) >= MOST_PARTS for _, rows in index.all_messages())
    if not found.rows and not found.forgotten:
        return ""
    days = [moment(at) for at in (found.first, found.last) if at is not None]
    more = [
        f"{number} {what}"
        for number, what in (
            (found.without_time, "without a date"),
            (found.elsewhere, "elsewhere"),
            (found.provisional, "provisional"),
            (found.tentative, "not indexed"),
            (long, "of which the end is not indexed"),
            (found.forgotten, "forgotten"),
        )
        if number
    ]
    first = " ".join([counted(found.rows, "row"), f"from {days[0]} to {days[1]}" if days else ""]).strip()
    return ", ".join([first, *more])


def moment(at: int | None) -> str:
    """Return a time in Unix seconds as it is shown; "-" for an unknown one."""
    return "-" if at is None else f"{datetime.fromtimestamp(at, calendar().zone):%Y-%m-%d %H:%M}"


def described(row: MessageRow) -> str:
    """Return when and by whom a message was sent, and its state unless it is in the conversation."""
    state = f" ({STATES[row.state]})" if row.state in STATES and row.state != ON_PATH else ""
    return f"{moment(row.said)} {row.speaker or row.role.capitalize()}{state}"


def beginning(text: str) -> str:
    """Return how a text begins, in one line."""
    line = " / ".join(text.split("\n"))
    return line if len(line) <= SHOWN else f"{line[:SHOWN]} …"


def search(
    reader: Reader,
    index: MessageIndex,
    question: str,
    tokens: int = Recall.tokens,
    sources: Collection[str] = (MESSAGES, FACTS),
) -> Recalled:
    """Return what the node Recall finds, with the settings that it has by default unless others are given."""
    with contextlib.ExitStack() as opened:
        facts = opened.enter_context(reader.memories()) if reader.discussion.has_memories else None
        if facts is not None:
            facts.leave_out(chunks_elsewhere(reader.state, facts))
        return recall(index, Recall(question, tokens, sources, calendar=calendar()), None, facts)


def result_as_json(found: Found) -> dict[str, Any]:
    """A result for other programs: ``said`` in ISO 8601; ``state`` of a message as ``STATES`` names it."""
    row = found.row
    said = row.said if row is not None else found.fact.said if found.fact is not None else None
    return {
        "score": round(found.score, 4),
        "source": MESSAGES if row is not None else FACTS,
        "state": STATES[row.state] if row is not None else None,
        "id": row.id if row is not None else found.fact.id if found.fact is not None else None,
        "role": row.role if row is not None else None,
        "speaker": row.speaker if row is not None else None,
        "said": None if said is None else datetime.fromtimestamp(said, calendar().zone).astimezone().isoformat(),
        "text": found.text,
        "line": found.line,
    }
