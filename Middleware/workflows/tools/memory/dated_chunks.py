"""The dates in the texts that become memories: a line before each day, and the meaning of words such as yesterday."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, cast

from Middleware.models.messages import Message
from Middleware.services.memory.memory_settings import MemorySettings
from Middleware.services.memory.memory_store import SAID, SAID_FROM
from Middleware.services.timestamp_service import TimestampService
from Middleware.utilities.conversations.message_keys import recognised
from Middleware.utilities.relative_dates import language_of_message, resolve, spelled, spelled_weekday
from Middleware.utilities.said_times import Calendar, calendar_of
from Middleware.utilities.text_utils import escape_braces, message_text, restore_braces
from Middleware.workflows.models.execution_context import ExecutionContext

if TYPE_CHECKING:
    from Middleware.services.memory.remembering import Remembered

# Messages before one that say in which language it is.
_BEFORE = 2


class Dates:
    """When the messages of a pass were sent.

    Args:
        messages: all of them, in escaped form.
        times: for each, Unix seconds; None if that is unknown.
    """

    def __init__(self, messages: Sequence[Message], times: Sequence[int | None], calendar: Calendar) -> None:
        self._messages, self._times, self._calendar = messages, times, calendar

    def text(self, start: int, stop: int, shown: Callable[[Message], str]) -> str:
        """Return the messages from ``start`` up to ``stop``, each as ``shown``, with their dates."""
        lines: list[str] = []
        last = None
        for index in range(start, stop):
            text, day = shown(self._messages[index]), self._calendar.day(self._times[index])
            if day is not None:
                language = self._language(index)
                if day != last:
                    lines.append(f"--- {spelled_weekday(day, language)}, {spelled(day, language)} ---")
                last = day
                # Braces are restored, because lines of code are known by them.
                text = escape_braces(resolve(restore_braces(text), day, language))
            lines.append(text)
        return "\n".join(lines)

    def _language(self, index: int) -> str:
        near = self._messages[max(0, index - _BEFORE) : index + 1]
        return language_of_message(message_text(message) for message in near)

    def span(self, start: int, stop: int) -> Mapping[str, str]:
        """Return ``said`` and ``said_from`` of a memory of these messages; nothing if no time is known."""
        known = [at for at in self._times[start:stop] if at is not None]
        return {SAID: self._iso(max(known)), SAID_FROM: self._iso(min(known))} if known else {}

    def _iso(self, at: int) -> str:
        return datetime.fromtimestamp(at, self._calendar.zone).astimezone(self._calendar.zone).isoformat()


def dates_of(context: ExecutionContext, settings: MemorySettings, messages: Sequence[Message]) -> Dates | None:
    """Return the dates of the messages of a pass; None if the settings want none."""
    calendar = calendar_of(settings.time_zone)
    if not settings.dates or not calendar.dates:
        return None
    service = TimestampService(context.api_key_hash, context.encryption_key, scope=context.request.cancel_scope)
    parts = recognised(messages).parts
    stamps = {index: parts(message)[0] for index, message in enumerate(messages)}
    said = service.said(context.request, context.discussion_id, dict(enumerate(messages)), stamps, calendar)
    times = [said[index].at for index in range(len(messages))]
    remembered = cast("Remembered | None", context.request.remembered)
    if remembered is not None:
        # Of most clients, it alone knows when a message came.
        stored = remembered.times_of(context.request, messages)
        times = [known if known is not None else at for known, at in zip(stored, times, strict=True)]
    return Dates(messages, times, calendar)
