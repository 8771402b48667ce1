"""The text generation dialect of Ollama."""

from __future__ import annotations

from collections.abc import Mapping

from Middleware.llmapis.handlers.base.answer_forms import text_in
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.llmapis.handlers.base.base_completions_handler import BaseCompletionsHandler
from Middleware.llmapis.handlers.base.ollama_answers import OllamaAnswers, text_chunk
from Middleware.models.messages import Chunk


class OllamaGenerateHandler(OllamaAnswers, BaseCompletionsHandler):
    """Calls ``/api/generate``. The prompt is sent raw: the endpoint's own prompt template has formatted it."""

    PATH = "/api/generate"

    # -- request -------------------------------------------------------------------------------------------------
    def payload(self, prompt: Prompt) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self.model,
            "prompt": self.text(prompt),
            "stream": self.streaming,
            "raw": True,
            **self.sampler_fields(),
        }
        images = self.base64_images(self.images(prompt), "Ollama")
        if images:
            body["images"] = images
        self.add_declared_schema(body, prompt)
        return body

    # -- answer --------------------------------------------------------------------------------------------------
    def read_part(self, body: Mapping[str, object]) -> Chunk | None:
        if "response" not in body and "thinking" not in body:
            return None
        self.formed = True
        return text_chunk(text_in(body, "response"), text_in(body, "thinking"))

    def read_response(self, body: Mapping[str, object]) -> str:
        self.check_error(body)
        self.note_end(body, text_in(body, "thinking"))
        text = body.get("response")
        if not isinstance(text, str):
            raise self.no_answer(body)
        return text
