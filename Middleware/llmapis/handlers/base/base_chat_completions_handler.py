"""Payloads of back-ends that take a list of messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from Middleware.llmapis.api_types import injected_text
from Middleware.llmapis.handlers.base.alternate_roles import alternate_roles
from Middleware.llmapis.handlers.base.backend_call import BackendMessage, Block, Prompt
from Middleware.llmapis.handlers.base.base_llm_api_handler import BaseLlmApiHandler
from Middleware.llmapis.handlers.base.structured_output import constrain
from Middleware.llmapis.keepsakes import Sending, level_of, origin_of
from Middleware.models.messages import Message
from Middleware.models.request_context import first_logged
from Middleware.utilities.answers.arguments_repair import with_object_arguments
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.text_utils import SENTINEL_CHARACTER, restore_braces

logger = logging.getLogger(__name__)

# What the user's settings put in front of messages does not count as a text.
NO_TEXTS = ("", "User:", "Assistant:")


class BaseChatCompletionsHandler(BaseLlmApiHandler):
    """Builds ``model``, ``messages``, samplers, tools and schema, in this order."""

    takes_schema = True
    # Whether ``finish_messages`` changes the messages that it gets: then they are copies.
    changes_messages = True
    # See ``Sending.text_member``.
    text_member: str | None = ""

    def payload(self, prompt: Prompt) -> dict[str, object]:
        body: dict[str, object] = {}
        if self.settings.model is not None:
            body["model"] = self.settings.model
        body["messages"] = self.finish_messages(self.messages(prompt))
        body.update(self.settings.samplers)
        if prompt.tools:
            body["tools"] = list(prompt.tools)
        if prompt.tool_choice is not None:
            body["tool_choice"] = prompt.tool_choice
        if self.takes_schema:
            constrain(body, prompt, self.settings)
        return body

    def has_content(self, prompt: Prompt, payload: Mapping[str, object]) -> bool:
        messages: Any = payload["messages"]
        if not (prompt.textless or says_nothing(messages)):
            return True
        contents = [message.get("content") for message in messages]
        blocks = [block for content in contents if isinstance(content, list) for block in content]
        return any(block.get("type") != "text" for block in blocks) or any(
            message.get("images") for message in messages
        )

    def messages(self, prompt: Prompt) -> list[BackendMessage]:
        """Return the messages with the endpoint's texts injected and braces restored. Changed messages are copies."""
        messages: list[BackendMessage]
        if prompt.conversation is not None:
            given = cast(Sequence[BackendMessage], prompt.conversation)
            has_extra = bool([message for message in given if "extra" in message])
            if self.changes.made or has_extra:
                given = self.sending().chosen(given)
                self.outcome.kept = len([message for message in given if "extra" in message])
            # Copies of thousands of messages take longer than all that is done to them here.
            messages = [{**message} for message in given] if self.changes_messages else list(given)
        else:
            messages = [
                {"role": role, "content": text}
                for role, text in (("system", prompt.system_prompt), ("user", prompt.prompt))
                if text
            ]
        if prompt.verbatim:
            return messages
        repaired = False
        for index, message in enumerate(messages):
            if message.get("role") == "systemMes":
                messages[index] = {**message, "role": "system"}
            elif "tool_calls" in message:
                messages[index] = made = cast(BackendMessage, with_object_arguments(cast(Message, message)))
                repaired = repaired or made is not message
        if repaired and first_logged("repaired arguments"):
            logger.info(
                "Endpoint '%s': the conversation has tool calls whose arguments are not a JSON object. The LLM server "
                "gets what can be read of them.",
                self.settings.endpoint_name,
            )
        if ENDPOINT.flag(self.settings.endpoint, "alternateRoles"):
            # Before the texts, which belong to the beginning of a whole turn or to the end of the last one.
            messages = alternate_roles(messages)
        inject_texts(messages, self.settings.endpoint)
        for index, message in enumerate(messages):
            content = message.get("content")
            if isinstance(content, str):
                # Few texts need the call, and a search for a single character is much faster than any other.
                if SENTINEL_CHARACTER in content:
                    messages[index] = {**message, "content": restore_braces(content)}
            elif isinstance(content, list):
                messages[index] = {**message, "content": [_restored_block(block) for block in content]}
        return messages

    def sending(self) -> Sending:
        """Return what this endpoint gets back of its thoughts."""
        missed = self.changes.fields("missed")
        is_refused = self.changes.has("signature")
        level = "all" if missed else level_of(self.settings.endpoint)
        return Sending(origin_of(self.settings), level, self.text_member, missed, is_refused)

    def finish_messages(self, messages: list[BackendMessage]) -> Sequence[Mapping[str, object]]:
        """Return the messages in the form of the dialect, with converted images for example."""
        return messages


def says_nothing(messages: Iterable[Mapping[str, object]]) -> bool:
    """Return whether there is neither a text nor a tool call in the messages."""
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else text_of(content)
        if text.strip() not in NO_TEXTS or message.get("tool_calls"):
            return False
    return True


def inject_texts(messages: list[BackendMessage], endpoint: Mapping[str, object]) -> None:
    """Insert the endpoint's texts before system and prompt and after the last message, in the list.

    Changed messages are copies. A trailing empty assistant message is dropped afterwards.
    """
    text = injected_text(endpoint, "addTextToStartOfSystem", "textToAddToStartOfSystem")
    if text:
        system = next((index for index, message in enumerate(messages) if message.get("role") == "system"), None)
        if system is None:
            messages.insert(0, {"role": "system", "content": text})
        else:
            messages[system] = _with_text_before(messages[system], text)
    text = injected_text(endpoint, "addTextToStartOfPrompt", "textToAddToStartOfPrompt")
    if text:
        user = next((index for index in reversed(range(len(messages))) if messages[index].get("role") == "user"), None)
        if user is None:
            messages.append({"role": "user", "content": text})
        else:
            messages[user] = _with_text_before(messages[user], text)
    text = injected_text(endpoint, "addTextToStartOfCompletion", "textToAddToStartOfCompletion")
    if text:
        to_assistant = ENDPOINT.flag(endpoint, "ensureTextAddedToAssistantWhenChatCompletion")
        if not messages or (to_assistant and messages[-1].get("role") != "assistant"):
            messages.append({"role": "assistant", "content": text})
        else:
            messages[-1] = _with_text_after(messages[-1], text)
    if (
        messages
        and messages[-1].get("role") == "assistant"
        and not messages[-1].get("content")
        and not messages[-1].get("tool_calls")
    ):
        messages.pop()


def text_of(content: object) -> str:
    """Return the text of a content that is a string, null or a list of blocks."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(
            block["text"] for block in content if isinstance(block, Mapping) and isinstance(block.get("text"), str)
        )
    return ""


def _with_text_before(message: BackendMessage, text: str) -> BackendMessage:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{"type": "text", "text": text}, *content]}
    return {**message, "content": text + (content or "")}


def _with_text_after(message: BackendMessage, text: str) -> BackendMessage:
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [*content, {"type": "text", "text": text}]}
    return {**message, "content": (content or "") + text}


def _restored_block(block: Block) -> Block:
    # A user's script can send blocks of any type.
    text = block.get("text") if isinstance(block, Mapping) else None
    return {**block, "text": restore_braces(text)} if isinstance(text, str) else block
