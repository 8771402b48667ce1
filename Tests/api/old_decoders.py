"""How old clients read streams of server-sent events. They know less than the standard allows."""

from __future__ import annotations

import json
from typing import Any

Item = dict[str, Any]


def go_events(data: bytes) -> list[tuple[str, Item]]:
    """Return the names and objects of a stream as openai-go 3.42 reads it, without ``[DONE]``.

    Each empty line ends an event, whether or not there was one, and each event must be JSON: an empty line behind a
    comment ends the program. Raises ValueError for a stream that this decoder cannot read.
    """
    found: list[tuple[str, Item]] = []
    name, held = "", b""
    assert data.endswith(b"\n\n")
    for line in data.split(b"\n")[:-1]:
        key, _, value = line.partition(b":")
        if not line:
            if held != b"[DONE]\n":
                found.append((name, json.loads(held)))
            name, held = "", b""
        elif key == b"event":
            name = value.strip().decode()
        elif key == b"data":
            held += value.removeprefix(b" ") + b"\n"
    return found
