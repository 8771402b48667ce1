"""What is added to a run when its request is no longer felt: the facts that take time, or a file, to find out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from Middleware.addons.records.kept_secrets import masked
from Middleware.addons.records.live_run import LiveRun
from Middleware.addons.records.model import Attribute, ConfigVersion, RunDocument, RunFacts, Span
from Middleware.models.llm_call import Attempt
from Middleware.models.messages import LARGEST_NUMBER, cached_tokens, measure, token_count
from Middleware.models.process import process
from Middleware.utilities.config.paths import display_path
from Middleware.utilities.config.store import REVALIDATE_SECONDS
from Middleware.utilities.files.file_access import Signature, file_signature
from Middleware.utilities.http.wire import parse_target
from Middleware.utilities.native_threads import new_lock
from Middleware.utilities.text_utils import encode_text

# More files than any configuration has.
MAX_VERSIONS = 512
CONVERSATION_BYTES = 8
NANOSECONDS_IN_MS = 1_000_000
# OpenTelemetry's names of providers; for servers of one's own, those of their dialects.
PROVIDERS: Mapping[str, str] = {
    "openAIChatCompletion": "openai",
    "openAIV1Completion": "openai",
    "openAIEmbeddings": "openai",
    "openAIApiChatImageSpecific": "openai",
    "claudeMessages": "anthropic",
    "ollamaApiChat": "ollama",
    "ollamaApiGenerate": "ollama",
    "ollamaEmbeddings": "ollama",
    "ollamaApiChatImageSpecific": "ollama",
    "koboldCppGenerate": "koboldcpp",
    "koboldCppGenerateImageSpecific": "koboldcpp",
}
# The names that servers have for the longest answer. Of several, the first one counts.
LONGEST_ANSWER = ("max_tokens", "max_completion_tokens", "n_predict", "num_predict", "max_length", "max_new_tokens")
# Texts among the samplers. Others may come from a conversation.
TEXT_SAMPLERS = frozenset({"reasoning_effort", "service_tier", "keep_alive"})
# The fields of a payload that are not samplers.
NOT_SAMPLERS = frozenset({"model", "stream", "raw"})
CACHE_CREATION = "usage.cache_creation.input_tokens"
USAGE = (
    "usage.input_tokens",
    "usage.output_tokens",
    "usage.cache_read.input_tokens",
    CACHE_CREATION,
    "usage.reasoning.output_tokens",
)
TIMES = ("backend.load_ms", "backend.prompt_ms", "backend.generate_ms")
_LONGEST = {name: position for position, name in enumerate(LONGEST_ANSWER)}
_UNSAID: Mapping[str, Attribute] = dict.fromkeys((*USAGE, *TIMES))


def complete(run: LiveRun) -> None:
    """Add what is still missing to the facts and spans of a run. A second call changes nothing."""
    attempts, run.attempts = run.attempts, []
    for span, attempt in attempts:
        describe_attempt(span, attempt)
    complete_facts(run, run)
    # Asked again later, their versions would be other ones.
    run.files = {}


def complete_facts(run: LiveRun, document: RunDocument) -> None:
    """Add the conversation and the versions of files to the facts in ``document``, which is the run or a copy."""
    facts, secret = document.facts, run.secret
    if facts["conversation"] is None and not facts["private"] and run.first_user and secret is not None:
        facts["conversation"] = conversation_of(facts, run.first_user, secret())
    if run.files:
        facts["config"], document.config_texts = process().one(ConfigVersions).of(run.files)


# -- attempts ----------------------------------------------------------------------------------------------------------


def describe_attempt(span: Span, attempt: Attempt) -> None:
    """Add the attributes of a request to a server. What the back-end does not report is None."""
    target, outcome, payload = parse_target(attempt.url), attempt.outcome, attempt.payload
    answered = attempt.status is not None and attempt.error is None and span.status != "running"
    # This is done for each request to a server, so it is one statement after the other and few calls.
    found = span.attributes
    found["operation.name"] = attempt.operation
    found["provider.name"] = PROVIDERS.get(attempt.api_type, attempt.api_type)
    found["server.address"], found["server.port"], found["url.full"] = target.host, target.port, target.display
    model, inputs = payload.get("model"), payload.get("input")
    found["request.model"] = model if isinstance(model, str) else None
    _add_samplers(found, payload)
    found["response.model"] = (outcome.model or None) if answered else None
    reason = outcome.sent_reason or outcome.finish_reason
    found["response.finish_reasons"] = [reason] if answered and reason else None
    found.update({"left_out": list(outcome.left_out)} if outcome.left_out else {})
    found.update({"empty": outcome.empty} if answered and outcome.empty else {})
    found["http.status"], found["stands_in_for"] = attempt.status, attempt.stands_in_for or None
    if isinstance(inputs, list):
        found["texts"] = len(inputs)
    found.update(_UNSAID)
    if answered and outcome.usage:
        _add_usage(found, outcome.usage)
    if answered and outcome.reported:
        found[CACHE_CREATION] = token_count(outcome.reported.get("cache_creation_input_tokens"))
        found.update(zip(TIMES, _times(outcome.reported), strict=True))
    if attempt.error is not None:
        found["error.type"] = type(attempt.error).__name__
    if outcome.kept:
        found["kept"] = outcome.kept
    if answered and outcome.is_unmarked:
        found["end"] = "unmarked"
    if attempt.traceparent:
        found["traceparent"] = attempt.traceparent


def _add_samplers(found: dict[str, Attribute], payload: Mapping[str, object]) -> None:
    """Add the longest answer and the samplers of a payload."""
    options = payload.get("options")
    fields = {**payload, **options} if isinstance(options, Mapping) else payload
    found["request.max_tokens"] = None
    best = len(LONGEST_ANSWER)
    for name, value in fields.items():
        if name in _LONGEST:
            if _LONGEST[name] < best and type(value) is int:
                best, found["request.max_tokens"] = _LONGEST[name], _sampler(value)
        elif (
            isinstance(value, (int, float)) or (name in TEXT_SAMPLERS and isinstance(value, str))
        ) and name not in NOT_SAMPLERS:
            found[f"request.{name}"] = _sampler(value)


def _sampler(value: str | int | float) -> str | int | float:
    """Return a sampler as it is recorded. Neither JSON nor a trace can hold all numbers, so others become text."""
    return value if isinstance(value, str) or abs(value) <= LARGEST_NUMBER else str(value)


def _add_usage(found: dict[str, Attribute], usage: Mapping[str, object]) -> None:
    details = usage.get("completion_tokens_details")
    found["usage.input_tokens"] = token_count(usage.get("prompt_tokens"))
    found["usage.output_tokens"] = token_count(usage.get("completion_tokens"))
    found["usage.cache_read.input_tokens"] = cached_tokens(usage)
    found["usage.reasoning.output_tokens"] = (
        token_count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else None
    )


def _times(reported: Mapping[str, object]) -> tuple[float | None, float | None, float | None]:
    """Return the milliseconds for loading, reading the prompt and writing, as llama.cpp or Ollama reported them."""
    if "predicted_ms" in reported or "prompt_ms" in reported:
        return None, measure(reported.get("prompt_ms")), measure(reported.get("predicted_ms"))
    load, read, write = (
        measure(reported.get(name)) for name in ("load_duration", "prompt_eval_duration", "eval_duration")
    )
    return (
        None if load is None else load / NANOSECONDS_IN_MS,
        None if read is None else read / NANOSECONDS_IN_MS,
        None if write is None else write / NANOSECONDS_IN_MS,
    )


# -- the conversation --------------------------------------------------------------------------------------------------


def conversation_of(facts: RunFacts, first_message: str, secret: bytes) -> str:
    """Return what the turns of a conversation have in common, as 16 hex digits; without the key it says nothing."""
    hashed = hashlib.blake2b(digest_size=CONVERSATION_BYTES, key=secret[:64])
    for part in (facts["user"] or "", facts["key_hash"] or "", first_message):
        hashed.update(encode_text(part) + b"\0")
    return hashed.hexdigest()


# -- the configuration -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileVersion:
    """The text of a configuration file without its secrets, and the hash of that text."""

    hash: str
    text: str


class ConfigVersions:
    """The current versions of configuration files, read by threads that no request waits for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = new_lock()
        self._known: dict[str, tuple[Signature | None, FileVersion | None]] = {}
        # What was found since the last look at the files, which runs of one workflow share.
        self._found: dict[tuple[str, ...], tuple[list[ConfigVersion], Mapping[str, str]]] = {}
        self._look_at = 0.0

    def of(self, names: Mapping[str, str]) -> tuple[list[ConfigVersion], Mapping[str, str]]:
        """Return the versions of files, and their texts by hash, without those that cannot be read.

        ``names``: by path, the name below the config root. What is returned is shared: do not change it.
        """
        key = tuple(names)
        with self._lock:
            now = self._clock()
            if now >= self._look_at or len(self._found) >= MAX_VERSIONS:
                self._found.clear()
                self._look_at = now + REVALIDATE_SECONDS
            found = self._found.get(key)
            if found is None:
                found = self._found[key] = self._versions(dict(names))
            return found

    def version(self, path: str) -> FileVersion | None:
        """Return the version of one file; None if it cannot be read."""
        with self._lock:
            return self._version(path)

    def _versions(self, names: Mapping[str, str]) -> tuple[list[ConfigVersion], Mapping[str, str]]:
        found = [(path, self._version(path)) for path in sorted(names, key=names.__getitem__)]
        return (
            [{"path": names[path], "hash": version.hash} for path, version in found if version],
            {version.hash: version.text for _, version in found if version},
        )

    def _version(self, path: str) -> FileVersion | None:
        signature, known = file_signature(path), self._known.get(path)
        version = known[1] if known is not None and known[0] == signature else _read_version(path)
        if len(self._known) >= MAX_VERSIONS:
            self._known.clear()
        self._known[path] = (signature, version)
        return version


def _read_version(path: str) -> FileVersion | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    # It was deleted since the run.
    except OSError:
        return None
    shown = masked(text, display_path(path)).text
    return FileVersion(hashlib.blake2b(encode_text(shown), digest_size=16).hexdigest(), shown)
