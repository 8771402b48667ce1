"""Writes every generated file whose source has changed, or says which ones are not current.

    python -m Scripts.generate            write what is not current
    python -m Scripts.generate --check    write nothing; exit status 1 if a file is not current

The pages of node types and their index, the index of messages, the reference pages, the JSON Schemas with the settings
for VS Code, and the table of dialects, for which a server runs for a few seconds. The lock files need the network and
have a command of their own: ``python -m Scripts.generate.lock_requirements``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from Middleware.cli.standard_streams import run_command
from Middleware.workflows.handlers.registry import node_types
from Scripts.generate import (
    config_schemas,
    configuration_reference,
    dialect_table,
    generated_files,
    node_reference,
    settings_reference,
    troubleshooting_index,
)


def files() -> dict[Path, str]:
    """Everything that is generated: path to content."""
    return {
        **node_reference.files(node_reference.PAGES),
        **settings_reference.files(),
        **configuration_reference.files(),
        **config_schemas.files(),
        **dialect_table.files(),
        **troubleshooting_index.files(),
    }


def report_unknown_pages(pages: Path) -> int:
    """Name the pages in the folder of node pages that belong to no type. Returns the exit status."""
    unknown = node_reference.strangers(pages)
    for path in unknown:
        near = get_close_matches(path.stem, node_types(), 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        print(f"no node type of this name: {path}{hint}", file=sys.stderr)
    return int(bool(unknown))


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m Scripts.generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if a file is not current")
    status = generated_files.write_or_check(files(), parser.parse_args(argv).check)
    return status | report_unknown_pages(node_reference.PAGES)


if __name__ == "__main__":
    sys.exit(run_command(main))
