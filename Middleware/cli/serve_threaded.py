"""Serving with a thread per connection: ``server.py``, and ``run_eventlet.py`` without its package."""
from __future__ import annotations

import io
import logging
import sys
import threading
import time
from typing import Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from Middleware.api.request_bodies import BODY_LEFT_KEY
from Middleware.cli.json_errors import JsonErrorsMixin
from Middleware.cli.listening import start_listening
from Middleware.cli.startup import SHUTDOWN_SECONDS, Launch, finish_requests
from Middleware.cli.stop_signals import StopSignals

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.2  # for the last bytes of answers that have just ended


class RequestHandler(JsonErrorsMixin, WSGIRequestHandler):
    """No access log, no delay on small writes, one write per chunk, errors as JSON."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536  # werkzeug flushes after each chunk
    timeout = None

    def end_headers(self) -> None:
        """Keep Werkzeug from waiting for the rest of a refused body; ``finish`` throws that away, within limits."""
        super().end_headers()
        if BODY_LEFT_KEY in getattr(self, "environ", ()):
            self.rfile.close()
            self.rfile = io.BytesIO()


class _Server(ThreadedWSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in mid-request is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("A connection failed")


def serve(launch: Launch) -> None:
    """Serve until Ctrl-C or SIGTERM, then let running requests come to their end."""
    start_listening(launch.sock)
    server = _Server(launch.host, launch.port, launch.application, RequestHandler, fd=launch.sock.fileno())
    launch.sock.close()  # the server works on its own duplicate
    acceptor = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="accept", daemon=True)
    acceptor.start()
    launch.announce()
    with StopSignals() as signals:
        while not signals.requested and acceptor.is_alive():
            acceptor.join(0.2)
        server.shutdown()
        server.socket.close()
        helper = threading.Thread(target=finish_requests, args=(SHUTDOWN_SECONDS,), name="shutdown", daemon=True)
        helper.start()
        while helper.is_alive() and not signals.impatient:
            helper.join(0.05)
        time.sleep(FLUSH_SECONDS)
