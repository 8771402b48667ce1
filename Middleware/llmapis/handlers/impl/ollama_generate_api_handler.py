"""The Ollama text generation dialect. The prompt is sent raw: the endpoint's own prompt template has formatted it."""
from __future__ import annotations

from collections.abc import Mapping

from Middleware.llmapis.handlers.base.base_completions_handler import BaseCompletionsHandler
from Middleware.llmapis.handlers.base.base_llm_api_handler import Prompt
from Middleware.llmapis.handlers.base.ollama_answers import OllamaAnswers, text_chunk
from Middleware.models.messages import Chunk
from Middleware.utilities.config.keys.api_type import API_TYPE


class OllamaGenerateApiHandler(OllamaAnswers, BaseCompletionsHandler):
    """Calls ``/api/generate``."""

    PATH = "/api/generate"

    # -- request -------------------------------------------------------------------------------------------------
    def payload(self, prompt: Prompt) -> dict[str, object]:
        body: dict[str, object] = {"model": self.model, "prompt": self.text(prompt), "stream": self.streaming,
                                "raw": True, **self.sampler_fields()}
        images = self.raw_images(self.images(prompt))
        if images:
            body["images"] = images
        if API_TYPE.value(self.settings.api_type, "structuredOutput"):
            self.add_schema(body, prompt)
        return body

    # -- answer --------------------------------------------------------------------------------------------------
    def read_part(self, body: Mapping[str, object]) -> Chunk | None:
        if "response" not in body and "thinking" not in body:
            return None
        return text_chunk(body.get("response"), body.get("thinking"))

    def read_response(self, body: object) -> str:
        if not isinstance(body, Mapping):
            self.unreadable("an answer that is not an object")
            return ""
        self.check_error(body)
        self.note_end(body, body.get("thinking"))
        text = body.get("response")
        if not isinstance(text, str):
            self.unreadable("an answer without a text")
            return ""
        return text
