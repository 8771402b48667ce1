"""Whether the servers of endpoints answer. They are asked for their first page, and get no key and no text."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import SplitResult, urlsplit

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.folders import path_of
from Middleware.cli.check.workflow_checks import located
from Middleware.exceptions import ConfigurationError
from Middleware.utilities.config.json_source import JsonSource
from Middleware.utilities.http.client import HttpClient
from Middleware.utilities.http.problems import HttpError
from Middleware.utilities.http.wire import HttpRequest, parse_target

# A server at home answers within milliseconds, one far away within a second; nobody waits for a check for long.
PROBE_SECONDS = 2.0
# Servers that do not answer cost the whole time each; few people have more of them than this.
PARALLEL = 16


def origins(endpoints: Mapping[str, object]) -> dict[str, list[str]]:
    """The origins of endpoint files, such as ``http://127.0.0.1:5001``, each with the files that name it."""
    found: dict[str, list[str]] = {}
    for display, content in endpoints.items():
        origin = _origin(content.get("endpoint")) if isinstance(content, Mapping) else ""
        if origin:
            found.setdefault(origin, []).append(display)
    return found


def probe(servers: Mapping[str, Sequence[str]]) -> list[Finding]:
    """A warning for each server that does not answer in time, at the first file that names it."""
    with ThreadPoolExecutor(min(PARALLEL, max(len(servers), 1))) as pool:
        problems = list(pool.map(why_silent, servers))
    return [_finding(origin, files, problem) for (origin, files), problem in zip(servers.items(), problems, strict=True)
            if problem]


def _finding(origin: str, files: Sequence[str], problem: str) -> Finding:
    more = f" ({len(files) - 1} more endpoint files name it)" if len(files) > 1 else ""
    finding = Finding("warning", files[0], "endpoint", None, f"{origin} {problem}{more}",
                      "a server that runs and can be reached from this computer")
    return located(finding, JsonSource.read(path_of(files[0])))


def _origin(url: object) -> str:
    """Scheme, host and port; empty for what is no address, which is reported elsewhere. Never with a password."""
    try:
        parts = urlsplit(url.strip()) if isinstance(url, str) else SplitResult("", "", "", "", "")
        if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
            return ""
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"{parts.scheme.lower()}://{host}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return ""


def why_silent(origin: str) -> str:
    """What keeps a server from answering; empty if it answers, whatever it says."""
    try:
        request = HttpRequest(parse_target(f"{origin}/"), "GET", connect_timeout=PROBE_SECONDS,
                              read_timeout=PROBE_SECONDS, single_attempt=True, uses_memory=False, keep_alive=False)
        HttpClient().call(request, max_bytes=0, seconds=PROBE_SECONDS)
    except HttpError as error:
        return f"does not answer: {error.problem.text}"
    except ConfigurationError as error:
        return f"cannot be asked: {error}"
    return ""
