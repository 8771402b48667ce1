"""LLM calls whose complete answers a node uses itself. They are never streamed and may run in parallel."""

from __future__ import annotations

import contextvars
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import BackendResponseError, EarlyTerminationException
from Middleware.exceptions.early_termination_exception import CANCELLED
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.llm_handler import LlmHandler
from Middleware.models.messages import Message
from Middleware.services.llm_calls.prompt_parts import NO_PARTS, PromptParts
from Middleware.utilities import config_utils
from Middleware.utilities import prompt_template_utils as templates
from Middleware.utilities.answers.cut_off_thoughts import is_cut_off_thought
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.streaming_utils import post_process_llm_output

logger = logging.getLogger(__name__)

T = TypeVar("T")

# More parallel calls would only queue in most LLM servers.
MAX_WORKERS = 4


def without_streaming(handler: LlmHandler, scope: CancelScope) -> LlmHandler:
    """Return a handler for one separate call, which ``scope`` stops; the given handler may be streaming or busy."""
    llm = handler.service
    service = LlmApiService(llm.endpoint_name, llm.presetname, llm.max_tokens, False, scope=scope)
    return dataclasses.replace(handler, llm=service)


def call_with_texts(
    handler: LlmHandler, system_prompt: str, prompt: str, request_id: str | None = None, parts: PromptParts = NO_PARTS
) -> object:
    """Send two final texts, with the endpoint's prompt template if the back-end takes a single text.

    Returns what ``LlmApiService.get_response_from_llm`` returns. Raises BackendError and ConfigurationError.
    """
    prompt = parts.around(prompt)
    if handler.takes_message_collection:
        conversation: list[Message] = [
            {"role": role, "content": text} for role, text in (("system", system_prompt), ("user", prompt)) if text
        ]
        conversation[bool(system_prompt) : 0] = parts.examples
        return handler.service.get_response_from_llm(conversation=conversation, request_id=request_id)
    # A completion back-end knows no roles: the template marks them in the text.
    template = config_utils.load_prompt_template(handler.prompt_template_file_name or "")
    strict = ENDPOINT.flag(handler.endpoint_config, "alternateRoles")
    system_prompt, examples = parts.rendered_examples(system_prompt, template, strict)
    if strict:
        system_prompt, prompt = templates.system_in_user_turn(system_prompt, prompt, template)
    prompt = templates.wrap_user_turn(prompt, template)
    if handler.add_generation_prompt:
        prompt = templates.add_generation_prompt(prompt, template)
    return handler.service.get_response_from_llm(
        system_prompt=templates.wrap_system(system_prompt, template), prompt=examples + prompt, request_id=request_id
    )


def answer_text(result: object, handler: LlmHandler, node: Mapping[str, object]) -> str:
    """Return the text of an answer, cleaned by the rules of the endpoint that answered and of the node."""
    text = result.get("content") if isinstance(result, Mapping) else result
    if not isinstance(text, str) or not text:
        return ""
    # The answer may have come from a backup, whose model marks its thoughts in another way.
    return post_process_llm_output(text, handler.answering_endpoint[1], node)


def text_to_keep(text: str, handler: LlmHandler) -> str:
    """Return a cleaned answer for storage; "", with a warning, if the model did not finish thinking.

    Raises BackendResponseError for an answer that a filter has ended.
    """
    name, rules = handler.answering_endpoint
    finish_reason = finish_reason_of(handler)
    raise_if_filtered(name, finish_reason)
    if not is_cut_off_thought(text, rules, finish_reason):
        if finish_reason == "length":
            # The user has set the limit, and without such answers whole installations would have no memories.
            logger.info(
                "Endpoint '%s': an answer that is stored ends at the limit of its length. A higher "
                "'maxResponseSizeInTokens' leaves room for all of it.",
                name,
            )
        return text
    logger.warning(
        "Endpoint '%s': the model did not finish thinking (finish reason: %s); its answer is not used. Give "
        "the call more tokens, or switch thinking off for it.",
        name,
        finish_reason or "none",
    )
    return ""


def finish_reason_of(handler: LlmHandler | None) -> str | None:
    """Return the finish reason of the latest call; None without one."""
    return handler.llm.outcome.finish_reason if handler is not None and handler.llm is not None else None


def raise_if_filtered(endpoint: str, finish_reason: str | None) -> None:
    """Raise BackendResponseError for an answer that a filter has ended: a refusal must not become a memory."""
    if finish_reason == "content_filter":
        raise BackendResponseError(
            f"Endpoint '{endpoint}': the answer was ended by a filter (content_filter); it is not stored.",
            endpoint=endpoint,
        )


def raise_if_cancelled(scope: CancelScope) -> None:
    """Raise EarlyTerminationException if cancelled: the empty text of a cancelled call is not an answer."""
    if scope.cancelled:
        raise EarlyTerminationException("The request was cancelled", CANCELLED)


def run_together(tasks: Sequence[Callable[[CancelScope], T]], scope: CancelScope) -> list[T]:
    """Run ``tasks``, a few in parallel, and return their results in order.

    Each gets a scope that is cancelled with ``scope``, and when another task fails. Raises the error of the first
    failing task, or EarlyTerminationException if ``scope`` is cancelled; in either case after all tasks have ended.
    """
    # A task that fails must stop the others, but not the request.
    group = CancelScope()
    token = scope.add_callback(group.cancel)
    try:
        # Most nodes make one call, which needs no thread.
        results = [tasks[0](group)] if len(tasks) == 1 else _run_in_pool(tasks, group)
    except EarlyTerminationException:
        raise_if_cancelled(scope)
        raise
    finally:
        scope.remove_callback(token)
    raise_if_cancelled(scope)
    return results


def _run_in_pool(tasks: Sequence[Callable[[CancelScope], T]], group: CancelScope) -> list[T]:
    if not tasks:
        return []
    # Imported here because few nodes make several calls at a time.
    from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

    with ThreadPoolExecutor(min(len(tasks), _max_workers()), "wilmer-call") as pool:
        # A new thread knows neither the request nor its user.
        futures = [pool.submit(contextvars.copy_context().run, task, group) for task in tasks]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = next((future for future in futures if future in done and future.exception() is not None), None)
        if failed is not None:
            # The pool waits for its threads, so calls whose answers are not wanted have to end.
            group.cancel()
            pool.shutdown(cancel_futures=True)
            failed.result()
    return [future.result() for future in futures]


def _max_workers() -> int:
    """Return the number of parallel calls of one node; more than the gate admits would only wait there."""
    gate = instance.CONCURRENCY_LIMIT if instance.CONCURRENCY_LEVEL == "endpoint" else 0
    return min(MAX_WORKERS, gate) if gate > 0 else MAX_WORKERS
