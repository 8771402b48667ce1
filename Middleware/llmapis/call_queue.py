"""The queue of the LLM calls of this process: which of the calls that wait is next.

Calls wait for a place on their server (``parallelCalls``) and for their model to be loaded (``swapGroup``). After that
they wait like requests for a slot of the concurrency gate (``--concurrency-level endpoint``). Calls with none of these
limits never enter the queue.
"""

from __future__ import annotations

import enum
import itertools
import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from Middleware.common import instance_global_variables as instance
from Middleware.common.fair_semaphore import Slots, Waiter
from Middleware.exceptions import EarlyTerminationException, GateTimeoutError
from Middleware.models.cancel_scope import GAVE_WAY, CancelScope
from Middleware.models.request_context import RequestContext, note_pause, note_wait

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A cancellation takes effect after this time at the latest.
SLICE_SECONDS = 0.1
# A reader often writes the next message at once, and a memory that has just begun would be thrown away.
PAUSE_SECONDS = 3.0
# Between two calls of one answer; a search on the web, for example, takes longer than most calls wait.
BETWEEN_CALLS_SECONDS = 10.0
# The next node of an answer calls within milliseconds, as a rule with the model that is loaded.
NEXT_CALL_SECONDS = 0.3
# Changing the model for work that no client waits for, and back again for the next message, costs more than it brings.
IDLE_SECONDS = 10.0
# Where messages leave no such rest, this work is done along with calls of its model, before it forces a change.
BACKGROUND_WAIT_SECONDS = 30.0
# Work that no client waits for is not put off for ever by messages that come one after the other.
LONGEST_WAIT_BEHIND = 120.0
# A call that is stopped again and again would never end.
MOST_RESTARTS = 2


class Rank(enum.IntEnum):
    """Who waits for a call; the lower goes first."""

    ANSWER = 0
    BEHIND = 1
    TASK = 2


@dataclass(frozen=True)
class Needs:
    """What a call needs so that it can run.

    Attributes:
        endpoint: the name of its endpoint, for the log.
        gate: the slots of the concurrency gate for calls; None without one.
        server: the address of the server, and ``places``, the calls that it runs side by side; 0 for any number.
        group: the ``swapGroup``; "" for none.
        model: the model of the group that the call uses.
        patience: seconds after which the call no longer waits for those that use the loaded model.
    """

    endpoint: str
    gate: Slots | None
    server: str
    places: int
    group: str = ""
    model: str = ""
    patience: float = 0.0


@dataclass
class _Group:
    """Endpoints that share memory for one model.

    Attributes:
        loaded: the model of the call that started last; None before the first.
        latest: the number of the newest call that had come when that model was loaded.
        used_at: when the last call ended.
    """

    loaded: str | None = None
    latest: int = 0
    used_at: float = 0.0


@dataclass
class _Answer:
    """A request whose answer is not complete.

    Attributes:
        servers, groups: where its calls have run.
        until: as long as more calls are expected.
        between: when its last call ended; None while it has a call.
    """

    request: RequestContext
    servers: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    until: float = 0.0
    between: float | None = None

    def holds_back(self, turn: Turn, now: float) -> bool:
        needs = turn.needs
        if now >= self.until:
            return False
        return (bool(needs.places) and needs.server in self.servers) or needs.group in self.groups

    def is_about_to_call(self, group: str, now: float) -> bool:
        return group in self.groups and self.between is not None and now - self.between < NEXT_CALL_SECONDS

    @property
    def is_over(self) -> bool:
        request = self.request
        return request.answer_complete or request.failed or request.cancel_scope.cancelled


@dataclass(frozen=True)
class _Obstacle:
    """Why a call cannot run now.

    Attributes:
        reason: for the log; "" for a wait that is not worth a line.
        key: the same for calls that wait for the same places.
        holders: the running calls that have the places, and ``all_needed``, whether all of them must end.
    """

    reason: str = ""
    key: tuple[str, str] = ("", "")
    holders: Sequence[Turn] = ()
    all_needed: bool = False


class CallQueue:
    """Decides which waiting call runs next. Thread-safe. ``clock``: monotonic, in seconds.

    Calls of answers go in the order of their arrival, then those of nodes behind an answer, then those of front-ends'
    own requests. The next call is chosen whenever one comes or ends, and, for what depends on the time, whenever the
    thread of a waiting call looks.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._newest = 0
        self._waiting: dict[Turn, None] = {}
        self._running: dict[Turn, None] = {}
        self._groups: dict[str, _Group] = {}
        self._answers: dict[str, _Answer] = {}
        self._looked_at = 0.0

    @property
    def waiting(self) -> int:
        """The number of calls that wait for their turn."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """The number of calls that run, or wait for a slot of the gate."""
        return len(self._running)

    def loaded(self, group: str) -> str | None:
        """Return the model of a group's newest call; None before the first."""
        found = self._groups.get(group)
        return found.loaded if found is not None else None

    def next_number(self) -> int:
        with self._lock:
            self._newest = next(self._numbers)
            return self._newest

    def enter(self, turn: Turn) -> None:
        """Give a call its turn at once, or put it among those that wait."""
        with self._lock:
            self._waiting[turn] = None
            answer = self._answer_of(turn)
            if answer is not None:
                answer.between = None
            stops = self._start_next()
        _stop(stops)

    def leave(self, turn: Turn) -> None:
        """Take out a call that has ended, or that waits no longer."""
        with self._lock:
            now = self.clock()
            self._waiting.pop(turn, None)
            if turn in self._running:
                del self._running[turn]
                self._note_end(turn, now)
            stops = self._start_next()
        _stop(stops)

    def look(self) -> None:
        """Start what may run now that time has passed. Many threads may ask; a look in each slice is enough."""
        with self._lock:
            now = self.clock()
            if now - self._looked_at < SLICE_SECONDS / 2:
                return
            self._looked_at = now
            stops = self._start_next()
        _stop(stops)

    # -- the decision, with the lock held ------------------------------------------------------------------------
    def _start_next(self) -> list[Callable[[], object]]:
        """Start every call that may run; return what stops calls that have to make room."""
        if not self._waiting:
            return []
        now = self.clock()
        self._answers = {key: answer for key, answer in self._answers.items() if not answer.is_over}
        view = _View(self._waiting, self._running, now)
        stops: list[Callable[[], object]] = []
        claims: Counter[tuple[str, str]] = Counter()
        for turn in view.in_order:
            obstacle = self._obstacle(turn, view, now)
            if obstacle is None:
                self._start(turn, view, now)
                continue
            turn.reason = obstacle.reason
            if turn.rank is Rank.ANSWER:
                claims[obstacle.key] += 1
                stops += _making_room(obstacle, claims[obstacle.key])
        return stops

    def _obstacle(self, turn: Turn, view: _View, now: float) -> _Obstacle | None:
        if turn.not_before > now:
            return _Obstacle()
        needs = self._needs_now(turn)
        if (
            turn.gives_precedence
            and turn not in view.overdue
            and not self._joins_loaded_model(turn, now)
            and any(answer.holds_back(turn, now) for answer in self._answers.values())
        ):
            return _Obstacle("an answer is not complete")
        on_server = view.servers[needs.server]
        if needs.places and len(on_server) >= needs.places:
            return _Obstacle(
                f"its server has {len(on_server)} of {needs.places} calls to do", ("server", needs.server), on_server
            )
        return self._other_model(turn, needs, view, now) if needs.group else None

    def _needs_now(self, turn: Turn) -> Needs:
        """Return what a call needs now: that of the endpoint named by ``swapStandIn`` while its model is loaded."""
        other = turn.stand_in
        if other is None:
            return turn.needs
        return other if self._group(other.group).loaded == other.model else turn.needs

    def _joins_loaded_model(self, turn: Turn, now: float) -> bool:
        needs = self._needs_now(turn)
        return (
            now - turn.since >= BACKGROUND_WAIT_SECONDS
            and bool(needs.group)
            and (self._group(needs.group).loaded == needs.model)
        )

    def _other_model(self, turn: Turn, needs: Needs, view: _View, now: float) -> _Obstacle | None:
        """Return what keeps a call of a swap group waiting; None if it may run, its model loaded or to be loaded."""
        group, running = self._group(needs.group), view.groups[needs.group]
        answers = view.answers[needs.group]
        others = [one for one in answers if self._needs_now(one).model != group.loaded]
        is_answer = turn in view.answers_in_all
        impatient = any(now - one.since >= one.needs.patience for one in others)
        if needs.model == group.loaded:
            # Those that came before their model was loaded all go: it was loaded for them.
            late = impatient and turn.number > group.latest
            if not (late if is_answer else others):
                return None
            return _Obstacle("another model is next", ("group", needs.group))
        reason = f"another model is loaded in '{needs.group}'"
        if running:
            return _Obstacle(reason, ("group", needs.group), running, all_needed=True)
        if group.loaded is None:
            return None
        if not is_answer:
            return _Obstacle(reason) if answers or now - group.used_at < IDLE_SECONDS else None
        if any(one.number <= group.latest or not impatient for one in answers if one not in others):
            return _Obstacle(reason)
        if not impatient and any(answer.is_about_to_call(needs.group, now) for answer in self._answers.values()):
            return _Obstacle(reason)
        return None if needs.model == others[0].needs.model else _Obstacle(reason)

    def _start(self, turn: Turn, view: _View, now: float) -> None:
        # After such a wait it runs to its end, or work behind answers would be stopped for ever.
        if turn in view.overdue or (turn.rank is Rank.BEHIND and self._joins_loaded_model(turn, now)):
            turn.stop = None
        needs = turn.needs = self._needs_now(turn)
        del self._waiting[turn]
        self._running[turn] = None
        view.start(turn)
        if needs.group:
            group = self._group(needs.group)
            if group.loaded != needs.model:
                if group.loaded is not None:
                    logger.info("Swap group '%s': from model '%s' to '%s'", needs.group, group.loaded, needs.model)
                group.loaded, group.latest = needs.model, self._newest
        if turn.rank is Rank.ANSWER and turn.request is not None and (needs.places or needs.group):
            answer = self._answers.setdefault(turn.request.request_id, _Answer(turn.request))
            answer.servers.add(needs.server)
            answer.until, answer.between = float("inf"), None
            if needs.group:
                answer.groups.add(needs.group)
        turn.started.set()

    def _note_end(self, turn: Turn, now: float) -> None:
        if turn.needs.group:
            self._group(turn.needs.group).used_at = now
        answer = self._answer_of(turn)
        if answer is not None and not any(one.request is turn.request for one in self._running):
            answer.until, answer.between = now + BETWEEN_CALLS_SECONDS, now

    def _answer_of(self, turn: Turn) -> _Answer | None:
        if turn.request is None or turn.rank is not Rank.ANSWER:
            return None
        return self._answers.get(turn.request.request_id)

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())


class _View:
    """The calls at one moment, sorted by what they wait for or have."""

    def __init__(self, waiting: Mapping[Turn, None], running: Mapping[Turn, None], now: float) -> None:
        self.servers: dict[str, list[Turn]] = defaultdict(list)
        self.groups: dict[str, list[Turn]] = defaultdict(list)
        for turn in running:
            self._add(turn)
        # What has waited for very long counts as the call of an answer.
        self.overdue = {turn for turn in waiting if now - turn.since >= LONGEST_WAIT_BEHIND}
        self.answers_in_all = {turn for turn in waiting if turn.rank is Rank.ANSWER} | self.overdue
        self.in_order = sorted(waiting, key=lambda one: (0 if one in self.overdue else one.rank, one.number))
        self.answers: dict[str, list[Turn]] = defaultdict(list)
        for turn in sorted(self.answers_in_all, key=lambda one: one.number):
            if turn.needs.group:
                self.answers[turn.needs.group].append(turn)

    def _add(self, turn: Turn) -> None:
        self.servers[turn.needs.server].append(turn)
        if turn.needs.group:
            self.groups[turn.needs.group].append(turn)

    def start(self, turn: Turn) -> None:
        self._add(turn)
        if turn.needs.group and turn in self.answers_in_all:
            self.answers[turn.needs.group].remove(turn)


def _making_room(obstacle: _Obstacle, wanted: int) -> list[Callable[[], object]]:
    """Return what stops running calls, so that ``wanted`` calls of answers get the places of ``obstacle``."""
    stopping = sum(one.is_stopping for one in obstacle.holders)
    able = [one for one in obstacle.holders if one.stop is not None and not one.is_stopping]
    if obstacle.all_needed:
        # One that runs to its end would keep the model loaded, and the others would have been stopped without effect.
        chosen = able if len(able) + stopping == len(obstacle.holders) else []
    else:
        # Those of tasks first, and of equal calls the one that has run for the shortest time.
        able.sort(key=lambda one: (one.rank, one.number), reverse=True)
        chosen = able[: max(wanted - stopping, 0)]
    for one in chosen:
        one.is_stopping = True
    return [one.stop for one in chosen if one.stop is not None]


def _stop(stops: Sequence[Callable[[], object]]) -> None:
    # Without the lock, as a stopped call leaves the queue at once.
    for stop in stops:
        stop()


class Turn:
    """One call's turn: its position in the queue, and later its place among the running calls, with a slot of the gate.

    Use ``run`` for a call that is not streamed; for a stream, iterate over ``waiting`` and call ``end`` at last.

    Attributes:
        scope: what cancels the call now; for a call that may be stopped to make room, a scope of its own.
        waited: seconds that the call has waited, all in all.
        restarts: how often it has given way.
        reason: why it waits, for the log.
        stop: stops the running call so that it can begin again; None if it must not be stopped.
        needs: what the call needs; while it runs, the endpoint in it is the one to call.
        stand_in: what it needs at the endpoint that may stand in for its own, or None.
    """

    def __init__(
        self,
        queue: CallQueue,
        needs: Needs,
        rank: Rank,
        scope: CancelScope | None,
        request: RequestContext | None = None,
        yields: bool = False,
        stand_in: Needs | None = None,
    ) -> None:
        self._queue = queue
        self.needs, self.rank, self.request = needs, rank, request
        self._own_needs, self.stand_in = needs, stand_in
        self.scope = self._outer = scope
        self._yields = yields
        self.restarts = 0
        self._token: int | None = None
        self._slot: Waiter | None = None
        self._is_offered = False
        self.started = threading.Event()
        self.since = queue.clock()
        self.number = queue.next_number()
        self.waited = 0.0
        self.reason = ""
        self._reported = False
        self.is_stopping = False
        self.stop: Callable[[], object] | None = request.give_way if request is not None else None
        answered = request.answered_at if request is not None else None
        self.not_before = answered + PAUSE_SECONDS if yields and answered is not None else 0.0

    @property
    def gives_precedence(self) -> bool:
        """Whether the call waits for the end of an answer that is being made, and not just of its calls."""
        return self.rank is not Rank.ANSWER and (self._yields or self.rank is Rank.TASK)

    # -- a call ----------------------------------------------------------------------------------------------------
    def run(self, call: Callable[[CancelScope | None], T]) -> T:
        """Wait, and return what ``call`` returns, which gets the scope that cancels it.

        A call that gives way to an answer is made again, in a later turn. Raises what ``waiting`` and ``call`` raise.
        """
        try:
            while True:
                self._make_scope()
                try:
                    for _ in self.waiting():
                        pass
                    result = call(self.scope)
                    if not self._gave_way:
                        return result
                except Exception:
                    # A call that is stopped may fail in many ways.
                    if not self._gave_way:
                        raise
                self._begin_again()
        finally:
            self.end()

    def _make_scope(self) -> None:
        """Make a scope for a call that may be stopped to make room."""
        if self._yields and self.restarts < MOST_RESTARTS:
            scope = self.scope = CancelScope()
            self.stop = partial(scope.cancel, GAVE_WAY)
            self._token = self._outer.add_callback(scope.cancel) if self._outer is not None else None

    def _withdraw(self) -> None:
        if self._is_offered and self._slot is not None and self.scope is not None:
            self._slot.withdraw(self.scope)
        self._is_offered = False
        if self._token is not None and self._outer is not None:
            self._outer.remove_callback(self._token)
        self.scope, self._token, self.is_stopping = self._outer, None, False
        if self._yields:
            self.stop = None

    @property
    def _gave_way(self) -> bool:
        own = self.scope if self.scope is not self._outer else None
        return own is not None and own.reason == GAVE_WAY and not (self._outer is not None and self._outer.cancelled)

    def _begin_again(self) -> None:
        self.restarts += 1
        logger.info(
            "Request %s: a call of endpoint '%s' behind its answer gives way to a message; it begins again "
            "when no client waits (%d of %d times)",
            self._request_id,
            self.needs.endpoint,
            self.restarts,
            MOST_RESTARTS,
        )
        self.end()
        self.started.clear()
        self.needs = self._own_needs
        self.since = self._queue.clock()

    def end(self) -> None:
        """Give the place and the slot up; a second call does nothing."""
        self._withdraw()
        self._leave()

    def _leave(self) -> None:
        self._queue.leave(self)
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.leave()

    @property
    def _request_id(self) -> str:
        return self.request.request_id if self.request is not None else "-"

    # -- waiting -----------------------------------------------------------------------------------------------------
    def waiting(self) -> Generator[None, None, None]:
        """Wait for the turn and a slot of the gate. Yields once per second, so that a stream can send heartbeats.

        Raises GateTimeoutError if a slot of the gate does not become free in time, and EarlyTerminationException when
        cancelled during the wait.
        """
        self._queue.enter(self)
        try:
            if not self._may_run(0):
                yield from self._wait()
        # A generator that is closed while it waits ends here, too.
        except BaseException:
            self._leave()
            raise
        # One that counts as an answer's runs to its end, or it would be stopped for ever.
        if self._slot is not None and self._slot.rank and self.stop is not None and self.scope is not None:
            self._is_offered = True
            self._slot.offer(self.stop)

    def _may_run(self, seconds: float) -> bool:
        """Wait for the turn, and after it for a slot of the gate; return whether the call may run."""
        if not self.started.wait(seconds):
            return False
        if self.needs.gate is None:
            return True
        # What has waited for very long counts as the call of an answer.
        rank = Rank.ANSWER if self._queue.clock() - self.since >= LONGEST_WAIT_BEHIND else self.rank
        if self._slot is None:
            self._slot = self.needs.gate.enqueue(rank)
        self._slot.rank = rank
        return self._slot.wait(seconds)

    @property
    def _ahead(self) -> int:
        """The number of the other calls that wait for the same as this one: a slot, or their turn."""
        waiting = self.needs.gate.waiting if self._slot is not None and self.needs.gate else self._queue.waiting
        return max(waiting - 1, 0)

    def _wait(self) -> Generator[None, None, None]:
        began, outcome = time.monotonic(), "cancelled"
        self._reported = False
        self._log_wait()
        if self.request is not None:
            self.request.report("wait_started", self.request, "turn", self._ahead)
        try:
            yield from self._wait_in_slices(began)
            outcome = "got"
        except GateTimeoutError:
            outcome = "late"
            raise
        finally:
            seconds = time.monotonic() - began
            self.waited += seconds
            note_wait(self.request, seconds)
            if self.request is not None:
                self.request.report("wait_ended", self.request, "turn", outcome)
        if self._reported:
            logger.info(
                "Request %s: its call of endpoint '%s' goes on after %.2f s",
                self._request_id,
                self.needs.endpoint,
                time.monotonic() - began,
            )

    def _wait_in_slices(self, began: float) -> Generator[None, None, None]:
        shown = last = began
        while not self._may_run(SLICE_SECONDS):
            now = time.monotonic()
            note_pause(self.request, last, now)
            last = now
            if self.scope is not None and self.scope.cancelled:
                raise EarlyTerminationException("cancelled while waiting for its turn")
            if self.needs.gate is not None and now - began >= instance.CONCURRENCY_TIMEOUT:
                raise GateTimeoutError(
                    f"no slot for an LLM call became free within {instance.CONCURRENCY_TIMEOUT:g} s "
                    f"(--concurrency-level endpoint, limit {instance.CONCURRENCY_LIMIT})"
                )
            self._queue.look()
            # The pause behind an answer is not worth a line, but what keeps the call waiting after it is.
            if not self._reported:
                self._log_wait()
            if now - shown >= 1.0:
                shown = now
                yield

    def _log_wait(self) -> None:
        self._reported = True
        if self._slot is not None:
            logger.info(
                "Concurrency gate: all slots are taken, a call of request %s waits, %d waiting",
                self._request_id,
                self._ahead + 1,
            )
        elif self.reason and not self.started.is_set():
            logger.info(
                "Request %s: its call of endpoint '%s' waits for its turn: %s; waiting calls: %d",
                self._request_id,
                self.needs.endpoint,
                self.reason,
                self._queue.waiting,
            )
        # A wait that is not worth a line.
        else:
            self._reported = False
