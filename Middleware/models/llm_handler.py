"""The handle through which a node reaches its LLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from Middleware.llmapis.llm_api import LlmApiService


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

    llm: LlmApiService | None
    prompt_template_file_name: str | None = None
    add_generation_prompt: bool | None = None
    takes_message_collection: bool = True
    endpoint_name: str = ""
    endpoint_config: Mapping[str, object] = field(default_factory=dict, repr=False)
    max_tokens: int | None = None

    @property
    def service(self) -> LlmApiService:
        """``llm`` of a node that has an endpoint."""
        # LlmDispatchService refuses the calls of nodes that name no endpoint.
        assert self.llm is not None
        return self.llm

    @property
    def answering_endpoint(self) -> tuple[str, Mapping[str, object]]:
        """Name and file of the endpoint that answered the last call (a backup, perhaps), or is going to be called."""
        if self.llm is None:
            return self.endpoint_name, self.endpoint_config
        # Both are empty before the first call.
        outcome = self.llm.outcome
        return outcome.endpoint_name or self.endpoint_name, outcome.endpoint_config or self.endpoint_config
