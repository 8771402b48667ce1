"""The keys that nodes share which contact other programs, and the checks of their values.

Every check raises ConfigValueError (a ValueError) that names the node and the key. A text that holds a placeholder is
filled in before it is checked: with all variables where the key takes them, else with those known early.
"""

from __future__ import annotations

from typing import NoReturn

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from Middleware.exceptions import ConfigValueError
from Middleware.utilities.config.declarations import ConfigKey, number_from
from Middleware.utilities.http.addresses import usable_hosts
from Middleware.utilities.text_utils import nearest
from Middleware.workflows.models.execution_context import ExecutionContext

# The longest wait that every operating system accepts.
MAX_SECONDS = 1_000_000.0

PROXY_SCHEMES = ("http", "https", "socks4", "socks5", "socks5h")
DEFAULT_MAX_RESPONSE_BYTES = 10 * 1024 * 1024

ON_ERROR = ConfigKey(
    "onError",
    "str",
    "raise",
    "What a failure does: raise (end the run) or return (become the output).",
    choices=("raise", "return"),
)
PROXY = ConfigKey(
    "proxy",
    "str",
    None,
    "URL of a proxy: http, https, socks4, socks5 or socks5h.",
    "full",
    capability="sends requests through",
)
MAX_RESPONSE_BYTES = ConfigKey(
    "maxResponseBytes", "int", DEFAULT_MAX_RESPONSE_BYTES, "Largest answer in bytes; 0 or less: no limit.", "early"
)
BLOCK_PRIVATE_ADDRESSES = ConfigKey(
    "blockPrivateAddresses",
    "bool",
    False,
    "Refuse hosts that are or resolve to an address that is not globally routable.",
    capability="may send requests to private addresses",
    guard="true",
)
ENCODE_URL_VALUES = ConfigKey(
    "encodeUrlValues",
    "bool",
    True,
    "Percent-encode what variables insert into the path and the parameters of a URL.",
    capability="inserts variables into URLs as they are",
    guard="true",
)
ALLOWED_HOSTS = ConfigKey(
    "allowedHosts",
    "list",
    None,
    "The only hosts that may be contacted, without port.",
    "full",
    capability="may send requests to the host",
    guard="entries",
)


def seconds(context: ExecutionContext, key: ConfigKey) -> float:
    """Return a number above 0 as a time to wait; numeric text is accepted, booleans are not."""
    number = _number(context, key, whole=False)
    return min(number, MAX_SECONDS) if number is not None and number > 0 else refuse(context, key, "a number above 0")


def byte_cap(context: ExecutionContext, key: ConfigKey) -> int | None:
    """Return a number of bytes, None for no limit (0 or less); numeric text is accepted, booleans are not."""
    number = _number(context, key, whole=True)
    if number is None:
        refuse(context, key, "a whole number of bytes (0 or less: no limit)")
    return int(number) if number > 0 else None


def boolean(context: ExecutionContext, key: ConfigKey) -> bool:
    """Return a boolean, or that of the text ``true`` or ``false`` in any case."""
    value = key.of(context.config)
    if isinstance(value, str):
        value = {"true": True, "false": False}.get(value.strip().lower(), value)
    return value if isinstance(value, bool) else refuse(context, key, "true or false")


def choice(context: ExecutionContext, key: ConfigKey) -> str:
    """Return one of the key's choices."""
    value = key.of(context.config)
    if isinstance(value, str) and value in key.choices:
        return value
    return refuse(context, key, f"one of {', '.join(key.choices)}", nearest(str(value), key.choices, 0.6))


def allowed_hosts(context: ExecutionContext, key: ConfigKey = ALLOWED_HOSTS) -> list[str] | None:
    """Return the hosts of an allow-list, None without one."""
    value = key.of(context.config)
    if value is None:
        return None
    if not isinstance(value, list):
        return refuse(context, key, "a list of host names")
    hosts = usable_hosts(context.substitute(entry) for entry in value if entry is not None)
    # An author who writes a list does not mean "all hosts", even if no entry of it can be used.
    return hosts or refuse(context, key, "at least one host name")


def proxy_url(context: ExecutionContext, key: ConfigKey = PROXY) -> str | None:
    """Return the URL of a proxy, None if the key is absent or empty."""
    value = key.of(context.config)
    if value is not None and not isinstance(value, str):
        return refuse(context, key, "a text")
    url = context.substitute(value).strip() if value else ""
    if not url:
        return None
    expected = "a URL such as http://localhost:3128 (http, https, socks4, socks5 or socks5h)"
    try:
        parts = parse_url(url)
    except LocationParseError:
        return refuse(context, key, expected)
    return url if parts.scheme in PROXY_SCHEMES and parts.host else refuse(context, key, expected)


def authored_proxy(context: ExecutionContext, key: ConfigKey = PROXY) -> str:
    """Return the proxy as the author and the configuration wrote it, with a stand-in for the texts of others."""
    return context.substitute_authored(key.of(context.config) or "").strip()


def refuse(context: ExecutionContext, key: ConfigKey, expected: str, suggestion: str = "") -> NoReturn:
    """Raise the error for a value that is not ``expected``. Shows the configured text, never the resolved one."""
    written = repr(key.of(context.config))
    # URLs, headers and similar values may hold passwords.
    secret = key.variables == "full"
    shown = "" if secret else f", got {written if len(written) <= 60 else written[:57] + '...'}"
    raise ConfigValueError(
        f"{context.node_type} node '{context.node_name}': '{key.name}' must be {expected}{shown}", suggestion=suggestion
    )


def _number(context: ExecutionContext, key: ConfigKey, whole: bool) -> float | None:
    value = key.of(context.config)
    return number_from(context.substitute_early(value) if isinstance(value, str) and "{" in value else value, whole)
