"""What a call of an LLM server is made from: the settings of its endpoint, a prompt, the messages of a payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Required, TypedDict

from Middleware.llmapis.addresses import api_path_of, key_headers
from Middleware.models.messages import Keepsake, Message

if TYPE_CHECKING:
    from Middleware.llmapis.call_watch import CallWatch

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
    extra: list[Keepsake]


@dataclass(frozen=True)
class BackendSettings:
    """The settings of an endpoint for its handler.

    Attributes:
        base_url: the endpoint's ``endpoint`` key.
        file: path of the endpoint's file, relative to the config root, for messages.
        model: value of the payload's ``model``; None leaves the key out.
        samplers: final sampler fields, sent as they are.
        endpoint: the endpoint file.
        connect_timeout: seconds.
        single_attempt: neither retry nor reconnect, because there is a backup.
        local_only: refuse to connect to a machine outside the local network.
        remedy: returns the file and the key that a field of the payload comes from, as advice; "" if none is known.
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
    file: str = ""
    remedy: Callable[[str], str] = field(default=lambda _: "", repr=False, compare=False)

    @property
    def api_path(self) -> str | None:
        """The endpoint's ``apiPath``; None without one."""
        return api_path_of(self.endpoint)


def bearer_headers(settings: BackendSettings, kind: str = "") -> dict[str, str]:
    """Return the headers of a dialect: JSON, and the key if there is one."""
    keyed = key_headers(settings.base_url, settings.api_path, settings.api_key, kind)
    return {"Content-Type": "application/json", **keyed}


@dataclass(frozen=True)
class Prompt:
    """The content to send: a list of messages, or two texts. Handlers never change it.

    Attributes:
        schema: the JSON schema of the answer.
        choices: the only texts that the answer may be; ``schema`` does not count then.
        watch: what reports the call to listeners; None without any.
        verbatim: the texts of the endpoint are in it already, and it is sent as it is.
        conversation_of: the node whose conversation it is, which has to have something in it; "" for other prompts.
        textless: of that, there is nothing in the texts.
    """

    conversation: Sequence[Message] | None = None
    system_prompt: str | None = None
    prompt: str | None = None
    tools: Sequence[Mapping[str, object]] | None = None
    tool_choice: object = None
    schema: Mapping[str, object] | None = None
    choices: Sequence[str] = ()
    watch: CallWatch | None = field(default=None, repr=False, compare=False)
    verbatim: bool = False
    conversation_of: str = ""
    textless: bool = False
