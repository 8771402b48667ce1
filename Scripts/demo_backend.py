"""Runs the demo back-end by itself: a stub of an LLM server, without a model.

python Scripts/demo_backend.py [--port N] [--delay SECONDS_PER_WORD]
"""

from __future__ import annotations

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware.addons.init.demo import DEMO_PORT
from Middleware.addons.init.demo_backend import SECONDS_PER_WORD, DemoServer
from Middleware.cli.standard_streams import prepare_streams


def main(arguments: list[str] | None = None) -> int:
    """Run the server from the command line. Return the exit status."""
    parser = argparse.ArgumentParser(description="A stub of an LLM server, without a model.")
    parser.add_argument("--port", type=int, default=DEMO_PORT, help=f"default {DEMO_PORT}")
    parser.add_argument("--delay", type=float, default=SECONDS_PER_WORD, help="seconds before each streamed word")
    options = parser.parse_args(arguments)
    try:
        server = DemoServer(options.port, max(0.0, options.delay))
    except (OSError, OverflowError) as error:
        print(f"Cannot listen on 127.0.0.1:{options.port}: {error}. Choose another one with --port.", file=sys.stderr)
        return 1
    print(f"WilmerAI demo back-end (no language model) at {server.url}; Ctrl-C ends it.", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    prepare_streams()
    sys.exit(main())
