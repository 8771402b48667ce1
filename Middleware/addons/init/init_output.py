"""The output of ``init``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

from Middleware.addons.init.plan import Choice, serves_agents, window_of
from Middleware.addons.init.servers import (
    LOOPBACK,
    OTHER_KIND,
    USUAL_PORTS,
    Model,
    NoServer,
    Server,
    usual_host,
)
from Middleware.addons.init.trial import Trial
from Middleware.addons.init.writing import Written
from Middleware.cli.program import launcher
from Middleware.common import instance_global_variables as instance
from Middleware.utilities import config_utils
from Middleware.utilities.command_lines import command, in_project_container
from Middleware.utilities.config.paths import page_shown
from Middleware.utilities.config.users import FIRST_USER
from Middleware.utilities.terminal import printable

# A longer list would push the question off the screen; names can be typed anyway.
SHOWN_MODELS = 30
# The line of a server must fit on a screen.
LISTED_MODELS = 4
# By a part of the path. The first that fits applies, so the more exact ones come first.
PURPOSES = (
    (".test.json", "its tests: {test}"),
    ("Users/_current", "says who is served: '{user}'"),
    ("Users/", "the user: port, and the names of the parts below"),
    ("Main.json", "the model that answers"),
    ("Worker.json", "the model for small jobs: {worker}"),
    ("chat/_Default", "model {user}:chat, straight to the model"),
    ("agent/_Default", "model {user}:agent, for coding agents; they need a large context window"),
    ("assistant/_Default", "model {user}:assistant, chooses a route for each message"),
    ("memory/_Default", "model {user}:memory, remembers; also the route CONVERSATION"),
    ("_Coding", "the route CODING"),
    ("_Writing", "the route WRITING"),
    ("_BackgroundTask", "titles and the like, for Open WebUI"),
    ("_Memory-Settings", "what is written down, and how often"),
    ("_DefaultWorkflow", "answers any other model name, like {user}:assistant"),
)


def asking(addresses: Sequence[str], named: bool) -> list[str]:
    """Return which addresses will be asked, for printing before they are."""
    if named:
        return [f"Asking {', '.join(map(printable, addresses))}, and nothing else."]
    own = f"{LOOPBACK}, else ::1" if usual_host() == LOOPBACK else usual_host()
    lines = [f"Asking this computer ({own}) at the usual ports of LLM servers, and nothing else:"]
    return lines + [f"  {port:>5}  {names}" for port, names in USUAL_PORTS.items()]


def found(servers: Sequence[Server], others: Sequence[NoServer]) -> list[str]:
    """List the servers with their models, and the addresses of something that cannot be used."""
    width = max((len(server.address) for server in servers), default=0)
    kinds = max((len(server.kind) for server in servers), default=0)
    lines = [
        f"  {number}  {server.address:<{width}}  {server.kind:<{kinds}}  {_models(server)}"
        for number, server in enumerate(servers, 1)
    ]
    notes = [f"  {printable(other.address)} {printable(other.reason)}" for other in others if not other.silent]
    for server in servers:
        notes += [f"  {name_shown(model)} could not be loaded there ({model.failed})" for model in server.failed]
        if server.is_guess:
            notes.append(f"  By its name, no model of {server.address} is one to chat with; all are offered.")
    return [*(["Found:", *lines] if lines else []), *notes]


def _models(server: Server) -> str:
    if not server.models:
        return "no model to chat with"
    names = [
        name_shown(model) + (" (in memory)" if model.loaded and len(server.models) > 1 else "")
        for model in server.models
    ]
    others = f" (and {server.others} for embeddings or the like)" if server.others else ""
    return listed(names, LISTED_MODELS) + others


def listed(names: Sequence[str], most: int) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def name_shown(model: Model) -> str:
    """Return a model's name, without the folders of a file."""
    name = model.name
    return name.replace("\\", "/").rpartition("/")[2] if name.casefold().endswith(".gguf") else name


def describe_model(model: Model) -> str:
    remarks = [printable(model.detail), "in memory" if model.loaded else ""]
    text = ", ".join(filter(None, remarks))
    return name_shown(model) + (f"  ({text})" if text else "")


def nothing_found(others: Sequence[NoServer], named: bool) -> list[str]:
    """Explain how to go on without a server."""
    if named:
        return [
            *(f"{printable(other.address)}: {printable(other.reason)}." for other in others),
            "Check the address, port included: a server's list of models opens in a browser under "
            "<address>/v1/models. Ollama usually has port 11434, llama.cpp port 8080.",
        ]
    hint = ["One that runs on this computer must let containers in: Docs/User/container.md."]
    return [
        "No LLM server answers at any of them.",
        "  Ollama:     ollama serve            then: ollama pull qwen3:8b",
        "  llama.cpp:  llama-server -m model.gguf -c 16384 --jinja --port 8080",
        f"  elsewhere:  {init_command_line('--backend', 'http://192.168.1.20:11434')}",
        *(hint if in_project_container() else []),
    ]


def without_models(server: Server) -> str:
    """Explain why a server cannot be used yet, and what to do."""
    how = "fetch one, for example: ollama pull qwen3:8b" if server.kind == "Ollama" else "load one there"
    only = " (only for embeddings or the like)" if server.others else ""
    return f"{server.kind} at {server.address} has no model to chat with{only}: {how}. Then run init again."


def asking_model(model: Model) -> str:
    return f"Asking {name_shown(model)} for one token, with what the new files will send."


def tried(trial: Trial) -> list[str]:
    """Say what came of it."""
    if trial.is_skipped:
        name = name_shown(trial.choice.model)
        return [f"{name} is not asked for a token, because it is not in memory, and loading it takes time."]
    if trial.problem:
        return [f"  No answer: {printable(trial.problem)}"]
    fields = ", ".join(map(printable, trial.changed))
    return [
        f"  It answers. The server refuses {fields}; the files are written for that." if fields else "  It answers."
    ]


def left_to_fix(trial: Trial) -> list[str]:
    """Say what is left to do if the model has not answered."""
    file = f"Endpoints/{trial.choice.user}/Main.json"
    return ["", f"To fix before you start: {file}, or the server. {printable(trial.problem)}"] if trial.problem else []


def summary(choice: Choice, written: Written) -> list[str]:
    """List what was chosen and written."""
    window, _ = window_of(choice.server, choice.model)
    source = "a guess, as the server does not say" if choice.model.window is None else "set in both endpoint files"
    kind = "the server" if choice.server.kind == OTHER_KIND else choice.server.kind
    lines = [
        f"Using {name_shown(choice.model)} of {kind} at {choice.server.address}; "
        f"context window {window} tokens ({source}).",
        "",
        f"Written, in {_config_folder()}:",
    ]
    width = max(map(len, written.files))
    lines += [f"  {path:<{width}}  {_purpose(path, choice)}" for path in written.files]
    lines += [f"  {path} (as shipped; it was missing)" for path in written.shipped]
    if written.kept:
        more = f" and {len(written.kept) - 1} others" if len(written.kept) > 1 else ""
        lines.append(f"  What was there before is kept next to them: {written.kept[0]}{more}")
    if choice.smaller:
        lines += _proposal(choice.smaller, choice.user)
    if choice.server.key_variable:
        lines.append(
            f"  The key itself is not written: the environment variable {choice.server.key_variable} must "
            "hold it whenever WilmerAI starts."
        )
    if written.previous_user not in (None, FIRST_USER):
        lines.append(
            f"  Before, '{written.previous_user}' was the current user; start it with --User "
            f"{written.previous_user}. A server that runs without --User serves '{choice.user}' from now on."
        )
    return lines


def _proposal(smaller: Model, user: str) -> list[str]:
    """Propose a model for the small jobs. It is not chosen: only the user knows what fits into the server's memory."""
    return [
        f"  {name_shown(smaller)} of the same server could do the small jobs (routes, memories, titles) faster, if "
        "its memory",
        f'  has room for both: "modelNameToSendToAPI": {json.dumps(smaller.name)} in Endpoints/{user}/Worker.json.',
    ]


def next_steps(choice: Choice) -> list[str]:
    """Return the next command and the settings for the client."""
    # In a container, this also restarts a server that serves another user.
    start = (
        "docker compose up -d --force-recreate wilmerai"
        if in_project_container()
        else command([*launcher(), *_places()])
    )
    return ["", "Next:", f"  {start}", "", *client_lines(choice)]


def client_lines(choice: Choice) -> list[str]:
    base, user = f"http://{LOOPBACK}:{instance.PORT or choice.port}", choice.user
    hint = ["  If you have set WILMER_PUBLISH, its port takes the place of this one."] if in_project_container() else []
    return [
        "Then, in your client:",
        f"  Open WebUI:   Settings, Connections, OpenAI API: URL {base}/v1, any text as the key",
        f"  SillyTavern:  Chat Completion, Custom (OpenAI-compatible): base URL {base}/v1",
        f"  If it runs in a container or on another computer: {page_shown('User/connecting-clients.md')}",
        *hint,
        f"  Models:       {user}:chat, {user}:assistant, {user}:memory"
        + (f"; for coding agents {user}:agent" if serves_agents(choice) else ""),
        "  To have a chat remembered, put [DiscussionId]a-name[/DiscussionId] into its system prompt.",
        f"To chat in a terminal:  {command([*launcher(), 'chat', f'{user}:chat', *_places()])}",
        f"Or try it:  {try_line(base, user)}",
    ]


def try_line(base: str, user: str) -> str:
    """Return a command that sends a message of a remembered conversation.

    Shells and cmd take it as it is: nothing in it, such as other quotes, has a meaning to one of them.
    """
    body = json.dumps(
        {
            "model": f"{user}:memory",
            "stream": True,
            "messages": [
                {"role": "system", "content": "[DiscussionId]kitchen[/DiscussionId]"},
                {"role": "user", "content": "Hello"},
            ],
        },
        separators=(",", ":"),
    ).replace('"', '\\"')
    key = '-H "Authorization: Bearer KEY" ' if instance.ACCESS_KEYS is not None else ""
    return f'curl -N {base}/v1/chat/completions {key}-H "Content-Type: application/json" -d "{body}"'


def _purpose(path: str, choice: Choice) -> str:
    user, worker = choice.user, name_shown(choice.worker) if choice.worker else "at first the same"
    return next((text for part, text in PURPOSES if part in path), "").format(
        user=user, worker=worker, test=command([*launcher(), "test", user, *_places()])
    )


def _config_folder() -> str:
    folder = os.path.abspath(config_utils.get_root_config_directory())
    project = config_utils.get_project_root_directory_path()
    return os.path.relpath(folder, project) if folder.startswith(project + os.sep) else folder


def init_command_line(*words: str) -> str:
    """Return the command line of ``init`` for the folders that this start uses."""
    return command([*launcher(), "init", *words, *_places()])


def _places() -> Iterator[str]:
    for flag, value in (
        ("--ConfigDirectory", instance.CONFIG_DIRECTORY),
        ("--PublicDirectory", instance.PUBLIC_DIRECTORY),
    ):
        if value:
            yield from (flag, value)
