"""The text completion dialect of OpenAI."""

from __future__ import annotations

from collections.abc import Mapping

from Middleware.llmapis.handlers.base.answer_forms import text_in
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.llmapis.handlers.base.base_completions_handler import BaseCompletionsHandler
from Middleware.llmapis.handlers.base.openai_answers import OpenAiAnswers, reasoning_of
from Middleware.models.messages import Chunk
from Middleware.models.request_context import first_logged


class OpenAiCompletionsApiHandler(OpenAiAnswers, BaseCompletionsHandler):
    """Calls ``/v1/completions``."""

    PATH = "/v1/completions"

    def payload(self, prompt: Prompt) -> dict[str, object]:
        images = len(self.images(prompt))
        if images and first_logged(f"images that endpoint '{self.settings.endpoint_name}' cannot take"):
            self.unreadable(f"{images} image(s): text completions take none")
        model = {} if self.settings.model is None else {"model": self.settings.model}
        return {**model, **super().payload(prompt)}

    def read_choice(self, choice: Mapping[str, object], chunk: Chunk) -> None:
        # Servers omit the text in a last chunk.
        self.formed = self.formed or "text" in choice
        chunk["token"] = text_in(choice, "text")
        reasoning = reasoning_of(choice)
        if reasoning:
            chunk["reasoning"] = reasoning

    def read_response(self, body: Mapping[str, object]) -> str:
        choice = self.open_answer(body)
        if not isinstance(choice.get("text", 0), str | None):
            raise self.no_answer(body)
        self.outcome.reasoning = reasoning_of(choice)
        return text_in(choice, "text")
