"""The LLM servers and services of the old installation, played by one stub.

A prompt says who the model is (``You are the planner.``), and the stub answers ``The planner answers.`` unless ``SAYS``
has other words for it, in the dialect of the path that was called.
"""

from __future__ import annotations

import json
import re
from typing import Any

from Tests.backend_dialects import Answer, speak
from Tests.stub_backend import RecordedRequest, Reply, StubBackend, json_reply

_ROLE = re.compile(r"You are the ([a-z ]+)\.")
_TOPIC = re.compile(r"Topic: ([A-Z ]+)\.")
FACT = {
    "title": "Ledger",
    "summary": "The ledger is in the café.",
    "entities": ["Mara"],
    "key_phrases": ["hidden ledger"],
}
SAYS = {
    "thinker": "<reasoning>first this, then that</reasoning>\nThinker: Deep answer.",
    "doubter": "no opening tag</think>Certainly! No doubt.",
    "extractor": '```json\n{"city": "Brno"}\n```',
    "fact finder": json.dumps([FACT], ensure_ascii=False),
}
PAGES: dict[str, Any] = {
    "/articles": [{"title": "T1", "text": "Full text."}],
    "/top_article": {"title": "T2", "text": "Best text."},
    "/top_n_articles": [{"title": "T3", "text": "Third."}, {"title": "T4", "text": "Fourth."}],
    "/summaries": [{"title": "T5", "text": "Fifth."}, {"title": "T6", "text": "Sixth."}],
    "/search": {
        "status": "ok",
        "answer": "Researched.",
        "no_information_found": False,
        "sources": [{"book": "Atlas", "title": "Mills"}],
    },
    "/page": b"<html><head><title>no</title></head><body><p>Page &amp; text</p></body></html>",
    "/plain": b"curled",
}


def role_of(request: RecordedRequest) -> str:
    """Who the model is that this request calls; the path if it calls none."""
    found = _ROLE.search(request.body.decode())
    return found[1] if found else request.path.partition("?")[0]


def _answer(request: RecordedRequest) -> Reply:
    path = request.path.partition("?")[0]
    if path in PAGES:
        return json_reply(PAGES[path])
    role = role_of(request)
    if role == "sorter":
        topics = _TOPIC.findall(request.body.decode())
        text = f"**{topics[-1].lower()}**." if topics else "I cannot say."
    else:
        text = SAYS.get(role, f"The {role} answers.")
    return speak(request, Answer([text[at : at + 4] for at in range(0, len(text), 4)]))


def old_backend() -> StubBackend:
    """The stub, not yet started."""
    backend = StubBackend()
    backend.responder = _answer
    return backend
