"""A strict reader of the streams of the Responses API: everything that the specification says of their order holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

TYPES = frozenset(
    f"response.{name}"
    for name in (
        "created",
        "in_progress",
        "completed",
        "incomplete",
        "failed",
        "output_item.added",
        "output_item.done",
        "content_part.added",
        "content_part.done",
        "output_text.delta",
        "output_text.done",
        "reasoning_summary_part.added",
        "reasoning_summary_part.done",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
    )
)
LAST = ("response.completed", "response.incomplete", "response.failed")
TEXTS = {"message": "content", "reasoning": "summary"}


@dataclass
class Heard:
    """A stream.

    Attributes:
        response: the object of the last event.
        texts: what the deltas of each item add up to.
    """

    events: list[dict[str, Any]] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    items: dict[int, dict[str, Any]] = field(default_factory=dict)
    done: dict[int, dict[str, Any]] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)

    @property
    def response(self) -> Any:
        return self.events[-1]["response"]

    @property
    def types(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events]

    @property
    def texts_in_order(self) -> list[str]:
        return [text for _, text in sorted(self.texts.items())]

    def _take(self, event: dict[str, Any]) -> None:
        kind: str = event["type"]
        index: Any = event.get("output_index")
        assert kind in TYPES
        assert event["sequence_number"] == len(self.events)
        assert self.events or kind == "response.created"
        assert not self.events or self.events[-1]["type"] not in LAST
        self.events.append(event)
        if kind == "response.output_item.added":
            assert index == len(self.items)
            assert event["item"]["status"] == "in_progress"
            self.items[index], self.ids[index], self.texts[index] = event["item"], event["item"]["id"], ""
            self._others_closed(index)
        elif kind == "response.output_item.done":
            assert event["item"]["id"] == self.ids[index] and event["item"]["status"] in ("completed", "incomplete")
            self.done[index] = event["item"]
        elif index is not None:
            assert event["item_id"] == self.ids[index] and index not in self.done
            if kind.endswith(".delta"):
                self.texts[index] += event["delta"]
            elif kind.endswith(("text.done", "arguments.done", "input.done")):
                whole = event.get("text", event.get("arguments", event.get("input")))
                assert whole == self.texts[index]
            elif kind.endswith("part.done"):
                assert event["part"]["text"] == self.texts[index]
        elif "response" in event:
            self._check_object(event["response"])

    def _others_closed(self, index: int) -> None:
        """What is not a call is open alone."""
        for other, item in self.items.items():
            both_calls = item["type"] not in TEXTS and self.items[index]["type"] not in TEXTS
            assert other == index or other in self.done or both_calls

    def _check_object(self, response: dict[str, Any]) -> None:
        assert response["id"] == self.events[0]["response"]["id"]
        assert [item["id"] for item in response["output"]] == list(self.ids.values())
        for index, item in enumerate(response["output"]):
            if item["type"] in TEXTS:
                parts = item[TEXTS[item["type"]]]
                assert "".join(part["text"] for part in parts) == self.texts[index]
            if index in self.done:
                assert item == self.done[index]


def heard(data: bytes) -> Heard:
    """Read a stream to its end and check it. Each block is an event with a name; no comments, and no ``[DONE]``."""
    result = Heard()
    assert data.endswith(b"\n\n")
    for block in data.decode().split("\n\n")[:-1]:
        name, line = block.split("\n")
        event = json.loads(line.removeprefix("data: "))
        assert name == f"event: {event['type']}" and line.startswith("data: ")
        result._take(event)
    assert result.events[-1]["type"] in LAST
    assert result.done.keys() == result.items.keys()
    return result
