"""Convert the messages and prompts of requests to internal form, the same for every client's dialect."""

from __future__ import annotations

import itertools
import json
import re
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from typing import cast

from Middleware.api.requests.content import ContentReader, Fields, has_stray_images, images_in, with_images_moved
from Middleware.exceptions import ClientError
from Middleware.llmapis.keepsakes import of_client
from Middleware.models.messages import Message, ToolCall, add_times, joined_extra
from Middleware.utilities import config_utils
from Middleware.utilities.answers.tool_calls import calls_among

ROLE_PREFIXES = {"user": "User: ", "assistant": "Assistant: "}
# "function" is that of results from before there were tools.
ROLE_NAMES = {"developer": "system", "function": "tool"}
COPIED_KEYS = ("tool_call_id", "name")
GENERATOR = "Assistant:"
LEGACY_ID = "call_fn_"
# A number as a content counts as its text on the chat routes.
_READER = ContentReader(numbers=True)
_SEGMENT = re.compile(r"\[Beg_(\w+)\](.*?)(?=\[Beg_\w+\]|\Z)", re.DOTALL)
_TAGGED_ROLES = {"User": "user", "Assistant": "assistant", "SysMes": "systemMes", "Sys": "system"}


def chat_messages(raw: object, *, empty_texts_left_out: bool = False) -> list[Message]:
    """Return the messages of a chat request in internal form, with the user's role prefixes and generator.

    ``empty_texts_left_out``: the dialect's own packages omit ``content`` where the text is empty.
    """
    if not isinstance(raw, list) or [sent for sent in raw if not isinstance(sent, dict)]:
        raise ClientError("The 'messages' field must be a list of objects.")
    add_prefixes = config_utils.user_flag("chatCompleteAddUserAssistant")
    prefixes = ROLE_PREFIXES if add_prefixes else {}
    messages: list[Message] = []
    has_calls = has_strays = False
    # How many messages have been made in addition to those of the client.
    more = 0
    for sent in raw:
        role, content = sent.get("role"), sent.get("content")
        # A conversation has thousands of messages with only these two, and a call for each would double the time.
        if len(sent) == 2 and isinstance(content, str) and isinstance(role, str) and role:
            role = ROLE_NAMES.get(role, role)
            messages.append({"role": role, "content": prefixes.get(role, "") + content if prefixes else content})
        else:
            made = _messages(sent, len(messages) - more, prefixes, empty_texts_left_out)
            if messages and _is_legacy(made[0]) and _is_legacy(messages[-1]):
                made = [_joined_calls(messages.pop(), made[0])]
                more -= 1
            more += len(made) - 1
            has_calls = has_calls or any("tool_calls" in message for message in made)
            has_strays = has_strays or has_stray_images(made)
            messages += made
    if has_calls:
        _link_tool_results(messages)
    if has_strays:
        messages = with_images_moved(messages, prefixes.get("user", ""))
    _open_answer(messages, add_prefixes)
    return messages


def with_user_options(messages: Sequence[Message]) -> list[Message]:
    """Return messages of any dialect with what the user's settings add to them: role prefixes and the generator.

    ``chat_messages`` does both while it converts.
    """
    add_prefixes = config_utils.user_flag("chatCompleteAddUserAssistant")
    changed = [_prefixed(message) for message in messages] if add_prefixes else list(messages)
    _open_answer(changed, add_prefixes)
    return changed


def without_user_options(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return messages as a client had sent them before the user's settings added something to them."""
    add_prefixes = config_utils.user_flag("chatCompleteAddUserAssistant")
    left = list(messages)
    added = {"role": "assistant", "content": GENERATOR if add_prefixes else ""}
    if left and left[-1] == added and config_utils.user_flag("chatCompletionAddMissingAssistantGenerator"):
        left.pop()
    return [_unprefixed(message) for message in left] if add_prefixes else left


def _unprefixed(message: Mapping[str, object]) -> Mapping[str, object]:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": content.removeprefix(ROLE_PREFIXES.get(str(message.get("role")), ""))}


def _prefixed(message: Message) -> Message:
    return {**message, "content": ROLE_PREFIXES.get(message["role"], "") + message["content"]}


def _open_answer(messages: list[Message], add_prefixes: bool) -> None:
    """Add the start of the assistant's answer if the user's settings want it and the client has not sent one."""
    if (
        messages
        and messages[-1]["role"] != "assistant"
        and config_utils.user_flag("chatCompletionAddMissingAssistantGenerator")
    ):
        messages.append({"role": "assistant", "content": GENERATOR if add_prefixes else ""})


def _messages(raw: Fields, number: int, prefixes: Mapping[str, str], empty_texts_left_out: bool) -> list[Message]:
    """Return the message of a client; blocks of results, as Anthropic's clients send them, come before it."""
    role, path = raw.get("role"), f"messages[{number}]"
    if not role or not isinstance(role, str):
        raise ClientError("Each message must have a 'role' field.")
    legacy = raw.get("function_call") if role == "assistant" else None
    if (
        "content" not in raw
        and "tool_calls" not in raw
        and not legacy
        and not (empty_texts_left_out and (role in ("assistant", "tool") or raw.get("images")))
    ):
        raise ClientError("Each message must have 'content' or 'tool_calls'.")
    role = ROLE_NAMES.get(role, role)
    content = _READER.read(raw.get("content"), f"{path}.content", role)
    if "images" in raw:
        content.images += images_in(raw["images"], f"{path}.images")
    made = content.messages(role)
    message = cast(dict[str, object], made[-1])
    message["content"] = prefixes.get(made[-1]["role"], "") + made[-1]["content"]
    if raw.get("tool_calls") is not None:
        message["tool_calls"] = _calls(raw["tool_calls"], content.calls)
    if isinstance(legacy, Mapping) and not message.get("tool_calls"):
        message["tool_calls"] = [_openai_call({"id": f"{LEGACY_ID}{number}", "type": "function", "function": legacy})]
    if role == "assistant" and (extra := of_client(raw)):
        message["extra"] = [*made[-1].get("extra", ()), *extra]
    for key in COPIED_KEYS:
        if raw.get(key) is not None:
            message.setdefault(key, raw[key])
    # Ollama's key for it.
    if isinstance(raw.get("tool_name"), str):
        message.setdefault("name", raw["tool_name"])
    add_times(made[-1], raw)
    # The fields of tools are passed on as the client sent them: the back-end validates them, nodes check before use.
    return made


# -- tools -------------------------------------------------------------------------------------------------------------
def _calls(given: object, blocks: Sequence[ToolCall]) -> object:
    """Return the calls of a message. Some clients send the same ones as blocks of the content, too."""
    if not isinstance(given, list):
        return blocks or given
    # An id may be anything.
    known = [call.get("id") for call in given if isinstance(call, dict)]
    return [*map(_openai_call, given), *(call for call in blocks if call["id"] not in known)]


def _openai_call(call: object) -> object:
    """Return a tool call in OpenAI's form. In Ollama's, arguments are an object, and there is neither type nor id.

    Calls of custom tools have an input in place of arguments, and those of the Responses API have both without nesting.
    """
    if not isinstance(call, Mapping):
        return call
    if not isinstance(function := call.get("function"), Mapping):
        return _nested_call(call)
    if not isinstance(function.get("arguments"), Mapping):
        return call
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    function = {key: value for key, value in function.items() if key != "index"}
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _nested_call(call: Fields) -> Fields:
    fields = custom if isinstance(custom := call.get("custom"), Mapping) else call
    if not isinstance(name := fields.get("name"), str):
        return call
    is_custom = fields is not call or str(call.get("type")).startswith("custom")
    given = {"input": fields.get("input") or ""} if is_custom else fields.get("arguments")
    arguments = given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)
    call_id = call.get("call_id") or call.get("id")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _link_tool_results(messages: list[Message]) -> None:
    """Give calls without an id one, and results without one that of their call, as OpenAI servers require ids.

    A result belongs to the call with its id, else to the first call of its tool that has none yet, else to the first.
    """
    nameless, named, known = _WaitingCalls(), _WaitingCalls(), frozenset[str]()
    for position, message in enumerate(messages):
        calls = message.get("tool_calls")
        if message["role"] == "assistant" and isinstance(calls, list):
            nameless, named = _WaitingCalls(), _WaitingCalls()
            known = frozenset(str(call["id"]) for call in calls if isinstance(call, dict) and call.get("id"))
            used = _result_ids(messages, position + 1) if known else known
            for number, call in enumerate(calls):
                if not isinstance(call, dict) or not isinstance(call.get("function"), Mapping):
                    continue
                if not call.get("id"):
                    calls[number] = {**call, "id": f"call_{position}_{number}"}
                    nameless.add(calls[number])
                elif str(call["id"]) not in used:
                    named.add(call)
        elif message["role"] == "tool" and str(message.get("tool_call_id")) not in known:
            # Some clients send the id in the result only.
            waiting = nameless if nameless.calls or message.get("tool_call_id") else named
            if waiting.calls:
                call = waiting.take(message.get("name"))
                message["tool_call_id"] = message.get("tool_call_id") or call["id"] or ""
                call["id"] = message["tool_call_id"]


def _is_legacy(message: Message) -> bool:
    """Return whether a message has calls of a client with functions, which can put only one into each message."""
    calls = calls_among(message.get("tool_calls"))
    return bool(calls) and all(str(call.get("id")).startswith(LEGACY_ID) for call in calls)


def _joined_calls(one: Message, other: Message) -> Message:
    """Return one message for two in a row: servers want the result of each call behind its message."""
    content = "\n".join(filter(None, (one["content"], other["content"])))
    joined: Message = {**one, **other, "content": content, "tool_calls": [*one["tool_calls"], *other["tool_calls"]]}
    if extra := joined_extra(one, other):
        joined["extra"] = extra
    return joined


def _result_ids(messages: list[Message], start: int) -> frozenset[str]:
    """Return the ids of the results from ``start`` on, up to the next message with calls."""
    results = itertools.takewhile(lambda message: "tool_calls" not in message, itertools.islice(messages, start, None))
    return frozenset(str(message.get("tool_call_id")) for message in results if message["role"] == "tool")


class _WaitingCalls:
    """The calls of a turn that have no result yet. Each is found in constant time."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.calls: OrderedDict[int, ToolCall] = OrderedDict()
        self._of_tool: dict[str, deque[int]] = {}

    def add(self, call: ToolCall) -> None:
        number = next(self._numbers)
        self.calls[number] = call
        name = call["function"].get("name")
        if isinstance(name, str):
            self._of_tool.setdefault(name, deque()).append(number)

    def take(self, tool: object) -> ToolCall:
        """Remove and return the first call of that tool, else the first of all."""
        numbers = self._of_tool.get(tool, deque()) if isinstance(tool, str) and tool else deque()
        while numbers:
            if (number := numbers.popleft()) in self.calls:
                return self.calls.pop(number)
        return self.calls.popitem(last=False)[1]


# -- prompts of the text routes ----------------------------------------------------------------------------------------
def parse_tagged_prompt(text: str) -> list[Message]:
    """Return the messages of a prompt with role markers such as ``[Beg_User]``; empty if it has none.

    The first ``[Beg_Sys]`` is the system prompt, later ones are system messages within the conversation. Text before
    the first marker and after an unknown one is dropped.
    """
    messages: list[Message] = []
    has_system = False
    for word, content in _SEGMENT.findall(text):
        role = _TAGGED_ROLES.get(word)
        if role == "system":
            role, has_system = "systemMes" if has_system else "system", True
        if role:
            messages.append({"role": role, "content": content.strip()})
    return messages


def completion_messages(prompt: object) -> list[Message]:
    """Return the messages in the ``prompt`` of an OpenAI text completion: a string, null, or a list of one string."""
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if prompt is not None and not isinstance(prompt, str):
        raise ClientError("The 'prompt' field must be a text or a list of one text.")
    return _tagged_or_plain(prompt or "")


def generate_messages(body: dict[str, object]) -> list[Message]:
    """Return the messages in the ``system``, ``prompt`` and ``images`` of an Ollama text generation."""
    system, prompt = _string(body, "system"), _string(body, "prompt")
    messages = _tagged_or_plain(system + prompt)
    if system.strip() and not parse_tagged_prompt(system) and parse_tagged_prompt(prompt):
        messages.insert(0, {"role": "system", "content": system})
    images = images_in(body.get("images"), "images")
    if images:
        _attach(images, messages)
    return messages


def _tagged_or_plain(text: str) -> list[Message]:
    return parse_tagged_prompt(text) or ([{"role": "user", "content": text}] if text else [])


def _string(body: dict[str, object], key: str) -> str:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise ClientError(f"The '{key}' field must be a text.")
    return value or ""


def _attach(images: list[str], messages: list[Message]) -> None:
    """Put images on the last user message."""
    for message in reversed(messages):
        if message["role"] == "user":
            message["images"] = images
            return
    messages.append({"role": "user", "content": "", "images": images})
