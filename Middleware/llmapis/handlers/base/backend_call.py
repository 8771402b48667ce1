"""What goes into one call of a back-end and what comes out of it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Required, TypedDict

from Middleware.models.messages import Message

Block = dict[str, object]
"""A part of a message, such as a piece of its content or a tool call, in the words of a dialect."""


class BackendMessage(TypedDict, total=False):
    """A message of a payload. Each dialect leaves the keys that its back-ends know."""

    role: Required[str]
    content: str | list[Block] | None
    images: list[str]
    tool_calls: list[Block]
    tool_call_id: str
    name: str
    tool_name: str


@dataclass(frozen=True)
class BackendSettings:
    """What a handler needs to know of its endpoint.

    Attributes:
        base_url: the endpoint's ``endpoint`` key.
        model: value of the payload's ``model``; None leaves the key out.
        samplers: final sampler fields, sent as they are.
        endpoint: the endpoint file.
        connect_timeout: seconds.
        single_attempt: neither retry nor reconnect, because a backup stands by.
        local_only: refuse to talk to a machine outside the local network.
    """

    endpoint_name: str
    base_url: str
    endpoint: Mapping[str, object] = field(repr=False)  # holds the key
    api_type: Mapping[str, object]
    samplers: Mapping[str, object] = field(default_factory=dict)
    model: str | None = None
    api_key: str = field(default="", repr=False)
    connect_timeout: float = 30
    single_attempt: bool = False
    local_only: bool = False


def bearer_headers(settings: BackendSettings) -> dict[str, str]:
    """The headers of most dialects: JSON, and the key if there is one."""
    headers = {"Content-Type": "application/json"}
    if settings.api_key:
        headers["Authorization"] = f"Bearer {settings.api_key}"
    return headers


@dataclass(frozen=True)
class Prompt:
    """What is sent: a list of messages, or two texts. Never changed by a handler."""

    conversation: Sequence[Message] | None = None
    system_prompt: str | None = None
    prompt: str | None = None
    tools: Sequence[Mapping[str, object]] | None = None
    tool_choice: object = None
    schema: Mapping[str, object] | None = None
