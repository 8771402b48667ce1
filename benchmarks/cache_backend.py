"""The LLM server of ``benchmarks/prefix_cache.py``: scripted answers, and prompt caches that count what would be read.

A cache is a simulation of llama.cpp's (``SimulatedCache``) or a real ``llama-server`` (``RealCache``), which is given
the prompt and then the scripted answer, so that it holds what it would hold if it had written that answer itself. One
call can be given to several caches with different settings at once.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from Tests.addons.init.llm_servers import llama_cpp
from Tests.stub_backend import (
    RecordedRequest,
    Reply,
    StubBackend,
    chat_chunk,
    chat_reply,
    page_of,
    sse_reply,
)

MODEL = "scripted"
WINDOW = 32768
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, as a chat template of llama.cpp."""

Messages = Sequence[Mapping[str, Any]]


class Read(NamedTuple):
    """The tokens of a prompt, and those of them that the cache had."""

    prompt: int
    cached: int

    @property
    def processed(self) -> int:
        return self.prompt - self.cached


class Cache(Protocol):
    def serve(self, messages: Messages, answer: str) -> Read:
        """Read the conversation and write the answer."""


# -- llama.cpp's cache, simulated --------------------------------------------------------------------------------------

# The words of common vocabularies are one token with the space before them, digits are one each, and other characters
# stand together where they are of one kind. Longer words are put together from parts, as are those without a space.
_PIECES = re.compile(r"<\|im_\w+\|>|'(?:s|t|re|ve|m|ll|d)\b| ?[^\W\d_]+|\d| ?(?:(?!<\|im_)[^\s\w]|_)+|\s+(?!\S)|\s")
WHOLE_WORD = 13
WHOLE_WITHOUT_SPACE = 7

# As llama.cpp sets them: --slot-prompt-similarity, and two constants of its code.
SIMILAR = 0.1
WORTH_KEEPING = 0.5
WORTH_TAKING = 0.25


def tokens_of(text: str) -> list[str]:
    """Return the pieces of a text, which a tokenizer with a common vocabulary would make about as many of."""
    return [piece for whole in _PIECES.findall(text) for piece in _parts(whole)]


def _parts(piece: str) -> Iterable[str]:
    whole = WHOLE_WORD if piece[0] == " " or not piece.isalpha() else WHOLE_WITHOUT_SPACE
    if len(piece) <= whole or piece.startswith("<|im_"):
        return (piece,)
    half = (len(piece) + 1) // 2
    return piece[:half], piece[half:]


def rendered(messages: Messages) -> str:
    """Return the prompt that ``TEMPLATE`` makes of a conversation."""
    turns = (f"<|im_start|>{message['role']}\n{text_of(message)}<|im_end|>\n" for message in messages)
    return "".join(turns) + "<|im_start|>assistant\n"


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content may be blocks."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(block.get("text", "") for block in content)


def common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how long the beginning is that two prompts share."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return number
    return min(len(first), len(second))


@dataclass
class _Slot:
    tokens: list[str] = field(default_factory=list)
    last_used: int = -1


class SimulatedCache:
    """The slots and the host cache of llama.cpp's server, which keeps one prompt in each slot.

    Calls are served one after another, so that every slot is idle when one comes.

    Args:
        slots: as ``-np`` sets them, each with a context window of its own.
        host_cache: whether there is a cache in the computer's memory (``--cache-ram``), without a limit here.
    """

    def __init__(self, slots: int = 1, host_cache: bool = True) -> None:
        self._slots = [_Slot() for _ in range(slots)]
        self._host_cache = host_cache
        self._kept: list[list[str]] = []
        self._clock = itertools.count()

    def serve(self, messages: Messages, answer: str) -> Read:
        return self.serve_tokens(tokens_of(rendered(messages)), tokens_of(answer))

    def serve_tokens(self, prompt: list[str], answer: list[str]) -> Read:
        slot = self._choose(prompt)
        # The server computes at least the last token, of which the first one of the answer follows.
        cached = min(common(slot.tokens, prompt), len(prompt) - 1)
        slot.tokens = prompt + answer
        slot.last_used = next(self._clock)
        return Read(len(prompt), cached)

    def _choose(self, prompt: list[str]) -> _Slot:
        shared, slot = max(((common(slot.tokens, prompt), slot) for slot in self._slots), key=lambda found: found[0])
        similar = shared > SIMILAR * len(prompt)
        if not similar:
            # Of slots that were never used, the server takes the last.
            slot = min(reversed(self._slots), key=lambda slot: slot.last_used)
        if self._host_cache:
            if not similar or shared < WORTH_KEEPING * len(slot.tokens):
                self._put_aside(slot)
                self._take_out(slot, prompt)
            for other in self._slots:
                if other is not slot:
                    self._put_aside(other)
        return slot

    def _put_aside(self, slot: _Slot) -> None:
        """Copy a slot's prompt into the host cache."""
        tokens = slot.tokens
        if not tokens or any(common(kept, tokens) == len(tokens) for kept in self._kept):
            return
        self._kept = [kept for kept in self._kept if common(kept, tokens) < len(kept)]
        self._kept.append(tokens)

    def _take_out(self, slot: _Slot, prompt: list[str]) -> None:
        """Move the prompt of the host cache that fits best, if one fits better than the slot's own, into the slot."""
        shared = common(slot.tokens, prompt)
        best, best_kept = None, shared / len(slot.tokens) if slot.tokens else -1.0
        for kept in self._kept:
            found = common(kept, prompt)
            part = found / len(kept)
            if part >= WORTH_TAKING and part > best_kept and found > shared:
                best, best_kept, shared = kept, part, found
        if best is not None:
            self._kept = [kept for kept in self._kept if kept is not best]
            slot.tokens = best


# -- a real server -----------------------------------------------------------------------------------------------------


class RealCache:
    """A ``llama-server`` at ``url``, which reads the prompts and is given the answers as if it had written them."""

    def __init__(self, url: str, key: str = "") -> None:
        self._host = urlsplit(url).netloc
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}

    def serve(self, messages: Messages, answer: str) -> Read:
        plain = [{"role": message["role"], "content": text_of(message)} for message in messages]
        prompt = self.tokens(self._post("/apply-template", {"messages": plain})["prompt"], special=True)
        read = self._read(prompt)
        self._read(prompt + self.tokens(answer))
        return read

    def tokens(self, text: str, special: bool = False) -> list[int]:
        """Return the tokens of a text; ``special``: with those of the template."""
        found: list[int] = self._post("/tokenize", {"content": text, "add_special": special, "parse_special": special})[
            "tokens"
        ]
        return found

    def _read(self, prompt: list[int]) -> Read:
        timings = self._post("/completion", {"prompt": prompt, "n_predict": 0, "cache_prompt": True})["timings"]
        return Read(timings["cache_n"] + timings["prompt_n"], timings["cache_n"])

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        connection = http.client.HTTPConnection(self._host, timeout=600)
        try:
            connection.request("POST", path, json.dumps(body), self._headers)
            response = connection.getresponse()
            data = response.read()
            if response.status != 200:
                raise RuntimeError(f"{path} of the server: status {response.status}, {data[:300]!r}")
            return json.loads(data)
        finally:
            connection.close()


# -- what the model says -----------------------------------------------------------------------------------------------

WORDS = (
    "able air animal answer apple arm autumn baby back bag ball bank bath bear bed bell big bird black blood blue "
    "board boat body bone book box boy branch brave bread bridge bright broad brother brown building business butter "
    "cake camera camp car card care cat chair chance cheap child church circle city clean clear clock cloud coat "
    "coffee cold color corner country cow cup dark daughter day deep desk dinner doctor dog door dream dress dry dust "
    "early earth easy edge egg engine evening eye face fair family farm fast father field fine finger fire fish flat "
    "floor flower food foot forest free fresh friend front fruit full game garden gate girl glass gold good grass "
    "great green ground group hair half hand happy hard hat head heart heavy high hill home horse hospital hot hotel "
    "hour house ice island job key kind king kitchen lady lake land large late leaf left leg letter light line lip "
    "list little long loud low machine man map mark market meal meat metal middle milk mind money month moon morning "
    "mother mountain mouth music name narrow neck new nice night noise north nose number oil old open orange page "
    "paint paper park part party past path people person picture piece pipe place plain plan plane plant plate pocket "
    "point poor port pretty price public quick quiet radio rain red rest rich ring river road rock roof room round "
    "salt sand school sea seat second shape sharp sheep ship shirt shoe shop short shoulder sick side silver sister "
    "size skin sky small smoke smooth snow soft soil song sound south space spring square star station stone store "
    "storm story street strong sugar summer sun sweet table tall taste tea team test thick thin thing tool tooth top "
    "town train tree trip village voice wall war warm water way weather week west wet wheel white wide wild wind "
    "window winter wise woman wood word work world yard year yellow young"
).split()
SENTENCE_WORDS = 10
ANSWER_WORDS = 100


class Words:
    """Sentences of words that are single tokens in common vocabularies; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def some(self, count: int) -> str:
        return " ".join(self._chance.choices(WORDS, k=count))

    def sentences(self, words: int = ANSWER_WORDS) -> str:
        return " ".join(self.lines(words))

    def lines(self, words: int, begin: str = "The") -> Iterator[str]:
        first = len(begin.split())
        for _ in range(words // SENTENCE_WORDS):
            yield f"{begin} {self.some(SENTENCE_WORDS - first)}."


class Script:
    """What the model answers, by what it is asked for; texts are new each time.

    Attributes:
        route: the category of the newest message, for nodes that ask for one.
    """

    def __init__(self) -> None:
        self.route = ""
        self._words = Words(20)
        self._known: list[str] = []

    def answer(self, messages: Messages, most_tokens: int) -> tuple[str, str]:
        """Return the kind of node that calls, and the answer. ``most_tokens``: the longest answer that it wants."""
        texts = [text_of(message) for message in messages]
        asked = "\n".join(texts)
        for kind, pattern in _KINDS:
            if pattern.search(asked) and (kind != "route" or most_tokens <= SHORT_ANSWER):
                return kind, getattr(self, f"_{kind}")()
        return "answer", self._words.sentences()

    def _route(self) -> str:
        return self.route

    def _analysis(self) -> str:
        return self._words.sentences(40)

    def _terms(self) -> str:
        found = self._known[-8:] or [self._words.some(1) for _ in range(8)]
        return "; ".join(found)

    def _facts(self) -> str:
        facts = []
        for _ in range(3):
            phrases = [self._words.some(2) for _ in range(4)]
            self._known += phrases[:2]
            facts.append(
                {
                    "title": self._words.some(4),
                    "summary": f"The user {self._words.some(20)}.",
                    "entities": [self._words.some(1)],
                    "key_phrases": phrases,
                }
            )
        return json.dumps(facts)

    def _document(self) -> str:
        return "# The person\n" + "\n".join(f"- {line}" for line in self._words.lines(ANSWER_WORDS))

    def _turn(self) -> str:
        return f"<outcome>\n{self._words.sentences(60)}\n</outcome>\n<status>\n{self._words.some(12)}\n</status>"

    def _memory(self) -> str:
        return "\n".join(self._words.lines(ANSWER_WORDS, "The user"))

    def _summary(self) -> str:
        return self._words.sentences()

    def _notes(self) -> str:
        return self._words.sentences()


# The longest answer, in tokens, of a node that wants the name of a category: 'init' gives it 50.
SHORT_ANSWER = 60
_KINDS = [
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("facts", r"JSON array"),
        ("document", r"write the document|complete new document"),
        ("summary", r"write ((the|one) summary|both shorter)"),
        ("memory", r"write the lines|with these lines alone"),
        ("turn", r"<outcome>"),
        ("terms", r"search terms|search words"),
        ("route", r"CODING|WIKI|categor|route"),
        ("analysis", r"dispatcher"),
        ("notes", r"make (short )?notes|make a plan|do not answer the message above|do not write the|think it through"),
    )
]


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call that was served.

    Attributes:
        kind: the kind of node that made it, such as ``answer`` or ``memory``.
        reads: by the name of the cache.
        new: tokens that stood neither in the previous prompt of the same node nor in its answer.
    """

    kind: str
    reads: Mapping[str, Read]
    new: int


_SERVER = llama_cpp(MODEL, WINDOW, chat_template=TEMPLATE)


class CacheBackend(StubBackend):
    """Answers as llama.cpp's server does, with the ``usage`` and ``timings`` of the first cache.

    Attributes:
        says: the answers.
        calls: those so far.
    """

    def __init__(self, caches: Mapping[str, Cache]) -> None:
        super().__init__()
        self.says = Script()
        self.calls: list[Call] = []
        self._caches = dict(caches)
        self._turn = threading.Lock()
        self._seen: dict[str, set[tuple[str, ...]]] = {}

    def respond(self, request: RecordedRequest) -> Reply:
        self.requests.clear()
        if request.path != "/v1/chat/completions":
            return page_of(_SERVER, request)
        body = request.json
        most = body.get("n_predict") or body.get("max_tokens") or WINDOW
        with self._turn:
            kind, text = self.says.answer(body["messages"], int(most))
            reads = {name: cache.serve(body["messages"], text) for name, cache in self._caches.items()}
            self.calls.append(Call(kind, reads, self._new(kind, body["messages"], text)))
        return _completion(text, next(iter(reads.values())), bool(body.get("stream")))

    def _new(self, kind: str, messages: Messages, answer: str) -> int:
        tokens = [token for message in messages for token in tokens_of(text_of(message))]
        # Nodes of one kind differ in how their prompts begin.
        node = f"{kind} {' '.join(tokens[:RUN])}"
        before = self._seen.get(node, set())
        covered = [False] * len(tokens)
        for start, run in enumerate(_runs(tokens)):
            if run in before:
                covered[start : start + len(run)] = [True] * len(run)
        self._seen[node] = {*_runs(tokens), *_runs(tokens_of(answer))}
        return covered.count(False)


# Of words taken by chance, so many in a row do not come twice.
RUN = 4


def _runs(tokens: Sequence[str]) -> Iterator[tuple[str, ...]]:
    # A word differs from itself at the beginning of a line.
    plain = [token.strip() for token in tokens]
    return zip(*(plain[start:] for start in range(RUN)), strict=False)


def _completion(text: str, read: Read, stream: bool) -> Reply:
    written = len(tokens_of(text))
    usage: dict[str, Any] = {
        "prompt_tokens": read.prompt,
        "completion_tokens": written,
        "total_tokens": read.prompt + written,
        "prompt_tokens_details": {"cached_tokens": read.cached},
    }
    timings = {"cache_n": read.cached, "prompt_n": read.processed, "predicted_n": written}
    if not stream:
        reply = chat_reply(text, usage=usage)
        reply.body["timings"] = timings
        return reply
    words = re.findall(r"\s*\S+", text)
    return sse_reply(
        [
            chat_chunk({"role": "assistant", "content": None}),
            *(chat_chunk({"content": word}) for word in words),
            chat_chunk({}, "stop", timings=timings),
            "[DONE]",
        ]
    )
