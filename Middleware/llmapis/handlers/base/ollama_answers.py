"""What the two dialects of Ollama have in common: samplers, the outer object of answers, and their ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from Middleware.llmapis.api_types import model_name
from Middleware.llmapis.handlers.base.answer_forms import carries, text_in, usage_of
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.transport import BackendRequest
from Middleware.models.messages import Chunk, Usage, token_count
from Middleware.utilities.answers.stream_parsers import NDJSONParser
from Middleware.utilities.config.keys.api_type import API_TYPE

# Ollama ignores these fields inside ``options``.
TOP_LEVEL_FIELDS = ("think", "keep_alive", "format")


class OllamaAnswers(BaseLlmApiHandler):
    """Sorts samplers into Ollama's payload and reads the outer object of an answer or an event.

    Attributes:
        streaming: whether the current call streams. ``request`` sets it before the payload is built, because the
            samplers contain it only for API types with a stream key.
    """

    FRAMER = NDJSONParser
    streaming = False

    # -- request -------------------------------------------------------------------------------------------------
    def request(self, prompt: Prompt, stream: bool) -> BackendRequest:
        self.streaming = stream
        return super().request(prompt, stream)

    @property
    def model(self) -> str:
        """The model name, which Ollama needs even from endpoints that omit it elsewhere."""
        return self.settings.model or model_name(self.settings.endpoint)

    def sampler_fields(self) -> dict[str, object]:
        """Return the samplers as payload fields: ``options``, and the fields that Ollama reads at the top level."""
        samplers = self.settings.samplers
        apart = {*TOP_LEVEL_FIELDS, "stream", API_TYPE.value(self.settings.api_type, "streamPropertyName")}
        fields = {key: samplers[key] for key in TOP_LEVEL_FIELDS if key in samplers}
        return {**fields, "options": {key: value for key, value in samplers.items() if key not in apart}}

    # -- answer --------------------------------------------------------------------------------------------------
    @abstractmethod
    def read_part(self, body: Mapping[str, object]) -> Chunk | None:
        """Return the text, reasoning and tool calls of an event; None for an event without fields for them."""

    def read_event(self, body: dict[str, object], name: str | None) -> Chunk | None:
        self.check_error(body)
        chunk = self.read_part(body)
        if not body.get("done"):
            return chunk
        chunk = chunk or {"token": "", "finish_reason": None}
        chunk["finish_reason"] = self.finish_reason(body)
        usage = self.note_usage(body)
        if usage:
            chunk["usage"] = usage
        # Servers that write it on each line have content in it, and others may follow.
        self.closed = not carries(chunk)
        return chunk

    def check_error(self, body: Mapping[str, object]) -> None:
        """Raise BackendResponseError for an error object, which Ollama also sends in the middle of a stream."""
        if body.get("error"):
            self.raise_error_object(body["error"], body)

    def finish_reason(self, body: Mapping[str, object]) -> str:
        """Return the server's word for the end of a complete answer; older servers have none."""
        return str(body.get("done_reason") or "stop")

    def note_usage(self, body: Mapping[str, object]) -> Usage | None:
        """Return and store the token counts of an object. Older servers omit the count of a cached prompt."""
        usage = usage_of(token_count(body.get("prompt_eval_count")), token_count(body.get("eval_count")))
        # A line without counts may follow the one that has them.
        if usage or not self.outcome.usage:
            self.outcome.usage, self.outcome.reported = usage, body
        self.outcome.model = text_in(body, "model")
        return self.outcome.usage

    def note_end(self, body: Mapping[str, object], reasoning: str) -> None:
        """Store the metadata of a complete answer."""
        self.note_usage(body)
        self.outcome.reasoning = reasoning
        if body.get("done"):
            self.outcome.finish_reason = self.finish_reason(body)


def text_chunk(text: str, reasoning: str) -> Chunk:
    """Return the chunk of a text and the reasoning that came with it."""
    chunk: Chunk = {"token": text, "finish_reason": None}
    if reasoning:
        chunk["reasoning"] = reasoning
    return chunk
