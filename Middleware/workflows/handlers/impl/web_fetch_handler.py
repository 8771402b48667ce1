"""WebFetch: requests a document from a web server."""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from Middleware.exceptions import ConfigValueError
from Middleware.models.run_step import tool
from Middleware.utilities.config.declarations import ConfigKey
from Middleware.utilities.daemon_threads import DeadlineError, run_interruptible
from Middleware.utilities.http.connection import custom_context
from Middleware.utilities.sensitive_logging_utils import host_in, mask_data, mask_url, sensitive_log
from Middleware.workflows.handlers.base import network_keys as network
from Middleware.workflows.handlers.base.base_workflow_node_handler import BaseHandler
from Middleware.workflows.models.execution_context import ExecutionContext

# What fetches and renders is imported in the functions that do it: most servers have no such node.
if TYPE_CHECKING:
    from Middleware.workflows.tools.web.fetch import WebRequest
    from Middleware.workflows.tools.web.web_output import Stopped

logger = logging.getLogger(__name__)

MAX_RENDER_SECONDS = 60.0
OUTPUT_FORMATS = ("text", "json", "full", "html-stripped")
# A method or the name of a header, as RFC 9110 defines it.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

URL = ConfigKey("url", "str", None, "The URL to request.", "full", required=True, capability="sends requests to")
METHOD = ConfigKey("method", "str", "GET", "HTTP method.", capability="uses the method")
HEADERS = ConfigKey(
    "headers",
    "object",
    None,
    "Headers of the request; variables work in the values.",
    "full",
    capability="sends the headers",
)
BODY = ConfigKey("body", "str", None, "Body of the request, sent as it is.", "full", capability="sends the body")
TIMEOUT = ConfigKey("timeout", "number", 30, "How many seconds connecting and each wait for data may take.", "early")
OUTPUT_FORMAT = ConfigKey(
    "outputFormat",
    "str",
    "text",
    "How much of the answer becomes the output, and in which form.",
    choices=OUTPUT_FORMATS,
)
VERIFY = ConfigKey(
    "verify",
    "bool",
    True,
    "Check the server's certificate.",
    capability="does not check the server's certificate",
    guard="true",
)
CA_BUNDLE = ConfigKey(
    "caBundle",
    "str",
    None,
    "PEM file of the certificates to trust.",
    "full",
    names="file",
    capability="trusts the certificates in",
)
ALLOW_REDIRECTS = ConfigKey(
    "allowRedirects", "bool", True, "Follow redirects.", capability="follows redirects", guard="false"
)


class WebFetchHandler(BaseHandler):
    """Returns the document, or a description of the failure."""

    # GET and HEAD only read; any other method may change data on the server.
    acts = "outside"
    reaches_outside = True

    KEYS = {
        "WebFetch": (
            URL,
            network.ENCODE_URL_VALUES,
            METHOD,
            HEADERS,
            BODY,
            TIMEOUT,
            OUTPUT_FORMAT,
            network.ON_ERROR,
            network.PROXY,
            VERIFY,
            CA_BUNDLE,
            ALLOW_REDIRECTS,
            network.MAX_RESPONSE_BYTES,
            network.BLOCK_PRIVATE_ADDRESSES,
            network.ALLOWED_HOSTS,
        )
    }

    @classmethod
    def is_pure(cls, node: Mapping[str, object]) -> bool:
        return str(METHOD.of(node) or METHOD.default).upper() in ("GET", "HEAD")

    def handle(self, context: ExecutionContext) -> object:
        from Middleware.workflows.tools.web.fetch import WebFetchError, fetch
        from Middleware.workflows.tools.web.web_output import render_failure, render_response

        output_format = network.choice(context, OUTPUT_FORMAT)
        raises = network.choice(context, network.ON_ERROR) == "raise"
        request = _request(context)
        host = host_in(request.url)
        body = None if request.body is None else mask_data(request.body.decode("utf-8", "replace"))
        try:
            # Without the headers, which may hold keys.
            with tool(
                "WebFetch",
                "web",
                {"method": request.method, "url": mask_url(request.url), "body": body},
                **{"server.address": host if host and host in str(URL.of(context.config)).lower() else None},
            ) as step:
                response = fetch(request, context.request.cancel_scope)
                step.attributes["http.status"] = response.status
                text = step.texts["result"] = _rendered(
                    context, lambda stopped: render_response(response, output_format, stopped)
                )
        except WebFetchError as error:
            if raises:
                raise
            logger.warning(
                "WebFetch node '%s' failed (%s); its output describes the failure",
                context.node_name,
                type(error).__name__,
            )
            sensitive_log(logger, logging.DEBUG, "WebFetch failed: %s", error)
            failure = error
            text = _rendered(context, lambda stopped: render_failure(failure, output_format, stopped))
        return self.static_text(context, text)


def _rendered(context: ExecutionContext, render: Callable[[Stopped], str]) -> str:
    # On a helper thread: a large page takes seconds, and a stop must not have to wait for it.
    try:
        return run_interruptible(render, context.request.cancel_scope, MAX_RENDER_SECONDS)
    except DeadlineError:
        from Middleware.workflows.tools.web.fetch import WebFetchTimeoutError

        raise WebFetchTimeoutError("WebFetch could not read the response in time.") from None


def _request(context: ExecutionContext) -> WebRequest:
    from Middleware.workflows.tools.web.fetch import WebRequest

    # Text of a model may hold lone surrogates, which UTF-8 cannot encode: hence "replace" below.
    body = _text(context, BODY)
    return WebRequest(
        url=_url(context),
        method=_method(context),
        headers=_headers(context),
        body=body.encode("utf-8", "replace") if body else None,
        timeout=network.seconds(context, TIMEOUT),
        proxy=(proxy := network.proxy_url(context)),
        authored_proxy=network.authored_proxy(context) if proxy else None,
        tls=_tls(context),
        allow_redirects=network.boolean(context, ALLOW_REDIRECTS),
        max_bytes=network.byte_cap(context, network.MAX_RESPONSE_BYTES),
        block_private=network.boolean(context, network.BLOCK_PRIVATE_ADDRESSES),
        allowed_hosts=network.allowed_hosts(context),
    )


def _url(context: ExecutionContext) -> str:
    from Middleware.workflows.tools.web.url_values import with_encoded_values

    encode = network.boolean(context, network.ENCODE_URL_VALUES)
    value = URL.of(context.config)
    if encode and isinstance(value, str):
        url = with_encoded_values(context.substitute_marked(value))
    else:
        url = _text(context, URL)
    return url.strip() or network.refuse(context, URL, "a URL")


def _text(context: ExecutionContext, key: ConfigKey) -> str:
    value = key.of(context.config)
    if value is not None and not isinstance(value, str):
        network.refuse(context, key, "a text")
    return context.substitute(value) if value else ""


def _method(context: ExecutionContext) -> str:
    method = METHOD.of(context.config) or METHOD.default
    if not isinstance(method, str) or not _TOKEN.fullmatch(method.strip()):
        network.refuse(context, METHOD, "an HTTP method such as GET or POST")
    return str(method).strip().upper()


def _headers(context: ExecutionContext) -> dict[str, str]:
    headers = HEADERS.of(context.config)
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        network.refuse(context, HEADERS, "an object of header names and values")
    for name in headers:
        if not _TOKEN.fullmatch(name):
            network.refuse(context, HEADERS, "an object whose keys are header names")
    return {name: _sendable(context.substitute(value).strip()) for name, value in headers.items() if value is not None}


def _sendable(value: str) -> str:
    # Headers are Latin-1; other characters are sent as their UTF-8 bytes.
    try:
        value.encode("latin-1")
        return value
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode("latin-1")


def _tls(context: ExecutionContext) -> ssl.SSLContext | None:
    if not network.boolean(context, VERIFY):
        logger.warning(
            "WebFetch node '%s' does not check the server's certificate ('verify' is false)", context.node_name
        )
        return custom_context(False, None)
    bundle = _text(context, CA_BUNDLE).strip()
    if not bundle:
        return None
    if not os.path.isfile(bundle):
        network.refuse(context, CA_BUNDLE, "a file that exists")
    try:
        return custom_context(True, bundle)
    except OSError:
        raise ConfigValueError(
            f"WebFetch node '{context.node_name}': 'caBundle' must be a PEM file of certificates"
        ) from None
