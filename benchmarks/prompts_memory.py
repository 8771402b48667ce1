"""The cases about memories of ``prompts.py``: what a model keeps of conversations, and what it knows from that alone.

Several conversations of a language make a discussion. It goes through the shipped nodes that write memories, ten
messages at a time, as it grew. Then questions are asked in the same discussion, with none of its messages.
Whether something was kept is a matter of words that must be there, in one of several spellings.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from Middleware.workflows.tools.memory.memory_texts import clean_memory
from Tests.integration.launcher import Launcher

CASES = Path(__file__).resolve().parent / "cases"
LANGUAGES = ("en", "de", "fr")
# As many as one discussion has, so that the first of them is known from the summary alone.
CONVERSATIONS = 4
MEMORY_WINDOW = 8192
# A small model that knows nothing may go on until it may write no more, and what was asked for stands at the beginning.
ANSWER_TOKENS = 120
# The newest messages belong to no memory.
CLOSING = {
    "en": ("Thanks, that's all for now.", "You are welcome!", "See you.", "See you!"),
    "de": ("Danke, das war alles.", "Gern geschehen!", "Bis bald.", "Bis bald!"),
    "fr": ("Merci, c'est tout.", "Avec plaisir !", "À bientôt.", "À bientôt !"),
}
_TAG = re.compile(r"</?[A-Za-z][\w-]*>")


@dataclass(frozen=True)
class Conversation:
    """See the description in ``memory_en.json``."""

    name: str
    messages: Sequence[str]
    keep: Sequence[Sequence[str]]
    leave: Sequence[str]
    outdated: Sequence[Sequence[str]]
    questions: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Discussion:
    """Conversations that follow each other under one id."""

    name: str
    language: str
    conversations: Sequence[Conversation]

    @property
    def messages(self) -> list[str]:
        return [text for one in self.conversations for text in one.messages]

    @property
    def keep(self) -> list[Sequence[str]]:
        return [fact for one in self.conversations for fact in one.keep]


@dataclass
class Score:
    """What came of discussions, as numbers that can be added up."""

    facts: int = 0
    kept: int = 0
    summarized: int = 0
    lines: int = 0
    plain: int = 0
    tags: int = 0
    repeated: int = 0
    wrong: int = 0
    questions: int = 0
    answered: int = 0
    seconds: float = 0.0
    misses: list[str] = field(default_factory=list)

    def add(self, other: Score) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def line(self) -> str:
        parts = [f"kept {self.kept}/{self.facts}", f"in the summary {self.summarized}"] if self.facts else []
        if self.lines:
            parts.append(
                f"{self.lines} lines: {self.plain} without a fact, {self.wrong} junk, "
                f"{self.repeated} repeated, {self.tags} with tags"
            )
        if self.questions:
            parts.append(f"answered {self.answered}/{self.questions}")
        return "; ".join(parts) + f" ({self.seconds:.0f} s)"


# -- the cases ---------------------------------------------------------------------------------------------------------


def discussions(kind: str) -> list[Discussion]:
    """Return the discussions of a kind: ``memory``, in each language, or ``game``."""
    found = []
    for language in LANGUAGES:
        name = "memory_game" if kind == "game" else f"memory_{language}"
        content = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
        all_of_it = [
            Conversation(
                one["name"], one["messages"], one["keep"], one["leave"], one.get("outdated", ()), one["questions"]
            )
            for one in content["conversations"]
            if one.get("language", language) == language
        ]
        for number, start in enumerate(range(0, len(all_of_it), CONVERSATIONS), start=1):
            found.append(Discussion(f"{language}-{number}", language, all_of_it[start : start + CONVERSATIONS]))
    return found


# -- judging -----------------------------------------------------------------------------------------------------------


def has(text: str, wanted: str) -> bool:
    """Return whether a text has one of the spellings in ``wanted``, at the beginning of a word."""
    said = text.casefold().replace("\u202f", " ").replace("\u00a0", " ")
    return any(re.search(rf"(?<!\w){re.escape(one.casefold())}", said) for one in wanted.split("|"))


def holds(text: str, fact: Sequence[str]) -> bool:
    """Return whether one line of a text has all parts of a fact."""
    return any(all(has(line, part) for part in fact) for line in text.splitlines())


def is_junk(line: str, conversations: Sequence[Conversation]) -> bool:
    return any(
        any(has(line, text) for text in one.leave)
        or any(has(line, old) and not has(line, new) for old, new in one.outdated)
        for one in conversations
    )


def judge(discussion: Discussion, memories: Sequence[str], summary: str) -> Score:
    """Return what the stored texts of a discussion are worth."""
    facts, everything = discussion.keep, "\n".join(memories)
    lines = [line for line in everything.splitlines() if line.strip()]
    kept = [holds(everything, fact) for fact in facts]
    return Score(
        facts=len(facts),
        kept=sum(kept),
        summarized=sum(holds(summary, fact) for fact in facts),
        lines=len(lines),
        plain=sum(not any(has(line, part) for fact in facts for part in fact) for line in lines),
        tags=sum(_TAG.search(line) is not None for line in lines),
        repeated=sum(
            clean_memory(memory, (), memories[max(0, number - 2) : number]) != memory
            for number, memory in enumerate(memories)
        ),
        wrong=sum(is_junk(line, discussion.conversations) for line in lines),
        misses=[
            f"{discussion.name}: not kept: {' + '.join(fact)}"
            for fact, there in zip(facts, kept, strict=True)
            if not there
        ],
    )


# -- the run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writers:
    """The nodes that write memories.

    Attributes:
        user: who runs them.
        workflow: the workflow whose nodes behind the answer they are, below ``Workflows``.
        asked: the model that is asked afterwards; empty: none.
        kind: which cases are used.
        left_alone: how many of the newest messages they leave to later memories.
    """

    user: str
    workflow: str
    asked: str = ""
    kind: str = "memory"
    left_alone: int = 3


WRITERS = {
    "remember": Writers("me", "me/memory/_DefaultWorkflow", "me:memory"),
    "remember-game": Writers(
        "_example_game_bot_with_file_memory", "_example_game_bot_with_file_memory/Game", kind="game", left_alone=4
    ),
    "remember-vector": Writers(
        "_example_assistant_with_vector_memory", "_example_assistant_with_vector_memory/Assistant", left_alone=4
    ),
}


def write_workflow(configs: Path, writers: Writers) -> None:
    """Replace the user's workflow by one that only remembers, and only then answers."""
    file = configs / "Workflows" / f"{writers.workflow}.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    nodes = content["nodes"]
    answer = next(number for number, node in enumerate(nodes) if node.get("returnToUser"))
    nodes[answer]["maxResponseSizeInTokens"] = ANSWER_TOKENS
    file.write_text(json.dumps(content), encoding="utf-8")
    ready = {"title": "Ready", "type": "StaticResponse", "content": "ready", "returnToUser": True}
    folder = configs / "Workflows" / writers.workflow.split("/")[0]
    (folder / "_Remember.json").write_text(json.dumps({"nodes": [*nodes[answer + 1 :], ready]}), encoding="utf-8")
    user = configs / "Users" / f"{writers.user}.json"
    settings = json.loads(user.read_text(encoding="utf-8"))
    user.write_text(json.dumps({**settings, "port": 5000}), encoding="utf-8")
    # Requests that name no model of the user run it.
    override = {"customWorkflowOverride": True, "customWorkflow": "_Remember"}
    remembering = configs / "Users" / "remembering.json"
    remembering.write_text(json.dumps({**settings, **override, "port": 5000}), encoding="utf-8")


class Run:
    """Discussions with one user's nodes; ``public`` is a configuration all of whose endpoints are one LLM server."""

    def __init__(self, writers: Writers, public: Path, patience: float) -> None:
        self._writers, self._public, self._patience = writers, public, patience

    def scores(self, chosen: Sequence[Discussion], shown: bool) -> Iterator[tuple[Discussion, Score]]:
        """Write and ask; yield what came of each discussion."""
        write_workflow(self._public / "Configs", self._writers)
        stored = self._public / "DiscussionIds"
        arguments = ("--PublicDirectory", self._public, "--User")
        with (
            Launcher("run_waitress.py", *arguments, "remembering") as remembering,
            Launcher("run_waitress.py", *arguments, self._writers.user) as answering,
        ):
            for discussion in chosen:
                began = time.monotonic()
                if not (stored / discussion.name).is_dir():
                    self._remember(remembering, discussion)
                score = self._judged(discussion, stored / discussion.name, shown)
                if self._writers.asked:
                    self._ask(answering, discussion, score)
                score.seconds = time.monotonic() - began
                yield discussion, score

    def _remember(self, server: Launcher, discussion: Discussion) -> None:
        left_alone = self._writers.left_alone
        messages = [*discussion.messages, *CLOSING[discussion.language][:left_alone]]
        step = len(discussion.conversations[0].messages)
        # The first request only makes the files: for a discussion that is new, the number of messages does not count.
        for end in (1, *range(step + left_alone, len(messages) + 1, step)):
            self._send(server, discussion, messages[:end], "any")

    def _judged(self, discussion: Discussion, folder: Path, shown: bool) -> Score:
        memories, summary = stored_texts(folder)
        if shown:
            print(
                *(
                    f"  [{discussion.name}] {line}"
                    for memory in [*memories, f"SUMMARY: {summary}"]
                    for line in memory.splitlines()
                ),
                sep="\n",
                flush=True,
            )
        return judge(discussion, memories, summary)

    def _ask(self, server: Launcher, discussion: Discussion, score: Score) -> None:
        for question in (one for conversation in discussion.conversations for one in conversation.questions):
            answer = self._send(server, discussion, [question["ask"]], self._writers.asked)
            right = all(has(answer, part) for part in question["answer"])
            score.questions, score.answered = score.questions + 1, score.answered + right
            if not right:
                score.misses.append(f"{discussion.name}: {question['ask']} -> {answer[:100]!r}")

    def _send(self, server: Launcher, discussion: Discussion, texts: Sequence[str], model: str) -> str:
        messages = [{"role": "system", "content": f"[DiscussionId]{discussion.name}[/DiscussionId]"}]
        messages += [
            {"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)
        ]
        response = server.request(
            "POST",
            "/v1/chat/completions",
            {"model": model, "messages": messages, "stream": False},
            timeout=self._patience,
        )
        if response.status != 200:
            raise SystemExit(f"{discussion.name}: {response.error}\n{server.output()[-3000:]}")
        return response.text


def stored_texts(folder: Path) -> tuple[list[str], str]:
    """Return the memories of a discussion, and its summary or the document of its state."""
    database, document = folder / "vector_memory.db", folder / "state_document.md"
    if database.is_file():
        with closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT memory_text FROM memories ORDER BY id").fetchall()
        return [row[0] for row in rows], document.read_text(encoding="utf-8") if document.is_file() else ""
    texts = [
        [pair["text_block"] for pair in json.loads(file.read_text(encoding="utf-8"))] if file.is_file() else []
        for file in (folder / "memories.json", folder / "chat_summary.json")
    ]
    return texts[0], "\n".join(texts[1])
