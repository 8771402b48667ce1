"""Runs the demo back-end by itself: a stub of an LLM server, without a model.

python Scripts/demo_backend.py [--port N] [--delay SECONDS_PER_WORD]
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware.addons.init.demo_backend import MARK as MARK
from Middleware.addons.init.demo_backend import MODEL as MODEL
from Middleware.addons.init.demo_backend import DemoServer as DemoServer
from Middleware.addons.init.demo_backend import answer as answer
from Middleware.addons.init.demo_backend import is_running as is_running
from Middleware.addons.init.demo_backend import main as main
from Middleware.addons.init.demo_backend import start as start
from Middleware.cli.standard_streams import prepare_streams

if __name__ == "__main__":
    prepare_streams()
    sys.exit(main())
