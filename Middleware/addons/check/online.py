"""Whether the LLM servers of endpoint files answer, accept the keys, and have the models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from Middleware.addons.check.endpoint_checks import TURN_ON, named_as_strict, strict_template
from Middleware.addons.check.findings import Finding
from Middleware.addons.check.lookups import path_of
from Middleware.exceptions import ConfigurationError
from Middleware.llmapis import api_types
from Middleware.llmapis.api_keys import resolve_api_key
from Middleware.llmapis.backend_errors import STRICT_TEMPLATE
from Middleware.llmapis.handlers.impl.claude_api_handler import API_VERSION
from Middleware.utilities import config_utils
from Middleware.utilities.config.check import quoted
from Middleware.utilities.config.json_source import JsonSource
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.http.client import HttpClient
from Middleware.utilities.http.problems import HttpError
from Middleware.utilities.http.wire import HttpRequest, parse_target
from Middleware.utilities.text_utils import nearest

# A server at home answers within milliseconds, a remote one within a second; a check must not take long.
PROBE_SECONDS = 2.0
# Each server that does not answer costs the whole timeout; few configurations have more of them than this.
PARALLEL = 16
# Lists of thousands of models are below it; anything larger is not a list of models.
MAX_LIST_BYTES = 4 * 1024 * 1024
# A message shows at most this many of a server's models.
SHOWN_MODELS = 5
UNAUTHORIZED = 401
# What these servers write into ``owned_by``. They answer with the model that is loaded, whatever name is sent.
ONE_MODEL = frozenset(("llamacpp", "koboldcpp", "user"))
OLLAMA_TYPES = frozenset((api_types.OLLAMA_CHAT, api_types.OLLAMA_GENERATE, api_types.OLLAMA_EMBEDDINGS))


@dataclass(frozen=True)
class ModelQuestion:
    """The question whether a server has the model of an endpoint file."""

    file: str
    origin: str
    url: str
    type: str
    model: str
    key: str = field(repr=False)


@dataclass(frozen=True)
class TemplateQuestion:
    """The question whether the chat template of a server accepts only users and assistants in turn."""

    file: str
    origin: str
    key: str = field(repr=False)


def check_servers(servers: Mapping[str, Sequence[str]], endpoints: Mapping[str, object]) -> list[Finding]:
    """Return a warning for each server that does not answer, and for each model that its server does not have.

    ``servers``: the origins of ``endpoints``. All are asked at the same time.
    """
    with ThreadPoolExecutor(min(PARALLEL, max(len(servers), 1))) as pool:
        problems = dict(zip(servers, pool.map(why_silent, servers), strict=True))
        questions = [
            question
            for file, content in endpoints.items()
            if isinstance(content, Mapping)
            and (question := _question(file, content))
            and not problems.get(question.origin, "unknown")
        ]
        # Several files often name the same server, which is asked once.
        lists = {(one.url, one.type, one.key): one for one in questions}
        answers = dict(zip(lists, pool.map(_ask_for_models, lists.values()), strict=True))
        asked = [
            one
            for file, content in endpoints.items()
            if isinstance(content, Mapping)
            and (one := _template_question(file, content))
            and not problems.get(one.origin, "unknown")
        ]
        templates = {(one.origin, one.key): one for one in asked}
        strict = dict(zip(templates, pool.map(_is_strict, templates.values()), strict=True))
    silent = [_silent(origin, servers[origin], problem) for origin, problem in problems.items() if problem]
    refusing = [
        _located(
            Finding(
                "note",
                one.file,
                "endpoint",
                None,
                strict_template(f"the chat template that {one.origin} has loaded"),
                TURN_ON,
            )
        )
        for one in asked
        if strict[one.origin, one.key]
    ]
    return [
        *silent,
        *refusing,
        *(finding for one in questions for finding in _of_model(one, *answers[one.url, one.type, one.key])),
    ]


def origins(endpoints: Mapping[str, object]) -> dict[str, list[str]]:
    """Return the origins of endpoint files, such as ``http://127.0.0.1:5001``, each with the files that name it."""
    found: dict[str, list[str]] = {}
    for display, content in endpoints.items():
        origin = _origin(content.get("endpoint")) if isinstance(content, Mapping) else ""
        if origin:
            found.setdefault(origin, []).append(display)
    return found


def _question(file: str, content: Mapping[str, object]) -> ModelQuestion | None:
    """Return the question about the model of an endpoint file; None if it names none, or has another mistake."""
    model = "" if ENDPOINT.flag(content, "dontIncludeModel") else api_types.model_name(content).strip()
    base, name = ENDPOINT.text(content, "endpoint"), ENDPOINT.text(content, "apiTypeConfigFileName").strip()
    origin = _origin(base)
    if not model or not origin or not name:
        return None
    try:
        kind = api_types.canonical_type(config_utils.load_api_type(name))
        key = resolve_api_key(ENDPOINT.value(content, "apiKey"), file)
    # Reported by the checks of these files.
    except ConfigurationError:
        return None
    # KoboldCpp's own API has no names of models.
    if kind == api_types.KOBOLD_GENERATE:
        return None
    path = "/api/tags" if kind in OLLAMA_TYPES else "/v1/models"
    return ModelQuestion(file, origin, api_types.backend_url(base, path), kind, model, key)


def _ask_for_models(question: ModelQuestion) -> tuple[int, list[Mapping[str, object]]]:
    """Return the status and the entries of a server's list of models. The key is only sent where it is needed."""
    status, entries = _list(question.url, {})
    if status == UNAUTHORIZED and question.key:
        status, entries = _list(
            question.url,
            {"x-api-key": question.key, "anthropic-version": API_VERSION}
            if question.type == api_types.CLAUDE_MESSAGES
            else {"Authorization": f"Bearer {question.key}"},
        )
    return status, entries


def _list(url: str, headers: Mapping[str, str]) -> tuple[int, list[Mapping[str, object]]]:
    status, content = _get(url, headers)
    found = content.get("models", content.get("data")) if isinstance(content, dict) else None
    return status, [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _get(url: str, headers: Mapping[str, str]) -> tuple[int, object]:
    """Return the status and the JSON of a server's answer; 0 if there is none, None for anything but JSON."""
    try:
        request = HttpRequest(
            parse_target(url),
            "GET",
            {"Accept": "application/json", **headers},
            PROBE_SECONDS,
            PROBE_SECONDS,
            max_bytes=MAX_LIST_BYTES,
        )
        response = HttpClient().call(request, seconds=PROBE_SECONDS)
        return response.head.status, json.loads(response.body) if response.complete else None
    # The server has answered already; not every one has such a page. RecursionError: JSON that nests too deeply.
    except (HttpError, ConfigurationError):
        return 0, None
    except (ValueError, RecursionError):
        return response.head.status, None


def _of_model(question: ModelQuestion, status: int, entries: Sequence[Mapping[str, object]]) -> Iterator[Finding]:
    if status == UNAUTHORIZED:
        problem = "does not accept the API key of this file" if question.key else "wants an API key"
        yield _located(Finding("warning", question.file, "apiKey", None, f"{question.origin} {problem}"))
    # Foreign strings are shown on a terminal.
    names = sorted(
        {
            name
            for one in entries
            for key in ("id", "name")
            if isinstance(name := one.get(key), str) and name.isprintable()
        }
    )
    if not names or any(one.get("owned_by") in ONE_MODEL for one in entries) or _has(question, names):
        return
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    yield _located(
        Finding(
            "warning",
            question.file,
            "modelNameToSendToAPI",
            None,
            f"{question.origin} has no model {quoted(question.model)}",
            f"one of its models: {', '.join(names[:SHOWN_MODELS])}{more}",
            nearest(question.model, names, 0.6),
        )
    )


def _template_question(file: str, content: Mapping[str, object]) -> TemplateQuestion | None:
    """Return the question about the template of an endpoint that lacks ``alternateRoles``; None if there is none."""
    # What the name of the model says is a finding of the file already.
    if ENDPOINT.flag(content, "alternateRoles") or named_as_strict(content):
        return None
    origin, name = _origin(content.get("endpoint")), ENDPOINT.text(content, "apiTypeConfigFileName").strip()
    try:
        kind = api_types.canonical_type(config_utils.load_api_type(name)) if origin and name else ""
        key = resolve_api_key(ENDPOINT.value(content, "apiKey"), file)
    # Reported by the checks of these files.
    except ConfigurationError:
        return None
    # llama.cpp speaks no other types.
    return TemplateQuestion(file, origin, key) if kind in (api_types.OPENAI_CHAT, api_types.OPENAI_COMPLETION) else None


def _is_strict(question: TemplateQuestion) -> bool:
    """Return whether a llama.cpp server has loaded a chat template that accepts only users and assistants in turn."""
    url = f"{question.origin}/props"
    status, props = _get(url, {})
    if status == UNAUTHORIZED and question.key:
        props = _get(url, {"Authorization": f"Bearer {question.key}"})[1]
    template = props.get("chat_template") if isinstance(props, dict) else None
    return isinstance(template, str) and STRICT_TEMPLATE.search(template) is not None


def _has(question: ModelQuestion, names: Sequence[str]) -> bool:
    """Return whether a server with these models takes the name."""
    # Ollama ignores case, and others do not.
    fold = str.casefold if question.type in OLLAMA_TYPES else str
    wanted = fold(question.model).removesuffix(":latest")
    # LiteLLM lists patterns such as openai/*, for every model of a provider.
    return any(
        wanted == fold(name).removesuffix(":latest") or (name.endswith("*") and question.model.startswith(name[:-1]))
        for name in names
    )


def _located(finding: Finding) -> Finding:
    return finding.located(JsonSource.read(path_of(finding.file)))


def _silent(origin: str, files: Sequence[str], problem: str) -> Finding:
    more = f" ({len(files) - 1} more endpoint files name it)" if len(files) > 1 else ""
    return _located(
        Finding(
            "warning",
            files[0],
            "endpoint",
            None,
            f"{origin} {problem}{more}",
            "a server that runs and can be reached from this computer",
        )
    )


def _origin(url: object) -> str:
    """Return scheme, host and port; empty for an invalid address, which is reported elsewhere. Never has a password."""
    try:
        target = parse_target(url) if isinstance(url, str) else None
    except ConfigurationError:
        return ""
    return f"{target.scheme}://{target.host_header}" if target else ""


def why_silent(origin: str) -> str:
    """Return what keeps a server from answering; empty if it answers with any status."""
    try:
        request = HttpRequest(parse_target(f"{origin}/"), "GET", {}, PROBE_SECONDS, PROBE_SECONDS, max_bytes=0)
        HttpClient().call(request, seconds=PROBE_SECONDS)
    except HttpError as error:
        return f"does not answer: {error.problem.text}"
    except ConfigurationError as error:
        return f"cannot be asked: {error}"
    return ""
