"""Prepare the LLM call of a node: substitute variables, select messages, fit them into the context window."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from Middleware.exceptions import ConfigValueError, EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.llmapis.handlers.base.alternate_roles import alternating_turns
from Middleware.llmapis.handlers.base.base_chat_completions_handler import says_nothing
from Middleware.models.messages import Message, without_all_images
from Middleware.models.node_context import NodeContext
from Middleware.models.process import process
from Middleware.models.request_context import first_logged, report
from Middleware.services.llm_calls import message_selection as selection
from Middleware.services.llm_calls.answer_shape import AnswerShape, chosen, chosen_before, key_of, names_choice
from Middleware.services.llm_calls.direct_calls import without_streaming
from Middleware.services.llm_calls.prompt_parts import NO_PARTS, PromptParts
from Middleware.services.llm_calls.tool_enforcement import ToolRound
from Middleware.utilities import config_utils
from Middleware.utilities import prompt_template_utils as templates
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.once import Once
from Middleware.utilities.prompt_extraction_utils import (
    ContextClamp,
    block_size,
    context_clamp,
    extract_last_n_turns,
    extract_last_turns_by_estimated_token_limit,
    from_block,
    leading_systems,
)
from Middleware.utilities.text_utils import estimate_message, message_text, restore_braces, rough_estimate_token_length

logger = logging.getLogger(__name__)


def _noted_schemas() -> Once[tuple[str, str]]:
    """Return the users and fields of which it was logged that a schema is not passed on, until the process ends."""
    return Once()


class LLMDispatchService:
    """The only way in which nodes call their LLM."""

    @staticmethod
    def dispatch(
        context: NodeContext,
        llm_takes_images: bool = False,
        max_images: int = 0,
        structured_output_schema: Mapping[str, object] | None = None,
    ) -> object:
        """Call the LLM of the node in ``context``.

        Returns what ``LlmApiService.get_response_from_llm`` returns: uncleaned text, a dict with tool calls, or a
        generator of chunks. ``max_images`` 0 means no limit. A schema given here counts like that of the node's
        ``structuredOutputFile``. Raises ValueError for a context without messages, ConfigurationError for a schema
        that cannot be used, BackendError, and EarlyTerminationException for a cancelled request.
        """
        return _Call(context, llm_takes_images, max_images, structured_output_schema).run()


class _Call:
    """One call while its request is being prepared."""

    def __init__(
        self, context: NodeContext, llm_takes_images: bool, max_images: int, schema: Mapping[str, object] | None
    ) -> None:
        handler = context.llm_handler
        if handler is None or handler.llm is None:
            raise ConfigValueError(
                f"node '{context.node_name}' calls an LLM but names no endpoint",
                json_path="endpointName",
                expected="the name of a file in Endpoints",
            )
        if context.messages is None:
            raise ValueError("A node cannot call an LLM without a list of messages")
        if context.request.cancel_scope.cancelled:
            raise EarlyTerminationException(f"Request {context.request_id} was cancelled", CANCELLED)
        self.context, self.node, self.handler = context, context.config, handler
        self.messages: Sequence[Message] = context.messages
        self.takes_images = llm_takes_images
        self.max_images = max_images if llm_takes_images else 0
        self.count = NODE.number(self.node, "lastMessagesToSendInsteadOfPrompt")
        self.shape = AnswerShape.of(context, schema)
        if self.shape.choices and context.stream:
            # One word needs no stream, and an object around it must not reach the client.
            context.llm_handler = self.handler = without_streaming(handler, context.request.cancel_scope)
        self.authored = bool(NODE.value(self.node, "prompt"))
        self.exchange: list[Message] = []
        self.textless = False
        self._find_tool_exchange()
        self.system_prompt = self._substituted("systemPrompt")
        if self.shape.demand is not None:
            self.system_prompt = self.shape.demand.extend(self.system_prompt)
        self.prompt = self._substituted("prompt") if self.authored else ""
        self.parts = PromptParts.of(self.node, self.context.substitute).staying(self.context)
        if self.authored and not self.prompt.strip():
            logger.warning(
                "Node '%s': its prompt is blank after its variables were filled in; it is sent anyway.",
                context.node_name,
            )
        self.clamp = self._context_clamp()

    def run(self) -> object:
        self._note_images()
        self._note_schema()
        arguments = self._chat_arguments() if self.handler.takes_message_collection else self._completion_arguments()
        shape, llm = self.shape, self.handler.service
        call = functools.partial(
            llm.get_response_from_llm,
            **arguments,
            llm_takes_images=self.takes_images,
            request_id=self.context.request_id,
            tools=shape.tools,
            tool_choice=shape.tool_choice,
            structured_output_schema=shape.schema,
            conversation_of="" if self.authored else self.context.node_name,
            textless=self.textless,
        )
        if shape.choices:
            return self._choice(call, arguments)
        if shape.demand is None:
            return call()
        return ToolRound(shape.demand, call, llm, self.context.request.cancel_scope, self.context.node_name).run()

    def _choice(self, call: Callable[..., object], arguments: Mapping[str, object]) -> object:
        """Return one of the choices, without a call if the same prompt got it a moment ago, or any other answer."""
        choices = self.shape.choices
        key = key_of(self.context, self.handler, arguments, choices)
        known = chosen_before().get(key) if key is not None else None
        if known is not None:
            logger.info(
                "Node '%s': its prompt is the same as a moment ago, and so is the answer; no call is made.",
                self.context.node_name,
            )
            return choices[known]
        answer = self._held(call)
        choice = chosen(answer, choices, self.handler)
        if choice is not None and key is not None:
            chosen_before().put(key, choices.index(choice))
        return answer if choice is None else choice

    def _held(self, call: Callable[..., object]) -> object:
        """Return an answer that is held to the choices, if the back-end can do that."""
        shape, held = self.shape, functools.partial(call, answer_choices=self.shape.choices)
        if shape.constraint == "grammar":
            return held()
        answer = call()
        # In JSON, a small model chose wrongly more often than in free text: of 26 messages, 9 were right instead of 13.
        if (
            shape.constraint
            and not names_choice(answer, shape.choices)
            and not self.context.request.cancel_scope.cancelled
        ):
            logger.debug(
                "Node '%s': the answer names none of the choices; it is asked again with a schema.",
                self.context.node_name,
            )
            answer = held()
        return answer

    # -- texts ---------------------------------------------------------------------------------------------------
    def _substituted(self, key: str) -> str:
        text = NODE.value(self.node, key)
        return self.context.substitute(text) if text else ""

    def _find_tool_exchange(self) -> None:
        """Exclude the trailing tool exchange from the variables, if the node sends it as messages."""
        if not (
            self.authored
            and self.handler.takes_message_collection
            and NODE.flag(self.node, "appendNativeToolExchange")
            and ENDPOINT.flag(self.handler.endpoint_config, "backendSupportsToolTurns")
        ):
            return
        start, end = selection.find_tool_exchange(self.messages)
        if end:
            self.exchange = selection.limit_images(self.messages[start:end], self.max_images)
            self.context = dataclasses.replace(self.context, messages=list(self.messages[:start]))

    # -- the two paradigms ---------------------------------------------------------------------------------------
    def _chat_arguments(self) -> dict[str, Any]:
        conversation: list[Message] = []
        if self.system_prompt:
            conversation.append({"role": "system", "content": self.system_prompt})
        if self.authored:
            user: Message = {"role": "user", "content": self.parts.around(self.prompt)}
            images = self._images()
            if images:
                user["images"] = images
            conversation += [*self.parts.examples, user, *self.exchange]
            self._warn_if_too_large(self.prompt)
        else:
            window = self._chat_window()
            is_question = bool(window) and window[-1].get("role") != "system"
            conversation += window if is_question else self._without_repeated_systems(window)
            conversation = selection.with_user_message(conversation, self.messages)
            conversation = selection.limit_images(conversation, self.max_images)
            if self.parts is not NO_PARTS:
                strict = ENDPOINT.flag(self.handler.endpoint_config, "alternateRoles")
                conversation = self.parts.in_conversation(conversation, strict)
        return {"conversation": conversation, "system_prompt": None, "prompt": None}

    def _completion_arguments(self) -> dict[str, Any]:
        template = config_utils.load_prompt_template(self.handler.prompt_template_file_name or "")
        strict = ENDPOINT.flag(self.handler.endpoint_config, "alternateRoles")
        system, examples = self.parts.rendered_examples(self.system_prompt, template, strict)
        prompt, continued = self.parts.around(self.prompt), False
        if self.authored:
            self._warn_if_too_large(self.prompt)
            if strict and NODE.flag(self.node, "addUserTurnTemplate"):
                system, prompt = templates.system_in_user_turn(system, prompt, template)
        else:
            # Images go in a field of their own.
            messages = self.parts.in_newest_user_message(without_all_images(self._completion_window()))
            if strict:
                system, messages = alternating_turns(system, messages, template)
                continued = bool(messages) and messages[-1].get("role") == "assistant"
            prompt = templates.flatten_messages(messages, template)
            self.textless = says_nothing([{"content": self.system_prompt}, *messages])
        if NODE.flag(self.node, "addUserTurnTemplate"):
            prompt = templates.wrap_user_turn(prompt, template)
        if NODE.flag(self.node, "addOpenEndedAssistantTurnTemplate"):
            prompt = templates.wrap_open_assistant_turn(prompt, template)
        if self.handler.add_generation_prompt and not continued:
            prompt = templates.add_generation_prompt(prompt, template)
        images = self._images()
        return {
            "conversation": [{"role": "user", "content": "", "images": images}] if images else None,
            "system_prompt": templates.wrap_system(system, template),
            "prompt": examples + prompt,
        }

    # -- messages ------------------------------------------------------------------------------------------------
    def _chat_window(self) -> list[Message]:
        """Return the part of the conversation that is sent, with its assistant messages arranged."""
        chosen = selection.last_messages(self.messages, self.count, self._token_cap())
        arranged = self._arrange_assistants(chosen)
        start = leading_systems(arranged)
        window = [*arranged[:start], *self._within_window(arranged[start:])]
        dropped = len(arranged) - len(window)
        size = self._block_size() if dropped or len(chosen) < len(self.messages) else 1
        if size == 1:
            return window
        if dropped:
            # Blocks are counted in messages as the client sent them, so before they are joined or separated.
            places = (
                range(len(chosen))
                if arranged is chosen
                else selection.places_of_arranged(chosen, NODE.flag(self.node, "mergeConsecutiveAssistantMessages"))
            )
            chosen = chosen[places[start + dropped] :]
        block = from_block(chosen, self.messages, size)
        return window if len(block) == len(chosen) else self._arrange_assistants(block)

    def _without_repeated_systems(self, window: list[Message]) -> list[Message]:
        """Return a conversation of system messages only without those that the node's system prompt contains."""
        prompt = restore_braces(self.system_prompt)
        return [message for message in window if restore_braces(message_text(message)) not in prompt]

    def _completion_window(self) -> list[Message]:
        window = self._within_window(self._completion_messages())
        if len(window) == len(self.messages):
            return window
        # The question is never left out for the open assistant message behind it.
        least = 2 if window and window[-1].get("role") == "assistant" else 1
        return from_block(window, self.messages, self._block_size(), least, without_systems=True)

    def _block_size(self) -> int:
        return block_size(self.node, config_utils.user_setting("messageBlockSize"), self.count)

    def _completion_messages(self) -> list[Message]:
        """Return one message more than the node's count, to offset the open assistant message that clients append.

        With a token cap the node's count is used, as for chat types.
        """
        cap = self._token_cap()
        if cap is not None:
            chosen = extract_last_n_turns(self.messages, max(self.count, 1), remove_all_systems_override=True)
            return extract_last_turns_by_estimated_token_limit(chosen, cap)
        logger.debug(
            "Node '%s': a completion back-end is sent the newest %d + 1 messages that are not 'system'.",
            self.context.node_name,
            self.count,
        )
        return extract_last_n_turns(self.messages, self.count + 1, remove_all_systems_override=True)

    def _arrange_assistants(self, conversation: list[Message]) -> list[Message]:
        if NODE.flag(self.node, "mergeConsecutiveAssistantMessages"):
            return selection.merge_assistant_runs(
                conversation, NODE.text(self.node, "mergeConsecutiveAssistantMessagesDelimiter")
            )
        if NODE.flag(self.node, "insertUserTurnBetweenAssistantMessages"):
            return selection.separate_assistant_runs(conversation, NODE.text(self.node, "insertedUserTurnText"))
        return conversation

    def _images(self) -> list[str]:
        """Return the images to send with the prompt; those of the exchange are in the exchange."""
        if not self.takes_images:
            return []
        images = selection.gather_images(self.messages, self.count, self.max_images)
        return images[: max(len(images) - len(selection.gather_images(self.exchange, len(self.exchange), 0)), 0)]

    def _note_images(self) -> None:
        """Log, once per request, that the answering model does not receive its images, unless another model did."""
        context, request = self.context, self.context.request
        count = len(selection.gather_images(self.messages, max(self.count, 1), 0))
        if not count:
            return
        if self.takes_images:
            request.images_shown = True
        if self._answers and not request.images_shown and first_logged("images that no model is shown"):
            logger.info(
                "Node '%s': the model of endpoint '%s' is not shown the %d image(s) of the conversation, since "
                "the node does not accept images ('acceptImages').",
                context.node_name,
                self.handler.endpoint_name,
                count,
            )

    @property
    def _answers(self) -> bool:
        """Return whether the client gets the answer of this node."""
        context = self.context
        return context.is_responder and (context.run is None or context.run.non_responder is None)

    def _note_schema(self) -> None:
        """Log, once per user, that the client's request for JSON is not passed on, and which node could do it."""
        field = self.context.request.schema_field
        if not field or self.shape.schema is not None or not self._answers:
            return
        if process().one(_noted_schemas).first((config_utils.get_current_username(), field)):
            logger.info(
                "Node '%s': the client asks for JSON ('%s'), which is not passed on to the LLM; "
                "'structuredOutputFile' of this node can hold its answers to a schema.",
                self.context.node_name,
                field,
            )

    def _token_cap(self) -> int | None:
        cap = NODE.number(self.node, "lastMessagesToSendInsteadOfPromptMaxTokenSize")
        return None if cap is None else int(cap * self.clamp.multiplier)

    # -- context window ------------------------------------------------------------------------------------------
    def _context_clamp(self) -> ContextClamp:
        """Return the context window's budget for conversation text, without system prompt and tools."""
        clamp = context_clamp(
            self.node,
            self.handler.endpoint_config,
            config_utils.user_setting("clampPromptToContextWindow"),
            self.handler.max_tokens,
        )
        limit = self.handler.max_tokens
        if limit is not None and limit < 1 and first_logged(f"the response limit of {self.context.node_name}"):
            logger.warning(
                "Node '%s': 'maxResponseSizeInTokens' is %d, which servers refuse or take for no limit; "
                "expected is 1 or more, or null for no limit.",
                self.context.node_name,
                limit,
            )
        if clamp.budget is None:
            return clamp
        taken = rough_estimate_token_length(self.system_prompt) + self.parts.tokens
        if self.shape.tools:
            taken += rough_estimate_token_length(json.dumps(self.shape.tools, ensure_ascii=False))
        return ContextClamp(clamp.budget - taken, clamp.multiplier)

    def _within_window(self, messages: Sequence[Message]) -> list[Message]:
        if self.clamp.budget is None or not messages:
            return list(messages)
        has_extra = bool([message for message in messages if "extra" in message])
        added = self.handler.service.kept_sizes(messages) if has_extra else {}
        kept, fits = selection.fit_budget(messages, self.clamp.budget, added)
        if not fits:
            what = "its newest message alone" if len(kept) == 1 else "its newest tool exchange alone"
            self._warn_window(what, sum(map(estimate_message, kept)))
        if len(kept) < len(messages):
            report("messages_dropped", len(messages) - len(kept))
            logger.info(
                "Node '%s': dropped %d of %d messages to keep within the context window of %s tokens (%s).",
                self.context.node_name,
                len(messages) - len(kept),
                len(messages),
                ENDPOINT.value(self.handler.endpoint_config, "maxContextTokenSize"),
                ENDPOINT.value(self.handler.endpoint_config, "wilmerContextEstimationLevel"),
            )
        return kept

    def _warn_if_too_large(self, prompt: str) -> None:
        size = rough_estimate_token_length(prompt) if self.clamp.budget is not None else 0
        if self.clamp.budget is not None and size > self.clamp.budget:
            self._warn_window("its prompt", size)

    def _warn_window(self, what: str, size: int) -> None:
        """Warn that a text of ``size`` tokens does not fit, and whether the room for the answer is the reason."""
        limit = self.handler.max_tokens or 0
        if size <= (self.clamp.budget or 0) + int(limit * self.clamp.multiplier):
            why = f"its response limit of {limit} tokens ('maxResponseSizeInTokens') leaves no room for {what}"
        else:
            why = f"{what} is larger than the context window allows"
        logger.warning(
            "Node '%s': %s; it is sent whole (endpoint '%s', %s tokens).",
            self.context.node_name,
            why,
            self.handler.endpoint_name,
            ENDPOINT.value(self.handler.endpoint_config, "maxContextTokenSize"),
        )
