"""The arguments of the LLM call that a node leads to, without a back-end."""

from __future__ import annotations

import copy
from typing import Any

from Middleware.models.llm_handler import LlmHandler
from Middleware.services.llm_dispatch_service import LLMDispatchService
from Middleware.workflows.models.execution_context import ExecutionContext


class FakeLlm:
    """Notes what it is asked."""

    def get_response_from_llm(self, **arguments: Any) -> dict[str, Any]:
        return arguments


class Variables:
    """Knows ``{count}``, the number of messages that variables may see."""

    def apply_variables(self, text: str, context: ExecutionContext, *, restore: bool = True) -> str:
        return text.replace("{count}", str(len(context.messages))).replace("{nothing}", "")


def m(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def dispatch(
    messages: list[dict[str, Any]] | None,
    node: dict[str, Any] | None = None,
    chat: bool = True,
    endpoint: dict[str, Any] | None = None,
    generation_prompt: bool = False,
    max_tokens: int | None = 400,
    options: dict[str, Any] | None = None,
    llm: Any = None,
    discussion: str | None = None,
    **context: Any,
) -> dict[str, Any]:
    handler = LlmHandler(llm or FakeLlm(), "chatml", generation_prompt, chat, "Main", endpoint or {}, max_tokens)
    before = copy.deepcopy(messages)
    result = LLMDispatchService.dispatch(
        ExecutionContext(
            request_id="r",
            workflow_id="w",
            discussion_id=discussion,
            config=node or {},
            messages=messages,  # type: ignore[arg-type]
            stream=False,
            llm_handler=handler,
            workflow_variable_service=Variables(),
            **context,
        ),
        **(options or {}),
    )
    assert messages == before
    return result


def conversation(*args: Any, **kwargs: Any) -> list[dict[str, Any]]:
    return dispatch(*args, **kwargs)["conversation"]
