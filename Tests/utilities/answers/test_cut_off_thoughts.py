"""Which answers are nothing but a thought that never ends."""

from __future__ import annotations

from typing import Any

from Middleware.utilities.answers.cut_off_thoughts import is_cut_off_thought
from Tests.tables import table

OWN = {"startThinkTag": "<|Reason|>", "endThinkTag": "<|/Reason|>"}
CLOSING = {"removeThinking": True, "expectOnlyClosingThinkTag": True, "startThinkTag": "<a>", "endThinkTag": "</a>"}


@table(
    ("text", "endpoint", "finish_reason", "cut_off"),
    [
        ("<think>x", {}, None, True),
        (" \n<Think>\nx", {}, None, True),
        ("[THINK]x", {}, None, True),
        ("<reasoning>x", {}, "stop", True),
        ("<think>x</thinking>", {}, None, True),
        ("<think>x</think>", {}, None, False),
        ("<think>x</THINK> y", {}, "length", False),
        ("</think>x", {}, None, False),
        ("see <think>x", {}, None, False),
        ("[think]x", {}, None, False),
        ("", {}, "length", False),
        ("x", {}, None, False),
        ("<|reason|>x", OWN, None, True),
        ("<|reason|>x<|/REASON|>", OWN, None, False),
        ("<|reason|>x", {}, None, False),
        ("<pad>x", {"thinkTagText": "pad"}, None, True),
        ("<pad>x</pad>", {"thinkTagText": "pad"}, None, False),
        ("<pad>x", {**OWN, "thinkTagText": "pad"}, None, False),
        ("x", CLOSING, "length", True),
        ("x", CLOSING, "stop", False),
        ("x</A>y", CLOSING, "length", False),
        ('[{"title"', CLOSING, "length", False),
        ("```json", CLOSING, "length", False),
        ("", CLOSING, "length", False),
        ("x", {**CLOSING, "removeThinking": False}, "length", False),
        ("x", {**CLOSING, "startThinkTag": None, "endThinkTag": None}, "length", False),
    ],
)
def test_is_cut_off_thought(text: str, endpoint: dict[str, Any], finish_reason: str | None, cut_off: bool) -> None:
    assert is_cut_off_thought(text, endpoint, finish_reason) is cut_off
