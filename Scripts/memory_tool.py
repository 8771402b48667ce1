"""The older form of the command ``memory``, with the same arguments: looks after stored conversations."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware.cli import prerequisites

if __name__ == "__main__":
    prerequisites.require_python()
    prerequisites.require_packages()

from Middleware import addons
from Middleware.addons.discussions.memory_command import run as main
from Middleware.cli.standard_streams import run_command

if __name__ == "__main__":
    addons.load()
    sys.exit(run_command(main))
