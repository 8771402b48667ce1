"""The files of a new user, made from the templates beside this module."""
from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from Middleware.cli.errors import StartError
from Middleware.cli.init.servers import Model, NoServer, Server, is_on_loopback
from Middleware.cli.init.sizes import WINDOW_FOR_TOOLS, shares, window_of
from Middleware.utilities import config_utils
from Middleware.utilities.config.keys.user import USER as USER_KEYS

TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
TEMPLATE_USER = "USER"  # in the paths of templates, in place of the user's name
OTHER_PORT = 5010
_PLACE = re.compile(r"@(\w+)@")


@dataclass(frozen=True)
class Choice:
    """What the configuration is made for."""

    server: Server
    model: Model
    user: str
    port: int


@dataclass(frozen=True)
class Plan:
    """Files to be written: their paths below the config folder, with forward slashes, and what they hold.

    Attributes:
        shipped: files that come with the program and are missing in this config folder, such as an API type.
    """

    files: Mapping[str, bytes]
    shipped: Mapping[str, bytes]


def make_plan(choice: Choice) -> Plan:
    """Every file for this choice but ``_current-user.json``. Raises StartError if a shipped one is lost."""
    values = _values(choice)
    files = {}
    for path in template_paths():
        with open(os.path.join(TEMPLATES, *path.split("/")), encoding="utf-8") as file:
            content = _filled(json.load(file), values)
        files[_path_for(path, choice.user)] = to_bytes(content)
    return Plan(files, _missing(choice))


def planned_paths(user: str) -> list[str]:
    """The files that a plan for this user has, whatever else is chosen."""
    return [_path_for(path, user) for path in template_paths()]


def _path_for(template: str, user: str) -> str:
    return template.replace(TEMPLATE_USER, user)


def template_paths() -> list[str]:
    """The templates, as paths below their folder with forward slashes, sorted."""
    found = []
    for folder, _, names in os.walk(TEMPLATES):
        inside = os.path.relpath(folder, TEMPLATES).replace(os.sep, "/")
        found += [f"{inside}/{name}" for name in names if name.endswith(".json")]
    return sorted(found)


def to_bytes(content: object) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def port_for(found: Iterable[Server | NoServer]) -> int:
    """The port to listen on: the usual one, unless something other than a WilmerAI was found there."""
    usual: int = USER_KEYS["port"].default
    taken = any(is_on_loopback(one.address) and urlsplit(one.address).port == usual for one in found
                if isinstance(one, Server) or not one.silent and one.known_as != "WilmerAI")
    return OTHER_PORT if taken else usual


def _values(choice: Choice) -> dict[str, object]:
    server, model = choice.server, choice.model
    window, remark = window_of(server, model)
    return {
        **shares(window, model.thinks is not False), "user": choice.user, "port": choice.port,
        "window": window, "windowRemark": remark,
        "address": server.address, "apiType": server.api_type, "model": model.name,
        "displayName": f"{server.kind}: {model.name}", "dontIncludeModel": _holds_one_model(server),
        "apiKey": f"env:{server.key_variable}" if server.key_variable else "",
        "mainSamplers": _samplers(server, model, 0.7), "workerSamplers": _samplers(server, model, 0.2, thinks=False),
        "acceptImages": model.sees is not False,
        "allowTools": bool(model.calls_tools) and window >= WINDOW_FOR_TOOLS}


def _holds_one_model(server: Server) -> bool:
    """Whether the server answers with the one model that it has loaded, which may be another one tomorrow."""
    return server.kind in ("KoboldCpp", "text-generation-webui") or server.kind == "llama.cpp" \
        and len(server.models) + server.others == 1


def _samplers(server: Server, model: Model, temperature: float, thinks: bool = True) -> dict[str, object]:
    samplers: dict[str, object] = {"temperature": temperature}
    can_switch_off = server.kind == "llama.cpp" or server.kind == "Ollama" and model.thinks
    return samplers if thinks or not can_switch_off else {**samplers, "thinkingMode": "off"}


def _filled(value: object, values: Mapping[str, object]) -> object:
    """A template's value with its places filled in; a text that is nothing but a place becomes the value itself."""
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    if not isinstance(value, str):
        return value
    whole = _PLACE.fullmatch(value)
    return values[whole[1]] if whole else _PLACE.sub(lambda place: str(values[place[1]]), value)


def _missing(choice: Choice) -> dict[str, bytes]:
    """What the new files need of the shipped ones, as far as this config folder lacks it. Raises StartError."""
    root = config_utils.get_root_config_directory()
    needed = [f"ApiTypes/{choice.server.api_type}.json", "PromptTemplates/_chatonly.json",
              "Workflows/_common/_MessagesToSend.json"]
    missing = {}
    for path in needed:
        if not os.path.exists(os.path.join(root, *path.split("/"))):
            missing[path] = _shipped_file(path)
    return missing


def _shipped_file(path: str) -> bytes:
    """From the program's own configuration; in a container, whose volume may be older, from that of its image."""
    project = config_utils.get_project_root_directory_path()
    for folder in ("Public", "Defaults"):
        file_path = os.path.join(project, folder, "Configs", *path.split("/"))
        with contextlib.suppress(OSError), open(file_path, "rb") as file:
            return file.read()
    raise StartError(f"{path} is missing, although the program comes with it: copy it from a fresh clone into "
                     f"{os.path.join(project, 'Public', 'Configs')}. Nothing was written.")
