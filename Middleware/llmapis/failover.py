"""What happens when an endpoint with a ``backupEndpointName`` fails: who stands in, whether it may, with which prompt.

The service in ``llm_api`` makes the calls; the rules are here.
"""
from __future__ import annotations

import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from Middleware.exceptions import (
    BackendError,
    ConfigurationError,
    EarlyTerminationException,
    FailoverError,
    WilmerError,
)
from Middleware.llmapis import api_types
from Middleware.llmapis.backend_errors import sentence
from Middleware.llmapis.endpoint_file import EndpointFile
from Middleware.llmapis.handlers.base.base_chat_completions_handler import text_of
from Middleware.llmapis.handlers.base.base_llm_api_handler import Prompt
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.messages import Chunk, Message
from Middleware.models.request_context import current_trial
from Middleware.utilities import config_utils
from Middleware.utilities import prompt_template_utils as templates
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.http.addresses import is_local_address, is_loopback
from Middleware.utilities.http.connect import HEARTBEAT_SECONDS
from Middleware.utilities.http.connection import SLICE_SECONDS
from Middleware.utilities.once import BoundedCache

logger = logging.getLogger(__name__)

Place = Literal["local", "remote", "unknown"]
Resolver = Callable[[str, None], Sequence[tuple[Any, ...]]]  # socket.getaddrinfo

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that may have to wait: yields once per second of it, so that a stream can show signs of life, and returns T."""

RESOLVE_SECONDS = 5.0
# More endpoints than anybody has; beyond that a warning is repeated.
MAX_CHECKED = 256


@dataclass(frozen=True)
class Hop:
    """How a call came to an endpoint.

    Attributes:
        visited: the endpoints that failed before, the one that the caller chose first.
        templated: the call's texts were wrapped in the prompt template of that first endpoint.
        local_only: the endpoint may be reached in the local network only.
    """

    visited: tuple[str, ...] = ()
    templated: bool = False
    local_only: bool = False


FIRST_CHOICE = Hop()


def finished(steps: Steps[T]) -> T:
    """The result of steps of which nobody wants to hear."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)


def signs_of_life(steps: Steps[T]) -> Generator[Chunk, None, T]:
    """The steps as chunks that say nothing; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)
        yield {"token": "", "finish_reason": None}


# -- the backup of an endpoint ---------------------------------------------------------------------------------------

def backup_name(endpoint: Mapping[str, object]) -> str:
    """The backup that an endpoint file names, ``""`` for none."""
    name = ENDPOINT.value(endpoint, "backupEndpointName")
    return str(name).strip() if name else ""


def backup_preset(endpoint_name: str, endpoint: Mapping[str, object], preset: str | None) -> str | None:
    """The preset of an endpoint's backup: its own, else what ``preset`` of the call means, by name.

    A call without a preset takes the endpoint's own samplers, whose name is that of the endpoint. None: the backup
    finds samplers as any endpoint without a preset does.
    """
    for name in (ENDPOINT.value(endpoint, "backupPresetName"), preset):
        if isinstance(name, str) and name.strip():
            return name.strip()
    own = ENDPOINT.value(endpoint, "presetSamplers")
    return endpoint_name if isinstance(own, Mapping) and own and is_flat_name(endpoint_name) else None


def next_hop(failed: EndpointFile, hop: Hop, scope: CancelScope | None) -> Steps[Hop]:
    """The way to the backup of ``failed``, which was itself reached by ``hop``.

    Waits while the backup's host name is resolved. Raises FailoverError if the backup was asked before or is not
    allowed, ConfigurationError if its files are amiss, EarlyTerminationException when cancelled meanwhile.
    """
    name, visited = backup_name(failed.config), (*hop.visited, failed.name)
    if name in visited:
        raise FailoverError(f"the backups form a cycle: {' -> '.join((*visited, name))}.", endpoint=failed.name)
    backup = EndpointFile.load(name)
    templated = hop.templated if hop.visited else failed.type in api_types.COMPLETION_TYPES
    return Hop(visited, templated, local_only=(yield from check_place(backup, scope)))


def cannot_stand_in(failed: str, backup: str, failure: Exception, reason: Exception) -> FailoverError:
    """The error that names both what failed first and why no backup helped."""
    status, body = (failure.status, failure.body) if isinstance(failure, BackendError) else (None, "")
    text = str(failure) if isinstance(failure, WilmerError) else type(failure).__name__
    return FailoverError(f"endpoint '{failed}' failed, and its backup '{backup}' cannot stand in. The failure: "
                         f"{sentence(text)} The backup: {reason}",
                         endpoint=failed, status=status, body=body)


def tell_of_the_first(error: Exception, hop: Hop) -> None:
    """Let the error of a backup say for whom it stood in; it names but the backup."""
    if hop.visited and isinstance(error, BackendError):
        error.args = (f"{sentence(str(error))} It stood in for '{hop.visited[-1]}', which had failed.",)


class BackupChecks:
    """Complains of backups that could not stand in before they are needed, once per version of an endpoint's file."""

    def __init__(self) -> None:
        self._seen: BoundedCache[int, Mapping[str, object]] = BoundedCache(MAX_CHECKED)

    def check(self, endpoint: EndpointFile) -> None:
        """Log a warning if the endpoint's backup does not exist or names no usable API type."""
        name = backup_name(endpoint.config)
        if not name or self._seen.get(id(endpoint.config)) is endpoint.config:
            return
        self._seen.put(id(endpoint.config), endpoint.config)
        try:
            EndpointFile.load(name)
        except ConfigurationError as error:
            logger.warning("Endpoint '%s' names the backup '%s', which could not stand in: %s", endpoint.name, name,
                           error)


# -- where a backup is -----------------------------------------------------------------------------------------------

def check_place(backup: EndpointFile, scope: CancelScope | None) -> Steps[bool]:
    """Whether calls of ``backup`` must stay in the local network: always, unless its file allows more.

    Raises FailoverError for a remote backup that is not allowed; warns of an allowed one and of an unknown place.
    """
    allowed = ENDPOINT.flag(backup.config, "allowRemoteBackup")
    place = yield from find_place(str(ENDPOINT.value(backup.config, "endpoint") or ""), scope)
    if place == "remote" and not allowed:
        raise FailoverError(
            f"'{backup.name}' is off-machine, beyond the local network, and conversations go there only with "
            f"\"allowRemoteBackup\": true in the file of '{backup.name}'.", endpoint=backup.name)
    if place == "remote":
        logger.warning("Backup endpoint '%s' is off-machine; its file allows that.", backup.name)
    elif place == "unknown":
        logger.warning("Backup endpoint '%s': where its host is cannot be found out.%s", backup.name,
                       "" if allowed else " It is used only if it turns out to be local.")
    return not allowed


def find_place(url: str, scope: CancelScope | None) -> Steps[Place]:
    """``classify_host`` on a helper thread, as name resolution cannot be interrupted, only left alone.

    ``unknown`` after RESOLVE_SECONDS, and for every name in a trial, which asks nobody. Raises
    EarlyTerminationException when ``scope`` is cancelled meanwhile.
    """
    found: list[Place] = []
    done = threading.Event()
    resolve = None if current_trial() is None else _resolve_nothing

    def run() -> None:
        try:
            found.append(classify_host(url, resolve))
        finally:
            done.set()

    threading.Thread(target=run, name="backup-resolve", daemon=True).start()
    shown = time.monotonic()
    deadline = shown + RESOLVE_SECONDS
    while not done.wait(SLICE_SECONDS) and (now := time.monotonic()) < deadline:
        if scope is not None and scope.cancelled:
            raise EarlyTerminationException("cancelled while looking for a backup")
        if now - shown >= HEARTBEAT_SECONDS:
            shown = now
            yield
    return found[0] if found else "unknown"


def _resolve_nothing(_host: str, _port: None) -> Sequence[tuple[object, ...]]:
    return ()


def classify_host(url: str, resolve: Resolver | None = None) -> Place:
    """Where the host of ``url`` is; a missing scheme does not matter. Host names are resolved, which may block.

    ``resolve`` stands in for ``socket.getaddrinfo``.
    """
    url = url.strip()
    try:
        host = (parse_url(url if "://" in url else f"//{url}").host or "").strip("[]").rstrip(".").lower()
    except LocationParseError:
        return "unknown"
    if not host:
        return "unknown"
    if is_loopback(host):
        return "local"
    try:
        return "local" if is_local_address(host) else "remote"
    except ValueError:
        pass  # a name
    try:
        addresses = {str(entry[4][0]) for entry in (resolve or socket.getaddrinfo)(host, None)}
        if not addresses:
            return "unknown"
        return "local" if all(map(is_local_address, addresses)) else "remote"
    except (OSError, ValueError):  # ValueError: a name that IDNA cannot encode
        return "unknown"


# -- the prompt of a backup ------------------------------------------------------------------------------------------

def fitted(call: Prompt, backup: EndpointFile, templated: bool) -> Prompt:
    """``call``, made for the first endpoint, in the form that the backup's type takes.

    Messages become texts by the backup's own prompt template. Texts stay as they are, with the template of the first
    endpoint in them if they are ``templated``; that is logged, as a chat back-end will show it to its model.
    """
    texts = call.system_prompt is not None or call.prompt is not None
    if backup.type in api_types.COMPLETION_TYPES:
        return call if texts else _flattened(call, backup.config)
    if templated and texts:
        logger.warning("Backup endpoint '%s' takes messages, but the prompt was made for a completion back-end: its "
                       "prompt template's text is sent as part of the messages.", backup.name)
        return _as_messages(call)
    return call


def _flattened(call: Prompt, endpoint: Mapping[str, object]) -> Prompt:
    template = config_utils.load_prompt_template(
        str(ENDPOINT.value(endpoint, "promptTemplate") or config_utils.chat_template_name()))
    messages: list[Message] = [{**message, "content": text_of(message.get("content"))}
                               for message in call.conversation or ()]
    start = next((index for index, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    prompt = templates.flatten_messages(messages[start:], template)
    continued = bool(messages) and messages[-1].get("role") == "assistant"
    if ENDPOINT.flag(endpoint, "addGenerationPrompt") and not continued:
        prompt = templates.add_generation_prompt(prompt, template)
    return dataclasses.replace(call, prompt=prompt,
                               system_prompt=templates.flatten_messages(messages[:start], template))


def _as_messages(call: Prompt) -> Prompt:
    """Texts that came with images, as a chat back-end wants them. Without images its handler makes the messages."""
    if call.conversation is None:
        return call
    images = [image for message in call.conversation for image in message.get("images") or ()]
    user: Message = {"role": "user", "content": call.prompt or ""}
    if images:
        user["images"] = images
    systems: list[Message] = [{"role": "system", "content": call.system_prompt}] if call.system_prompt else []
    return dataclasses.replace(call, conversation=[*systems, user], system_prompt=None, prompt=None)


# -- the beginning of a stream ---------------------------------------------------------------------------------------

def is_visible(chunk: Chunk) -> bool:
    """Whether a client sees something of a chunk, so that no other endpoint can take over after it."""
    return bool(chunk.get("token") or chunk.get("tool_calls") or chunk.get("reasoning") or chunk.get("finish_reason"))


def up_to_visible(chunks: Generator[Chunk, None, None]) -> Generator[Chunk, None, bool]:
    """Pass chunks on up to and including the first visible one; returns whether there was one.

    Those before it pass as mere signs of life: what they tell (token counts, a fingerprint) comes with the visible
    one, and never if the endpoint fails before it.
    """
    told: Chunk = {"token": "", "finish_reason": None}
    for chunk in chunks:
        if is_visible(chunk):
            yield {**told, **chunk}
            return True
        told = {**told, **chunk, "token": "", "finish_reason": None}
        told.pop("more", None)
        yield {"token": "", "finish_reason": None}
    if len(told) > 2:  # more than the two keys that every chunk has
        yield told
    return False
