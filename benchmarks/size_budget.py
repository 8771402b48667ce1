"""How large each room of the program is, in lines of pure code: without blank lines, comments and docstrings.

    python benchmarks/size_budget.py             print the figures and the recorded ones
    python benchmarks/size_budget.py --check     also fail if a room is above its limit, or has none
    python benchmarks/size_budget.py --update    record the figures of rooms that are above their limit, new or smaller
    python benchmarks/size_budget.py --table     print lines, pure code and files as a table in Markdown

A room is a folder of ``Middleware``, or of ``Middleware/addons``; the three that hold what all others share are one.
The limit is 2 % above what is recorded in ``benchmarks/size.json``, and at least 30 lines. ``--root`` measures another
checkout, with the figures that are recorded there.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
RECORDED = "benchmarks/size.json"
UPDATE = "python benchmarks/size_budget.py --update"
PACKAGE = "Middleware"
ADD_ONS = "addons"
SHARED = ("models", "exceptions", "common")
# A room may grow by this part of its size, and the smallest by so many lines.
TOLERANCE, LEAST = 0.02, 30

_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Size:
    """What is in a room."""

    lines: int = 0
    code: int = 0
    files: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.lines + other.lines, self.code + other.code, self.files + other.files)


def pure_code(source: str) -> int:
    """Return the number of lines that hold more than blanks, comments and docstrings. Raises SyntaxError."""
    docstrings = set(_docstring_lines(ast.parse(source)))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE and not (token.type == tokenize.STRING and token.start[0] in docstrings):
            found.update(range(token.start[0], token.end[0] + 1))
    # A blank line in a string is one, however this Python splits an f-string into tokens.
    return sum(1 for number, line in enumerate(io.StringIO(source), 1) if number in found and line.strip())


def _docstring_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            yield from range(text.lineno, (text.end_lineno or text.lineno) + 1)


def room_of(path: str) -> str:
    """Return the room of a file by its path below ``Middleware``, with slashes."""
    first, *more = path.split("/")
    if first in SHARED:
        return ", ".join(SHARED)
    if first == ADD_ONS and len(more) > 1:
        return f"{ADD_ONS}/{more[0]}"
    return first if more else PACKAGE


def measure(root: Path) -> dict[str, Size]:
    """Return the size of each room of a checkout. Raises FileNotFoundError if it has no ``Middleware``."""
    package = root / PACKAGE
    sizes: dict[str, Size] = {}
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        room = room_of(path.relative_to(package).as_posix())
        sizes[room] = sizes.get(room, Size()) + Size(len(source.splitlines()), pure_code(source), 1)
    if not sizes:
        raise FileNotFoundError(f"{package} has no Python files")
    return dict(sorted(sizes.items()))


def limit_of(recorded: int) -> int:
    return recorded + max(LEAST, int(TOLERANCE * recorded))


def failures(recorded: Mapping[str, int], measured: Mapping[str, Size]) -> list[str]:
    """Return a sentence for each room that is above its limit or has none."""
    found = []
    for room, size in measured.items():
        if room not in recorded:
            found.append(f"{room}: {size.code} lines of code, and no row in {RECORDED}")
        elif size.code > (limit := limit_of(recorded[room])):
            found.append(
                f"{room}: {size.code} lines of code, {size.code - limit} above the limit of {limit}; "
                f"{recorded[room]} are recorded"
            )
    return found


def shrunk(recorded: Mapping[str, int], measured: Mapping[str, Size]) -> list[str]:
    """Return a line for each room that is smaller than recorded, or gone."""
    return [
        f"{room}: {measured.get(room, Size()).code} lines of code, {lines} are recorded"
        for room, lines in recorded.items()
        if measured.get(room, Size()).code < lines
    ]


def updated(recorded: Mapping[str, int], measured: Mapping[str, Size]) -> dict[str, int]:
    """Return the figures to record. Growth within the limit is not taken over: many small steps need a reason, too."""
    return {
        room: recorded[room]
        if room in recorded and recorded[room] <= size.code <= limit_of(recorded[room])
        else size.code
        for room, size in measured.items()
    }


def load(path: Path) -> dict[str, int]:
    """Return what is recorded, nothing without a file. Raises ValueError if it is damaged."""
    if not path.exists():
        return {}
    recorded = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(recorded, dict) or not all(type(lines) is int for lines in recorded.values()):
        raise ValueError("expected an object with a number of lines for each room")
    return recorded


def show(recorded: Mapping[str, int], measured: Mapping[str, Size]) -> None:
    """Print a line for each room."""
    print(f"{'':28} {'code':>7} {'recorded':>9} {'limit':>7}")
    for room, size in measured.items():
        lines = recorded.get(room)
        known = ("-", "-") if lines is None else (str(lines), str(limit_of(lines)))
        print(f"{room:28} {size.code:7} {known[0]:>9} {known[1]:>7}")


def markdown(measured: Mapping[str, Size]) -> str:
    """Return the table of rooms."""
    rows = [*measured.items(), ("**sum**", sum(measured.values(), Size()))]
    return "\n".join(
        [
            "| Room | Lines | Pure code | Files |",
            "|---|--:|--:|--:|",
            *("| {} | {:,} | {:,} | {} |".format(room, *astuple(size)) for room, size in rows),
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit status 1 if a room is above its limit or has none")
    parser.add_argument("--update", action="store_true", help="record the figures")
    parser.add_argument("--table", action="store_true", help="print a table in Markdown")
    parser.add_argument("--root", type=Path, default=PROJECT, help="another checkout")
    options = parser.parse_args(argv)
    path = options.root / RECORDED
    try:
        recorded = load(path)
    # After a merge with a conflict, for example.
    except ValueError as error:
        print(f"{path} cannot be read: {error}. Run: {UPDATE}")
        if not options.update:
            return 1
        recorded = {}
    measured = measure(options.root)
    if options.table:
        print(markdown(measured))
    else:
        show(recorded, measured)
    if options.update:
        figures = json.dumps(updated(recorded, measured), indent=2)
        path.write_text(figures + "\n", encoding="utf-8", newline="\n")
        print(f"recorded in {path}")
        return 0
    failed = failures(recorded, measured)
    if options.check and failed:
        print("\n".join(["TOO LARGE:", *failed]))
        print(
            f"Take as many lines out of the room, or run {UPDATE} in the commit that grows it, and give the reason "
            "in the commit's body. A new room gets its row in the same way."
        )
        return 1
    if options.check and (smaller := shrunk(recorded, measured)):
        print(
            "\n".join(
                ["Smaller than recorded; this can grow again unnoticed until it is recorded with", UPDATE, *smaller]
            )
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
