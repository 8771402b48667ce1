"""The ways in which this program remembers in memory: report a thing once, keep what was used last, share the room."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, cast

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Keys often come from requests (discussion ids, paths, file names), so every memory of them has an end.
MAX_REMEMBERED = 1000


class BoundedCache(Generic[K, V]):
    """A mapping of at most ``max_entries``; the least recently used entries go first. Thread-safe.

    Args:
        max_entries: the number of entries.
        weigh: the weight of a value, such as its length.
        max_weight: the weight of all values together. A value above it is not kept.

    To remember something about an object, use its ``id`` as key and keep the object itself in the value: an object
    that is alive does not share its id with another one.
    """

    def __init__(self, max_entries: int, weigh: Callable[[V], int] | None = None, max_weight: int = 0) -> None:
        self._max_entries, self._max_weight, self._weigh = max_entries, max_weight, weigh
        # Reentrant: the garbage collector may run a finalizer here that logs, and the log asks such a cache.
        self._lock = threading.RLock()
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        """Return the value of ``key``, which counts as used now, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: K, value: V) -> None:
        """Store ``value``, used now, and drop what exceeds the limits."""
        with self._lock:
            self.pop(key)
            self._entries[key] = value
            self._weight += self._weigh(value) if self._weigh else 0
            while len(self._entries) > self._max_entries or self._weight > self._max_weight:
                self.pop(next(iter(self._entries)))

    def pop(self, key: K) -> V | None:
        """Remove ``key`` and return its value, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            value = self._entries.pop(key)
            self._weight -= self._weigh(value) if self._weigh else 0
            return value

    def keys(self) -> list[K]:
        """Return the present keys, the least recently used first."""
        with self._lock:
            return list(self._entries)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._weight = 0

    def __contains__(self, key: object) -> bool:
        return key in self._entries


class Once(Generic[K]):
    """Tell whether something happens for the first time, so that it is logged once per key. Thread-safe.

    ``over`` ends an occurrence: the next one is a first time again. The keys that were not used for longest are
    forgotten beyond ``max_keys``; with ``Once(1)`` a message is reported again after any other one.

    Args:
        max_keys: the number of keys.
        quiet_seconds: how long after a report ``first`` does not report the same key again, even if it was over in the
            meantime.
        clock: counts seconds (tests replace it).
    """

    def __init__(
        self, max_keys: int = MAX_REMEMBERED, quiet_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counts: BoundedCache[K, int] = BoundedCache(max_keys)
        self._reports: BoundedCache[K, float] = BoundedCache(max_keys)
        self._quiet_seconds, self._clock = quiet_seconds, clock
        self._lock = threading.RLock()

    def first(self, key: K) -> bool:
        """Note ``key`` and return whether the caller has to report it: neither known nor reported a moment ago."""
        with self._lock:
            # A key that is not over was reported already, so the time since then does not matter.
            if self._quiet_seconds and key not in self._counts:
                now, reported = self._clock(), self._reports.get(key)
                if reported is not None and now - reported < self._quiet_seconds:
                    return False
                self._reports.put(key, now)
            return self.count(key) == 1

    def count(self, key: K) -> int:
        """Note ``key`` and return how often it was noted since it was over; 1 for the first time."""
        with self._lock:
            count = (self._counts.get(key) or 0) + 1
            self._counts.put(key, count)
            return count

    def noted(self, key: K) -> int:
        """Return how often ``key`` was noted since it was over."""
        return self._counts.get(key) or 0

    def over(self, key: K) -> int:
        """End ``key``. Return how often it was noted, so that only the end of something reported is reported."""
        return self._counts.pop(key) or 0

    def keys(self) -> list[K]:
        """Return the keys that were noted and are not over."""
        return self._counts.keys()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._counts.clear()
            self._reports.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._counts


class OwnedCache(Generic[K, V]):
    """A mapping that several owners share: when it is full, the one that holds most gives its least used entry.

    The caller's lock protects it.

    Args:
        max_entries: the number of entries.
        max_weight: the weight of all values together. A single value may be heavier.
        weigh: the weight of a value.
        owner: whose a value is.
    """

    def __init__(
        self, max_entries: int, max_weight: int, weigh: Callable[[V], int], owner: Callable[[V], Hashable]
    ) -> None:
        self._max_entries, self._max_weight, self._weigh, self._owner = max_entries, max_weight, weigh, owner
        # The least recently used first.
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._counts: Counter[Hashable] = Counter()
        self._weights: Counter[Hashable] = Counter()

    def get(self, key: K) -> V | None:
        """Return the value of ``key``, or None; it does not count as used."""
        return self._entries.get(key)

    def use(self, key: K) -> None:
        """Note that the value of ``key`` is used now."""
        self._entries.move_to_end(key)

    def items(self) -> list[tuple[K, V]]:
        """Return the entries, the least recently used first."""
        return list(self._entries.items())

    @property
    def weight(self) -> int:
        """The weight of all values together."""
        return self._weights.total()

    def put(self, key: K, value: V) -> list[V]:
        """Store ``value``, used now; return the values that leave for it."""
        self.pop(key)
        self._entries[key] = value
        self._add(value, 1)
        dropped: list[V] = []
        while len(self._entries) > self._max_entries:
            dropped.append(self._drop_of_most(self._counts, key))
        while self.weight > self._max_weight and len(self._entries) > 1:
            dropped.append(self._drop_of_most(self._weights, key))
        return dropped

    def pop(self, key: K) -> V | None:
        """Remove ``key`` and return its value, or None."""
        value = self._entries.pop(key, None)
        if value is not None:
            self._add(value, -1)
        return value

    def _add(self, value: V, sign: int) -> None:
        owner = self._owner(value)
        self._counts[owner] += sign
        self._weights[owner] += sign * self._weigh(value)
        if not self._counts[owner]:
            del self._counts[owner], self._weights[owner]

    def _drop_of_most(self, held: Counter[Hashable], new: K) -> V:
        most = max(held.values())
        keys = (key for key, value in self._entries.items() if key != new and held[self._owner(value)] == most)
        # The owner of a single heavy value may be the one that holds most, and has just been given it.
        return cast(V, self.pop(next(keys, next(iter(self._entries)))))
