"""The objects of OpenAI's Responses API, as they are on the wire and in the store."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
CallType = Literal["function_call", "custom_tool_call", "tool_search_call", "local_shell_call"]
Item = dict[str, object]
"""An element of ``input``: any JSON object, as clients send items that this server does not know."""


class OutputText(TypedDict):
    """The text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[object]
    logprobs: list[object]


class SummaryText(TypedDict):
    """The text of a piece of reasoning."""

    type: Literal["summary_text"]
    text: str


class MessageItem(TypedDict):
    """Text of the answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class ReasoningItem(TypedDict):
    """Reasoning of the model."""

    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[SummaryText]


class CallItem(TypedDict):
    """A call of one of the client's tools. Which of the last four fields there are depends on the type."""

    id: str
    type: CallType
    status: Status
    call_id: str
    name: NotRequired[str]
    namespace: NotRequired[str]
    execution: NotRequired[Literal["client"]]
    # JSON text for functions, an object for the search of tools.
    arguments: NotRequired[str | dict[str, object]]
    input: NotRequired[str]
    action: NotRequired[dict[str, object]]


OutputItem = MessageItem | ReasoningItem | CallItem


class ResponseError(TypedDict):
    """Why a response has failed."""

    code: str
    message: str


class IncompleteDetails(TypedDict):
    """Why a response ends early."""

    reason: Literal["max_output_tokens", "content_filter"]


class InputTokensDetails(TypedDict):
    """How the tokens of the prompt were treated."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    """What the tokens of the answer were used for."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Token counts under the names of this API."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class RequestFields(TypedDict):
    """The fields of a request that come back in its response. Those without effect come back as they were sent."""

    instructions: object
    max_output_tokens: object
    metadata: object
    parallel_tool_calls: object
    previous_response_id: str | None
    prompt_cache_key: object
    reasoning: dict[str, object]
    safety_identifier: object
    temperature: object
    text: dict[str, object]
    tool_choice: object
    tools: list[object]
    top_p: object
    user: object


class ResponseObject(RequestFields):
    """A response, complete or in progress."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    background: Literal[False]
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    max_tool_calls: None
    model: str
    output: list[OutputItem]
    service_tier: Literal["default"]
    store: bool
    top_logprobs: Literal[0]
    truncation: Literal["disabled"]
    usage: ResponseUsage | None
