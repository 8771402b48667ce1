"""The data of one back-end call: settings, prompt and messages."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Required, TypedDict

from Middleware.models.messages import Message

Block = dict[str, object]
"""A part of a message, such as a content block or a tool call, in the form of a dialect."""


class BackendMessage(TypedDict, total=False):
    """A message of a payload. Each dialect keeps only the keys that its back-ends know."""

    role: Required[str]
    content: str | list[Block] | None
    images: list[str]
    tool_calls: list[Block]
    tool_call_id: str
    name: str
    tool_name: str


@dataclass(frozen=True)
class BackendSettings:
    """The settings of an endpoint for its handler.

    Attributes:
        base_url: the endpoint's ``endpoint`` key.
        model: value of the payload's ``model``; None leaves the key out.
        samplers: final sampler fields, sent as they are.
        endpoint: the endpoint file.
        connect_timeout: seconds.
        single_attempt: neither retry nor reconnect, because there is a backup.
        local_only: refuse to connect to a machine outside the local network.
    """

    endpoint_name: str
    base_url: str
    # Excluded from repr because it contains the key.
    endpoint: Mapping[str, object] = field(repr=False)
    api_type: Mapping[str, object]
    samplers: Mapping[str, object] = field(default_factory=dict)
    model: str | None = None
    api_key: str = field(default="", repr=False)
    connect_timeout: float = 30
    single_attempt: bool = False
    local_only: bool = False


def bearer_headers(settings: BackendSettings) -> dict[str, str]:
    """Return the headers of most dialects: JSON, and the key if there is one."""
    headers = {"Content-Type": "application/json"}
    if settings.api_key:
        headers["Authorization"] = f"Bearer {settings.api_key}"
    return headers


@dataclass(frozen=True)
class Prompt:
    """The content to send: a list of messages, or two texts. Handlers never change it."""

    conversation: Sequence[Message] | None = None
    system_prompt: str | None = None
    prompt: str | None = None
    tools: Sequence[Mapping[str, object]] | None = None
    tool_choice: object = None
    schema: Mapping[str, object] | None = None
