"""The rules of failover: the backup of a failed endpoint, whether it may be used, and the prompt it gets.

The service in ``llm_api`` makes the calls.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from Middleware.exceptions import BackendError, ConfigurationError, FailoverError, WilmerError
from Middleware.llmapis import api_types
from Middleware.llmapis.backend_errors import sentence
from Middleware.llmapis.endpoint_file import EndpointFile
from Middleware.llmapis.handlers.base.alternate_roles import alternating_turns
from Middleware.llmapis.handlers.base.backend_call import Prompt
from Middleware.llmapis.handlers.base.base_chat_completions_handler import says_nothing, text_of
from Middleware.llmapis.handlers.base.base_llm_api_handler import shows_reasoning
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.messages import Chunk, Message
from Middleware.models.process import process
from Middleware.models.request_context import current_outside
from Middleware.utilities import config_utils
from Middleware.utilities import prompt_template_utils as templates
from Middleware.utilities.config.keys.endpoint import ENDPOINT
from Middleware.utilities.daemon_threads import DeadlineError, run_interruptible
from Middleware.utilities.files.path_utils import is_flat_name
from Middleware.utilities.http.addresses import is_local_address, is_loopback
from Middleware.utilities.once import BoundedCache
from Middleware.utilities.text_utils import message_text

logger = logging.getLogger(__name__)

Location = Literal["local", "remote", "unknown"]

# Name resolution cannot be interrupted, and the failed call has taken time already.
RESOLVE_SECONDS = 5.0
# More endpoints than any configuration has; beyond this number a warning is repeated.
MAX_CHECKED = 256


@dataclass(frozen=True)
class FailoverState:
    """The failures that led a call to an endpoint.

    Attributes:
        visited: the endpoints that have failed, in order.
        templated: the texts were formatted with the prompt template of the first endpoint.
        local_only: the endpoint may be reached in the local network only.
    """

    visited: tuple[str, ...] = ()
    templated: bool = False
    local_only: bool = False


NO_FAILOVER = FailoverState()


# -- the backup of an endpoint ---------------------------------------------------------------------------------------


def backup_name(endpoint: Mapping[str, object]) -> str:
    """Return the name of an endpoint's backup, ``""`` for none."""
    name = ENDPOINT.value(endpoint, "backupEndpointName")
    return str(name).strip() if name else ""


def backup_preset(endpoint_name: str, endpoint: Mapping[str, object], preset: str | None) -> str | None:
    """Return the preset for an endpoint's backup: ``backupPresetName``, else the preset of the call.

    A call without a preset uses the endpoint's own samplers, which are found under the name of the endpoint. None means
    that the backup finds its samplers like any endpoint without a preset.
    """
    name = ENDPOINT.value(endpoint, "backupPresetName")
    return name.strip() if isinstance(name, str) and name.strip() else preset_of_call(endpoint_name, endpoint, preset)


def preset_of_call(endpoint_name: str, endpoint: Mapping[str, object], preset: str | None) -> str | None:
    """Return the preset by which another endpoint finds the samplers of a call to this one; see ``backup_preset``."""
    if preset is not None and preset.strip():
        return preset.strip()
    own = ENDPOINT.value(endpoint, "presetSamplers")
    return endpoint_name if isinstance(own, Mapping) and own and is_flat_name(endpoint_name) else None


def next_state(failed: EndpointFile, state: FailoverState, scope: CancelScope | None) -> FailoverState:
    """Return the state for the backup of ``failed``; ``state`` is that of ``failed`` itself.

    Waits while the backup's host name is resolved. Raises FailoverError if the backup has already failed or is not
    allowed, ConfigurationError if its files are invalid, EarlyTerminationException when cancelled during that time.
    """
    name, visited = backup_name(failed.config), (*state.visited, failed.name)
    if name in visited:
        raise FailoverError(f"the backups form a cycle: {' -> '.join((*visited, name))}.", endpoint=failed.name)
    backup = EndpointFile.load(name)
    templated = state.templated if state.visited else failed.type in api_types.COMPLETION_TYPES
    return FailoverState(visited, templated, local_only=must_stay_local(backup, scope))


def backup_unusable(failed: str, backup: str, failure: Exception, reason: Exception) -> FailoverError:
    """Return the error that contains both the first failure and the reason why the backup cannot be used."""
    status, body = (failure.status, failure.body) if isinstance(failure, BackendError) else (None, "")
    text = str(failure) if isinstance(failure, WilmerError) else type(failure).__name__
    return FailoverError(
        f"endpoint '{failed}' failed, and its backup '{backup}' cannot be used. The failure: "
        f"{sentence(text)} The backup: {reason}",
        endpoint=failed,
        status=status,
        body=body,
    )


def mention_failed_endpoint(error: Exception, state: FailoverState) -> None:
    """Add the endpoint that failed first to the error of a backup, which names only the backup."""
    if state.visited and isinstance(error, BackendError):
        error.args = (f"{sentence(str(error))} It was the backup for '{state.visited[-1]}', which had failed.",)


def _checked() -> BoundedCache[int, Mapping[str, object]]:
    """The endpoint files whose backup was checked."""
    return BoundedCache(MAX_CHECKED)


def check_backup(endpoint: EndpointFile) -> None:
    """Warn of a backup that does not exist or names no usable API type, once per version of the endpoint's file."""
    name, checked = backup_name(endpoint.config), process().one(_checked)
    if not name or checked.get(id(endpoint.config)) is endpoint.config:
        return
    checked.put(id(endpoint.config), endpoint.config)
    try:
        EndpointFile.load(name)
    except ConfigurationError as error:
        logger.warning("Endpoint '%s' names the backup '%s', which cannot be used: %s", endpoint.name, name, error)


# -- where a backup is -----------------------------------------------------------------------------------------------


def must_stay_local(backup: EndpointFile, scope: CancelScope | None) -> bool:
    """Return whether calls of ``backup`` must stay in the local network, which holds unless its file allows more.

    Raises FailoverError for a remote backup that is not allowed; warns of an allowed one and of an unknown location.
    """
    allowed = ENDPOINT.flag(backup.config, "allowRemoteBackup")
    location = find_location(str(ENDPOINT.value(backup.config, "endpoint") or ""), scope)
    if location == "remote" and not allowed:
        raise FailoverError(
            f"'{backup.name}' is off-machine, beyond the local network, and conversations go there only with "
            f"\"allowRemoteBackup\": true in the file of '{backup.name}'.",
            endpoint=backup.name,
        )
    if location == "remote":
        logger.warning("Backup endpoint '%s' is off-machine; its file allows that.", backup.name)
    elif location == "unknown":
        logger.warning(
            "Backup endpoint '%s': the location of its host is unknown.%s",
            backup.name,
            "" if allowed else " It is used only if its address is local.",
        )
    return not allowed


def find_location(url: str, scope: CancelScope | None) -> Location:
    """Classify the host of ``url``: ``unknown`` after RESOLVE_SECONDS, and for every name where no server is called.

    Raises EarlyTerminationException when ``scope`` is cancelled during that time.
    """
    resolve = current_outside().calls_servers
    try:
        return run_interruptible(lambda _: classify_host(url, resolve), scope or CancelScope(), RESOLVE_SECONDS)
    except DeadlineError:
        return "unknown"


def classify_host(url: str, resolve: bool = True) -> Location:
    """Return the location of the host of ``url``, with or without a scheme.

    ``resolve``: resolve host names, which may block; otherwise the location of a name is unknown.
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
        # The host is a name, which has to be resolved.
        pass
    try:
        addresses = {str(entry[4][0]) for entry in (socket.getaddrinfo(host, None) if resolve else ())}
        if not addresses:
            return "unknown"
        return "local" if all(map(is_local_address, addresses)) else "remote"
    # ValueError: a name that IDNA cannot encode.
    except (OSError, ValueError):
        return "unknown"


# -- the prompt of a backup ------------------------------------------------------------------------------------------


def prompt_for_backup(call: Prompt, backup: EndpointFile, templated: bool) -> Prompt:
    """Return ``call``, which was made for the first endpoint, in the form that the backup's type takes.

    Messages become texts with the backup's own prompt template. Texts stay as they are. If they are ``templated``, they
    contain the template of the first endpoint; that is logged, because a chat back-end sends it to its model.
    """
    texts = call.system_prompt is not None or call.prompt is not None
    if backup.type in api_types.COMPLETION_TYPES:
        return call if texts else _flattened(call, backup.config)
    if templated and texts:
        logger.warning(
            "Backup endpoint '%s' takes messages, but the prompt was made for a completion back-end: its "
            "prompt template's text is sent as part of the messages.",
            backup.name,
        )
        return _as_messages(call)
    return call


def _flattened(call: Prompt, endpoint: Mapping[str, object]) -> Prompt:
    template = config_utils.load_prompt_template(
        str(ENDPOINT.value(endpoint, "promptTemplate") or config_utils.chat_template_name())
    )
    messages: list[Message] = [
        {**message, "content": text_of(message.get("content"))} for message in call.conversation or ()
    ]
    start = next((index for index, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    system, turns = templates.flatten_messages(messages[:start], template), messages[start:]
    if ENDPOINT.flag(endpoint, "alternateRoles"):
        texts = "\n\n".join(map(message_text, messages[:start]))
        system, turns = alternating_turns(texts, turns, template)
        system = templates.wrap_system(system, template) if system else ""
    prompt = templates.flatten_messages(turns, template)
    continued = bool(messages) and messages[-1].get("role") == "assistant"
    if ENDPOINT.flag(endpoint, "addGenerationPrompt") and not continued:
        prompt = templates.add_generation_prompt(prompt, template)
    return dataclasses.replace(call, prompt=prompt, system_prompt=system, textless=says_nothing(messages))


def _as_messages(call: Prompt) -> Prompt:
    """Return texts with images as messages for a chat back-end. Without images, its handler makes the messages."""
    if call.conversation is None:
        return call
    images = [image for message in call.conversation for image in message.get("images") or ()]
    user: Message = {"role": "user", "content": call.prompt or ""}
    if images:
        user["images"] = images
    systems: list[Message] = [{"role": "system", "content": call.system_prompt}] if call.system_prompt else []
    return dataclasses.replace(call, conversation=[*systems, user], system_prompt=None, prompt=None)


# -- the beginning of a stream ---------------------------------------------------------------------------------------


def is_visible(chunk: Chunk, with_reasoning: bool) -> bool:
    """Return whether a chunk is visible to the client, so that no other endpoint can replace this one after it."""
    shown = chunk.get("token") or chunk.get("tool_calls") or chunk.get("finish_reason")
    return bool(shown or (with_reasoning and chunk.get("reasoning")))


def up_to_visible(chunks: Generator[Chunk, None, None]) -> Generator[Chunk, None, bool]:
    """Yield chunks up to and including the first visible one; return whether there was one.

    Earlier chunks become heartbeats. Their content (token counts, a fingerprint) is added to the visible one, and is
    dropped if the endpoint fails first.
    """
    withheld: Chunk = {"token": "", "finish_reason": None}
    with_reasoning = shows_reasoning()
    for chunk in chunks:
        if is_visible(chunk, with_reasoning):
            yield {**withheld, **chunk}
            return True
        withheld = {**withheld, **chunk, "token": "", "finish_reason": None}
        withheld.pop("more", None)
        withheld.pop("reasoning", None)
        yield {"token": "", "finish_reason": None}
    # Every chunk has two keys; more of them carry content that the client must get.
    if len(withheld) > 2:
        yield withheld
    return False
