"""One token from the chosen model before anything is written, with what the new files would send."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from Middleware.addons.init.plan import Choice, make_plan
from Middleware.common import instance_global_variables as instance
from Middleware.exceptions import WilmerError
from Middleware.llmapis.llm_api import LlmApiService
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.request_context import RequestContext, request_scope
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.api_type import API_TYPE

# A model that is in memory answers within seconds; a remote one may wait for its turn.
SECONDS = 60.0
HELLO = "Hi"
# OpenAI's models that reason before they answer call it an error that a single token is not enough.
_IS_ENOUGH = "output limit was reached"


@dataclass(frozen=True)
class Trial:
    """What came of it.

    Attributes:
        choice: the choice, changed to what the server takes.
        changed: fields that the server refuses, and that the files therefore do not lead to.
        problem: why there was no token, in the words of the server; "" if there was one.
        is_skipped: it was not tried, because the model would have to be loaded first.
    """

    choice: Choice
    changed: tuple[str, ...] = ()
    problem: str = ""
    is_skipped: bool = False


def needs_loading(choice: Choice) -> bool:
    """Return whether a question would load the chosen model, as far as the server says."""
    return not choice.model.loaded and (bool(choice.model.state) or choice.server.kind == "Ollama")


def try_model(choice: Choice) -> Trial:
    """Ask the chosen model for one token. Raises StartError if a file that comes with the program is missing."""
    if needs_loading(choice):
        return Trial(choice, is_skipped=True)
    plan, api_type = make_plan(choice), f"ApiTypes/{choice.server.api_type}.json"
    files = {**plan.shipped, **plan.files}
    if api_type not in files:
        files[api_type] = Path(config_utils.get_root_config_directory(), api_type).read_bytes()
    own, level = instance.CONFIG_DIRECTORY, logging.root.manager.disable
    with tempfile.TemporaryDirectory(prefix="wilmer-init-") as folder:
        for path, data in files.items():
            os.makedirs(Path(folder, path).parent, exist_ok=True)
            Path(folder, path).write_bytes(data)
        try:
            instance.CONFIG_DIRECTORY = folder
            config_utils.reset_config_store()
            # What came of it is printed.
            logging.disable(logging.CRITICAL)
            with request_scope(RequestContext(user=choice.user)):
                return _asked(choice)
        finally:
            logging.disable(level)
            instance.CONFIG_DIRECTORY = own
            config_utils.reset_config_store()


def _asked(choice: Choice) -> Trial:
    scope = CancelScope()
    clock = threading.Timer(SECONDS, scope.cancel)
    clock.daemon = True
    problem = ""
    try:
        service = LlmApiService("Main", max_tokens=1, scope=scope)
        clock.start()
        service.get_response_from_llm([{"role": "user", "content": HELLO}], "You are a helpful assistant.")
    except WilmerError as error:
        problem = "" if _IS_ENOUGH in str(error) else str(error)
    finally:
        clock.cancel()
    if scope.cancelled:
        problem = f"it did not answer within {SECONDS:g} s"
    if problem:
        return Trial(choice, problem=problem)
    api_type, changed = service.settings.api_type, service.outcome.left_out
    fields = API_TYPE.value(api_type, "samplerFieldMap").items()
    refused = frozenset(name for name, field in fields if field in changed)
    renamed = API_TYPE.value(api_type, "maxNewTokensPropertyName") in changed
    server = replace(choice.server, renames_limit=renamed)
    return Trial(replace(choice, server=server, refused=refused), changed)
