"""Docs/Developer/dialects.md: what survives between each kind of client and each kind of back-end.

A server and a scripted back-end are started, every client dialect asks every back-end dialect, and what arrives becomes
a table. It takes some seconds and needs nothing but what the tests need.
"""

from __future__ import annotations

import json
from pathlib import Path

from Scripts.generate import generated_files
from Tests.integration.client_dialects import FRONTS
from Tests.integration.dialect_matrix import (
    BACKS,
    ESTIMATED,
    FEATURES,
    KEPT,
    LOSSES,
    SHIPPED,
    Observation,
    Pair,
    observe,
)

DOCUMENT = generated_files.ROOT / "Docs" / "Developer" / "dialects.md"
SYMBOLS = {KEPT: "✓", ESTIMATED: "~"}
OTHER = "✗"
BACK_NAMES = dict(
    zip(BACKS, ("OpenAI chat", "OpenAI text", "Ollama chat", "Ollama generate", "KoboldCpp", "Claude"), strict=True)
)

INTRODUCTION = """\
# Which dialects carry what

Any client can be served from any back-end, streamed or not. This table shows which parts of an answer reach the client
as the back-end sent them. If a part does not, one of the two APIs does not support it; the notes below the table say
which.

✓ arrives unchanged, ~ arrives as an estimate, ✗ does not arrive. Two symbols: whole answer / streamed.
"""
SERVERS = "A back-end here is the API of these files in `Public/Configs/ApiTypes`:"
EXPLANATION = """\
*text*: the text of the answer, byte for byte. *`stop`*, *`length`*, *`content_filter`*: the reason why it ended; what
servers write in words of their own becomes one of these (`llmapis/finish_reasons.py`). *refusal*: the words with
which the model refuses to answer, which become the text. *tool call*, *two calls*: names
and arguments of tool calls, with the node's `allowTools` on. *ids*: the ids of these calls. *`tool_calls`*: that
reason after an answer with tool calls. *thinking*: the model's reasoning, with the user's `sendReasoningToClient` on.
*tokens*: the back-end's own token counts; if it reports none, the client gets an estimate. *fingerprint*: OpenAI's
`system_fingerprint`. *tool's image*: an image in the result of a tool, with the node's `acceptImages` on, which the
back-end gets in a message of the user; so it does with those of assistants and system prompts. *thinking back*: the
model's reasoning before a tool call, which the back-end gets again with the result of the tool. *early reason*: what a
back-end sends after a first finish reason, text and calls, and the last reason in place of the first. *failure*: an
error in place of the rest of an answer, after the text that came before it.
"""


def document(observed: Observation) -> str:
    """The whole file."""
    lines = [f"| client | back-end | {' | '.join(FEATURES.values())} |", "|---|---|" + "---|" * len(FEATURES)]
    lines += [_row(observed, front, back) for front in FRONTS for back in BACKS]
    servers = [f"* {BACK_NAMES[back]}: {', '.join(f'`{name}`' for name in _api_types(back))}" for back in BACKS]
    notes = [f"{_letter(number)}. {loss.reason}" for number, loss in enumerate(LOSSES)]
    return "\n".join(
        [
            INTRODUCTION,
            SERVERS,
            "",
            *servers,
            "",
            *lines,
            "",
            EXPLANATION,
            *_as_list(notes),
            "",
            "`python -m Scripts.generate` writes this page from a running server; a test compares the two.",
            "",
        ]
    )


def _api_types(back: str) -> list[str]:
    """The names of the shipped files of one type."""
    return [
        file.stem
        for file in sorted((SHIPPED / "ApiTypes").glob("*.json"), key=lambda file: file.stem.lower())
        if json.loads(file.read_text(encoding="utf-8"))["type"] == back
    ]


def _row(observed: Observation, front: str, back: str) -> str:
    cells = [_cell(observed, front, back, feature) for feature in FEATURES]
    return f"| {front} | {BACK_NAMES[back]} | {' | '.join(cells)} |"


def _cell(observed: Observation, front: str, back: str, feature: str) -> str:
    marks = [_mark(observed, Pair(front, back, stream), feature) for stream in (False, True)]
    return marks[0] if marks[0] == marks[1] else " / ".join(marks)


def _mark(observed: Observation, pair: Pair, feature: str) -> str:
    """The symbol of what was observed, with the letter of the reason that is known for it."""
    outcome, loss = observed.outcome(pair, feature), pair.loss(feature)
    symbol = SYMBOLS.get(outcome, OTHER)
    if loss is not None and outcome == loss.outcomes[feature]:
        return f"{symbol} {_letter(LOSSES.index(loss))}"
    return symbol if outcome == KEPT else f"{symbol} ?"


def _letter(number: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[number]


def _as_list(notes: list[str]) -> list[str]:
    return [f"* **{note[0]}**{note[2:]}" for note in notes]


def files() -> dict[Path, str]:
    """The page, from what a running server does."""
    return {DOCUMENT: document(observe())}
