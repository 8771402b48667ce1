"""Sets of conversations with questions about them, for ``remembering.py``: our own, and three published ones by path.

The own set is in the folder ``remembering/conversations``; the conversations in its folder ``held-out`` are not looked
at while constants are chosen. Published sets are read from where their owner has them; nothing of them is stored here.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

OWN = Path(__file__).parent / "remembering" / "conversations"
# Messages of a session have one date in the sets; a search that ranks by time needs them apart.
BETWEEN_MESSAGES = timedelta(seconds=30)
# Sets without dates begin here.
UNKNOWN_DATE = datetime(2026, 1, 1, tzinfo=UTC)
LOCOMO_KINDS = {1: "multi", 2: "temporal", 3: "open", 4: "single", 5: "unanswerable"}


@dataclass(frozen=True)
class Message:
    """A message of a conversation; ``speaker`` is "" in chats with an assistant."""

    id: str
    role: str
    speaker: str
    text: str
    said: datetime


@dataclass(frozen=True)
class Question:
    """A question; ``evidence``: the ids of the messages that answer it; ``kind``: single, multi, temporal, update, open
    or unanswerable, which has neither answers nor evidence."""

    text: str
    answers: tuple[str, ...]
    evidence: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Conversation:
    name: str
    language: str
    held_out: bool
    sessions: tuple[tuple[Message, ...], ...]
    questions: tuple[Question, ...]

    @property
    def messages(self) -> list[Message]:
        return [message for session in self.sessions for message in session]


def session_of(rows: Iterable[tuple[str, str, str, str]], start: datetime) -> tuple[Message, ...]:
    """Return messages made of (id, role, speaker, text), the first of them said at ``start``."""
    return tuple(
        Message(number, role, speaker, text, start + place * BETWEEN_MESSAGES)
        for place, (number, role, speaker, text) in enumerate(rows)
    )


def own_conversations(source: Path = OWN) -> Iterator[Conversation]:
    """Yield the conversations of the own set, of a folder of files of its form, or of one such file."""
    for path in sorted(source.rglob("*.json")) if source.is_dir() else [source]:
        data = json.loads(path.read_text(encoding="utf-8"))
        yield Conversation(
            path.stem,
            data["language"],
            path.parent.name == "held-out",
            tuple(
                session_of(
                    ((row["id"], row["role"], row.get("speaker", ""), row["text"]) for row in session["messages"]),
                    datetime.fromisoformat(session["at"]),
                )
                for session in data["sessions"]
            ),
            tuple(
                Question(row["question"], tuple(row["answers"]), tuple(row["evidence"]), row["type"])
                for row in data["questions"]
            ),
        )


def locomo(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of ``locomo10.json`` (CC BY-NC 4.0). The first two are the ones that constants were
    chosen on, the others are held out; questions with evidence that does not exist are left out."""
    for number, sample in enumerate(json.loads(path.read_text(encoding="utf-8"))):
        talk = sample["conversation"]
        sessions = tuple(
            session_of(
                (
                    (
                        row["dia_id"],
                        "user" if row["speaker"] == talk["speaker_a"] else "assistant",
                        row["speaker"],
                        row["text"] + (f" (picture: {row['blip_caption']})" if row.get("blip_caption") else ""),
                    )
                    for row in talk[name]
                ),
                datetime.strptime(talk[f"{name}_date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC),
            )
            for name in sorted(talk, key=lambda name: int((re.findall(r"\d+", name) or [0])[0]))
            if re.fullmatch(r"session_\d+", name)
        )
        known = {message.id for session in sessions for message in session}
        questions = tuple(
            # What an unanswerable one names as evidence was said of somebody else.
            Question(row["question"], ("",), (), kind)
            if (kind := LOCOMO_KINDS[row["category"]]) == "unanswerable"
            else Question(row["question"], (str(row.get("answer", "")),), tuple(row["evidence"]), kind)
            for row in sample["qa"]
            if row["category"] == 5 or (row["evidence"] and known.issuperset(row["evidence"]))
        )
        yield Conversation(str(sample.get("sample_id", number)), "en", number >= 2, sessions, questions)


def beam(folder: Path) -> Iterator[Conversation]:
    """Yield the chats of a folder of BEAM, such as ``chats/100K``; only questions that name messages are asked."""
    for chat in sorted(folder.glob("*/chat.json")):
        sessions = tuple(
            session_of(
                ((str(row["id"]), row["role"], "", row["content"]) for turn in batch["turns"] for row in turn),
                UNKNOWN_DATE + timedelta(days=number),
            )
            for number, batch in enumerate(json.loads(chat.read_text(encoding="utf-8")))
        )
        asked = json.loads((chat.parent / "probing_questions" / "probing_questions.json").read_text(encoding="utf-8"))
        questions = tuple(
            Question(
                row["question"],
                (row.get("answer") or row.get("ideal_answer") or row.get("ideal_response") or "",),
                tuple(dict.fromkeys(map(str, numbers_in(row.get("source_chat_ids"))))),
                "unanswerable" if kind == "abstention" else kind,
            )
            for kind, rows in asked.items()
            for row in rows
        )
        yield Conversation(chat.parent.name, "en", True, sessions, tuple(q for q in questions if q.evidence))


def numbers_in(value: object) -> Iterator[int]:
    """Yield the numbers in nested lists and objects."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(item)


def personamem(path: Path) -> Iterator[Conversation]:
    """Yield the contexts of PersonaMem: ``path`` is ``questions_32k.csv``, with ``shared_contexts_32k.jsonl`` next to
    it. Its questions name no messages, so only the words of their answers are counted."""
    contexts: dict[str, list[dict[str, str]]] = {}
    beside = path.with_name(path.name.replace("questions", "shared_contexts")).with_suffix(".jsonl")
    for line in beside.read_text(encoding="utf-8").splitlines():
        contexts.update(json.loads(line))
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for name, messages in contexts.items():
        here = [row for row in rows if row["shared_context_id"] == name]
        # Questions stand at different places of a context; each is asked where it stands.
        for end in sorted({int(row["end_index_in_shared_context"]) for row in here}):
            said = [
                (str(n), m["role"], "", m["content"]) for n, m in enumerate(messages[:end]) if m["role"] != "system"
            ]
            questions = tuple(
                Question(row["user_question_or_message"], (chosen_option(row),), (), row["question_type"])
                for row in here
                if int(row["end_index_in_shared_context"]) == end
            )
            yield Conversation(f"{name[:8]}-{end}", "en", True, (session_of(said, UNKNOWN_DATE),), questions)


def chosen_option(row: dict[str, str]) -> str:
    """Return the text of the right option: ``correct_answer`` is ``(a)``, the options begin with these letters."""
    options: Sequence[str] = json.loads(row["all_options"]) if row["all_options"].startswith('["') else ()
    return next((option for option in options if option.startswith(row["correct_answer"])), row["correct_answer"])


PUBLISHED = {"locomo": locomo, "beam": beam, "personamem": personamem}
LICENCES = {
    "locomo": "LoCoMo: CC BY-NC 4.0",
    "beam": "BEAM: see its repository",
    "personamem": "PersonaMem: MIT",
}
