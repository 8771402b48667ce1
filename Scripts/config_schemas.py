"""Sets up VS Code for a folder with a configuration of your own.

    python -m Scripts.config_schemas --vscode FOLDER

FOLDER is the folder that VS Code opens: a config root (the folder with Users, Workflows and so on), or one that has it
as Configs or Public/Configs. Its other settings stay. ``python -m Scripts.generate`` writes the schemas themselves.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from Middleware.cli.standard_streams import run_command
from Scripts.generate.config_schemas import set_up_vscode


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--vscode", metavar="FOLDER", type=Path, required=True, help="set up VS Code for the configuration in FOLDER"
    )
    try:
        print(f"written: {set_up_vscode(parser.parse_args(argv).vscode.resolve())}")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
