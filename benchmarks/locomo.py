"""Prints the table of ``remembering.py`` for a published set: ``python benchmarks/locomo.py --data FILE``.

Whoever has the set gives its path; nothing of it is here, and nothing is written next to it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.remembering import options_of, report
from benchmarks.remembering_sets import LICENCES, PUBLISHED


def main() -> None:
    parser = options_of(argparse.ArgumentParser(description="Measures searches on a published set of conversations."))
    parser.add_argument("--data", required=True, type=Path, help="the set's file, or its folder (beam)")
    parser.add_argument("--kind", default="locomo", choices=list(PUBLISHED), help="which set it is")
    options = parser.parse_args()
    print(f"{LICENCES[options.kind]}\n")
    report(PUBLISHED[options.kind](options.data), options)


if __name__ == "__main__":
    main()
