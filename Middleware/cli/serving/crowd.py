"""Which connections must go when those that do not get on take the room of others."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import IPv6Address, ip_network
from typing import Generic, TypeVar

from Middleware.cli.serving import limits
from Middleware.utilities.http.addresses import parse_address, unmapped

Connection = TypeVar("Connection")

# The part of an IPv6 address that one customer or machine has.
_IPV6_PREFIX = 64


class Stage(Enum):
    """What is unfinished on a connection."""

    HEAD = auto()
    """The head of a request, if anything of it has come."""
    BODY = auto()
    """The body of a request."""
    ANSWER = auto()
    """An answer, of which bytes wait for the client to take them."""
    REFUSAL = auto()
    """Nothing but that the client goes on sending what was refused, and may not have read why."""


@dataclass(frozen=True, eq=False)
class Unfinished(Generic[Connection]):
    """A connection with something unfinished.

    Attributes:
        phase: changes with each request on it, and whenever the client has taken something of an answer.
    """

    connection: Connection
    host: str
    phase: object
    stage: Stage


class Crowd(Generic[Connection]):
    """Chooses the connections that must go.

    Requests at work and answers that are taken are never limited: behind a proxy all clients have one address.

    Args:
        room: the number of connections that the server has.

    Attributes:
        is_there: whether half of all connections or more were unfinished at the last look.
    """

    def __init__(self, room: int) -> None:
        self.most = room // 2
        self.is_there = False
        # Of each connection, its phase, since when it is in it, and since when it has been found each time (monotonic).
        self._known: dict[Connection, tuple[object, float, float]] = {}

    def leaving(self, found: Iterable[Unfinished[Connection]], now: float) -> list[Unfinished[Connection]]:
        """Return who must go. Call it with all unfinished connections, at least once a second."""
        all_of_them = list(found)
        known, self._known = self._known, {}
        for one in all_of_them:
            phase, since, first = known.get(one.connection, (None, now, now))
            self._known[one.connection] = one.phase, since if phase == one.phase else now, first
        # A client that reads its answer, however slowly, does not count, and neither does a short pause.
        counted = [one for one in all_of_them if one.stage is not Stage.ANSWER or self._is_late(one, now)]
        self.is_there = len(counted) >= self.most
        if not self.is_there:
            return []
        # These do not count from here on: others would have to go for them as well.
        refused = [one for one in counted if one.stage is Stage.REFUSAL]
        others = [one for one in counted if one.stage is not Stage.REFUSAL]
        late = [one for one in refused if self._age(one, now) >= limits.CROWDED_GRACE_SECONDS]
        if len(others) < self.most:
            return late
        late += [one for one in others if one.stage is Stage.HEAD and self._is_late(one, now)]
        others = [one for one in others if one.stage is not Stage.HEAD or not self._is_late(one, now)]
        return late + self._oldest(others, len(others) - self.most + 1, now)

    def _is_late(self, one: Unfinished[Connection], now: float) -> bool:
        return self._age(one, now) >= limits.CROWDED_SECONDS

    def _age(self, one: Unfinished[Connection], now: float) -> float:
        return now - self._known[one.connection][1]

    def _oldest(self, found: list[Unfinished[Connection]], count: int, now: float) -> list[Unfinished[Connection]]:
        """Return ``count`` connections, each the oldest of the peer that has the most at that moment."""
        counts = Counter(peer_of(one.host) for one in found)
        of_peer: defaultdict[str, deque[Unfinished[Connection]]] = defaultdict(deque)
        for one in sorted(found, key=lambda one: -self._age(one, now)):
            # What came with the connection may not have been read. A new request on an old one has no such time: small
            # requests one after the other, each with the beginning of the next, would keep the connection for ever.
            if now - self._known[one.connection][2] >= limits.CROWDED_GRACE_SECONDS:
                of_peer[peer_of(one.host)].append(one)
        queue = [(-counts[peer], -self._age(theirs[0], now), peer) for peer, theirs in of_peer.items()]
        heapq.heapify(queue)
        chosen: list[Unfinished[Connection]] = []
        while queue and len(chosen) < count:
            left, _, peer = heapq.heappop(queue)
            theirs = of_peer[peer]
            chosen.append(theirs.popleft())
            if theirs:
                heapq.heappush(queue, (left + 1, -self._age(theirs[0], now), peer))
        return chosen


def peer_of(host: str) -> str:
    """Return what counts as one peer: an IPv4 address, or the network of an IPv6 address."""
    address = parse_address(host.partition("%")[0])
    if address is None:
        return host
    plain = unmapped(address)
    return str(ip_network((plain, _IPV6_PREFIX), strict=False)) if isinstance(plain, IPv6Address) else str(plain)
