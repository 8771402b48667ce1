"""Runs for tests of the store and of what reads it."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

from Middleware.addons.records.model import RunDocument, Span
from Middleware.addons.records.store.packing import UNSAID
from Middleware.utilities.json_data import strings_in

_numbers = itertools.count(1)


def run_id(number=None):
    number = next(_numbers) if number is None else number
    return f"{number:08x}-0000-4000-8000-{number:012x}"


def facts(**given):
    """Return the facts of a run; ``_`` in a name stands for a point where the fact's name has one."""
    now = int(time.time() * 1_000_000)
    known = {
        "id": run_id(),
        "kind": "chat",
        "origin": None,
        "status": "ok",
        "error.type": None,
        "user": "me",
        "key_hash": None,
        "private": False,
        "client": "openai",
        "model": "me:chat",
        "stream": True,
        "workflow": "Chat",
        "route": "Chat",
        "route.reason": 'model "me:chat"',
        "discussion": None,
        "conversation": None,
        "started": now,
        "queued": None,
        "first_token": now + 300_000,
        "answered": now + 900_000,
        "ended": now + 1_000_000,
        "nodes": 1,
        "calls": 1,
        "endpoints": ["Main"],
        "usage.input_tokens": 120,
        "usage.output_tokens": 30,
        "usage.cache_read.input_tokens": None,
        "estimated": False,
        "config": [],
        "question": "What is the time?",
        "answer": "Late.",
        "error": None,
    }
    names = {name.replace(".", "_"): name for name in known}
    return {**known, **{names[name]: value for name, value in given.items()}}


def message(role, content):
    return {"role": role, "content": content}


def spans(messages=None, answer="Late."):
    """Return the spans of a run with one node."""
    payload = {"model": "qwen", "messages": messages or [message("user", "What is the time?")], "stream": True}
    return [
        Span(1, None, "workflow", "Chat", 0, 1_000_000, "ok", {"workflow.name": "Chat"}),
        Span(2, 1, "node", "Answer", 10, 999_000, "ok", {"node.index": 1, "node.type": "Standard"}, {"output": answer}),
        Span(3, 2, "llm", "Main", 20, 998_000, "ok", {"endpoint": "Main", "chunks": None}, {"answer": answer}),
        Span(
            4, 3, "attempt", "Main", 30, 997_000, "ok", {**UNSAID["attempt"], "server.port": 8080}, {"payload": payload}
        ),
    ]


def run(key=None, messages=None, answer="Late.", **given):
    """Return a finished run as the store gets it."""
    made = spans(messages, answer)
    size = sum(len(text) for span in made for value in span.texts.values() for _, text in strings_in(value))
    return RunDocument(facts(answer=answer, **given), made, encryption_key=key, size=size, normalised=True)


class Ring:
    """The runs in memory, as a list."""

    def __init__(self, *documents):
        self.all = list(documents)

    def documents(self):
        return sorted(self.all, key=lambda one: (one.facts["started"], one.facts["id"]), reverse=True)

    def get(self, run_id):
        return next((one for one in self.all if one.facts["id"] == run_id), None)

    def remove(self, run_ids):
        self.all = [one for one in self.all if one.facts["id"] not in set(run_ids)]

    def clear(self):
        self.all = [one for one in self.all if not one.finished]


def ended(document, **changed):
    """Return the run as it is later."""
    return replace(document, facts={**document.facts, **changed})
