"""Prints how much of long conversations is found again: ``python benchmarks/remembering.py [--set own|FILE] ...``.

Each way to search gets the messages of a conversation, session by session, and then its questions. A result is a line
of output; it counts for the messages that it shows. Figures, averages over questions with evidence:

* R@k: the share of the evidence among the first k results; all@10: the share of questions whose whole evidence is there
* R@300: the same for the results that fit into 300 tokens
* words@600: the share of the words of the answer, stemmed, that stand in the first 600 tokens
* MRR: 1 / the place of the first result that is evidence; tokens: of the first ten results
* ms: of a search, median and 95th percentile; bytes: on the disk, for each message

``--embeddings URL --embedding-model NAME`` measures ``Recall`` with a model of an OpenAI-compatible server as well. As
in the program, a question whose vector is late is searched by words alone, with a line in the log.

``--llm URL --model NAME`` lets a model of an OpenAI-compatible server answer from the first 300 tokens: F1 and exact
match of the words, the share of unanswerable questions that it refuses and of answerable ones that it refuses.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import re
import sqlite3
import statistics
import sys
import tempfile
import time
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import requests

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.remembering_sets import Conversation, Message, Question, own_conversations
from Middleware.common import instance_global_variables as instance
from Middleware.services.memory import recall
from Middleware.services.memory.embedding_service import EmbeddingService, embed_new_rows
from Middleware.services.memory.message_vectors import EmbeddableMessages
from Middleware.utilities.discussions.message_index.message_rows import MessageIndex
from Middleware.utilities.discussions.message_index.row_writing import NewMessage
from Middleware.utilities.discussions.vector_memory import VectorMemories
from Middleware.utilities.relative_dates import when_words
from Tests.integration.launcher import ConfigTree, endpoint

MONTHS = "January February March April May June July August September October November December".split()
# More than any figure looks at.
MOST_TOKENS = 4_000
# The endpoint of the embedding model, and the search that needs it.
EMBEDDINGS, BY_MEANING = "Embeddings", "Recall with embeddings"
# Texts in one call.
AT_ONCE = 32
# What a model says that does not know an answer, in the languages of the set.
REFUSALS = re.compile(
    r"\b(do(es)? not know|don't know|not (said|mentioned|stated|known)|no information|nothing was found|unknown"
    r"|weiß (ich )?nicht|nicht (bekannt|erwähnt|gesagt)|ne sais pas|pas (dit|mentionné)"
    r"|no lo sé|no (se )?(sabe|dice|menciona))",
    re.IGNORECASE,
)
ANSWER = (
    "Answer with a short phrase, in the words of what was said, without explanation. Write dates like 11 March 2026. "
    "If it was not said, or said of somebody else, answer only: I do not know."
)


@dataclass(frozen=True)
class Found:
    """A line of output, and the ids of the messages that it shows."""

    line: str
    shows: frozenset[str]


class Search(ABC):
    """A way to search: it is given a conversation once, and then asked. ``folder`` is its own, and empty."""

    def __init__(self, conversation: Conversation, folder: Path) -> None:
        self.conversation, self.folder, self.opened = conversation, folder, contextlib.ExitStack()

    @abstractmethod
    def find(self, question: Question) -> list[Found]:
        """Return the results for a question, best first, at least what 600 tokens hold."""

    def stored(self) -> int:
        """Return how many bytes it keeps on the disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def shown(message: Message) -> Found:
    """Return a message as a line: ``[11 March 2026] Ines: text``."""
    date = f"{message.said.day} {MONTHS[message.said.month - 1]} {message.said.year}"
    text = " / ".join(message.text.split("\n"))
    return Found(f"[{date}] {message.speaker or message.role.title()}: {text}", frozenset([message.id]))


class LastMessages(Search):
    """The newest messages, newest first: what a client's window shows anyway."""

    def find(self, question: Question) -> list[Found]:
        return [shown(message) for message in reversed(self.conversation.messages)]


class Bm25(Search):
    """BM25 with k1 = 1.2 and b = 0.75 over the words of the messages, without stemming or stop words."""

    def __init__(self, conversation: Conversation, folder: Path) -> None:
        super().__init__(conversation, folder)
        self._messages = conversation.messages
        self._words = [Counter(words_of(message.text)) for message in self._messages]
        self._lengths = [sum(words.values()) for words in self._words]
        self._known = Counter(word for words in self._words for word in words)

    def find(self, question: Question) -> list[Found]:
        average = statistics.fmean(self._lengths)
        scores = []
        for place, words in enumerate(self._words):
            score = 0.0
            for word in set(words_of(question.text)) & words.keys():
                rare = math.log(1 + (len(self._words) - self._known[word] + 0.5) / (self._known[word] + 0.5))
                often = words[word]
                score += rare * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * self._lengths[place] / average))
            scores.append(score)
        order = sorted(range(len(scores)), key=lambda place: -scores[place])
        return [shown(self._messages[place]) for place in order if scores[place]]


class PlainFts5(Search):
    """SQLite's full-text index with its stemmer, asked for any word of the question."""

    def __init__(self, conversation: Conversation, folder: Path) -> None:
        super().__init__(conversation, folder)
        self._database = sqlite3.connect(folder / "plain.db")
        self.opened.callback(self._database.close)
        self._database.execute("CREATE VIRTUAL TABLE said USING fts5(text, tokenize='porter unicode61')")
        self._messages = conversation.messages
        self._database.executemany("INSERT INTO said VALUES (?)", [(message.text,) for message in self._messages])
        self._database.commit()

    def find(self, question: Question) -> list[Found]:
        asked = " OR ".join(f'"{word}"' for word in words_of(question.text))
        rows = self._database.execute("SELECT rowid FROM said WHERE said MATCH ? ORDER BY rank", (asked,))
        return [shown(self._messages[number - 1]) for (number,) in rows]


class SearchableMemories(Search):
    """``VectorMemorySearch`` over memories of one message each, asked for the words of the question."""

    def __init__(self, conversation: Conversation, folder: Path) -> None:
        super().__init__(conversation, folder)
        self._messages = conversation.messages
        self._memories = VectorMemories(str(folder / "vector_memory.db"), "benchmark", write=True)
        with self._memories as memories:
            memories.store_chunk(
                [
                    (message.text, json.dumps({"summary": message.text, "entities": [message.speaker]}))
                    for message in self._messages
                ],
                None,
            )

    def find(self, question: Question) -> list[Found]:
        with VectorMemories(str(self.folder / "vector_memory.db"), "benchmark") as memories:
            rows = memories.keyword_search(";".join(words_of(question.text)), 50)
        return [shown(self._messages[row["id"] - 1]) for row in rows]


class Recall(Search):
    """What the node ``Recall`` puts out: the messages themselves, with their dates."""

    endpoint = ""

    def __init__(self, conversation: Conversation, folder: Path) -> None:
        super().__init__(conversation, folder)
        self._path, self._ids = str(folder / "message_index.db"), [message.id for message in conversation.messages]
        with MessageIndex(self._path, write=True) as index, index.writing() as writing:
            for place, message in enumerate(conversation.messages):
                key, speaker = hashlib.sha256(message.text.encode()).digest()[:8], message.speaker or None
                said, meant = (
                    int(message.said.timestamp()),
                    when_words(message.text, message.said.date(), conversation.language),
                )
                writing.add(
                    NewMessage(
                        1,
                        place,
                        key,
                        message.role,
                        message.text,
                        speaker=speaker,
                        said=said,
                        said_from=1,
                        when_words=meant,
                    )
                )

    def find(self, question: Question) -> list[Found]:
        with MessageIndex(self._path) as index:
            asked = recall.Recall(question.text, MOST_TOKENS, who_said_it=recall.OFF, endpoint=self.endpoint)
            results = recall.recall(index, asked).results
        return [
            Found(result.line, frozenset([self._ids[result.row.id - 1]]))
            for result in results
            if result.row is not None
        ]


class RecallByMeaning(Recall):
    """``Recall`` with vectors of the messages: ``embeddings_by`` has named the server that makes them."""

    endpoint = EMBEDDINGS

    def __init__(self, conversation: Conversation, folder: Path) -> None:
        super().__init__(conversation, folder)
        with MessageIndex(self._path, write=True) as index:
            messages = EmbeddableMessages(index, conversation.name)
            while embed_new_rows(messages, (), self.endpoint, AT_ONCE):
                pass
            if missing := len(messages.without_embeddings(EmbeddingService(EMBEDDINGS).model_name, len(self._ids))):
                raise SystemExit(f"{conversation.name}: {missing} messages have no vector, see the error above")


class Evidence(Search):
    """The evidence itself: what a search could give at most."""

    def find(self, question: Question) -> list[Found]:
        return [shown(message) for message in self.conversation.messages if message.id in question.evidence]


SEARCHES: dict[str, type[Search]] = {
    "last messages": LastMessages,
    "BM25": Bm25,
    "plain FTS5": PlainFts5,
    "VectorMemorySearch": SearchableMemories,
    "Recall": Recall,
    BY_MEANING: RecallByMeaning,
    "evidence": Evidence,
}


def words_of(text: str) -> list[str]:
    """Return the words of a text in small letters, without accents."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.casefold()) if not unicodedata.combining(c))
    return re.findall(r"\w+", plain)


class Stems:
    """The stems of words, by the stemmer of SQLite's full-text index, which ``Recall`` uses as well."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.executescript(
            "CREATE VIRTUAL TABLE text USING fts5(words, tokenize='porter unicode61 remove_diacritics 2');"
            "CREATE VIRTUAL TABLE terms USING fts5vocab(text, 'row')"
        )

    def of(self, text: str) -> set[str]:
        self._database.execute("DELETE FROM text")
        self._database.execute("INSERT INTO text VALUES (?)", (text,))
        return {term for (term,) in self._database.execute("SELECT term FROM terms")}


def tokens_of(line: str) -> int:
    """Return the estimate of a line's tokens that the searches keep their budgets with."""
    return int(max(len(line.split()) * 1.35, len(line) / 3.5)) + 2


def within(results: Sequence[Found], tokens: int) -> list[Found]:
    """Return the first results that fit into so many tokens."""
    taken: list[Found] = []
    for result in results:
        tokens -= tokens_of(result.line)
        if tokens < 0:
            break
        taken.append(result)
    return taken


@dataclass
class Figures:
    """The figures of one way to search: lists of one value for each question."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)

    def row(self) -> dict[str, float]:
        """Return the averages; of milliseconds the median and the 95th percentile."""
        averages = {name: statistics.fmean(values) for name, values in self.values.items() if name != "ms"}
        if times := sorted(self.values.get("ms", ())):
            averages["ms"], averages["ms p95"] = statistics.median(times), times[int(len(times) * 0.95)]
        return averages


STEMS = Stems()


def measure_question(question: Question, results: Sequence[Found]) -> dict[str, float]:
    """Return the figures of one question with evidence."""
    evidence = set(question.evidence)

    def share(some: Iterable[Found]) -> float:
        return len(evidence.intersection(*[frozenset().union(*(found.shows for found in some))])) / len(evidence)

    first = next((place for place, found in enumerate(results, 1) if found.shows & evidence), 0)
    figures = {f"R@{k}": share(results[:k]) for k in (5, 10, 20)}
    figures |= {
        "all@10": float(share(results[:10]) == 1),
        "R@300": share(within(results, 300)),
        "MRR": 1 / first if first else 0.0,
        "tokens": float(sum(tokens_of(found.line) for found in results[:10])),
    }
    if wanted := set().union(*(STEMS.of(answer) for answer in question.answers[:1])):
        text = "\n".join(found.line for found in within(results, 600))
        figures["words@600"] = len(wanted & STEMS.of(text)) / len(wanted)
    return figures


class Reader:
    """A model that answers questions from what was found."""

    def __init__(self, url: str, model: str, tokens: int = 300) -> None:
        self._url, self._model, self._tokens = url.rstrip("/") + "/v1/chat/completions", model, tokens

    def measure(self, question: Question, results: Sequence[Found]) -> dict[str, float]:
        """Return the figures of one answer."""
        found = "\n".join(result.line for result in within(results, self._tokens))
        prompt = f"From earlier:\n<earlier>\n{found}\n</earlier>\n\n{question.text}"
        started = time.monotonic()
        answer = requests.post(
            self._url,
            json={
                "model": self._model,
                "temperature": 0,
                "max_tokens": 60,
                "messages": [{"role": "system", "content": ANSWER}, {"role": "user", "content": prompt}],
            },
            timeout=600,
        ).json()
        said = answer["choices"][0]["message"]["content"]
        figures = {
            "seconds": time.monotonic() - started,
            "prompt tokens": float(answer.get("usage", {}).get("prompt_tokens", 0)),
        }
        refused = float(bool(REFUSALS.search(said)))
        if question.kind == "unanswerable":
            return figures | {"refusals": refused}
        return figures | {
            "F1": max(overlap(said, answer) for answer in question.answers),
            "exact": float(any(words_of(said) == words_of(answer) for answer in question.answers)),
            "false refusals": refused,
        }


def overlap(said: str, expected: str) -> float:
    """Return F1 of the words of an answer."""
    ours, theirs = Counter(words_of(said)), Counter(words_of(expected))
    common = sum((ours & theirs).values())
    return 2 * common / (sum(ours.values()) + sum(theirs.values())) if common else 0.0


Groups = Mapping[str, Callable[[Conversation, Question], str]]
GROUPS: Groups = {
    "half": lambda conversation, question: "held out" if conversation.held_out else "for tuning",
    "language": lambda conversation, question: conversation.language,
    "kind": lambda conversation, question: question.kind,
}


def add_figures(figures: dict[str, Figures], search: Search, reader: Reader | None) -> None:
    """Ask all questions of a conversation, and add their figures to those of their groups."""
    size = search.stored() / len(search.conversation.messages)
    for question in search.conversation.questions:
        values = {"bytes": size} | asked(search, question, reader)
        for group in ["all", *(f"{title}: {of(search.conversation, question)}" for title, of in GROUPS.items())]:
            figures.setdefault(group, Figures()).add(**values)


def measure(
    conversations: Iterable[Conversation], names: Sequence[str], reader: Reader | None = None
) -> dict[str, dict[str, Figures]]:
    """Return the figures by search and group: the groups are "all" and ``kind: single`` and so on."""
    figures: dict[str, dict[str, Figures]] = {name: {} for name in names}
    for conversation in conversations:
        for name in names:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                search = SEARCHES[name](conversation, Path(folder))
                add_figures(figures[name], search, reader)
                search.opened.close()
    return figures


def asked(search: Search, question: Question, reader: Reader | None) -> dict[str, float]:
    """Return the figures of one question."""
    started = time.perf_counter()
    results = search.find(question)
    values = {"ms": (time.perf_counter() - started) * 1000}
    if question.evidence:
        values |= measure_question(question, results)
    elif any(question.answers):
        wanted = set().union(*(STEMS.of(answer) for answer in question.answers[:1]))
        text = "\n".join(found.line for found in within(results, 600))
        values["words@600"] = len(wanted & STEMS.of(text)) / max(1, len(wanted))
    return values | (reader.measure(question, results) if reader else {})


PERCENT = ("R@5", "R@10", "R@20", "all@10", "R@300", "words@600", "F1", "exact", "refusals", "false refusals")


def table(figures: Mapping[str, Mapping[str, Figures]], group: str) -> Iterator[str]:
    """Yield the lines of a Markdown table of one group."""
    rows = {name: groups[group].row() for name, groups in figures.items() if group in groups}
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    order = [*PERCENT[:6], "MRR", "tokens", "ms", "ms p95", "bytes", *PERCENT[6:], "prompt tokens", "seconds"]
    columns.sort(key=order.index)
    yield f"| {group} | " + " | ".join(columns) + " |"
    yield "|---|" + "--:|" * len(columns)
    for name, row in rows.items():
        yield f"| {name} | " + " | ".join(cell(column, row.get(column)) for column in columns) + " |"


def cell(column: str, value: float | None) -> str:
    if value is None:
        return ""
    if column in PERCENT:
        return f"{value * 100:.1f}"
    return f"{value:.0f}" if column in ("tokens", "bytes", "prompt tokens") else f"{value:.2f}"


@contextlib.contextmanager
def embeddings_by(url: str, model: str) -> Iterator[None]:
    """Let ``RecallByMeaning`` use the embedding model of a server."""
    with tempfile.TemporaryDirectory() as folder:
        tree, kept = ConfigTree(Path(folder)), (instance.CONFIG_DIRECTORY, instance.USERS)
        tree.write("Users/_current-user.json", {"currentUser": "bench"})
        tree.write("Users/bench.json", {})
        tree.write("ApiTypes/Embeddings.json", {"type": "openAIEmbeddings"})
        named = {"apiTypeConfigFileName": "Embeddings", "modelNameToSendToAPI": model}
        tree.write(f"Endpoints/{EMBEDDINGS}.json", endpoint(url, **named))
        instance.CONFIG_DIRECTORY, instance.USERS = str(tree.configs), ["bench"]
        try:
            yield
        finally:
            instance.CONFIG_DIRECTORY, instance.USERS = kept


def report(conversations: Iterable[Conversation], options: argparse.Namespace) -> None:
    """Measure, print the tables and write the figures to ``--json``."""
    names = options.only or [name for name in SEARCHES if options.embeddings or name != BY_MEANING]
    if BY_MEANING in names and not options.embeddings:
        raise SystemExit(f"'{BY_MEANING}' needs --embeddings URL")
    reader = Reader(options.llm, options.model) if options.llm else None
    with embeddings_by(options.embeddings or "", options.embedding_model):
        figures = measure(conversations, names, reader)
    groups = dict.fromkeys(group for found in figures.values() for group in found)
    for group in groups:
        print("\n".join(table(figures, group)), end="\n\n")
    if options.json:
        rows = {name: {group: found[group].row() for group in found} for name, found in figures.items()}
        made = {"made": datetime.now().astimezone().isoformat(timespec="seconds"), "figures": rows}
        Path(options.json).write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def options_of(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options that the sets have in common."""
    parser.add_argument("--llm", help="URL of an OpenAI-compatible server whose model answers the questions")
    parser.add_argument("--model", default="", help="the model's name there")
    parser.add_argument("--embeddings", help="URL of an OpenAI-compatible server with an embedding model")
    parser.add_argument("--embedding-model", default="", help="that model's name there")
    parser.add_argument(
        "--only", action="append", choices=list(SEARCHES), help="this search alone; several are possible"
    )
    parser.add_argument("--json", help="a file for the figures")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_of(argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else ""))
    parser.add_argument("--set", default="own", help="own, or a file of the form of the own set, or their folder")
    options = parser.parse_args(arguments)
    report(own_conversations() if options.set == "own" else own_conversations(Path(options.set)), options)


if __name__ == "__main__":
    main()
