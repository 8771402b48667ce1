"""What a real ``llama-server`` had in its cache, call by call, for conversations that are the same each time.

    python -m Tests.benchmarks.recorded_cache LLAMA_SERVER MODEL

records it anew in ``recorded_cache.json``, for ``test_prefix_cache.py`` to compare the simulation with. The model may
be a random one with a real vocabulary (``Tests/real/tiny_gguf.py``).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.cache_backend import Messages, RealCache, Words
from benchmarks.prefix_cache import caches

FILE = Path(__file__).with_suffix(".json")
TURNS = 8

Call = tuple[Messages, str]


def scenarios() -> Mapping[str, list[Call]]:
    """The calls of each conversation, in order: the messages and the answer."""
    return {
        "chat": list(_chat(Words(1))),
        "swipe and edit": list(_swipe_and_edit(Words(2))),
        "two nodes": list(_two_nodes(Words(3))),
        "notes at the top": list(_notes_at_the_top(Words(4))),
        "sliding window": list(_sliding_window(Words(5))),
        "many conversations": list(_many(Words(6))),
        "router": list(_router(Words(7))),
    }


def _message(role: str, content: str) -> Mapping[str, str]:
    return {"role": role, "content": content}


def _turns(words: Words, system: str, answers: int = TURNS) -> Iterator[Call]:
    """The calls of a plain conversation."""
    messages = [_message("system", system)]
    for _ in range(answers):
        messages = [*messages, _message("user", words.sentences(80))]
        answer = words.sentences()
        yield messages, answer
        messages = [*messages, _message("assistant", answer)]


def _chat(words: Words) -> Iterator[Call]:
    yield from _turns(words, words.sentences(500))


def _swipe_and_edit(words: Words) -> Iterator[Call]:
    calls = list(_turns(words, words.sentences(500)))
    yield from calls
    # The same once more, then with another message in the middle.
    yield calls[-1]
    messages = list(calls[-1][0])
    messages[5] = _message("user", words.sentences(60))
    yield messages, words.sentences()


def _two_nodes(words: Words) -> Iterator[Call]:
    helper = words.sentences(200)
    for messages, answer in _turns(words, words.sentences(500)):
        yield [_message("system", helper), messages[-1]], words.sentences(40)
        yield messages, answer


def _notes_at_the_top(words: Words) -> Iterator[Call]:
    system = words.sentences(300)
    for messages, answer in _turns(words, ""):
        yield [_message("system", system + "\n\n" + words.sentences(100)), *messages[1:]], answer


def _sliding_window(words: Words) -> Iterator[Call]:
    for messages, answer in _turns(words, words.sentences(300)):
        yield [messages[0], *messages[1:][-5:]], answer


def _many(words: Words) -> Iterator[Call]:
    """Three conversations in turn, of which two begin alike."""
    shared = words.sentences(300)
    for calls in zip(_turns(words, shared), _turns(words, words.sentences(300)), _turns(words, shared), strict=True):
        yield from calls


def _router(words: Words) -> Iterator[Call]:
    """A beginning that is shared by two small steps, and the conversation itself."""
    rules = words.sentences(250)
    for messages, answer in _turns(words, words.sentences(700)):
        said = words.sentences(30)
        yield [_message("system", rules), *messages[1:][-3:]], said
        yield (
            [_message("system", rules), *messages[1:][-3:-1], _message("user", f"{messages[-1]['content']}\n\n{said}")],
            "CODING",
        )
        yield messages, answer


def record(binary: str, model: str) -> None:
    """Let a server of each setting serve the calls, and write down the prompts' tokens and the cached ones."""
    found: dict[str, dict[str, list[list[int]]]] = {}
    for scenario, calls in scenarios().items():
        with tempfile.TemporaryDirectory() as folder, caches((binary, model), Path(folder)) as made:
            for name, cache in made.items():
                assert isinstance(cache, RealCache)
                found.setdefault(scenario, {})[name] = [[*cache.serve(*call)] for call in calls]
    scenario_texts = (
        f"    {json.dumps(scenario)}: {{\n"
        + ",\n".join(f"        {json.dumps(name)}: {json.dumps(reads)}" for name, reads in settings.items())
        + "}"
        for scenario, settings in found.items()
    )
    FILE.write_text("{\n" + ",\n".join(scenario_texts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record(*sys.argv[1:3])
