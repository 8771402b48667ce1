"""The handle through which a node reaches its LLM."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class LlmHandler:
    """An LLM as one node sees it.

    Attributes:
        llm: the service that makes the call (``LlmApiService``), or None for a node without an endpoint.
        prompt_template_file_name: template of the endpoint, or the user's chat template.
        add_generation_prompt: whether a completion prompt ends with an open assistant prefix.
        takes_message_collection: the back-end takes a list of messages; False: it takes one text.
        endpoint_config: read-only endpoint file, empty without an endpoint.
    """

    llm: Any
    prompt_template_file_name: str | None = None
    add_generation_prompt: bool | None = None
    takes_message_collection: bool = True
    endpoint_name: str = ""
    endpoint_config: Mapping[str, object] = field(default_factory=dict, repr=False)
    max_tokens: int | None = None
