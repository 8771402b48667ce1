"""ImageProcessor: lets a vision model describe images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from Middleware.models.messages import Message, VisionNote
from Middleware.services.vision_cache import VisionResponses
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.config.keys.node import PROMPT_KEYS
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.hashing_utils import hash_message_with_images
from Middleware.utilities.prompt_extraction_utils import outside_exchange
from Middleware.utilities.text_utils import escape_braces
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.discussion_context import state_of
from Middleware.workflows.tools.image_describer import ImageDescriber, images_of, join_descriptions

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
        places = [index for index, message in enumerate(messages) if images_of(message)]
        if places and isinstance(output, str) and output != NO_IMAGES:
            context.request.images_shown = True
            kept = self.value(context, "saveVisionResponsesToDiscussionId") and is_flat_name(context.discussion_id)
            # Which of several stored descriptions belongs to which message is not known.
            self._insert(context, {places[-1] + 1 if kept else len(messages) - 1 if len(messages) > 1 else 1: output})
        return output

    # -- every image, every time ---------------------------------------------------------------------------------
    def _describe_all(self, context: ExecutionContext) -> str:
        messages = _sent_messages(context)
        places = [(index, image) for index, message in enumerate(messages) for image in images_of(message)]
        if not places:
            return NO_IMAGES
        context.request.images_shown = True
        texts = ImageDescriber(context, messages).describe(places)
        output = join_descriptions(texts[image] for _, image in places)
        # Before the newest message, so that this stays the newest; behind it if it is the only one.
        self._insert(context, {len(messages) - 1 if len(messages) > 1 else 1: output})
        return output

    # -- kept with the discussion --------------------------------------------------------------------------------
    def _describe_kept(self, context: ExecutionContext) -> str:
        messages = _sent_messages(context)
        own = [index for index, message in enumerate(messages) if not isinstance(message, VisionNote)]
        limit = self.number(context, "visionScanMessageLimit")
        scanned = [index for index in (own[-limit:] if limit > 0 else ()) if images_of(messages[index])]
        if not scanned:
            return NO_IMAGES
        context.request.images_shown = True
        texts = self._with_new_ones(context, messages, scanned)
        if self.value(context, "addAsUserMessage"):
            self._insert(context, {index + 1: texts[index] for index in scanned})
            return join_descriptions(texts.values())
        recent = set(own[-RECENT_MESSAGES:])
        return join_descriptions(text for index, text in texts.items() if index in recent)

    def _with_new_ones(
        self, context: ExecutionContext, messages: Sequence[Message], scanned: Sequence[int]
    ) -> dict[int, str]:
        """Return the descriptions by message, old and new; the new ones are stored unless they are blank."""
        state = state_of(context)
        store = VisionResponses(state) if state is not None else None
        known = store.read() if store is not None else {}
        hashes = {index: hash_message_with_images(messages[index]) for index in scanned}
        missing = [index for index in scanned if hashes[index] not in known]
        texts = ImageDescriber(context, messages).describe(
            (index, image) for index in missing for image in images_of(messages[index])
        )
        new = {
            hashes[index]: join_descriptions(texts[image] for image in images_of(messages[index])) for index in missing
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
