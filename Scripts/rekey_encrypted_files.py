"""The older form of the command ``rekey``, with the same arguments: moves stored conversations to another API key."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware import addons
from Middleware.addons.discussions.rekey.rekey_command import run as main
from Middleware.cli.standard_streams import run_command

if __name__ == "__main__":
    addons.load()
    sys.exit(run_command(main))
