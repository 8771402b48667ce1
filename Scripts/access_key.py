"""The older form of the command ``keys``: makes the keys that --accepted-keys-file asks clients for.

python Scripts/access_key.py                           a new key, and the line that lets it in
python Scripts/access_key.py --add FILE [--user NAME]  also appends the line to the list (created if it is missing)
python Scripts/access_key.py --hash [--add FILE ...]   the same for a key that you have: it is asked for, or read
                                                       from standard input
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from Middleware.cli.keys import script as main
from Middleware.cli.standard_streams import run_command

if __name__ == "__main__":
    sys.exit(run_command(main))
