"""ImageProcessor: lets a vision model describe images."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
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
from Middleware.services.vision_cache import VisionResponses, recent_descriptions
from Middleware.utilities import config_utils
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE, PROMPT_KEYS
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.hashing_utils import hash_message_with_images
from Middleware.utilities.prompt_extraction_utils import (
    block_size,
    context_clamp,
    extract_last_n_turns,
    from_block,
    outside_exchange,
)
from Middleware.utilities.text_utils import escape_braces, message_text
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import state_of

NO_IMAGES = "There were no images attached to the message"
IMAGE_BLOCK = "[IMAGE_BLOCK]"
DEFAULT_MESSAGE = (
    "[SYSTEM: The user recently added one or more images to the conversation. A vision model has looked at them and "
    f"described them as follows:\n<vision_llm_response>\n{IMAGE_BLOCK}\n</vision_llm_response>]"
)

# How many of the newest messages the output of a node with stored descriptions is about.
RECENT_MESSAGES = 10

# It always sends one image at a time, and its model's answers are descriptions, not tool calls.
UNUSED_KEYS = frozenset({"acceptImages", "maxImagesToSend", "lowercaseToolCallFunctionNames", "injectLivenessToolCall"})
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


class ImageProcessorHandler(BaseHandler):
    """Returns the descriptions of the conversation's images and, on request, inserts them into the conversation."""

    # It inserts messages into the conversation, and may store its descriptions. Its own LLM answers are cleaned one by
    # one, because a backup endpoint with other rules may answer for an image.
    acts = "writes"
    barrier = True
    cleans_itself = True
    needs_endpoint = True

    KEYS = {
        "ImageProcessor": (
            *(key for key in PROMPT_KEYS if key.name not in UNUSED_KEYS),
            ConfigKey("addAsUserMessage", "bool", False, "Insert the descriptions into the conversation."),
            ConfigKey(
                "message",
                "str",
                DEFAULT_MESSAGE,
                "Text of the inserted message; [IMAGE_BLOCK] is the description.",
                "full",
            ),
            ConfigKey(
                "saveVisionResponsesToDiscussionId", "bool", False, "Store the descriptions with the discussion."
            ),
            ConfigKey(
                "visionScanMessageLimit",
                "int",
                20,
                "How many messages are searched if descriptions are stored.",
                "early",
            ),
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        self.check_endpoint(context)
        kept = self.value(context, "saveVisionResponsesToDiscussionId") and is_flat_name(context.discussion_id)
        return self._describe_kept(context) if kept else self._describe_all(context)

    def use_output(self, context: ExecutionContext, output: object) -> object:
        """Return ``output``, and insert it into the conversation as the node would have done with a description."""
        messages = _sent_messages(context)
        places = [index for index, message in enumerate(messages) if _images_of(message)]
        if places and isinstance(output, str) and output != NO_IMAGES:
            context.request.images_shown = True
            kept = self.value(context, "saveVisionResponsesToDiscussionId") and is_flat_name(context.discussion_id)
            # Which of several stored descriptions belongs to which message is not known.
            self._insert(context, {places[-1] + 1 if kept else len(messages) - 1 if len(messages) > 1 else 1: output})
        return output

    # -- every image, every time ---------------------------------------------------------------------------------
    def _describe_all(self, context: ExecutionContext) -> str:
        messages = _sent_messages(context)
        places = [(index, image) for index, message in enumerate(messages) for image in _images_of(message)]
        if not places:
            return NO_IMAGES
        context.request.images_shown = True
        texts = _ImageDescriber(context, messages).describe(places)
        output = _join_descriptions(texts[image] for _, image in places)
        # Before the newest message, so that this stays the newest; behind it if it is the only one.
        self._insert(context, {len(messages) - 1 if len(messages) > 1 else 1: output})
        return output

    # -- kept with the discussion --------------------------------------------------------------------------------
    def _describe_kept(self, context: ExecutionContext) -> str:
        messages = _sent_messages(context)
        own = [index for index, message in enumerate(messages) if not isinstance(message, VisionNote)]
        limit = self.number(context, "visionScanMessageLimit")
        scanned = [index for index in (own[-limit:] if limit > 0 else ()) if _images_of(messages[index])]
        if not scanned:
            return NO_IMAGES
        context.request.images_shown = True
        texts = self._with_new_ones(context, messages, scanned)
        if self.value(context, "addAsUserMessage"):
            self._insert(context, {index + 1: texts[index] for index in scanned})
            return _join_descriptions(texts.values())
        recent = set(own[-RECENT_MESSAGES:])
        return _join_descriptions(text for index, text in texts.items() if index in recent)

    def _with_new_ones(
        self, context: ExecutionContext, messages: Sequence[Message], scanned: Sequence[int]
    ) -> dict[int, str]:
        """Return the descriptions by message, old and new; the new ones are stored unless they are blank."""
        state = state_of(context)
        store = VisionResponses(state) if state is not None else None
        known = store.read() if store is not None else {}
        hashes = {index: hash_message_with_images(messages[index]) for index in scanned}
        missing = [index for index in scanned if hashes[index] not in known]
        texts = _ImageDescriber(context, messages).describe(
            (index, image) for index in missing for image in _images_of(messages[index])
        )
        new = {
            hashes[index]: _join_descriptions(texts[image] for image in _images_of(messages[index]))
            for index in missing
        }
        if store is not None:
            store.add({key: text for key, text in new.items() if text}, context.request.cancel_scope)
        return {index: known[key] if key in known else new[key] for index, key in hashes.items()}

    # -- notes ---------------------------------------------------------------------------------------------------
    def _insert(self, context: ExecutionContext, notes: Mapping[int, str]) -> None:
        """Insert a note before the message at each index, into the list that later nodes and parents see as well."""
        if not self.value(context, "addAsUserMessage"):
            return
        template = self.text(context, "message") or DEFAULT_MESSAGE
        lists = {id(messages): messages for messages in (_sent_messages(context), context.messages)}
        # From the end: an insertion moves the messages behind it.
        for index, description in sorted(notes.items(), reverse=True):
            if description:
                content = escape_braces(template.replace(IMAGE_BLOCK, description))
                for messages in lists.values():
                    messages.insert(outside_exchange(messages, index), VisionNote.saying(content))


def _sent_messages(context: ExecutionContext) -> list[Message]:
    # The node's own list may be a copy with timestamps; the whole run shares the other.
    shared = context.run.messages if context.run is not None else context.messages
    return shared if len(shared) == len(context.messages) else context.messages


# -- asking the LLM ----------------------------------------------------------------------------------------------------


def _images_of(message: Message) -> list[str]:
    images = message.get("images")
    return [image for image in images if isinstance(image, str) and image] if isinstance(images, (list, tuple)) else []


def _join_descriptions(texts: Iterable[str]) -> str:
    """Join the descriptions that are not blank."""
    return SEPARATOR.join(text for text in texts if text.strip())


class _ImageDescriber:
    """Describes images with one call each, every distinct image once, several at a time.

    Args:
        context: the node that asks; its keys shape the calls.
        messages: the conversation as it was sent, of the same length as the context's own.
    """

    def __init__(self, context: ExecutionContext, messages: Sequence[Message]) -> None:
        if context.clock is None:
            # All calls of the node state the same time.
            context.clock = datetime.now()
        self._context, self._messages = context, messages
        self._memory = recent_descriptions()
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
