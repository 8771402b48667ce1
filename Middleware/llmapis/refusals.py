"""A server that names what it refuses: which sentence it says, and what the next request changes.

A strict server answers a field that it does not know with an error that names the field. Each row of ``ROWS`` is a kind
of such sentences. A change that has helped is remembered for the endpoint file and its model until the process ends or
the file changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from Middleware.exceptions import BackendError
from Middleware.llmapis.backend_errors import sentence, status_of
from Middleware.llmapis.keepsakes import SIGNATURE, is_kept, level_of
from Middleware.llmapis.repeats import is_ollama
from Middleware.models.process import process
from Middleware.utilities.config.keys.api_type import API_TYPE
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.once import MAX_REMEMBERED, BoundedCache

if TYPE_CHECKING:
    from Middleware.llmapis.handlers.base.backend_call import BackendSettings

logger = logging.getLogger(__name__)

# A call is sent once more for each new refusal, but not without an end: some servers name one field at a time.
MOST_REQUESTS = 4
_STATUSES = (400, 422)
# Gateways put the error of a server into their own.
_MOST_LEVELS = 8
# Some errors repeat the whole request.
_MOST_TEXT = 16384
CONTINUE = "Continue."
# What OpenAI's newer and older models call the limit of an answer.
_LIMITS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
# Without these the answer is another one than was asked for, or none at all.
_NEEDED = frozenset(
    "model messages prompt system stream raw tools tool_choice response_format format json_schema grammar "
    "options images max_tokens max_completion_tokens".split()
)
_STOPS = frozenset({"stop", "stop_sequences", "stop_sequence"})
_STOP_WORDS = r"\bstop[ -](?:sequence|word|string|token)s?\b"
_EITHER = ("temperature", "top_p")
_API_TYPE_FILE = ENDPOINT.lookup("apiTypeConfigFileName")
_FIELD_KEYS = ("field", "parameter", "property", "argument")
_THINKING = ("think", "thinking", "reasoning_effort")
_CALL_ID_KEYS = {"tool_use": "id", "tool_result": "tool_use_id"}
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
FITTING_ID = re.compile(r"[A-Za-z0-9]{9}")


def _words(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


_REFUSES = _words(
    r"unsupported|unknown|unrecogni[sz]ed|unexpected|not (?:supported|allowed|permitted)|deprecated",
    r"(?:does|do)(?: not|n't) support|invalid [\w.]+: only",
)
# How far a name may be from these words, and what ends a statement: what follows is what the server would accept.
_BEFORE, _AFTER = 80, 120
_STATEMENT = _words(
    r"[\n;]|(?<=[.!?])\s|\bexpected\b|\bused? |\b(?:supported|valid|allowed) (?:values|parameters|fields)"
)
# A name in quotes, after a colon, such a word or an opening bracket, with an underscore or an index, next to the words.
_NAMES = _words(
    r"""["'`](\w[\w.\[\]-]*)["'`]""",
    r"""(?:\b(?:parameter|field|property|argument|option)s? |[:,\[({]\s*|\band )(\w[\w.\[\]]*)""",
    r"""(?<![\w.])(\w+_\w+(?![\w.\[]*\w)|\w+[\[.]\d[\w.\[\]]*)""",
    r"""(?<![\w.])(\w+)(?= (?:(?:is|are) )?(?:not (?:su|al|pe)|un(?:su|kn|re|ex)|depr))""",
    r"""(?:support|un\w+) (?:the )?(?!param|field|prop|arg|opt)(\w+)(?![\w.\[]*\w)""",
)
_EXTRA = _words(r"extra[_ ](?:forbidden|(?:inputs|fields) (?:are )?not permitted)")
# From the beginning of a name only: some errors repeat data, which may be one long word.
_EXTRA_NAMES = _words(r"(?<![\w.\[\]])([\w.\[\]]+): extra (?:inputs|fields)")
_VALUE = _words(r"\b(?:only|must|should|invalid|range|between|at most|less than|greater than)\b")
_BOTH = _words(r"\b(?:mutually exclusive|both|together|either|only one|one of|same time|simultaneously)\b")
_TOOLS = (
    r"\b(?:tools?(?!\w|\[|\.\w| choice)|tool[ _-](?:use|calls?|calling)"
    r"|function[ _-]?call(?:s|ing)?|functions(?!\[|\.\w))\b"
)
_NO_TOOLS = _words(
    rf"(?:(?:not|n't) support(?:ed)?|unsupported)\b[^.\n]{{0,30}}{_TOOLS}",
    rf"{_TOOLS}[\"'`]?(?!\[|\.\w)[^.\n]{{0,30}}(?:(?:not|n't) (?:\w+ )?(?:support|enabled)|unsupported)",
    # llama.cpp, with a failure of its own in older versions.
    r"\btools param requires --jinja",
)
_NO_THINKING = _words(
    r"does(?: not|n't) support (?:thinking|reasoning)\b", r"\b(?:think|thinking|reasoning)\b[^.\n]{0,20} not supported"
)
_NO_PREFILL = _words(
    r"\bprefill|must end with a user|assistant messages? at the end",
    r"\b(?:last|final) (?:message|role|turn)\b[^.\n]{0,40}\b(?:user|assistant)",
)
_CALL_ID = r"(?:tool[ _](?:call|use)[\w\[\]. ]{0,20}\bids?\b|tool_(?:call|use)_id)"
_ID_FORM = r"(?:length|too long|pattern|characters)"
_BAD_IDS = re.compile(f"{_CALL_ID}.*{_ID_FORM}|{_ID_FORM}.*{_CALL_ID}", re.IGNORECASE | re.DOTALL)

Payload = Mapping[str, Any]


class ServerRefusal:
    """What a server has said about ``payload``.

    Attributes:
        text: all of its words.
        known: the fields of the payload, and those that Ollama has among its options.
        names: what it refuses, as it writes it: fields of the payload, and paths below them.
        fields: of the names, those that are known.
        values: of ``temperature`` and ``top_p``, those whose value it refuses; ``both``: it takes only one of them.
    """

    def __init__(self, data: object, payload: Payload) -> None:
        said = list(_opened(data))
        self.text = "\n".join(part for part in said if isinstance(part, str))[:_MOST_TEXT]
        names, self.values, self.both = list[str](), list[str](), False
        self.known: Payload = {**_options(payload), **payload}
        for part in said:
            if isinstance(part, Mapping):
                names += [part["param"]] if isinstance(part.get("param"), str) else []
                # Others have an object or a list of words for each field.
                if _REFUSES.search(_plain(list(part.values()))):
                    names += [part[key] for key in _FIELD_KEYS if isinstance(part.get(key), str)]
                names += [key for key in part if key in self.known and _REFUSES.search(_plain(part[key]))]
                path = [str(step) for step in part["loc"]] if isinstance(part.get("loc"), list) else []
                # A server that knows several forms of a request begins the path with the name of the form.
                while len(path) > 1 and path[0] not in self.known:
                    path = path[1:]
                names += [".".join(path)] if _EXTRA.search(f"{part.get('type')} {part.get('msg')}") else []
                self.values += [name for name in _EITHER if path[:1] == [name]]
        names += _EXTRA_NAMES.findall(self.text)
        for statement in _STATEMENT.split(self.text.replace("options.", "")):
            for word in _REFUSES.finditer(statement):
                near = statement[max(word.start() - _BEFORE, 0) : word.end() + _AFTER]
                names += [name[name.lastindex or 0] for name in _NAMES.finditer(near)]
                names += _spoken(near, self.known)
            named = [name for name in _EITHER if re.search(rf"\b{name}\b", statement)]
            self.both = self.both or (len(named) == len(_EITHER) and _BOTH.search(statement) is not None)
            self.values += named if _VALUE.search(statement) else []
        self.names = list(dict.fromkeys(name.rstrip(".]") for name in names))
        # Some servers write the names of their own language, such as ``presencePenalty``.
        plain = (name.removeprefix("options.") for name in self.names)
        known = (name if name in self.known else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in plain)
        self.fields = list(dict.fromkeys(name for name in known if name in self.known))


def _spoken(text: str, known: Payload) -> list[str]:
    """Return the fields that a text names as words, such as "top k" or "stop sequences"."""
    return [
        name
        for name in known
        if name in _STOPS or "_" in name
        if re.search(
            _STOP_WORDS if name in _STOPS else rf"(?<![\w.-]){re.escape(name).replace('_', '[ -]')}(?!\w)", text, re.I
        )
    ]


def _options(payload: Payload) -> Payload:
    options = payload.get("options")
    return options if isinstance(options, Mapping) else {}


def _plain(value: object) -> str:
    texts = value if isinstance(value, list) else [value]
    return " ".join(text for text in texts if isinstance(text, str))


def _opened(data: object, depth: int = 0) -> Iterator[Payload | str]:
    """Yield the objects and the texts in an error, also those in a text that is JSON."""
    if isinstance(data, str):
        with contextlib.suppress(ValueError, RecursionError):
            opened = json.loads(data)
            data = opened if isinstance(opened, (dict, list)) else data
    if isinstance(data, (Mapping, str)):
        yield data
    # An entry of a list of mistakes also has the value, which is not the server's word.
    entry = [data.get("msg"), data.get("type")] if isinstance(data, Mapping) and "loc" in data else None
    inner = entry or (data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ())
    for part in inner if depth < _MOST_LEVELS else ():
        yield from _opened(part, depth + 1)


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A kind of refusal.

    Attributes:
        name: what ``Changes.has`` is asked for.
        finds: returns what the server refuses, each under its name for the log. It gets the payload without changes.
        change: returns the payload without it, or the same object if there is nothing to change. A change that is made
            where the payload is built returns its argument; the builder asks ``Changes.has``.
        done: what was done, after "the server refuses 'X'; ". ``{other}`` is the other name of a limit.
        is_remembered: whether later calls are changed from the beginning.
        line: the line of the log, with the endpoint, the field, ``done`` and the advice.
    """

    name: str
    finds: Callable[[ServerRefusal, Payload, BackendSettings], Iterable[str]]
    change: Callable[[Payload, str], Payload]
    done: str = "it is left out until the next start"
    is_remembered: bool = True
    line: str = "Endpoint %s: the server refuses '%s'; %s. %s"


def _limit(refusal: ServerRefusal, payload: Payload, settings: BackendSettings) -> Iterable[str]:
    """Return the limit of the answer, if the server knows it under the other name, and does not find it too high."""
    is_unknown = any(words.search(refusal.text) for words in (_REFUSES, _EXTRA, _EXTRA_NAMES))
    return [
        field
        for field, other in _LIMITS.items()
        if field in payload and not {field, other}.isdisjoint(refusal.names)
        if re.search(rf"\b{other}\b", refusal.text) or (field == "max_completion_tokens" and is_unknown)
    ]


def _renamed(payload: Payload, field: str) -> Payload:
    new = _LIMITS[field]
    known = {new if key == field else key: value for key, value in payload.items()}
    return _without(payload, field) if new in payload else known


def _samplers(refusal: ServerRefusal, payload: Payload, settings: BackendSettings) -> Iterable[str]:
    """Return the fields of preset and API type that are refused."""
    if refusal.both and all(name in refusal.known for name in _EITHER):
        return ["top_p"]
    thinking = _THINKING if _NO_THINKING.search(refusal.text) else ()
    declared = [API_TYPE.value(settings.api_type, key) for key in ("maxNewTokensPropertyName", "streamPropertyName")]
    return [
        name
        for name in dict.fromkeys((*refusal.fields, *refusal.values, *thinking))
        if name in refusal.known and (name in settings.samplers or name == "parallel_tool_calls")
        if name not in (*declared, *_NEEDED)
    ]


def _without(payload: Payload, *fields: str) -> Payload:
    if fields[0] in payload:
        return {key: payload[key] for key in payload if key not in fields}
    options = _options(payload)
    return {**payload, "options": _without(options, *fields)} if fields[0] in options else payload


def _without_tools(payload: Payload, field: str) -> Payload:
    """Leave the tools out, unless the answer is about them: it must be a call, or continues an exchange."""
    choice = payload.get("tool_choice", "auto")
    is_free = choice == "auto" or (isinstance(choice, Mapping) and choice.get("type") == "auto")
    continues = any(message.get("role") == "tool" or _calls_in(message) for message in payload.get("messages") or ())
    return payload if continues or not is_free else _without(payload, "tools", "tool_choice", "parallel_tool_calls")


def _with_user_turn(payload: Payload, field: str) -> Payload:
    *_, last = payload.get("messages") or [{}]
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return payload
    return {**payload, "messages": [*payload["messages"], {"role": "user", "content": CONTINUE}]}


def _with_fitting_ids(payload: Payload, field: str) -> Payload:
    """Give all calls, and their results, ids of nine letters and digits; see ``fitting_ids``."""
    messages = payload.get("messages") or ()
    found = [(part, key) for message in messages for part, key in _calls_in(message) if isinstance(part.get(key), str)]
    new = fitting_ids([part[key] for part, key in found])
    parts = {id(part): {**part, key: new[part[key]]} for part, key in found if new[part[key]] != part[key]}
    return {**payload, "messages": [_replaced(message, parts) for message in messages]} if parts else payload


def fitting_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return an id of nine letters and digits for each id. One that fits stays; others depend on nothing but the id."""
    known = list(dict.fromkeys(ids))
    new = {id: id for id in known if FITTING_ID.fullmatch(id)}
    taken = set(new)
    for id in known:
        made = id
        while id not in new:
            number, made = int.from_bytes(hashlib.sha256(made.encode("utf-8", "surrogatepass")).digest(), "big"), ""
            while number:
                number, digit = divmod(number, len(_DIGITS))
                made = _DIGITS[digit] + made
            made = made[:9]
            if made not in taken:
                new[id] = made
        taken.add(new[id])
    return new


def _calls_in(message: Payload) -> list[tuple[Payload, str]]:
    """Return the calls and results in a message, in the form of OpenAI or of Claude, each with the key of its id."""
    calls, blocks = ([part for part in _list(message, key) if isinstance(part, Mapping)] for key in _LISTS)
    found = [(message, "tool_call_id")] if message.get("tool_call_id") else []
    found += [(call, "id") for call in calls]
    return found + [(block, _CALL_ID_KEYS[block["type"]]) for block in blocks if block.get("type") in _CALL_ID_KEYS]


_LISTS = ("tool_calls", "content")


def _list(message: Payload, key: str) -> list[object]:
    found = message.get(key)
    return found if isinstance(found, list) else []


def _replaced(message: Payload, parts: Mapping[int, Payload]) -> Payload:
    """Return a message with other calls and results, which are known by the identity of those they replace."""
    lists = {key: [parts.get(id(part), part) for part in message[key]] for key in _LISTS if _list(message, key)}
    return {**parts.get(id(message), message), **lists}


# What all calls must have, in the forms of all dialects.
_CALL_FORM = frozenset({"id", "type", "function", "name", "arguments", "input"})


def _thought_names(refusal: ServerRefusal, payload: Payload) -> list[str]:
    """Return the members with thoughts and signatures that a server names, the likeliest first."""
    names = [name for name in _MEMBERS.findall(refusal.text) if is_kept(name) and name not in payload]
    return sorted(dict.fromkeys(names), key=lambda name: (name != SIGNATURE, "_" not in name))


def _unwanted(refusal: ServerRefusal, payload: Payload, settings: BackendSettings) -> Iterable[str]:
    """Return the members of messages and calls that came with an earlier answer and are refused."""
    last = (re.split(r"[.\[\]]+", name.rstrip("]"))[-1] for name in refusal.names)
    return [name for name in dict.fromkeys(last) if _without_member(payload, name) is not payload]


def _without_member(payload: Payload, member: str) -> Payload:
    """Return the payload with no such member in messages of the assistant, or with any other name in their calls."""
    if member in _CALL_FORM:
        return payload
    anywhere = is_kept(member)
    inner = ("tool_calls", "function") if anywhere else ("tool_calls", "function", "content")

    def bare(fields: Any, in_call: bool = False) -> Any:
        if isinstance(fields, list):
            return [bare(one, in_call) for one in fields]
        if not isinstance(fields, Mapping):
            return fields
        in_call = in_call or fields.get("type") == "tool_use"
        left = fields.items() if not (anywhere or in_call) else [one for one in fields.items() if one[0] != member]
        return {key: bare(value, key != "content") if key in inner else value for key, value in left}

    messages = payload.get("messages") or []
    changed = [bare(message) if message.get("role") == "assistant" else message for message in messages]
    return payload if changed == messages else {**payload, "messages": changed}


def _missed(refusal: ServerRefusal, payload: Payload, settings: BackendSettings) -> Iterable[str]:
    """Return the member that the server wants back with the messages of its answers."""
    if level_of(settings.endpoint) == "none" or not _MISSES.search(refusal.text) or _INVALID.search(refusal.text):
        return []
    return [] if _unwanted(refusal, payload, settings) else _thought_names(refusal, payload)[:1]


def _as_it_is(payload: Payload, field: str) -> Payload:
    """Return the payload, which is built in another way."""
    return payload


def _says(words: re.Pattern[str], name: str) -> Callable[[ServerRefusal, Payload, BackendSettings], Iterable[str]]:
    return lambda refusal, payload, settings: [name] if words.search(refusal.text) else []


_MISSES = _words(r"\b(?:missing|required|must be|expected|not found|passed back)\b")
# A name on its own, not the beginning of a path.
_MEMBERS = re.compile(r"(?<!\w)(?<![A-Za-z_]\.)([A-Za-z]\w+)(?!\w*[.\[]\w)")
_INVALID = _words(
    r"\binvalid\W{0,3}(?:\w+[ _])?signature", r"signature\W{0,3} (?:\w+ ){0,3}(?:invalid|not valid|corrupt)"
)
_FITTING = "tool call ids"
_REWRITTEN = "they are rewritten to nine letters and digits until the next start"
_FOLLOWED = f"a user message '{CONTINUE}' follows it until the next start"
ROWS = (
    Row("limit", _limit, _renamed, "it is sent as '{other}' until the next start"),
    Row("samplers", _samplers, _without),
    Row("tools", _says(_NO_TOOLS, "tools"), _without_tools, "they are left out until the next start"),
    Row("prefill", _says(_NO_PREFILL, "assistant message at the end"), _with_user_turn, _FOLLOWED),
    Row("unwanted", _unwanted, _without_member),
    Row("signature", _says(_INVALID, "signature"), _as_it_is, is_remembered=False),
    Row(
        "missed",
        _missed,
        _as_it_is,
        "all thoughts are sent back until the next start",
        line="Endpoint %s: the server misses '%s'; %s. %s",
    ),
    Row("ids", _says(_BAD_IDS, _FITTING), _with_fitting_ids, _REWRITTEN),
)

# What servers also say with the status of a failure.
_OF_FAILURES = tuple(row for row in ROWS if row.name == "tools")

Change = tuple[Row, str]


def _remembered() -> BoundedCache[tuple[int, str | None], tuple[Mapping[str, object], tuple[Change, ...]]]:
    """Return the changes by endpoint file and model. The value keeps the file alive, so its id is not reused."""
    return BoundedCache(MAX_REMEMBERED)


class Changes:
    """What is changed in the requests of one call.

    Attributes:
        made: the rows that apply to this call, each with what it found.
        new: those of them that the server has not confirmed yet.
        effective: what is changed in the request that was made last.
    """

    __slots__ = ("_asked", "_key", "_plain", "_settings", "effective", "made", "new")

    def __init__(self, settings: BackendSettings) -> None:
        self._settings, self._asked = settings, 0
        self._key = (id(settings.endpoint), settings.model)
        self.made: tuple[Change, ...] = ()
        self.new: tuple[Change, ...] = ()
        self._plain: Payload = {}
        self.effective: tuple[str, ...] = ()

    def begin(self) -> None:
        """Begin a call with the changes that earlier ones have found."""
        known, settings = process().one(_remembered).get(self._key), self._settings
        self.made, self.new, self.effective, self._asked = () if known is None else known[1], (), (), 0
        if is_mistral(str(settings.endpoint.get(*_API_TYPE_FILE)), settings.base_url) and not self.has("ids"):
            self.made += ((ROWS[-1], _FITTING),)

    def has(self, name: str) -> bool:
        """Return whether a row applies to this call."""
        return any(row.name == name for row, _ in self.made)

    def fields(self, name: str) -> list[str]:
        """Return for what a row applies to this call."""
        return [found for row, found in self.made if row.name == name]

    def has_just(self, name: str) -> bool:
        """Return whether a row applies that the server has not confirmed yet."""
        return any(row.name == name for row, _ in self.new)

    def apply(self, payload: Payload) -> Payload:
        """Return the payload to send."""
        # The payload without any changes.
        self._plain = payload
        if not self.made:
            return payload
        changed, effective = payload, list[str]()
        for row, field in self.made:
            before, changed = changed, row.change(changed, field)
            effective += [field] if changed is not before else []
        self.effective = tuple(effective)
        return changed

    def learn(self, error: BackendError) -> bool:
        """Return whether the server has refused something that is not changed yet, which the next ``apply`` changes."""
        status = status_of(error) or 0
        is_refusal = status in _STATUSES or (400 <= status < 500 and is_ollama(self._settings))
        if not is_refusal and status != 500:
            return False
        refusal, rows = ServerRefusal(error.data or error.body, self._plain), ROWS if is_refusal else _OF_FAILURES
        found = [(row, field) for row in rows for field in row.finds(refusal, self._plain, self._settings)]
        if not is_refusal and not found:
            return False
        self._remember([change for change in self.new if change not in found])
        self.new = tuple(change for change in found if change not in self.made)
        self._asked += 1
        if self._asked >= MOST_REQUESTS:
            self.new = ()
        self.made += self.new
        return bool(self.new)

    def answered(self) -> None:
        """Remember the changes that have helped."""
        new, self.new = self.new, ()
        self._remember(new)

    def explain(self, error: BackendError) -> None:
        """Add the file and the key from which a refused field comes to an error that remains."""
        status, refusal = status_of(error), ServerRefusal(error.data or error.body, self._plain)
        without_tools = bool(_NO_TOOLS.search(refusal.text))
        if status not in _STATUSES and not (status == 500 and without_tools):
            return
        roots = [re.split(r"[.\[]", name)[0] for name in refusal.names] + ["tools"] * without_tools
        fields = [field for field in (*refusal.fields, *roots) if field in refusal.known]
        if text := " ".join(filter(None, dict.fromkeys(map(self._settings.remedy, fields)))):
            error.args = (f"{sentence(str(error))} {text}",)

    def _remember(self, changes: Iterable[Change]) -> None:
        store, settings = process().one(_remembered), self._settings
        for row, field in changes:
            known = store.get(self._key) or (settings.endpoint, ())
            if not row.is_remembered or (row, field) in known[1]:
                continue
            store.put(self._key, (settings.endpoint, (*known[1], (row, field))))
            where, done = f"'{settings.endpoint_name}' ({settings.file})", row.done.format(other=_LIMITS.get(field))
            # The answer may miss something that the user wants.
            level = logging.WARNING if field in _STOPS or field == "tools" else logging.INFO
            logger.log(level, row.line, where, field, done, settings.remedy(field))


@lru_cache(maxsize=256)
def is_mistral(api_type_file: str, url: str) -> bool:
    """Return whether the API type or the host of an endpoint has the name of Mistral, whose servers check ids."""
    return "mistral" in api_type_file.lower() or re.match(r"\w+://[^/?#]*mistral", url.lower()) is not None
