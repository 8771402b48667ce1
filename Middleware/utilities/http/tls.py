"""The TLS settings and the trusted certificates."""
from __future__ import annotations

import functools
import os
import ssl

import certifi


def default_context() -> ssl.SSLContext:
    """Trust the certificates of the system and certifi, or those of the bundle that the environment names."""
    return _context(os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or certifi.where())


def custom_context(verify: bool, ca_bundle: str | None) -> ssl.SSLContext | None:
    """Return TLS settings that differ from the default, else None. Raises OSError for a bundle that cannot be used."""
    if not verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=ca_bundle) if ca_bundle else None


# Creating a context takes about 20 ms. There is more than one bundle only if the environment changes, as in tests.
@functools.lru_cache(maxsize=4)
def _context(bundle: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(**{"capath" if os.path.isdir(bundle) else "cafile": bundle})
    context.set_alpn_protocols(["http/1.1"])
    return context
