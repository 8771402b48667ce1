"""What Ollama's chat and text generation have in common: options, images, ends of answers, token counts, errors."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from Middleware.llmapis.api_types import model_name
from Middleware.llmapis.handlers.base.base_llm_api_handler import LlmApiHandler, Prompt
from Middleware.llmapis.handlers.base.image_sources import base64_data
from Middleware.llmapis.handlers.base.structured_output import attach_schema
from Middleware.llmapis.transport import BackendRequest
from Middleware.models.messages import Chunk, Usage
from Middleware.utilities.answers.stream_parsers import NDJSONParser
from Middleware.utilities.config.keys.api_type import API_TYPE

TOP_LEVEL_FIELDS = ("think", "keep_alive", "format")  # ignored by Ollama inside ``options``


class OllamaAnswers(LlmApiHandler):
    """Sorts samplers into Ollama's payload and reads the outer object of an answer or an event.

    Attributes:
        streaming: whether the call at hand is a streaming one. ``request`` sets it before the payload is built: the
            samplers tell it only for API types that name a stream key.
    """

    FRAMER = NDJSONParser
    streaming = False

    # -- request -------------------------------------------------------------------------------------------------
    def request(self, prompt: Prompt, stream: bool) -> BackendRequest:
        self.streaming = stream
        return super().request(prompt, stream)

    @property
    def model(self) -> str:
        """Ollama needs a model, also from endpoints that leave it out elsewhere."""
        return self.settings.model or model_name(self.settings.endpoint)

    def sampler_fields(self) -> dict[str, object]:
        """The samplers as fields of the payload: ``options``, and beside it what Ollama reads at the top level."""
        samplers = self.settings.samplers
        apart = {*TOP_LEVEL_FIELDS, "stream", API_TYPE.value(self.settings.api_type, "streamPropertyName")}
        fields = {key: samplers[key] for key in TOP_LEVEL_FIELDS if key in samplers}
        return {**fields, "options": {key: value for key, value in samplers.items() if key not in apart}}

    def raw_images(self, sources: Sequence[object]) -> list[str]:
        """The images as plain base64. Web addresses and whatever else is no data are skipped with a warning."""
        images = [image for image in map(base64_data, sources) if image]
        if len(images) < len(sources):
            self.unreadable(f"{len(sources) - len(images)} image(s): Ollama takes base64 data only, no addresses")
        return images

    def add_schema(self, body: dict[str, object], prompt: Prompt) -> None:
        """Write the schema of the answer, if there is one, into the payload."""
        if prompt.schema is not None:
            attach_schema(body, prompt.schema, API_TYPE.value(self.settings.api_type, "structuredOutput"),
                          self.settings.endpoint_name)

    # -- answer --------------------------------------------------------------------------------------------------
    @abstractmethod
    def read_part(self, body: Mapping[str, object]) -> Chunk | None:
        """The text, reasoning and tool calls of an event; None for an event without any field for them."""

    def read_event(self, body: dict[str, object], name: str | None) -> Chunk | None:
        if self.closed:
            return None
        self.check_error(body)
        chunk = self.read_part(body)
        if not body.get("done"):
            return chunk
        chunk = chunk or {"token": "", "finish_reason": None}
        chunk["finish_reason"] = self.outcome.finish_reason = self.finish_reason(body)
        usage = self.note_usage(body)
        if usage:
            chunk["usage"] = usage
        self.ended = self.closed = True
        return chunk

    def check_error(self, body: Mapping[str, object]) -> None:
        """Raise BackendResponseError for an error object; Ollama also sends it in the midst of a stream."""
        if body.get("error"):
            self.raise_error_object(body["error"])

    def finish_reason(self, body: Mapping[str, object]) -> str:
        """The finish reason of an answer that is done."""
        return "length" if body.get("done_reason") == "length" else "stop"

    def note_usage(self, body: Mapping[str, object]) -> Usage | None:
        """The token counts of an object, kept for the outcome too. Ollama leaves out the count of a cached prompt."""
        counts = [value if type(value) is int else None
                  for value in (body.get("prompt_eval_count"), body.get("eval_count"))]
        if counts == [None, None]:
            return None
        prompt, completion = (count or 0 for count in counts)
        self.outcome.usage = {"prompt_tokens": prompt, "completion_tokens": completion,
                              "total_tokens": prompt + completion}
        return self.outcome.usage

    def note_end(self, body: Mapping[str, object], reasoning: object) -> None:
        """Keep what a complete answer says besides its text."""
        self.note_usage(body)
        self.outcome.reasoning = reasoning if isinstance(reasoning, str) else ""
        if body.get("done"):
            self.outcome.finish_reason = self.finish_reason(body)


def text_chunk(text: object, reasoning: object) -> Chunk:
    """A chunk of two values, either of which counts only if it is text."""
    chunk: Chunk = {"token": text if isinstance(text, str) else "", "finish_reason": None}
    if reasoning and isinstance(reasoning, str):
        chunk["reasoning"] = reasoning
    return chunk
