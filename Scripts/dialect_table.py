"""Writes Docs/Developer/dialects.md: what survives between each kind of client and each kind of back-end.

A server and a scripted back-end are started, every client dialect asks every back-end dialect, and what arrives is
written as a table. Takes some seconds; needs nothing but what the tests need. With --check nothing is written; the exit
status is 1 if the file is not what would be written.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # started as a file

from Tests.integration.client_dialects import FRONTS  # noqa: E402
from Tests.integration.dialect_matrix import (  # noqa: E402
    BACKS,
    ESTIMATED,
    FEATURES,
    KEPT,
    LOSSES,
    Observation,
    Pair,
    observe,
)

DOCUMENT = ROOT / "Docs" / "Developer" / "dialects.md"
SYMBOLS = {KEPT: "✓", ESTIMATED: "~"}
OTHER = "✗"
BACK_NAMES = dict(zip(BACKS, ("OpenAI chat", "OpenAI text", "Ollama chat", "Ollama generate", "KoboldCpp", "Claude"),
                      strict=True))

INTRODUCTION = """\
# Which dialects carry what

Any client can be served from any back-end, streamed or not; this table says what of an answer arrives at the client as
the back-end said it. Where something does not, it is because one of the two APIs does not know it; the notes below
the table say which.

✓ arrives unchanged, ~ arrives as an estimate, ✗ does not arrive. Two symbols: answered whole / streamed.
"""
EXPLANATION = """\
*text*: the text of the answer, to the byte. *`stop`*, *`length`*: the reason why it ended. *tool call*, *two calls*:
names and arguments of tool calls, with the node's `allowTools` on. *`tool_calls`*: that reason after an answer with
tool calls. *thinking*: the model's reasoning, with the user's `sendReasoningToClient` on. *tokens*: the back-end's own
token counts; where it tells none, the client gets an estimate. *fingerprint*: OpenAI's `system_fingerprint`.
"""


def document(observed: Observation) -> str:
    """The whole file."""
    lines = [f"| client | back-end | {' | '.join(FEATURES.values())} |", "|---|---|" + "---|" * len(FEATURES)]
    lines += [_row(observed, front, back) for front in FRONTS for back in BACKS]
    notes = [f"{_letter(number)}. {loss.reason}" for number, loss in enumerate(LOSSES)]
    return "\n".join([INTRODUCTION, *lines, "", EXPLANATION, *_as_list(notes), "",
                      "`Scripts/dialect_table.py` makes this page from a running server; a test compares the two.", ""])


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


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether the file is current")
    arguments = parser.parse_args(argv)
    text = document(observe())
    if not arguments.check:
        DOCUMENT.write_text(text, encoding="utf-8", newline="\n")
        print(f"{DOCUMENT.name} is written.")
        return 0
    current = DOCUMENT.is_file() and DOCUMENT.read_text(encoding="utf-8") == text
    print(f"{DOCUMENT.name} is current." if current else f"{DOCUMENT.name} is not current; run this without --check.")
    return 0 if current else 1


if __name__ == "__main__":
    sys.exit(main())
