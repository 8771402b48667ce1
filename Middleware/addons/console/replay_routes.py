"""The calls that run a recorded run or one of its calls once more, and the comparison of two runs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, cast

from Middleware.addons.console.calls import Call, ConsoleError, Event, Events, Role, Routes
from Middleware.addons.console.replays import (
    NodePlace,
    RecordedNode,
    Recording,
    is_replaced,
    name_of_node,
    repeating_request,
    start_replay,
)
from Middleware.addons.console.run_routes import known_run, span_id_of
from Middleware.addons.console.workflow_catalog import WorkflowCatalog
from Middleware.addons.records.analysis.comparison import aligned_steps, config_changes
from Middleware.addons.records.analysis.critical_path import SpanTree
from Middleware.addons.records.analysis.prefix import last_attempt, payload_of
from Middleware.addons.records.model import MICROSECONDS, RunDocument, Span
from Middleware.addons.records.payloads import prompt_parts
from Middleware.addons.records.recorded_request import NotKeptError, recorded_request
from Middleware.api.running.running_requests import running_requests
from Middleware.exceptions import ConfigurationError, EarlyTerminationException
from Middleware.llmapis.handlers.base.structured_output import choices_in
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.messages import Chunk, Message
from Middleware.models.request_context import RequestContext, SentRequest, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.text_utils import did_you_mean
from Middleware.workflows.handlers.registry import node_types

# A page has five fields for them, and a mistake must not keep a server busy for hours.
MOST_TIMES = 5
# The default of a node.
MOST_TOKENS = 400
# Of an endpoint that does not say how large its context window is.
LONGEST_ANSWER = 131_072
# What OpenAI's dialect knows of a message without images.
MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")


def register(routes: Routes) -> None:
    routes.add("GET", "runs/ID/replay", Role.OWN, replayable)
    routes.add("POST", "runs/ID/replay", Role.OWN, replay)
    routes.add("GET", "again/choices", Role.OWN, choices, query=("run",))
    routes.add("GET", "runs/ID/again/SPAN", Role.OWN, recorded_call)
    routes.add("POST", "runs/ID/again/SPAN", Role.OWN, again, runs=True)
    routes.add("GET", "compare/A/B", Role.OWN, compare)


# -- replay ------------------------------------------------------------------------------------------------------------


def replayable(call: Call) -> dict[str, object]:
    """Return the nodes with which a replay may begin, and those that would not run in it."""
    document = known_run(call)
    _require_kept(document)
    return {"nodes": [_node_row(node) for node in _entered(Recording(document))]}


def _entered(recording: Recording) -> list[RecordedNode]:
    """Return the nodes that are in none that answers from the recording as a whole."""
    types = node_types()
    whole = {node.span.id for node in recording.nodes if node.type in types and is_replaced(types[node.type])}
    return [node for node in recording.nodes if not whole & node.inside]


def _node_row(node: RecordedNode) -> dict[str, object]:
    handler = node_types().get(node.type)
    return {
        "workflow": node.place.workflow,
        "node": node.place.node,
        "occurrence": node.place.occurrence,
        "title": node.title,
        "type": node.type,
        "acts": handler.acts if handler else "outside",
        "stands_in": handler is None or is_replaced(handler),
        "recorded": node.delivered,
        "name": name_of_node(workflow_of(node), node.title),
        "span": node.span.id,
    }


def workflow_of(node: RecordedNode) -> str:
    """Return the name of the workflow of a node, without its folder."""
    return node.place.workflow.rpartition(" > ")[2].rpartition("/")[2]


def replay(call: Call) -> dict[str, str]:
    """Start a replay, and return its id at once."""
    body, document = call.checked_body("from", "also"), known_run(call)
    if not document.finished:
        raise ConsoleError(409, "This run is still at work. Wait for its end, or stop it.", where="ID")
    _require_kept(document)
    recording = Recording(document)
    return {
        "id": start_replay(
            call, document, recording, _start(body.get("from"), recording), _also(body.get("also"), recording)
        )
    }


def _start(value: object, recording: Recording) -> RecordedNode | None:
    if value is None:
        return None
    fields = value if isinstance(value, Mapping) else {}
    workflow, node, occurrence = fields.get("workflow"), fields.get("node"), fields.get("occurrence", 1)
    if not isinstance(workflow, str) or type(node) is not int or type(occurrence) is not int:
        raise ConsoleError(
            400, "'from' is null, or an object with 'workflow', 'node' (a number) and 'occurrence'.", where="from"
        )
    found = recording.at(NodePlace(workflow, node, occurrence))
    if found is None:
        raise ConsoleError(
            404, f"The run has no node {node} in {workflow[:100]!r} that ran {occurrence} times.", where="from"
        )
    return found


def _also(value: object, recording: Recording) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ConsoleError(400, "'also' is a list of names of nodes.", where="also")
    known = {name_of_node(workflow_of(node), node.title) for node in recording.nodes}
    for name in value:
        if name not in known:
            raise ConsoleError(
                404, f"The run has no node {name[:100]!r}. Names are written Workflow/title.", where="also"
            )
    return value


def _require_kept(document: RunDocument) -> None:
    try:
        recorded_request(document)
    except NotKeptError as error:
        raise ConsoleError(409, str(error), where="ID") from None


# -- again -------------------------------------------------------------------------------------------------------------


def choices(call: Call) -> dict[str, object]:
    """Return what may be chosen for a run; without one, for a run of the session's first user."""
    return choices_of(call, known_run(call, call.query["run"]) if call.query.get("run") else None)


def choices_of(call: Call, document: RunDocument | None) -> dict[str, object]:
    """Return the names of the endpoints that a call of a run may be sent to, and of their presets."""
    endpoints, presets = list[str](), dict[str, list[str]]()
    # The user of an old run may be gone.
    with contextlib.suppress(ConfigurationError), _as_user_of(call, document) as user:
        endpoints = _among(_usable_endpoints(call, document, user))
        presets = {name: config_utils.preset_names(name) for name in endpoints}
    return {
        "endpoints": endpoints,
        "presets": sorted({preset for names in presets.values() for preset in names}),
        "presets_of": presets,
    }


@contextlib.contextmanager
def _as_user_of(call: Call, document: RunDocument | None) -> Iterator[str]:
    """Use the settings of the user of a run, or else of the session's first user. Raises ConfigurationError."""
    user = None if document is None else document.facts["user"]
    if user is None:
        known, users = config_utils.configured_users() or [config_utils.get_current_username()], call.session.users
        user = next((name for name in known if users is None or name in users), known[0])
    with request_scope(RequestContext(user=user)):
        yield user


def _usable_endpoints(call: Call, document: RunDocument | None, user: str) -> set[str | None] | None:
    """Return the paths of the endpoints that a session may call as the current user; None for all of the user.

    A key may call those of the run, and those of the workflows that its clients reach.
    """
    if call.role is Role.OPERATOR:
        return None
    names = set[object]()
    if document is not None:
        names |= {*document.facts["endpoints"], *(span.attributes.get("endpoint") for span in document.spans)}
    if call.session.users is None or user in call.session.users:
        names |= {name for listed in WorkflowCatalog([user]).workflows() for name in listed.endpoints}
    return {_endpoint_path(name) for name in names if isinstance(name, str)} - {None}


def _among(usable: set[str | None] | None) -> list[str]:
    return [name for name in config_utils.endpoint_names() if usable is None or _endpoint_path(name) in usable]


def _endpoint_path(name: str) -> str | None:
    """Return the path of the current user's endpoint that a name means in any spelling; None without one."""
    try:
        return config_utils.endpoint_file(name).path
    except ConfigurationError:
        return None


def _checked_names(call: Call, document: RunDocument, endpoint: str, preset: str | None) -> int:
    """Return the longest answer of an endpoint. Raises ConsoleError for an endpoint or preset that may not be used."""
    with _refusing_mistakes(endpoint), _as_user_of(call, document) as user:
        path, usable = _endpoint_path(endpoint), _usable_endpoints(call, document, user)
        if path is None or (usable is not None and path not in usable):
            _refuse_name("endpoint", endpoint, _among(usable))
        if preset:
            preset_type = config_utils.preset_type_of(endpoint)
            try:
                # As the call looks it up: the name may lead into a folder.
                config_utils.preset_file(preset, preset_type)
            except ConfigurationError:
                _refuse_name("preset", preset, config_utils.preset_names(endpoint))
        window = ENDPOINT.number(config_utils.load_endpoint(endpoint), "maxContextTokenSize")
    return window if isinstance(window, int) and window > 0 else LONGEST_ANSWER


@contextlib.contextmanager
def _refusing_mistakes(endpoint: str) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise ConsoleError(409, f"The endpoint {endpoint[:60]!r} cannot be used: {error}", where="endpoint") from None


def _refuse_name(kind: str, name: str, known: Sequence[str]) -> NoReturn:
    raise ConsoleError(
        404,
        f"There is no {kind} {name[:60]!r} that this call may be sent to.{did_you_mean(name, known, cutoff=0.6)}",
        where=kind,
    )


def recorded_call(call: Call) -> dict[str, object]:
    """Return a recorded call as it can be edited, and what it was answered."""
    document = known_run(call)
    tree, span = SpanTree(document.spans), document.span(span_id_of(call))
    llm = tree.around(span, "llm")
    if llm is None:
        raise ConsoleError(404, "The run has no such LLM call.", where="SPAN")
    payload, attempt = payload_of(tree, llm), last_attempt(tree, llm)
    if payload is None or attempt is None:
        raise ConsoleError(409, "The prompt of this call was not kept, so that it cannot be sent again.", where="SPAN")
    node, texts, facts = tree.around(llm, "node"), llm.texts, attempt.attributes
    written, first = facts.get("usage.output_tokens"), llm.attributes.get("time_to_first_token")
    writing = llm.duration - first if isinstance(first, int) else 0
    messages = [{"role": part.role, "content": part.text} for part in prompt_parts(payload) if part.role != "tools"]
    return {
        "messages": messages,
        "endpoint": llm.attributes.get("endpoint"),
        "preset": node.attributes.get("preset") if node else None,
        "max_tokens": facts.get("request.max_tokens"),
        **choices_of(call, document),
        "recorded": {
            "text": texts.get("answer") or "",
            "reasoning": texts.get("reasoning") or "",
            "us": llm.duration,
            "first_token_us": first,
            "tokens_in": facts.get("usage.input_tokens"),
            "tokens_out": written,
            "speed": written * MICROSECONDS / writing if isinstance(written, int) and writing > 0 else None,
        },
    }


def again(call: Call) -> Events:
    """Send a recorded call, edited, to an endpoint; the answer is a stream."""
    body, document = call.checked_body("messages", "endpoint", "preset", "max_tokens", "times"), known_run(call)
    span = document.span(span_id_of(call))
    if span is None or span.kind not in ("llm", "attempt"):
        raise ConsoleError(404, "The run has no such LLM call.", where="SPAN")
    messages, endpoint, preset = body.get("messages"), body.get("endpoint"), body.get("preset")
    if (
        not isinstance(messages, list)
        or not messages
        or not all(
            isinstance(one, dict) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str)
            for one in messages
        )
    ):
        raise ConsoleError(
            400, "'messages' is a list of messages with 'role' and 'content', both texts.", where="messages"
        )
    if not isinstance(endpoint, str) or not endpoint:
        raise ConsoleError(400, "'endpoint' is the name of an endpoint.", where="endpoint")
    if preset is not None and not isinstance(preset, str):
        raise ConsoleError(400, "'preset' is the name of a preset, or null for that of the endpoint.", where="preset")
    longest = max(_checked_names(call, document, endpoint, preset), _limit(document, span))
    max_tokens, times = _whole(body, "max_tokens", None, 1, longest), _whole(body, "times", 1, 1, MOST_TIMES) or 1
    # Of the engine's own fields, such as images, none comes from outside.
    known = [cast(Message, {name: one[name] for name in MESSAGE_FIELDS if name in one}) for one in messages]
    with _refusing_mistakes(endpoint):
        return Events(_again_events(call, document, span, known, endpoint, preset or None, max_tokens, times))


def _whole(body: Mapping[str, object], name: str, default: int | None, least: int, most: int) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise ConsoleError(400, f"'{name}' is a whole number from {least} to {most:,}.", where=name)
    return value


# -- compare -----------------------------------------------------------------------------------------------------------


def compare(call: Call) -> dict[str, object]:
    """Return the nodes of two runs next to each other, and the configuration files in which they differ.

    Only an operator gets the texts of these files.
    """
    a, b = known_run(call, call.parts["A"]), known_run(call, call.parts["B"])
    changes = [
        {**change, "before": _text_of(call, a, change["a"]), "after": _text_of(call, b, change["b"])}
        if call.role is Role.OPERATOR
        # Not even the hashes: whether a text was guessed right can be seen from them.
        else {"path": change["path"], "change": change["change"]}
        for change in config_changes(a.config, b.config)
    ]
    return {"a": a.facts, "b": b.facts, "steps": aligned_steps(a, b), "configuration": changes}


def _text_of(call: Call, document: RunDocument, version: str | None) -> str | None:
    if version is None:
        return None
    return document.config_texts.get(version) or call.records.archive.config_body(version)


# -- sending a call again, straight to an endpoint: no workflow runs ---------------------------------------------------


def _again_events(
    call: Call,
    document: RunDocument,
    span: Span,
    messages: Sequence[Message],
    endpoint: str,
    preset: str | None,
    max_tokens: int | None,
    times: int,
) -> Iterator[Event | None]:
    """Return the events of a call that is sent ``times`` times: its run, pieces of text, and the run again at the end.

    Raises ConfigurationError for an endpoint or preset that cannot be used.
    """
    request = repeating_request(call, document, "again", span.id)
    request.stream = True
    # Made before the answer begins, so that a mistake in the configuration has a status of its own.
    services = [
        LlmApiService(endpoint, preset, max_tokens or _limit(document, span), True, scope=request.cancel_scope)
        for _ in range(times)
    ]
    tools, choice = _tools(document, span)
    shape = _shape(document, span)
    request.endpoint = endpoint
    request.report("request_arrived", request)
    request.report("request_read", request, SentRequest(messages, tools))
    return _Events(request, services, partial(_stream, messages, tools, choice, *shape))


def _stream(
    messages: Sequence[Message],
    tools: list[Mapping[str, object]] | None,
    choice: object,
    schema: Mapping[str, object] | None,
    answers: Sequence[str],
    service: LlmApiService,
) -> Generator[Chunk, None, None]:
    return service.stream_verbatim(messages, tools, choice, schema, answers)


class _Events:
    """The events of a request; closing them ends it as a run, also before the first of them was read."""

    def __init__(
        self,
        request: RequestContext,
        services: Sequence[LlmApiService],
        send: Callable[[LlmApiService], Generator[Chunk, None, None]],
    ) -> None:
        self._request, self._send = request, send
        self._events = self._all(services)
        self._ended = False

    def __iter__(self) -> Iterator[Event | None]:
        return self

    def __next__(self) -> Event | None:
        return next(self._events)

    def close(self) -> None:
        self._events.close()
        self._end()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            running_requests().end(self._request)
            self._request.report("request_finished", self._request)

    def _all(self, services: Sequence[LlmApiService]) -> Generator[Event | None, None, None]:
        request = self._request
        yield Event("message", {"run": request.request_id, "time": time.time_ns() // 1000})
        try:
            for number, service in enumerate(services, 1):
                yield from self._one(service, number)
        except EarlyTerminationException:
            pass
        except Exception:
            request.failed = True
            raise
        else:
            running_requests().answered(request)
        # Before the last event, with which the console shows the run and may send the call again.
        self._end()
        yield Event("run", {"run": request.request_id})

    def _one(self, service: LlmApiService, number: int) -> Iterator[Event | None]:
        request = self._request
        with contextlib.closing(self._send(service)) as chunks:
            for chunk in chunks:
                value: dict[str, object] = {
                    name: chunk[name] for name in ("reasoning", "tool_calls") if chunk.get(name)
                }
                if not (value or chunk["token"]):
                    # Nothing is sent yet.
                    yield None
                    continue
                if request.first_token_at is None:
                    request.first_token_at = time.monotonic()
                yield Event("message", {"n": number, "text": chunk["token"], **value})


def _limit(document: RunDocument, span: Span) -> int:
    tree = SpanTree(document.spans)
    for attempt in [span, *tree.children(span)]:
        found = attempt.attributes.get("request.max_tokens")
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    return MOST_TOKENS


def _payload(document: RunDocument, span: Span) -> Mapping[str, Any]:
    payload = span.texts.get("payload") if span.kind == "attempt" else payload_of(SpanTree(document.spans), span)
    return payload if isinstance(payload, Mapping) else {}


def _shape(document: RunDocument, span: Span) -> tuple[Mapping[str, object] | None, Sequence[str]]:
    """Return the JSON schema to which the recorded answer was held, and the texts to which a grammar held it."""
    for name, value in _payload(document, span).items():
        if isinstance(value, str) and (answers := choices_in(value)):
            return None, answers
        if isinstance(value, Mapping):
            # As OpenAI has it, or as Ollama.
            inner = value.get("json_schema")
            schema = inner.get("schema") if isinstance(inner, Mapping) else value if name == "format" else None
            if isinstance(schema, Mapping):
                return schema, ()
    return None, ()


def _tools(document: RunDocument, span: Span) -> tuple[list[Mapping[str, object]] | None, object]:
    """Return the tools of the recorded call in OpenAI's form, and which of them it was to call."""
    payload = _payload(document, span)
    if not isinstance(payload.get("tools"), list):
        return None, None
    tools = [_openai_tool(tool) for tool in payload["tools"] if isinstance(tool, Mapping)]
    choice = payload.get("tool_choice")
    # Claude's form of a choice is an object with a type of its own.
    return tools or None, choice if isinstance(choice, str) else None


def _openai_tool(tool: Mapping[str, object]) -> Mapping[str, object]:
    if "input_schema" not in tool:
        return tool
    return {
        "type": "function",
        "function": {
            "name": tool.get("name"),
            "description": tool.get("description", ""),
            "parameters": tool["input_schema"],
        },
    }
