"""Whether the servers of endpoints answer. They are asked for their first page, and get no key and no text."""
from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import SplitResult, urlsplit

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.folders import path_of
from Middleware.cli.check.workflow_checks import located
from Middleware.utilities.config.json_source import JsonSource

PROBE_SECONDS = 2.0
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
        problems = list(pool.map(_why_silent, servers))
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


def _why_silent(origin: str) -> str:
    """What keeps a server from answering; empty if it answers, whatever it says."""
    parts = urlsplit(origin)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=PROBE_SECONDS)
    try:
        connection.connect()
    except (OSError, ValueError) as error:
        connection.close()
        return _connect_problem(error)
    try:
        connection.request("GET", "/", headers={"Accept": "*/*"})
        connection.getresponse()
    except TimeoutError:
        return f"accepts connections, but did not answer within {PROBE_SECONDS:g} s"
    except (OSError, http.client.HTTPException):
        return "accepts connections, but does not speak HTTP" + ("S" if parts.scheme == "https" else "")
    finally:
        connection.close()
    return ""


def _connect_problem(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"could not be reached within {PROBE_SECONDS:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "refuses connections: no server runs there"
    if isinstance(error, socket.gaierror):
        return "has a host name that nobody knows"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"has a certificate that is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "does not speak HTTPS"
    number = getattr(error, "errno", None)
    return f"could not be reached: {os.strerror(number) if number else type(error).__name__}"
