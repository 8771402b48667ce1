"""Payloads of back-ends that take one text."""

from __future__ import annotations

from Middleware.llmapis.api_types import injected_text
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.handlers.base.structured_output import constrain
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.text_utils import restore_braces


class BaseCompletionsHandler(BaseLlmApiHandler):
    """Builds ``prompt``, samplers and schema, in this order. Tools are omitted."""

    OPERATION = "text_completion"

    def payload(self, prompt: Prompt) -> dict[str, object]:
        body: dict[str, object] = {"prompt": self.text(prompt), **self.settings.samplers}
        self.add_declared_schema(body, prompt)
        return body

    def add_declared_schema(self, body: dict[str, object], prompt: Prompt) -> None:
        """Insert the constraint on the answer if the API type supports one."""
        # Few of these API types declare one, and the node whose schema is not sent logs that.
        if prompt.choices or API_TYPE.value(self.settings.api_type, "structuredOutput"):
            constrain(body, prompt, self.settings)

    def text(self, prompt: Prompt) -> str:
        """Return system and prompt as one text, trimmed, with the endpoint's three texts inserted.

        The completion text is appended after trimming, so that it can end with a space or a line break.
        """
        if prompt.verbatim:
            return (prompt.system_prompt or "") + (prompt.prompt or "")
        endpoint = self.settings.endpoint
        system = injected_text(endpoint, "addTextToStartOfSystem", "textToAddToStartOfSystem") + (
            prompt.system_prompt or ""
        )
        start = injected_text(endpoint, "addTextToStartOfPrompt", "textToAddToStartOfPrompt") + (prompt.prompt or "")
        completion = injected_text(endpoint, "addTextToStartOfCompletion", "textToAddToStartOfCompletion")
        return restore_braces((system + start).strip()) + completion

    @staticmethod
    def images(prompt: Prompt) -> list[object]:
        """Return the unchanged images of the user messages that accompany the text."""
        found: list[object] = []
        for message in prompt.conversation or ():
            images = message.get("images")
            if message.get("role") == "user" and images:
                found += images if isinstance(images, list) else [images]
        return found
