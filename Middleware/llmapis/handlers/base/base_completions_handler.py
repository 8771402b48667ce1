"""Payloads of back-ends that take one text."""
from __future__ import annotations

from Middleware.llmapis.api_types import injected_text
from Middleware.llmapis.handlers.base.base_llm_api_handler import LlmApiHandler, Prompt
from Middleware.llmapis.handlers.base.structured_output import attach_schema
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.text_utils import restore_braces


class BaseCompletionsHandler(LlmApiHandler):
    """Builds ``prompt``, samplers and schema, in this order. Tools have no place in a text and are left out."""

    def payload(self, prompt: Prompt) -> dict[str, object]:
        body: dict[str, object] = {"prompt": self.text(prompt), **self.settings.samplers}
        descriptor = API_TYPE.value(self.settings.api_type, "structuredOutput")
        if prompt.schema is not None and descriptor:
            attach_schema(body, prompt.schema, descriptor, self.settings.endpoint_name)
        return body

    def text(self, prompt: Prompt) -> str:
        """System and prompt as one text, trimmed, with the endpoint's three texts in their places.

        The completion text comes after the trimming and stays as it is, so that it can end with a space or a line
        break.
        """
        endpoint = self.settings.endpoint
        system = injected_text(endpoint, "addTextToStartOfSystem", "textToAddToStartOfSystem") \
            + (prompt.system_prompt or "")
        start = injected_text(endpoint, "addTextToStartOfPrompt", "textToAddToStartOfPrompt") + (prompt.prompt or "")
        completion = injected_text(endpoint, "addTextToStartOfCompletion", "textToAddToStartOfCompletion")
        return restore_braces((system + start).strip()) + completion

    @staticmethod
    def images(prompt: Prompt) -> list[object]:
        """The images of the user messages that came along with the text, as they are."""
        found: list[object] = []
        for message in prompt.conversation or ():
            images = message.get("images")
            if message.get("role") == "user" and images:
                found += images if isinstance(images, list) else [images]
        return found
