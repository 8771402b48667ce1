"""What is added to a run when its request is no longer felt: the facts that take time, or a file, to find out."""
from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from Middleware.models.llm_call import Attempt
from Middleware.models.messages import cached_tokens, token_count
from Middleware.models.process import process
from Middleware.services.run_records.live_run import LiveRun
from Middleware.services.run_records.model import Attribute, RunDocument, RunFacts, Span
from Middleware.utilities.config.kept_secrets import masked
from Middleware.utilities.config.paths import display_path
from Middleware.utilities.files.file_access import Signature, file_signature
from Middleware.utilities.http.wire import parse_target
from Middleware.utilities.native_threads import new_lock
from Middleware.utilities.text_utils import encode_text

# More files than any configuration has.
MAX_VERSIONS = 512
# As in the store of configuration files: how soon a change is noticed.
REVALIDATE_SECONDS = 1.0
CONVERSATION_BYTES = 8
NANOSECONDS_IN_MS = 1_000_000
# OpenTelemetry's names of providers; for servers of one's own, those of their dialects.
PROVIDERS: Mapping[str, str] = {
    "openAIChatCompletion": "openai", "openAIV1Completion": "openai", "openAIEmbeddings": "openai",
    "openAIApiChatImageSpecific": "openai", "claudeMessages": "anthropic", "ollamaApiChat": "ollama",
    "ollamaApiGenerate": "ollama", "ollamaEmbeddings": "ollama", "ollamaApiChatImageSpecific": "ollama",
    "koboldCppGenerate": "koboldcpp", "koboldCppGenerateImageSpecific": "koboldcpp"}
# The names that servers have for the longest answer.
LONGEST_ANSWER = ("max_tokens", "max_completion_tokens", "n_predict", "num_predict", "max_length", "max_new_tokens")
# Texts among the samplers. Others may come from a conversation.
TEXT_SAMPLERS = frozenset({"reasoning_effort", "service_tier", "keep_alive"})
# The fields of a payload that are no samplers.
NOT_SAMPLERS = frozenset({"model", "stream", "raw"})
USAGE = ("usage.input_tokens", "usage.output_tokens", "usage.cache_read.input_tokens",
         "usage.cache_creation.input_tokens", "usage.reasoning.output_tokens")
TIMES = ("backend.load_ms", "backend.prompt_ms", "backend.generate_ms")


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
        versions, names = process().one(ConfigVersions), dict(run.files)
        found = [(path, versions.of(path)) for path in sorted(names, key=names.__getitem__)]
        facts["config"] = [{"path": names[path], "hash": version.hash} for path, version in found if version]
        document.config_texts = {version.hash: version.text for _, version in found if version}


# -- attempts ----------------------------------------------------------------------------------------------------------

def describe_attempt(span: Span, attempt: Attempt) -> None:
    """Add the attributes of a request to a server. What the back-end does not say is None."""
    target, outcome = parse_target(attempt.url), attempt.outcome
    answered = attempt.status is not None and attempt.error is None and span.status != "running"
    attributes: dict[str, Attribute] = {
        "operation.name": attempt.operation, "provider.name": PROVIDERS.get(attempt.api_type, attempt.api_type),
        "server.address": target.host, "server.port": target.port, **_request_attributes(attempt.payload),
        "response.model": (outcome.model or None) if answered else None,
        "response.finish_reasons": [outcome.finish_reason] if answered and outcome.finish_reason else None,
        "http.status": attempt.status, "stands_in_for": attempt.stands_in_for or None}
    inputs = attempt.payload.get("input")
    if isinstance(inputs, list):
        attributes["texts"] = len(inputs)
    reported: Mapping[str, object] = (outcome.reported or {}) if answered else {}
    usage: Mapping[str, object] = outcome.usage if answered and outcome.usage else {}
    details = usage.get("completion_tokens_details")
    attributes.update(zip(USAGE, (
        token_count(usage.get("prompt_tokens")), token_count(usage.get("completion_tokens")), cached_tokens(usage),
        token_count(reported.get("cache_creation_input_tokens")),
        token_count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else None), strict=True))
    attributes.update(zip(TIMES, _times(reported), strict=True))
    span.attributes.update(attributes)


def _request_attributes(payload: Mapping[str, object]) -> dict[str, Attribute]:
    """Return the model and the samplers of a payload."""
    model, options = payload.get("model"), payload.get("options")
    fields = {**payload, **(options if isinstance(options, Mapping) else {})}
    longest = next((fields[name] for name in LONGEST_ANSWER if token_count(fields.get(name)) is not None), None)
    found: dict[str, Attribute] = {"request.model": model if isinstance(model, str) else None,
                                   "request.max_tokens": token_count(longest)}
    for name, value in fields.items():
        if name not in NOT_SAMPLERS and name not in LONGEST_ANSWER and (
                isinstance(value, (bool, int, float)) or (name in TEXT_SAMPLERS and isinstance(value, str))):
            found[f"request.{name}"] = value
    return found


def _times(reported: Mapping[str, object]) -> tuple[float | None, float | None, float | None]:
    """Return the milliseconds for loading, reading the prompt and writing, as llama.cpp or Ollama reported them."""
    if "predicted_ms" in reported or "prompt_ms" in reported:
        return None, _number(reported.get("prompt_ms")), _number(reported.get("predicted_ms"))
    load, read, write = (_number(reported.get(name)) for name in
                         ("load_duration", "prompt_eval_duration", "eval_duration"))
    return (None if load is None else load / NANOSECONDS_IN_MS, None if read is None else read / NANOSECONDS_IN_MS,
            None if write is None else write / NANOSECONDS_IN_MS)


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


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
        self._known: dict[str, tuple[float, Signature | None, FileVersion | None]] = {}

    def of(self, path: str) -> FileVersion | None:
        """Return the version of a file; None if it cannot be read."""
        with self._lock:
            now, known = self._clock(), self._known.get(path)
            if known is not None and now - known[0] < REVALIDATE_SECONDS:
                return known[2]
            signature = file_signature(path)
            version = known[2] if known is not None and known[1] == signature else _read_version(path)
            if len(self._known) >= MAX_VERSIONS:
                self._known.clear()
            self._known[path] = (now, signature, version)
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
