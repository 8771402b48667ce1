"""Prints how long a keyword search takes in a large memory: ``python benchmarks/memory_search.py [MEMORIES]``.

It makes a database of 100,000 memories, or as many as are asked for, in a temporary folder. One line per kind of
search: median and maximum in milliseconds of 9 tries, each on a connection of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware.utilities.discussions.vector_memory import VectorMemories, keyword_search
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, cipher_for, derive_encryption_key
from Middleware.utilities.vector_math_utils import numpy_or_none, vector_to_blob

WORDS = [f"word{number}" for number in range(5000)]
SEARCHES = {
    "1 rare phrase": ["rare3"],
    "50 phrases, each in 0.5% of the memories": WORDS[:50],
    "1 word in every memory": ["common"],
    "a rare phrase and 1 word in every memory": ["rare3", "common"],
    "60 phrases in every memory": ["the", "story", "common", "of", "the story", "story of", "of common"]
    + [f"every {letter} every" for letter in "abcdefghij"]
    + [f"every {letter}" for letter in "abcdefghijklm"]
    + [f"every{number}" for number in range(30)],
    "5 words in every memory": [f"every{number}" for number in range(5)],
    "50 phrases in 0.5% and 10 words in every memory": WORDS[:50] + [f"every{number}" for number in range(10)],
    "rare3 and 59 phrases in none, whose words are in every": ["rare3"]
    + [f"every{number % 30} the every{number * 7 % 30} of" for number in range(59)],
}
EVERY = (
    "the story of common "
    + " ".join(f"every {letter}" for letter in "abcdefghijklm")
    + " "
    + " ".join(f"every{number}" for number in range(30))
)
LIMITS = {"MOST_MATCHES": [4_000, 500_000, 10**9], "MOST_COMMON": [1, 10, 25], "NEWEST": [100, 1_000, 10_000]}
DIMENSIONS = 384


def main(memories: int = 100_000) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "vector_memory.db")
        make(path, memories)
        print(f"{memories} memories, {os.path.getsize(path) / 1e6:.0f} MB")
        for name, terms in SEARCHES.items():
            for recency in (False, True):
                report(
                    name + (", recency" if recency else ""),
                    lambda terms=terms, recency=recency: search(path, terms, recency),
                )
        limits(path)
        embed(path, memories)
        report(
            f"vectors of {DIMENSIONS} numbers, {'numpy' if numpy_or_none() else 'pure Python'}",
            lambda: nearest(path),
            first="unpacking them",
        )
        encrypt(path, memories)


def make(path: str, memories: int, cipher: Cipher = NO_CIPHER) -> None:
    chance = random.Random(1)
    with VectorMemories(path, "benchmark", write=True, cipher=cipher) as database:
        for start in range(0, memories, 1000):
            database.store_chunk([memory(chance, number) for number in range(start, min(start + 1000, memories))], None)
        database._db.executemany(
            "UPDATE memories SET date_added = ? WHERE id = ?",
            (
                ((datetime.now(UTC) - timedelta(minutes=10 * number)).isoformat(), memories - number)
                for number in range(memories)
            ),
        )


def memory(chance: random.Random, number: int) -> tuple[str, str]:
    text = f"{EVERY} {' '.join(chance.choices(WORDS, k=25))}"
    if number % 150 == 0:
        text += f" rare{number // 150 % 10}"
    return text, json.dumps(
        {
            "title": text[:40],
            "summary": text,
            "entities": [chance.choice(WORDS)],
            "key_phrases": chance.choices(WORDS, k=2),
        }
    )


def search(path: str, terms: list[str], recency: bool, cipher: Cipher = NO_CIPHER) -> None:
    with VectorMemories(path, "benchmark", cipher=cipher) as database:
        assert database.keyword_search(";".join(terms), 15, None, recency)


def limits(path: str) -> None:
    """Print what each constant of ``keyword_search`` decides: other values beside its own, without the CPU limit."""
    with settings(CPU_SECONDS=1e9, WALL_SECONDS=1e9):
        for name, values in LIMITS.items():
            for value in values:
                with settings(**{name: value}):
                    report(
                        f"60 phrases in every memory, {name} {value}",
                        lambda: search(path, SEARCHES["60 phrases in every memory"], False),
                        tries=3,
                    )


@contextlib.contextmanager
def settings(**values: float) -> Iterator[None]:
    before = {name: getattr(keyword_search, name) for name in values}
    vars(keyword_search).update(values)
    try:
        yield
    finally:
        vars(keyword_search).update(before)


def embed(path: str, memories: int) -> None:
    chance = random.Random(2)
    with VectorMemories(path, "benchmark", write=True) as database:
        database.add_embeddings(
            [
                (number + 1, vector_to_blob(chance.uniform(-1, 1) for _ in range(DIMENSIONS)))
                for number in range(memories)
            ],
            "model",
        )
    time.sleep(0.1)


def nearest(path: str) -> None:
    chance = random.Random(3)
    with VectorMemories(path, "benchmark") as database:
        assert database.nearest([chance.uniform(-1, 1) for _ in range(DIMENSIONS)], "model", 5)


def encrypt(path: str, memories: int) -> None:
    cipher = cipher_for(derive_encryption_key("benchmark"))
    started = time.perf_counter()
    with VectorMemories(path, "benchmark", write=True, cipher=cipher):
        pass
    print(f"{'encrypting the database':62} {time.perf_counter() - started:6.1f} s")
    time.sleep(0.1)
    report("50 phrases, encrypted", lambda: search(path, WORDS[:50], False, cipher), first="making the index")


def report(name: str, action: object, tries: int = 9, first: str = "") -> None:
    assert callable(action)
    if first:
        started = time.perf_counter()
        action()
        print(f"{name + ': ' + first:62} {(time.perf_counter() - started) * 1000:6.0f} ms")
    times = []
    for _ in range(tries):
        started = time.perf_counter()
        action()
        times.append((time.perf_counter() - started) * 1000)
    print(f"{name:62} median {statistics.median(times):6.1f} ms, maximum {max(times):6.1f} ms", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
