"""The live stream: what has changed of the runs that a viewer may see.

The stream is not notified: twice a second it looks at the runs in memory for what has a higher number than what
it has sent. A request pays nothing for it, and without a viewer nothing runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

from Middleware.addons.console.calls import Call, ConsoleError, Event, Events, Role, Routes
from Middleware.addons.console.run_routes import shortened
from Middleware.addons.console.streams import HEARTBEAT_SECONDS
from Middleware.api.running.disconnect_watcher import probe_for
from Middleware.api.running.running_requests import running_requests
from Middleware.common.instance_global_variables import INSTANCE_ID
from Middleware.models.process import process

if TYPE_CHECKING:
    from Middleware.addons.records.model import RunDocument

# Each occupies a thread of the server, from those that requests at the gate leave free.
MAX_STREAMS = 16
RETRY_SECONDS = 3
LIFETIME_SECONDS = 600.0
LOOK_SECONDS = 0.5


class LiveStreams:
    """Counts the open streams of the process."""

    def __init__(self) -> None:
        self._open = 0
        self._lock = threading.Lock()

    def enter(self) -> bool:
        """Take a place; return False if all are taken."""
        with self._lock:
            if self._open >= MAX_STREAMS:
                return False
            self._open += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._open -= 1


def register(routes: Routes) -> None:
    routes.add("GET", "events", Role.OWN, events, query=("after", "wait", "run"))


def events(call: Call) -> object:
    after, wait = _number(call, "after"), call.query.get("wait", "1")
    if wait not in ("0", "1"):
        raise ConsoleError(400, "'wait' is 0 or 1.", where="wait")
    feed = Feed(call, after)
    if wait == "0":
        found = list(feed.news())
        return {
            "events": [{"n": event.number, "event": event.name, "data": event.value} for event in found],
            "next": feed.number,
        }
    if not process().one(LiveStreams).enter():
        raise ConsoleError(
            503,
            f"There are {MAX_STREAMS} open live streams already. Ask with wait=0 in the meantime.",
            headers=(("Retry-After", str(RETRY_SECONDS)),),
        )
    return Events(LiveStream(feed, call))


def _number(call: Call, name: str) -> int | None:
    text = call.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ConsoleError(400, f"'{name}' is the number of an event.", where=name)
    return int(text)


class Feed:
    """What has changed since an event.

    Attributes:
        number: that of the last event that was looked for.
    """

    def __init__(self, call: Call, after: int | None) -> None:
        self._ring, self._archive = call.records.ring, call.records.archive
        self._viewer = call.viewer
        self._run = call.query.get("run")
        now = next(self._ring.counter)
        # A number of an earlier process, or of one whose clock was ahead: the page has to load everything again. With
        # 0, it asks for everything that there is.
        self._begun_again = after is not None and after > 0 and not self._ring.first <= after <= now
        self.number = now if after is None or self._begun_again else after
        self._said_hello = False
        # The tokens last sent, by run and span.
        self._tokens: dict[tuple[str, int], int] = {}

    def news(self) -> Iterator[Event]:
        """Yield the events since the last look, the oldest first."""
        after, upto = self.number, next(self._ring.counter)
        if not self._said_hello:
            self._said_hello = True
            yield Event("hello", {"server": INSTANCE_ID, "reset": self._begun_again}, after)
        documents = [document for document in self._ring.documents() if self._viewer.sees(document.facts)]
        changed = sorted(
            (document for document in documents if document.touched > after), key=lambda document: document.touched
        )
        for document in changed:
            yield from self._changes(document, after)
        for document in documents:
            if not document.finished and self._run in (None, document.facts["id"]):
                yield from self._live(document, upto)
        for number, run_id, owner in list(self._ring.removed):
            # A run that only had to make room in memory is still on disk.
            if number > after and self._viewer.sees(owner) and self._archive.run(run_id, self._viewer) is None:
                yield Event("gone", {"run": run_id}, number)
        self.number = upto

    def _changes(self, document: RunDocument, after: int) -> Iterator[Event]:
        run_id, reads = document.facts["id"], self._viewer.reads(document.facts)
        if self._run in (None, run_id):
            yield Event("run", {"run": self._archive.shown(document, self._viewer)}, document.touched)
        if self._run == run_id:
            yield from self._spans(document, after, reads)

    def _spans(self, document: RunDocument, after: int, reads: bool) -> Iterator[Event]:
        changed = [span for span in list(document.spans) if span.touched > after]
        if not changed:
            return
        from Middleware.addons.records.run_texts import normalised_spans

        # Only what has changed is made ready to be shown: a run may have megabytes of prompts.
        for before, span in zip(changed, normalised_spans(document, changed), strict=True):
            row = span.as_row()
            row[-1] = {name: shortened(value) for name, value in span.texts.items()} if reads else {}
            yield Event("span", {"run": document.facts["id"], "span": row}, before.touched)

    def _live(self, document: RunDocument, number: int) -> Iterator[Event]:
        run_id, lives = document.facts["id"], document.live()
        us = time.time_ns() // 1000 - document.facts["started"]
        if self._run is None:
            tokens = sum(live["tokens"] for live in lives)
            if self._is_new((run_id, 0), tokens):
                yield Event("live", {"run": run_id, "tokens": tokens, "us": us}, number)
            return
        reads = self._viewer.reads(document.facts)
        for live in lives:
            if self._is_new((run_id, live["span"]), live["tokens"]):
                texts = {"text": live["text"], "reasoning": live["reasoning"]} if reads else {}
                yield Event(
                    "live", {"run": run_id, "span": live["span"], "tokens": live["tokens"], "us": us, **texts}, number
                )

    def _is_new(self, key: tuple[str, int], tokens: int) -> bool:
        known, self._tokens[key] = self._tokens.get(key, 0), tokens
        return known != tokens


class LiveStream:
    """The events of a feed, until the viewer has gone or signed out, the server ends, or ten minutes are over."""

    def __init__(self, feed: Feed, call: Call) -> None:
        self._feed = feed
        self._call = call
        self._has_left = probe_for(call.environ)
        self._body = self._events()
        self._left = False
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Event | None]:
        return self._body

    def close(self) -> None:
        """Give the place back, also of a stream that was never read."""
        with self._lock:
            left, self._left = self._left, True
        if not left:
            process().one(LiveStreams).leave()
        self._body.close()

    def _events(self) -> Generator[Event | None, None, None]:
        began = written = time.monotonic()
        while True:
            for event in self._feed.news():
                yield event
                written = time.monotonic()
            if time.monotonic() - written >= HEARTBEAT_SECONDS:
                yield None
                written = time.monotonic()
            time.sleep(LOOK_SECONDS)
            if self._is_over(time.monotonic() - began):
                return

    def _is_over(self, age: float) -> bool:
        if age >= LIFETIME_SECONDS or running_requests().stopping or (self._has_left is not None and self._has_left()):
            return True
        environ = self._call.environ
        try:
            self._call.application.sessions.of_call(
                environ.get("REMOTE_ADDR", ""), environ.get("HTTP_AUTHORIZATION"), False
            )
        except ConsoleError:
            return True
        return False
