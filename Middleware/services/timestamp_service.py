"""The times of the messages of a conversation, by the hash of their content.

Clients send no times, so a message gets one when it is first received. The time of an answer is stored under a
placeholder when the answer is requested, and assigned to the answer when its text is known: at its end, or when the
client sends it back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from Middleware.exceptions import UnreadableDataError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.messages import Message
from Middleware.models.request_context import RequestContext
from Middleware.utilities.answers.text_cleaner import find_generation_prompt
from Middleware.utilities.datetime_utils import (
    add_seconds_to_timestamp,
    format_datetime_to_ts,
    format_relative_time_ago,
    format_relative_time_string,
    parse_timestamp_string,
)
from Middleware.utilities.discussion_state import DiscussionState
from Middleware.utilities.discussions.discussion_files import (
    change_object,
    if_readable,
    logged_as_conflict,
    read_object,
)
from Middleware.utilities.discussions.discussion_folder import stored_discussion
from Middleware.utilities.hashing_utils import hash_content, hash_messages, hash_single_message
from Middleware.utilities.said_times import Calendar, Said, Traces, said_times
from Middleware.utilities.text_utils import escape_braces

logger = logging.getLogger(__name__)

Times = dict[str, Any]

FILE_NAME = "timestamps.json"
PLACEHOLDER = "PLACEHOLDER_TIMESTAMP_HASH_0000"
SYSTEM_ROLES = frozenset({"system", "systemmes"})


class TimestampService:
    """Reads and writes ``timestamps.json``; does nothing without a discussion id. Messages are in escaped form.

    A file that cannot be read is logged and not changed; then no times are known or stored. A full disk is logged too.
    Raises DataKeyError for a file of another API key, and EarlyTerminationException if ``scope`` is cancelled while
    another request holds the lock of the file.
    """

    def __init__(
        self,
        key_hash: str | None = None,
        encryption_key: bytes | None = None,
        now: Callable[[], datetime] = datetime.now,
        scope: CancelScope | None = None,
    ) -> None:
        self._key_hash, self._encryption_key, self._now, self._scope = key_hash, encryption_key, now, scope

    # -- writing ---------------------------------------------------------------------------------------------------
    def resolve_and_track_history(self, messages: Sequence[Message], discussion_id: str | None) -> None:
        """Give a time to every message without one: now for the newest, one second less for each older one."""

        def change(times: Times) -> None:
            _resolve_placeholder(messages, times)
            newer, seconds = [format_datetime_to_ts(self._now())], 0
            for key in hash_messages(_newest_first(messages)):
                known = times.get(key)
                if known is None:
                    times[key] = known = add_seconds_to_timestamp(_newest_time(newer), seconds)
                newer.append(known)
                seconds = -1

        self._change(discussion_id, change)

    def save_placeholder_timestamp(self, discussion_id: str | None) -> None:
        """Store the current time for the answer that is about to be generated."""

        def change(times: Times) -> None:
            times[PLACEHOLDER] = format_datetime_to_ts(self._now())

        self._change(discussion_id, change)

    def commit_assistant_response(self, discussion_id: str | None, content: str) -> None:
        """Assign the stored time, else the current time, to an answer as the client will send it back."""

        def change(times: Times) -> None:
            noted = times.pop(PLACEHOLDER, None)
            if not content:
                return
            if noted is None:
                logger.warning(
                    "Discussion %s: no time was stored for an answer; it gets the current time", discussion_id
                )
            times[hash_content(escape_braces(content))] = noted or format_datetime_to_ts(self._now())

        self._change(discussion_id, change)

    def save_specific_timestamp(self, discussion_id: str | None, content: str, stamp: str) -> None:
        """Set the time of a message, replacing a stored one."""

        def change(times: Times) -> None:
            times[hash_content(escape_braces(content))] = stamp

        self._change(discussion_id, change)

    # -- reading ---------------------------------------------------------------------------------------------------
    def format_messages_with_timestamps(
        self, messages: Sequence[Message], discussion_id: str | None, use_relative_time: bool = False
    ) -> list[Message]:
        """Return copies of the messages, prefixed with their times if known. Messages without text get none."""
        copies = [message.copy() for message in messages]
        times = self._load(discussion_id) if discussion_id else {}
        if times:
            now = self._now()
            stamped = list(_newest_first(copies))
            for message, key in zip(stamped, hash_messages(stamped), strict=True):
                stamp = times.get(key)
                text = _shown(stamp, now, use_relative_time) if isinstance(stamp, str) else ""
                content = message.get("content")
                # A front-end may send a message back with its time.
                if text and isinstance(content, str) and not content.startswith(text):
                    message["content"] = f"{text} {content}"
        return copies

    def said(
        self,
        request: RequestContext,
        discussion_id: str | None,
        history: Mapping[int, Message],
        stamps: Mapping[int, str],
        calendar: Calendar,
        after: int | None = None,
    ) -> dict[int, Said]:
        """Return when the messages of a request were sent; see ``said_times``.

        Args:
            history: messages of the request, in order, each by a number of the caller.
            stamps: the time stamps before their texts, by the same numbers.
            after: the time of the message before them in the conversation, in Unix seconds, if that is known.
        """
        times = self._load(discussion_id) if discussion_id and calendar.dates else {}
        stored = dict(enumerate(hash_messages(history.values()))) if times else {}
        fields = request.said
        traces = Traces(
            {place: fields[id(one)][1] for place, one in enumerate(history.values()) if id(one) in fields},
            {place: stamp for place, index in enumerate(history) if (stamp := stamps.get(index))},
            {place: stamp for place, key in stored.items() if isinstance(stamp := times.get(key), str)},
        )
        arrival = self._now().timestamp() - (time.monotonic() - request.started)
        roles = [str(message.get("role")) for message in history.values()]
        return dict(zip(history, said_times(roles, traces, arrival, calendar, after), strict=True))

    def get_time_context_summary(self, discussion_id: str | None) -> str:
        """Return a sentence with the times of the first and the last message; empty if no time is known."""
        times = self._load(discussion_id) if discussion_id else {}
        stamps = (stamp for key, stamp in times.items() if key != PLACEHOLDER)
        moments = {moment for stamp in stamps if (moment := parse_timestamp_string(stamp))}
        if not moments:
            return ""
        now = self._now()
        began = format_relative_time_string(min(moments), now)
        if len(moments) == 1:
            return f"[Time Context: The conversation started {began} ago.]"
        latest = format_relative_time_string(max(moments), now)
        return f"[Time Context: This conversation started {began} ago. The most recent message was sent {latest} ago.]"

    # -- the file --------------------------------------------------------------------------------------------------
    def _change(self, discussion_id: str | None, change: Callable[[Times], None]) -> None:
        """Call ``change`` with the stored times, and save them if it changed them."""
        if not discussion_id:
            return

        def changed(times: Times) -> Times:
            change(times)
            return times

        try:
            change_object(self._state(discussion_id), FILE_NAME, changed, self._scope)
        except UnreadableDataError as error:
            logger.error("%s", error)
        except OSError as error:
            if not logged_as_conflict(error):
                logger.error(
                    "The times of messages in discussion %s were not saved: %s",
                    discussion_id,
                    error.strerror or type(error).__name__,
                )

    def _load(self, discussion_id: str) -> Times:
        state = self._state(discussion_id)
        return if_readable(lambda: read_object(state, FILE_NAME), {})

    def _state(self, discussion_id: str) -> DiscussionState:
        return stored_discussion(discussion_id, self._key_hash, self._encryption_key)


def _newest_first(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages that have times: no system messages, and no open assistant prefix at the end."""
    newest = len(messages) - 1
    for index in range(newest, -1, -1):
        message = messages[index]
        if str(message.get("role")).lower() in SYSTEM_ROLES:
            continue
        if index < newest or not find_generation_prompt(message.get("content")):
            yield message


def _newest_time(stamps: list[Any]) -> str:
    """Return the last valid time in ``stamps``, and remove those after it. The first one is always valid."""
    while len(stamps) > 1 and not parse_timestamp_string(stamps[-1]):
        stamps.pop()
    return str(stamps[-1])


def _resolve_placeholder(messages: Sequence[Message], times: Times) -> None:
    """Assign the stored time to the newest answer if that has none; it is removed in any case."""
    noted = times.pop(PLACEHOLDER, None)
    answer = next((message for message in _newest_first(messages) if message.get("role") == "assistant"), None)
    if noted is not None and answer is not None:
        times.setdefault(hash_single_message(answer), noted)


def _shown(stamp: str, now: datetime, relative: bool) -> str:
    return format_relative_time_ago(stamp, now) if relative else stamp
