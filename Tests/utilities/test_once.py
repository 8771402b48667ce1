"""Reporting things once, and caches of a bounded size."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from Middleware.utilities.once import BoundedCache, Once


class TestOnce:
    def test_each_key_is_reported_once(self):
        once: Once[object] = Once()
        assert [once.first(key) for key in ("a", "b", "a", "b", "c")] == [True, True, False, False, True]
        assert once.keys() == ["a", "b", "c"]

    def test_what_was_over_is_reported_again(self):
        once: Once[object] = Once()
        assert once.over("a") == 0
        assert once.first("a") and not once.first("a")
        assert once.over("a") == 2 and once.over("a") == 0
        assert once.first("a")

    def test_occurrences_are_counted(self):
        once: Once[object] = Once()
        assert [once.count("a"), once.count("b"), once.count("a")] == [1, 1, 2]
        once.over("a")
        assert once.count("a") == 1 and once.count("b") == 2

    def test_nothing_is_reported_again_in_the_quiet_time(self):
        now = [100.0]
        once: Once[object] = Once(quiet_seconds=60.0, clock=lambda: now[0])
        assert once.first("a")
        once.over("a")
        now[0] += 59
        assert not once.first("a") and "a" not in once and once.first("b")
        assert once.over("a") == 0
        now[0] += 1
        assert once.first("a") and not once.first("a")

    def test_what_lasts_is_not_reported_again_after_the_quiet_time(self):
        now = [100.0]
        once: Once[object] = Once(quiet_seconds=60.0, clock=lambda: now[0])
        assert once.first("a")
        now[0] += 1000
        assert not once.first("a")

    def test_the_keys_used_longest_ago_are_forgotten(self):
        once: Once[object] = Once(2)
        assert once.first("a") and once.first("b") and not once.first("a")
        assert once.first("c")
        assert not once.first("a") and once.first("b")

    def test_one_key_reports_every_change(self):
        once: Once[object] = Once(1)
        assert [once.first(text) for text in ("a", "a", "b", "a")] == [True, False, True, True]

    def test_clear_forgets_reports_too(self):
        once: Once[object] = Once(quiet_seconds=60.0)
        once.first("a")
        once.clear()
        assert once.keys() == [] and once.first("a")

    def test_one_of_many_threads_is_the_first(self):
        once, start = Once[int](), threading.Barrier(8)

        def report(_: int) -> int:
            start.wait()
            return sum(once.first(key) for key in range(200))

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(report, range(8))) == 200

    def test_a_finalizer_may_ask_meanwhile(self):
        once: Once[object] = Once(1)

        class Key:
            def __del__(self) -> None:
                asked.append(once.first("finalizer"))

        asked: list[bool] = []
        once.first(Key())
        once.first("other")  # drops the key, with the lock held
        gc.collect()
        assert asked == [True]


class TestBoundedCache:
    def test_a_value_is_found_again(self):
        cache: BoundedCache[str, int] = BoundedCache(3)
        cache.put("a", 1)
        cache.put("a", 2)
        assert cache.get("a") == 2 and cache.get("b") is None and "a" in cache and len(cache.keys()) == 1

    def test_the_entry_used_longest_ago_goes(self):
        cache: BoundedCache[str, int] = BoundedCache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        cache.get("a")
        cache.put("c", 3)
        assert cache.keys() == ["a", "c"]

    def test_the_weight_is_bounded(self):
        cache: BoundedCache[str, str] = BoundedCache(10, weigh=len, max_weight=10)
        cache.put("a", "x" * 4)
        cache.put("b", "x" * 4)
        cache.put("a", "x" * 6)  # replaced, not added
        assert cache.keys() == ["b", "a"]
        cache.put("c", "x")
        assert cache.keys() == ["a", "c"]
        cache.put("d", "x" * 11)
        assert cache.keys() == []
        cache.put("e", "x" * 10)
        assert cache.keys() == ["e"]

    def test_removed_and_cleared_values_weigh_nothing(self):
        cache: BoundedCache[str, str] = BoundedCache(10, weigh=len, max_weight=4)
        cache.put("a", "xxxx")
        assert cache.pop("a") == "xxxx" and cache.pop("a") is None
        cache.put("b", "xxxx")
        cache.clear()
        cache.put("c", "xxxx")
        assert cache.keys() == ["c"]

    @pytest.mark.parametrize("most", [1, 5])
    def test_many_threads_keep_the_limit(self, most: int):
        cache: BoundedCache[int, str] = BoundedCache(most, weigh=len, max_weight=most * 3)

        def work(offset: int) -> None:
            for number in range(500):
                cache.put((number + offset) % 20, "x" * (number % 4))
                cache.get(number % 7)
                cache.pop(number % 11)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert len(cache.keys()) <= most
        for key in cache.keys():
            cache.pop(key)
        cache.put(0, "x" * most * 3)
        assert len(cache.keys()) == 1  # nothing is left over of earlier weights
