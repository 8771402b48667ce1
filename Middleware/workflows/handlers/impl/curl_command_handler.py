"""CurlCommand: runs the system's curl."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from Middleware.exceptions import ConfigValueError
from Middleware.models.cancel_scope import CancelScope
from Middleware.models.run_step import Step, tool
from Middleware.utilities.command_lines import command as command_line
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.daemon_threads import DeadlineError, run_interruptible
from Middleware.utilities.sensitive_logging_utils import sensitive_log
from Middleware.utilities.templates.substitution import VALUE_BEGINS, VALUE_ENDS, without_marks, without_values
from Middleware.utilities.text_utils import without_surrogates
from Middleware.workflows.handlers.base import network_keys as network
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext
from Middleware.workflows.tools.curl.options import (
    address_problem,
    has_option,
    injection_problem,
    route_problem,
    with_encoded_urls,
    without_last_breaks,
    without_secrets,
)
from Middleware.workflows.tools.curl.tool import CurlError, CurlExitError, CurlResult, run_curl

logger = logging.getLogger(__name__)

OUTPUT_FORMATS = ("stdout", "stdout+stderr", "full")

ARGS = ConfigKey(
    "args",
    "list",
    None,
    "Arguments of curl, one process argument per item.",
    "full",
    required=True,
    capability="runs curl with",
)
TIMEOUT = ConfigKey("timeout", "number", 30, "How many seconds curl may take in all.", "early")
OUTPUT_FORMAT = ConfigKey(
    "outputFormat", "str", "stdout", "How much of the result becomes the output.", choices=OUTPUT_FORMATS
)
BLOCK_OPTION_INJECTION = ConfigKey(
    "blockOptionInjection",
    "bool",
    False,
    "Refuse an item that starts with - or @ only because of a variable, and every option that a variable brings.",
    in_new=True,
    capability="lets variables be options of curl",
    guard="true",
)
ALLOW_SCHEME_INJECTION = ConfigKey(
    "allowSchemeInjection",
    "bool",
    False,
    "Let variables provide URL schemes other than http and https.",
    capability="lets variables choose the scheme of a URL",
    guard="false",
)


class CurlCommandHandler(BaseHandler):
    """Returns curl's output, or a description of the failure."""

    # Its arguments may use any method, and name files to write.
    acts = "outside"
    reaches_outside = True

    KEYS = {
        "CurlCommand": (
            ARGS,
            TIMEOUT,
            OUTPUT_FORMAT,
            network.ON_ERROR,
            network.PROXY,
            network.MAX_RESPONSE_BYTES,
            network.BLOCK_PRIVATE_ADDRESSES,
            network.ALLOWED_HOSTS,
            network.ENCODE_URL_VALUES,
            BLOCK_OPTION_INJECTION,
            ALLOW_SCHEME_INJECTION,
        )
    }

    def handle(self, context: ExecutionContext) -> object:
        output_format = network.choice(context, OUTPUT_FORMAT)
        raises = network.choice(context, network.ON_ERROR) == "raise"
        timeout = network.seconds(context, TIMEOUT)
        max_bytes = network.byte_cap(context, network.MAX_RESPONSE_BYTES)
        proxy = network.proxy_url(context)
        args = _args(context)
        guarded = _guard(context, args, proxy, timeout)
        command = [*_leading(args, max_bytes, guarded, proxy), *args]
        sensitive_log(logger, logging.DEBUG, "CurlCommand: curl %s", command)
        try:
            with tool("curl", "curl", command_line(without_secrets(command))) as step:
                result = _run(command, timeout, max_bytes, context.request.cancel_scope, not guarded, step)
            text = _render(result, output_format)
        except CurlError as error:
            if raises:
                raise
            logger.warning(
                "CurlCommand node '%s' failed (%s); its output describes the failure",
                context.node_name,
                type(error).__name__,
            )
            text = _render_failure(error, output_format)
        return self.static_text(context, text)


def _run(
    command: Sequence[str],
    timeout: float,
    max_bytes: int | None,
    scope: CancelScope,
    use_environment_proxies: bool,
    step: Step,
) -> CurlResult:
    """Return what curl wrote, which is noted in ``step``, also if it failed."""
    try:
        result = run_curl(command, timeout, max_bytes, scope, use_environment_proxies=use_environment_proxies)
    except CurlError as error:
        step.attributes["exit_status"], step.texts["result"] = error.result.returncode, error.result.stdout
        raise
    step.attributes["exit_status"], step.texts["result"] = result.returncode, result.stdout
    return result


def _args(context: ExecutionContext) -> list[str]:
    """Return the items with variables filled in, unless that made a forbidden option of one."""
    items = ARGS.of(context.config)
    if not isinstance(items, list) or not items:
        network.refuse(context, ARGS, "a list of curl's arguments")
    marked = [context.substitute_marked(item) if isinstance(item, str) else str(item) for item in items]
    raw = [_template(item) for item in marked]
    filled = without_last_breaks(_filled(context, marked))
    problem = next(
        (
            f"args[{index}]: an argument cannot hold a NUL character"
            for index, item in enumerate(filled)
            if "\0" in item
        ),
        None,
    )
    problem = problem or injection_problem(
        raw, filled, network.boolean(context, BLOCK_OPTION_INJECTION), network.boolean(context, ALLOW_SCHEME_INJECTION)
    )
    if problem:
        raise ConfigValueError(f"CurlCommand node '{context.node_name}': {problem}")
    return filled


def _template(marked: str) -> str:
    """Return an item with a placeholder for each value: what its author wrote, also where a template chose it."""
    text, values = without_values(marked)
    # A template may have cut a mark off, and with it the knowledge of what is whose.
    whole = text.count(VALUE_BEGINS) == len(values) and VALUE_ENDS not in text
    return text.replace(VALUE_BEGINS, "{x}") if whole else "{x}"


def _filled(context: ExecutionContext, marked: Sequence[str]) -> list[str]:
    """Return the items with variables filled in, those in URLs encoded."""
    filled = [without_surrogates(item) for item in marked]
    encode = network.boolean(context, network.ENCODE_URL_VALUES)
    return with_encoded_urls(filled) if encode else [without_marks(item) for item in filled]


def _guard(context: ExecutionContext, args: Sequence[str], proxy: str | None, timeout: float) -> bool:
    """Return whether an address guard is active. Raises ConfigValueError if it refuses a URL, or a way to a server."""
    block_private = network.boolean(context, network.BLOCK_PRIVATE_ADDRESSES)
    hosts = network.allowed_hosts(context)
    if not block_private and hosts is None:
        return False
    authored = [context.substitute_authored(str(item)) for item in ARGS.of(context.config)]
    if proxy:
        args, authored = ["-x", proxy, *args], ["-x", network.authored_proxy(context), *authored]
    reason = _guard_reason(args, authored, block_private, hosts, context.request.cancel_scope, timeout)
    if reason:
        raise ConfigValueError(
            f"CurlCommand node '{context.node_name}' blocked a request to a disallowed address: {reason}."
        )
    return True


def _guard_reason(
    args: Sequence[str],
    authored: Sequence[str],
    block_private: bool,
    hosts: Sequence[str] | None,
    scope: CancelScope,
    timeout: float,
) -> str | None:
    def judge(_: object) -> str | None:
        return address_problem(args, block_private, hosts) or route_problem(args, authored, block_private, hosts)

    # On a helper thread: name resolution cannot be interrupted, only abandoned.
    try:
        return run_interruptible(judge, scope, timeout)
    except DeadlineError:
        return "its host cannot be resolved in time"


def _leading(args: Sequence[str], max_bytes: int | None, guarded: bool, proxy: str | None) -> list[str]:
    """Return the options that the node puts before the author's."""
    options: list[str] = []
    if max_bytes is not None and not has_option(args, "max-filesize"):
        options += ["--max-filesize", str(max_bytes)]
    if guarded and not has_option(args, "max-redirs"):
        options += ["--max-redirs", "0"]
    return [*options, "-x", proxy] if proxy else options


def _render(result: CurlResult, output_format: str) -> str:
    if output_format == "full":
        return json.dumps(
            {"stdout": result.stdout, "stderr": result.stderr, "returncode": result.returncode}, ensure_ascii=False
        )
    return result.stdout + result.stderr if output_format == "stdout+stderr" else result.stdout


def _render_failure(error: CurlError, output_format: str) -> str:
    if isinstance(error, CurlExitError):
        return _render(error.result, output_format)
    if output_format != "full":
        return str(error)
    return json.dumps(
        {"stdout": error.result.stdout, "stderr": error.result.stderr, "returncode": None, "error": str(error)},
        ensure_ascii=False,
    )
