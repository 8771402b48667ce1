"""Asks the LLM of a node to describe the images of a conversation."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from Middleware.models.cancel_scope import CancelScope
from Middleware.models.messages import Message, VisionNote, without_images
from Middleware.services.llm_calls.direct_calls import (
    answer_text,
    raise_if_cancelled,
    run_together,
    text_to_keep,
    without_streaming,
)
from Middleware.services.llm_calls.prompt_parts import prompt_templates
from Middleware.services.llm_dispatch_service import LLMDispatchService
from Middleware.services.vision_cache import recent_descriptions
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.prompt_extraction_utils import block_size, context_clamp, extract_last_n_turns, from_block
from Middleware.utilities.text_utils import message_text
from Middleware.workflows.models.execution_context import ExecutionContext

SEPARATOR = "\n-------------\n"
UNSHAPING_KEYS = frozenset(
    {
        "type",
        "title",
        "agentName",
        "returnToUser",
        "is_responder",
        "addAsUserMessage",
        "message",
        "systemPrompt",
        "prompt",
        "saveVisionResponsesToDiscussionId",
        "visionScanMessageLimit",
    }
)
"""Keys of the node that do not influence a description, or whose filled-in text is hashed instead."""


def images_of(message: Message) -> list[str]:
    images = message.get("images")
    return [image for image in images if isinstance(image, str) and image] if isinstance(images, (list, tuple)) else []


def join_descriptions(texts: Iterable[str]) -> str:
    """Join the descriptions that are not blank."""
    return SEPARATOR.join(text for text in texts if text.strip())


class ImageDescriber:
    """Describes images with one call each, every distinct image once, several at a time.

    Args:
        context: the node that asks; its keys shape the calls.
        messages: the conversation as it was sent, of the same length as the context's own.
        memory: the cache of descriptions. With a discussion id they serve the current request only.
    """

    def __init__(
        self, context: ExecutionContext, messages: Sequence[Message], memory: BoundedCache[str, str] | None = None
    ) -> None:
        if context.clock is None:
            # All calls of the node state the same time.
            context.clock = datetime.now()
        self._context, self._messages = context, messages
        self._memory = recent_descriptions() if memory is None else memory
        self._authored = bool(NODE.value(context.config, "prompt"))
        self._count: int = NODE.number(context.config, "lastMessagesToSendInsteadOfPrompt")

    def describe(self, images: Iterable[tuple[int, str]]) -> dict[str, str]:
        """Return descriptions by image; blank ones included, as for a model that only reasoned.

        ``images`` come with the index of their message; of an image with several the first counts. Raises
        BackendError and EarlyTerminationException.
        """
        first: dict[str, int] = {}
        for index, image in images:
            first.setdefault(image, index)
        keys = {image: self._key(index, image) for image, index in first.items()}
        texts = {image: self._memory.get(key) for image, key in keys.items()}
        missing = [image for image, text in texts.items() if text is None]
        answers = run_together(
            [functools.partial(self._ask, first[image], image, keys[image]) for image in missing],
            self._context.request.cancel_scope,
        )
        return {image: text or "" for image, text in {**texts, **dict(zip(missing, answers, strict=True))}.items()}

    def _ask(self, index: int, image: str, key: str, scope: CancelScope) -> str:
        raise_if_cancelled(scope)
        assert self._context.llm_handler is not None
        handler = without_streaming(self._context.llm_handler, scope)
        config = {**self._context.config, "lastMessagesToSendInsteadOfPrompt": self._look_back()}
        call = dataclasses.replace(
            self._context, config=config, messages=self._conversation(index, image), llm_handler=handler, stream=False
        )
        result = LLMDispatchService.dispatch(call, llm_takes_images=True)
        raise_if_cancelled(scope)
        text = text_to_keep(answer_text(result, handler, self._context.config), handler)
        if text.strip():
            self._memory.put(key, text)
        return text

    # -- one call ------------------------------------------------------------------------------------------------
    def _conversation(self, index: int, image: str) -> list[Message]:
        messages = [without_images(message) for message in self._context.messages]
        carrier = index if self._authored else self._carrier(messages, index)
        messages[carrier] = {**messages[carrier], "images": [image]}
        return messages

    def _look_back(self) -> int:
        # With a prompt of its own, the limit concerns images only.
        if self._authored:
            return len(self._context.messages)
        return self._count if self._chat() else max(self._count, 1)

    def _carrier(self, messages: list[Message], index: int) -> int:
        """Return the index of the message to carry the image: its own, unless that may not be sent with an image."""
        if not self._chat():
            return len(messages) - 1
        if messages[index].get("role") == "user" and self._surely_sent(messages, index):
            return index
        users = [position for position, message in enumerate(messages) if message.get("role") == "user"]
        if not users:
            messages.append({"role": "user", "content": ""})
        return users[-1] if users else len(messages) - 1

    def _surely_sent(self, messages: Sequence[Message], index: int) -> bool:
        if NODE.has(self._context.config, "lastMessagesToSendInsteadOfPromptMaxTokenSize") or self._clamped():
            return False
        size = block_size(self._context.config, config_utils.user_setting("messageBlockSize"), self._count)
        sent = from_block(extract_last_n_turns(messages, self._count), messages, size)
        return any(message is messages[index] for message in sent)

    def _chat(self) -> bool:
        return self._context.llm_handler is not None and self._context.llm_handler.takes_message_collection

    def _clamped(self) -> bool:
        handler = self._context.llm_handler
        assert handler is not None
        return (
            context_clamp(
                self._context.config,
                handler.endpoint_config,
                config_utils.user_setting("clampPromptToContextWindow"),
                handler.max_tokens,
            ).budget
            is not None
        )

    # -- the inputs of a description -----------------------------------------------------------------------------
    def _key(self, index: int, image: str) -> str:
        """Return the hashed inputs of a description."""
        context, handler = self._context, self._context.llm_handler
        assert handler is not None
        # Notes are left out, because the client does not send them.
        conversation = (
            []
            if self._authored
            else [
                [message.get("role"), message_text(message)]
                for message in self._messages[: index + 1]
                if not isinstance(message, VisionNote)
            ]
        )
        material = [
            config_utils.get_current_username(),
            context.api_key,
            context.request_id if context.discussion_id or not context.request.outside.remembers else "",
            handler.endpoint_name,
            handler.service.presetname,
            handler.max_tokens,
            # An absent name stays null, so that descriptions stored by earlier versions are found.
            *(
                ENDPOINT.value(handler.endpoint_config, key) if ENDPOINT.has(handler.endpoint_config, key) else None
                for key in ("endpoint", "modelNameToSendToAPI")
            ),
            *self._texts,
            conversation,
            {key: value for key, value in context.config.items() if key not in UNSHAPING_KEYS},
            image,
        ]
        return hashlib.sha256(json.dumps(material, sort_keys=True, default=str).encode()).hexdigest()

    @functools.cached_property
    def _texts(self) -> list[str]:
        plain = [message for message in self._context.messages if not isinstance(message, VisionNote)]
        context = dataclasses.replace(self._context, messages=plain)
        return [*map(context.substitute, prompt_templates(self._context.config))]
