"""What LLMs send with a message in addition to its text and calls, and must get back: thoughts and their signatures.

DeepSeek and Kimi refuse the second request of a tool loop without ``reasoning_content``, Claude without its signed
blocks, Gemini 3 without ``extra_content``; other servers refuse such members. So each one has the *origin* that sent
it, and goes back there only. Keepsakes are never text of the conversation.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from Middleware.exceptions import DataKeyError
from Middleware.models.messages import Keepsake, Message, ToolCall
from Middleware.models.process import process
from Middleware.models.request_context import RequestContext, current_request
from Middleware.utilities.answers.arguments_repair import repaired_arguments
from Middleware.utilities.answers.tool_calls import CALL_FORM, calls_among, read_fragment, with_unique_ids
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.config.users import get_current_username
from Middleware.utilities.discussions.client_keys import data_key, key_name
from Middleware.utilities.encryption_utils import NO_CIPHER, Cipher, cipher_for, owner_mark
from Middleware.utilities.http.wire import parse_target
from Middleware.utilities.json_data import compact_json, from_stored_json, to_stored_json
from Middleware.utilities.once import MAX_REMEMBERED, BoundedCache, OwnedCache
from Middleware.utilities.text_utils import message_text, rough_estimate_token_length

if TYPE_CHECKING:
    from Middleware.llmapis.handlers.base.backend_call import BackendMessage, BackendSettings

MESSAGE: Literal["message"] = "message"
# Claude's blocks of thinking, and Mistral's, which are parts of the content.
BLOCKS, CONTENT = "blocks", "content"
THINKING = "thinking"
# Begins the signature of Claude's thinking as Messages clients get it; the origin and the server's signature follow.
SIGNED = "w1."
# Gemini's signature of a thought, which it demands with the first of several calls, and what Google documents in its
# place for calls of other models.
SIGNATURE = "thought_signature"
_NO_SIGNATURE = {"google": {SIGNATURE: "skip_thought_signature_validator"}}
# Members of a call's function, next to its name and arguments.
IN_FUNCTION = "function."
_KEPT = re.compile("reason|think|thought|signature|opaque|encrypted", re.IGNORECASE)
# Of those, what is not a thought in plain text.
_NO_TEXT = ("signature", "opaque", "encrypted")
_PLAIN = frozenset({"role", "content", "tool_calls", "refusal", "annotations", "audio", "function_call"})
_REASONS = frozenset({"finish_reason", "stop_reason"})
# Of an element of a list that arrives in pieces, the members that go on.
_GROWING = frozenset({"text", "summary", "data"})
Level = Literal["auto", "none", "exchange", "all"]
LEVELS: tuple[Level, ...] = get_args(Level)
Owner = tuple[str, str]
"""A user, and the hash of a client's key."""

# An agent's conversation has some hundred calls, each with a few kilobytes of thoughts.
MAX_ANSWERS = 4096
MAX_BYTES = 32 * 1024 * 1024
MAX_ANSWER_BYTES = 2 * 1024 * 1024
# A tool loop that goes on after a night is read from the client's own copy.
KEPT_SECONDS = 12 * 3600.0


def origin_of(settings: BackendSettings) -> str:
    """Return 8 hexadecimal digits for what answers behind an endpoint: the kind of API, the server and the model."""
    target = parse_target(settings.base_url)
    model = settings.model or ENDPOINT.value(settings.endpoint, "modelNameToSendToAPI")
    named = json.dumps([API_TYPE.value(settings.api_type, "type"), *target.origin, model or ""])
    return hashlib.sha256(named.encode()).hexdigest()[:8]


def level_of(endpoint: Mapping[str, object]) -> Level:
    """Return the endpoint's ``reasoningToBackend``; the default for an unknown value."""
    level = str(ENDPOINT.value(endpoint, "reasoningToBackend")).lower()
    return level if level in LEVELS else LEVELS[0]


def is_kept(member: str) -> bool:
    """Return whether a member of a message is a keepsake. Other unknown ones are not: servers refuse some they send."""
    return member == "extra_content" or (member.lower() not in _REASONS and _KEPT.search(member) is not None)


def signed(signature: object, origin: str) -> str:
    """Return the signature that a Messages client gets for a block of ``origin``."""
    return f"{SIGNED}{origin}.{signature}"


def of_client(fields: Mapping[str, object]) -> list[Keepsake]:
    """Return what a client brings with a message of the assistant, whose origin is not known."""
    found = KeptMembers()
    found.read(fields)
    return found.finish(None)


def of_blocks(blocks: Iterable[Mapping[str, object]]) -> list[Keepsake]:
    """Return the keepsakes in the blocks of thinking that a client of the Messages API brings, in their order.

    Those with a signature of ours have its origin. Of those that this program has made of another server's reasoning
    only the text counts, as their signature says nothing.
    """
    whole: dict[str | None, list[Mapping[str, object]]] = {}
    texts: list[str] = []
    for block in blocks:
        signature = block.get("signature")
        mark, origin, sent = (*str(signature).split(".", 2), "", "")[:3]
        if block.get("type") == "redacted_thinking":
            # It belongs to the blocks around it.
            whole.setdefault(next(iter(whole), None), []).append(block)
        # Without a text, too: Claude also sends only the signature, which has it.
        elif f"{mark}." == SIGNED and sent:
            earlier = whole.pop(None, []) if origin not in whole else []
            whole.setdefault(origin, []).extend([*earlier, {**block, "signature": sent}])
        elif isinstance(signature, str) and signature and not signature.startswith(("wilmer-", SIGNED)):
            whole.setdefault(None, []).append(block)
        else:
            texts.append(str(block.get(THINKING) or ""))
    found: list[Keepsake] = [
        {"origin": origin, "member": BLOCKS, "value": value, "at": MESSAGE} for origin, value in whole.items()
    ]
    if text := "".join(texts):
        found.append({"origin": None, "member": THINKING, "value": text, "at": MESSAGE})
    return found


def of_reasoning(item: Mapping[str, object]) -> list[Keepsake]:
    """Return the keepsakes in an item of the type ``reasoning`` that a client of the Responses API brings."""
    found = KeptMembers()
    for key in ("content", "summary"):
        parts = item.get(key)
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
        if text := "".join(map(str, filter(None, texts))):
            found.add(THINKING, text)
            break
    found.add("encrypted_content", item.get("encrypted_content"))
    return found.finish(None)


class KeptMembers:
    """Collects the keepsakes of one message or answer from its whole objects or the pieces of a stream."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, Literal["message"] | int], list[object]] = {}

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, member: str, value: object, at: Literal["message"] | int = MESSAGE) -> None:
        """Add a value, or a piece of it; null and empty ones say nothing."""
        if value is not None and value not in ("", [], {}):
            self._values.setdefault((member, at), []).append(value)

    def has(self, *members: str) -> bool:
        """Return whether one of these members of the message has been added."""
        return any((member, MESSAGE) in self._values for member in members)

    def read(self, fields: Mapping[str, object]) -> None:
        """Add the members of a message or a delta that are keepsakes."""
        for name, value in fields.items():
            # Most messages have no others, which cost no call here.
            if name not in _PLAIN and is_kept(name):
                self.add(name, value)

    def read_call(self, call: ToolCall, at: int) -> None:
        """Add what a call, or a piece of one, has beyond the members that all calls have."""
        for name, value in call.items():
            if name not in CALL_FORM:
                self.add(name, value, at)
        function = call.get("function")
        for name, value in function.items() if isinstance(function, Mapping) else ():
            if name not in ("name", "arguments"):
                self.add(IN_FUNCTION + name, value, at)

    def finish(self, origin: str | None) -> list[Keepsake]:
        """Return what was collected."""
        return [
            {"origin": origin, "member": member, "value": _joined(values), "at": at}
            for (member, at), values in self._values.items()
        ]


def _joined(values: list[object]) -> object:
    if len(values) == 1:
        return values[0]
    if all(isinstance(value, str) for value in values):
        return "".join(cast("list[str]", values))
    return _merged(cast("list[list[object]]", values)) if all(isinstance(one, list) for one in values) else values[-1]


def _merged(lists: Iterable[list[object]]) -> list[object]:
    """Return the elements of lists; the pieces of one element have the same ``index`` and ``type``."""
    out: list[object] = []
    known: dict[str, dict[str, object]] = {}
    for element in itertools.chain.from_iterable(lists):
        if not isinstance(element, Mapping) or element.get("index") is None:
            out.append(element)
            continue
        key = json.dumps([element["index"], element.get("type")], default=str)
        if key not in known:
            known[key] = dict(element)
            out.append(known[key])
            continue
        first = known[key]
        for name, value in element.items():
            before = first.get(name)
            if value is not None:
                grows = name in _GROWING and isinstance(before, str) and isinstance(value, str)
                first[name] = before + value if grows else value
    return out


# -- the store ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class KeptAnswer:
    """An answer with calls.

    Attributes:
        ids: those of its calls.
        shape: the hash of the names and arguments of its calls.
        question: the hash of the user's message that it belongs to, and after a colon, how many answers with calls
            stand between.
        kept: its keepsakes as JSON, encrypted for users with encryption; empty if it has none.
        is_secret: it must not leave the process, as there is no key to encrypt it with.
        until: when it is forgotten, in monotonic seconds.
    """

    owner: Owner
    ids: tuple[str, ...]
    shape: str
    question: str
    kept: bytes = b""
    is_secret: bool = False
    until: float = 0.0

    @property
    def weight(self) -> int:
        return len(self.kept) + sum(map(len, self.ids)) + len(self.shape)


class KeepsakeStore:
    """What the answers with calls of this process have kept, for clients that do not bring it back. Thread-safe.

    Nothing of it reaches a disk. The limits are those of the module.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._answers: OwnedCache[int, KeptAnswer] = OwnedCache(
            MAX_ANSWERS, MAX_BYTES, lambda answer: answer.weight, lambda answer: answer.owner
        )
        # The numbers of answers, oldest first, by owner and shape.
        self._by_shape: dict[tuple[Owner, str], list[int]] = {}

    def put(self, answer: KeptAnswer) -> None:
        """Keep an answer; one that is too large is not kept."""
        if len(answer.kept) > MAX_ANSWER_BYTES:
            return
        answer = replace(answer, until=self._clock() + KEPT_SECONDS)
        with self._lock:
            number = next(self._numbers)
            self._by_shape.setdefault((answer.owner, answer.shape), []).append(number)
            for dropped in self._answers.put(number, answer):
                self._forget(dropped)

    def _forget(self, answer: KeptAnswer) -> None:
        key = answer.owner, answer.shape
        left = [number for number in self._by_shape[key] if self._answers.get(number) is not None]
        self._by_shape[key] = left
        if not left:
            del self._by_shape[key]

    def find(self, wanted: KeptAnswer, is_running: bool) -> list[KeptAnswer]:
        """Return the answers of the owner that had these calls, newest first, all of one conversation.

        Args:
            wanted: one without keepsakes. A client may have given the calls other ids; then the question must be the
                same, as it must be if several answers had these ids.
            is_running: it belongs to the running exchange.
        """
        with self._lock:
            numbers = self._by_shape.get((wanted.owner, wanted.shape), ())
            known = [(number, self._answers.get(number)) for number in reversed(numbers)]
            found = [(number, one) for number, one in known if one is not None and one.until > self._clock()]
            same = agreeing([one for _, one in found], wanted)
            for number, one in found:
                if same and one is same[0]:
                    self._answers.use(number)
            return same


def agreeing(found: Sequence[KeptAnswer], wanted: KeptAnswer) -> list[KeptAnswer]:
    """Return those of answers with the same calls that belong to the wanted conversation, at the same place in it."""
    same = [one for one in found if set(one.ids) == set(wanted.ids)]
    if len(same) == 1:
        return same
    asked = wanted.question.partition(":")[0]
    near = [one for one in same or found if one.question.partition(":")[0] == asked]
    # A client may have left out answers before it.
    return [one for one in near if one.question == wanted.question] or near


def _wanted(request: RequestContext, calls: Sequence[ToolCall], question: str, place: int) -> KeptAnswer:
    """Return an answer without keepsakes, to find the one that is kept; ``place``: see ``KeptAnswer.question``."""
    ids, shapes = [], []
    for call in calls:
        found, name, arguments = read_fragment(call)
        ids.append(found)
        # The case of a name may have been changed for the client.
        shapes.append([name.lower(), json.loads(repaired_arguments(arguments))])
    key, user = request.api_key, get_current_username()
    # If the name cannot be known, this is still not a client without a key, nor one with another key.
    owner = user, (key_name(key, user) or owner_mark(key)) if key else ""
    shape = json.dumps(sorted(shapes, key=repr), sort_keys=True, default=str)
    return KeptAnswer(owner, tuple(ids), _hash(shape), f"{_hash(question)}:{place}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cipher(request: RequestContext) -> Cipher:
    if not request.redact or not request.api_key:
        return NO_CIPHER
    return cipher_for(data_key(request.api_key, get_current_username()))


def remember(origin: str, kept: list[Keepsake], calls: Sequence[ToolCall]) -> None:
    """Keep what an answer with calls has sent, for the next request of the current one's client."""
    request = current_request()
    _note_members(origin, kept)
    if not calls or request is None:
        return
    newest = exchange_start(request.asked)
    question = message_text(request.asked[newest - 1]) if newest else ""
    place = len([message for message in request.asked[newest:] if _calls_of(message)])
    answer, cipher = _wanted(request, calls, question, place), _cipher(request)
    try:
        data = cipher.encrypt(to_stored_json(kept)) if kept else b""
    # As deeply nested as JSON can be read, but not written.
    except RecursionError:
        return
    process().one(KeepsakeStore).put(replace(answer, kept=data, is_secret=request.redact and not cipher.active))


def _sent_members() -> BoundedCache[str, dict[str, bool]]:
    """Return the members that each origin has sent in this process, and whether they were plain text."""
    return BoundedCache(MAX_REMEMBERED)


def _note_members(origin: str, kept: Sequence[Keepsake]) -> None:
    known = process().one(_sent_members).get(origin) or {}
    members = {one["member"]: plain_text(one) == one["value"] for one in kept if one["at"] == MESSAGE}
    if members.keys() - known.keys():
        process().one(_sent_members).put(origin, {**known, **members})


# -- from the client ---------------------------------------------------------------------------------------------------
def is_question(messages: Sequence[Mapping[str, object]], index: int) -> bool:
    """Return whether a message begins an exchange: one of the user that does not directly follow a tool's result."""
    follows_tool = index > 0 and messages[index - 1].get("role") == "tool"
    return messages[index].get("role") == "user" and not follows_tool


def recalled(request: RequestContext, messages: list[Message]) -> list[Message]:
    """Return a client's messages, those of the assistant that call tools with what the store has kept of them.

    Members of calls that only some servers know become keepsakes, and no two calls have one id. Notes in the request
    what its answers belong to.
    """
    request.asked = messages
    # Most conversations have no calls, and thousands of messages.
    if not [message for message in messages if "tool_calls" in message]:
        return messages
    out, question, place, newest = list(messages), "", 0, exchange_start(messages)
    for index, message in enumerate(messages):
        if is_question(messages, index):
            question, place = message_text(message), 0
        elif calls := _calls_of(message):
            wanted = _wanted(request, calls, question, place)
            found = process().one(KeepsakeStore).find(wanted, index >= newest)
            out[index] = _recalled(request, message, calls, found)
            place += 1
    return with_unique_ids(out)


def _calls_of(message: Mapping[str, object]) -> list[ToolCall]:
    return calls_among(message.get("tool_calls")) if message.get("role") == "assistant" else []


def _recalled(
    request: RequestContext, message: Message, calls: list[ToolCall], answers: Sequence[KeptAnswer]
) -> Message:
    found = KeptMembers()
    for index, call in enumerate(calls):
        found.read_call(call, index)
    brought = [*message.get("extra", ()), *found.finish(None)]
    known: list[Keepsake] = []
    ids = [read_fragment(call)[0] for call in calls]
    for answer in answers:
        kept = _read(request, answer, ids)
        # Of several answers of one origin, the newest.
        if not {one["origin"] for one in kept} & {one["origin"] for one in known}:
            known += kept
    equal = {one["at"] for one in brought for other in known if _is_same(one, other)}
    # What both have is the store's, which knows its origin and the members that the client has dropped.
    extra = [one for one in brought if one["at"] not in equal] + known
    message = {**message, "tool_calls": [_bare(call) for call in calls] if found else calls}
    if extra:
        message["extra"] = extra
    return message


def _read(request: RequestContext, answer: KeptAnswer, ids: Sequence[str]) -> list[Keepsake]:
    """Return the keepsakes of an answer, each at the place of its call among those with ``ids``."""
    if not answer.kept:
        return []
    try:
        kept = cast("list[Keepsake]", from_stored_json(_cipher(request).decrypt(answer.kept)))
    except DataKeyError:
        return []
    # A client may have changed the order of its calls; without the same ids, that is not known.
    places: dict[Literal["message"] | int, Literal["message"] | int] = {}
    if len(set(ids)) == len(ids) and set(ids) == set(answer.ids):
        places = {at: list(ids).index(one) for at, one in enumerate(answer.ids)}
    return [{**one, "at": places.get(one["at"], one["at"]), "stored": True} for one in kept]


def _is_same(brought: Keepsake, stored: Keepsake) -> bool:
    if brought["at"] != stored["at"]:
        return False
    text, other = plain_text(brought), plain_text(stored)
    return text.strip() == other.strip() if text and other else brought["value"] == stored["value"]


def _bare(call: ToolCall) -> ToolCall:
    bare: dict[str, Any] = {name: value for name, value in call.items() if name in CALL_FORM}
    function = call.get("function")
    if isinstance(function, Mapping):
        bare["function"] = {name: value for name, value in function.items() if name in ("name", "arguments")}
    return cast(ToolCall, bare)


def plain_text(one: Keepsake) -> str:
    """Return the thought in a keepsake; "" for other values."""
    value = one["value"]
    if one["member"] in (BLOCKS, CONTENT) and isinstance(value, list):
        return "".join(thought_in(block) for block in value if isinstance(block, Mapping))
    member = one["member"].lower()
    is_text = isinstance(value, str) and one["at"] == MESSAGE and not any(word in member for word in _NO_TEXT)
    return str(value) if is_text else ""


def thought_in(block: Mapping[str, object]) -> str:
    """Return the text of a block of the type ``thinking``: a string, or Mistral's list of text blocks."""
    thought = block.get(THINKING)
    parts = thought if isinstance(thought, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return thought if isinstance(thought, str) else "".join(text for text in texts if isinstance(text, str))


# -- to the back-end ---------------------------------------------------------------------------------------------------
def exchange_start(messages: Sequence[Mapping[str, object]]) -> int:
    """Return where the running exchange begins: behind the newest question."""
    return next((index + 1 for index in reversed(range(len(messages))) if is_question(messages, index)), 0)


@dataclass(frozen=True)
class Sending:
    """What an endpoint gets back.

    Attributes:
        text_member: the member in which the dialect has thoughts, "" if servers have their own names for it, and None
            if it takes only blocks that are signed.
        missed: the members that the server has demanded, which are filled in where they are not known.
        is_refused: nothing of it goes back.
    """

    origin: str
    level: Level
    text_member: str | None
    missed: Sequence[str] = ()
    is_refused: bool = False

    def sizes(self, messages: Sequence[Message]) -> dict[int, int]:
        """Return how many estimated tokens are added to messages, by their index."""
        chosen = self.chosen(cast("Sequence[BackendMessage]", messages))
        return {
            index: sum(rough_estimate_token_length(compact_json(one["value"])) for one in message["extra"])
            for index, message in enumerate(chosen)
            if "extra" in message
        }

    def chosen(self, messages: Sequence[BackendMessage]) -> list[BackendMessage]:
        """Return the messages, each with the keepsakes that this endpoint gets back, and no others."""
        if not self.missed and not [message for message in messages if "extra" in message]:
            return list(messages)
        first = 0 if self.level == "all" else len(messages) if self.level == "none" else exchange_start(messages)
        return [
            self._with_choice(message, index >= first)
            if "extra" in message or (self.missed and message.get("tool_calls"))
            else message
            for index, message in enumerate(messages)
        ]

    def _with_choice(self, message: BackendMessage, with_thoughts: bool) -> BackendMessage:
        message = message.copy()
        extra = [] if self.is_refused else message.get("extra", [])
        message.pop("extra", None)
        places = dict.fromkeys(one["at"] for one in extra if with_thoughts or one["at"] != MESSAGE)
        found = [one for at in places for one in self._at(at, [one for one in extra if one["at"] == at])]
        found += self._filled(found) if message.get("tool_calls") else []
        if found:
            message["extra"] = found
        return message

    def _filled(self, found: list[Keepsake]) -> list[Keepsake]:
        """Return what stands in a message with calls for what the server demands and nothing knows."""
        known = {(one["member"], one["at"]) for one in found}
        places: list[tuple[str, Literal["message"] | int, object]] = [
            # Kimi takes no empty text.
            ("extra_content", 0, _NO_SIGNATURE) if member == SIGNATURE else (member, MESSAGE, " ")
            for member in self.missed
            if self.text_member is not None
        ]
        return [
            {"origin": self.origin, "member": member, "value": value, "at": at}
            for member, at, value in places
            if (member, at) not in known
        ]

    def _at(self, at: Literal["message"] | int, extra: list[Keepsake]) -> list[Keepsake]:
        """Return what goes back to one place: what the client has brought, else what the store has kept."""
        brought = [self._taken(one) for one in extra if not one.get("stored")]
        return [one for one in brought if one is not None] or [
            one for one in extra if one.get("stored") and one["origin"] == self.origin
        ]

    def _taken(self, one: Keepsake) -> Keepsake | None:
        """Return what a client has brought in the form for this endpoint, None if it does not get it."""
        if one["origin"] == self.origin:
            return one
        if one["origin"] is not None:
            return None
        if one["at"] != MESSAGE:
            # Claude refuses what it does not know.
            return None if self.text_member is None else one
        sent = process().one(_sent_members).get(self.origin) or {}
        member, text, free = one["member"], plain_text(one), self.level != "auto"
        if self.text_member is None:
            return one if member == BLOCKS and (BLOCKS in sent or free) else None
        # Where a server has a text, it reads nothing else.
        if (member in sent and (text or not sent[member])) or (not text and free and not self.text_member):
            return one
        own = [name for name, is_text in sent.items() if is_text]
        if not text or not (own or free):
            return None
        name = self.text_member or (own[-1] if own else "reasoning_content" if member == BLOCKS else member)
        return {**one, "member": name, "value": text}


def for_the_log(payload: Mapping[str, object]) -> Mapping[str, object]:
    """Return a payload without what is kept in its messages, in the forms of all dialects."""
    messages = payload.get("messages")
    return {**payload, "messages": list(map(_without_thoughts, messages))} if isinstance(messages, list) else payload


def _without_thoughts(message: object) -> object:
    if not isinstance(message, Mapping):
        return message
    fields = {name: value for name, value in message.items() if not is_kept(name)}
    if isinstance(content := fields.get(CONTENT), list):
        fields[CONTENT] = [
            part for part in content if not (isinstance(part, Mapping) and is_kept(str(part.get("type"))))
        ]
    if calls := calls_among(fields.get("tool_calls")):
        fields["tool_calls"] = [_bare(call) for call in calls]
    return fields


def with_members(message: BackendMessage) -> BackendMessage:
    """Return a copy of a message of OpenAI's form with its keepsakes as members of it and of its calls."""
    fields: dict[str, Any] = {**message}
    calls = [dict[str, Any](call) for call in calls_among(fields.get("tool_calls"))]
    for one in fields.pop("extra"):
        member, value, at = one["member"], one["value"], one["at"]
        if member == CONTENT:
            text = fields.get("content")
            parts = text if isinstance(text, list) else [{"type": "text", "text": text}] if text else []
            fields[CONTENT] = [*value, *parts]
        elif at == MESSAGE:
            fields[member] = value
        elif at < len(calls) and member.startswith(IN_FUNCTION):
            calls[at]["function"] = {**calls[at]["function"], member.removeprefix(IN_FUNCTION): value}
        elif at < len(calls):
            calls[at][member] = value
    if calls:
        fields["tool_calls"] = calls
    return cast("BackendMessage", fields)
