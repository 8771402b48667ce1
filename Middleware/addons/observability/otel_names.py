"""The names that traces have for what is recorded: OpenTelemetry's where it has one, else ``wilmer.`` and ours.

OpenTelemetry's names for generative AI are still under development. They may change here; those of the records stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from Middleware.addons.records.model import SpanKind

INVOKE_WORKFLOW = "invoke_workflow"
EXECUTE_TOOL = "execute_tool"
OPERATION_NAME = "gen_ai.operation.name"
WORKFLOW_NAME = "gen_ai.workflow.name"
CONVERSATION_ID = "gen_ai.conversation.id"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"
ERROR_TYPE = "error.type"

# Our names that are OpenTelemetry's without ``gen_ai.``.
_GEN_AI = frozenset(
    {
        "operation.name",
        "provider.name",
        "request.choice.count",
        "request.frequency_penalty",
        "request.max_tokens",
        "request.model",
        "request.presence_penalty",
        "request.seed",
        "request.temperature",
        "request.top_k",
        "request.top_p",
        "response.finish_reasons",
        "response.model",
        "tool.name",
        "tool.type",
        "usage.cache_creation.input_tokens",
        "usage.cache_read.input_tokens",
        "usage.input_tokens",
        "usage.output_tokens",
        "usage.reasoning.output_tokens",
        "workflow.name",
    }
)
_OTHERS: Mapping[str, str] = {
    "server.address": "server.address",
    "server.port": "server.port",
    "http.status": "http.response.status_code",
    "url.full": "url.full",
    "error.type": ERROR_TYPE,
}
# What these kinds have of their own stands below their name.
_OWN: Mapping[SpanKind, str] = {"node": "wilmer.node.", "workflow": "wilmer.workflow.", "tool": "wilmer.tool."}
# It is the id of the span itself.
TRACEPARENT = "traceparent"


def otel_name(kind: SpanKind, name: str) -> str:
    """Return the name of an attribute that a recorded span of this kind has."""
    if name in _GEN_AI:
        return f"gen_ai.{name}"
    if name in _OTHERS:
        return _OTHERS[name]
    return _OWN.get(kind, "wilmer.") + name.removeprefix(f"{kind}.")


def span_name(operation: str, what: object) -> str:
    """Return the name of a span: the operation, and what it is done with if that is known."""
    return f"{operation} {what}" if what else operation
