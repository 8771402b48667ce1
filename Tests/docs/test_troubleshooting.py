"""Whether the messages that the pages about troubleshooting quote are the program's, and none that matters is missing.

A quoted message stands in bold as inline code, with ``...`` for what varies.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from Scripts.generate import generated_files, troubleshooting_index
from Tests.tables import check_all, table

PROJECT = Path(__file__).resolve().parents[2]
PAGES = sorted((PROJECT / "Docs/User/troubleshooting").glob("*.md"))
FOLDERS = ("Middleware", "Scripts")
SHELL_SCRIPTS = ("Scripts/environment.sh", "run_windows.bat")
GAP = "\0"
"""Stands for what a source text fills in."""
FEWEST_LETTERS = 10
_FORMAT = re.compile(r"%(?:\.\d+)?[sdrgf]")
_WORDS = re.compile(r"[A-Za-z']+")

NEEDED_CALLS = (
    "StartError",
    "ClientError",
    "HttpProblem",
    "BackendConnectionError",
    "BackendTimeoutError",
    "BackendStatusError",
    "GateTimeoutError",
    "FailoverError",
    "_end",
)
NEEDED_RETURNS = {
    "Middleware/cli/serving/listening.py": ("_explain",),
    "Middleware/cli/commands.py": ("no_such_command",),
    "Middleware/cli/served_users.py": ("_folder_problem",),
    "Middleware/llmapis/backend_errors.py": ("_advice", "_container_hint", "_hint"),
}
OTHER_COMMANDS = ("Middleware/addons/init/", "Middleware/addons/workflow_tests/")
"""What they say is told where they are described."""


def quoted() -> list[str]:
    return [
        " ".join(match[2].split())
        for page in PAGES
        for match in troubleshooting_index.MESSAGE.finditer(page.read_text(encoding="utf-8"))
        if match[2]
    ]


def flat(node: ast.expr) -> str:
    """The constant text of a string expression, with gaps; just a gap for what is no text."""
    if isinstance(node, ast.Constant):
        return _FORMAT.sub(GAP, node.value) if isinstance(node.value, str) else GAP
    if isinstance(node, ast.JoinedStr):
        return "".join(flat(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return flat(node.left) + flat(node.right)
    return GAP


def strings_in(tree: ast.AST) -> Iterator[str]:
    """All string expressions, flattened; parts of a longer one also by themselves."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
            text = flat(node)
            if text.strip(GAP):
                yield text


@cache
def sources() -> dict[str, ast.Module]:
    paths = [*PROJECT.glob("*.py"), *(path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py"))]
    return {path.relative_to(PROJECT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def source_strings() -> tuple[str, ...]:
    found = dict.fromkeys(text for tree in sources().values() for text in strings_in(tree))
    scripts = [line for name in SHELL_SCRIPTS for line in (PROJECT / name).read_text(encoding="utf-8").splitlines()]
    return (*found, *scripts)


def parts_of(message: str) -> list[str]:
    return [part.strip() for part in message.split("...") if part.strip()]


def says(source: str, message: str) -> bool:
    """Whether the constant parts of a message stand in a source string, in order, with something filled in between."""
    parts = parts_of(message)
    if any(part not in source for part in parts):
        return False
    return re.search(f"[^{GAP}]*{GAP}.*?".join(map(re.escape, parts)), source, re.DOTALL) is not None


@table("message", quoted() or [""])
def test_the_program_says_so(message: str) -> None:
    assert len("".join(_WORDS.findall(message))) >= FEWEST_LETTERS, f"'{message}' could be anything"
    longest = max(parts_of(message), key=len)
    candidates = [source for source in source_strings() if longest in source]
    assert any(says(source, message) for source in candidates), f"nowhere in the program: {message}"


def needed() -> Iterator[tuple[str, str]]:
    """Where, and the text, of every message that stops a start or a request, and of every error in the log."""
    for name, tree in sources().items():
        if not name.startswith("Middleware/") or name.startswith(OTHER_COMMANDS):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_needed(ast.unparse(node.func)):
                yield from ((f"{name}:{node.lineno}", text) for text in map(flat, node.args) if _counts(text))
            elif isinstance(node, ast.FunctionDef) and node.name in NEEDED_RETURNS.get(name, ()):
                yield from (
                    (f"{name}:{part.lineno}", text)
                    for part in ast.walk(node)
                    if isinstance(part, ast.Return) and part.value is not None
                    for text in _returned(part.value)
                )


def _is_needed(function: str) -> bool:
    return function in ("logger.error", "logger.exception") or function.rpartition(".")[2] in NEEDED_CALLS


def _returned(value: ast.expr) -> list[str]:
    whole = [flat(value)] if not isinstance(value, ast.Call) else []
    texts = (
        whole if whole and _counts(whole[0]) else [flat(part) for part in ast.walk(value) if isinstance(part, ast.expr)]
    )
    return [text for text in texts if _counts(text)]


def _counts(text: str) -> bool:
    return len(_WORDS.findall(text)) >= 3


def test_the_pages_have_what_stops_a_start_or_a_request() -> None:
    def check(item: tuple[str, str]) -> None:
        assert any(says(item[1], message) for message in quoted()), f"on no page about troubleshooting: {item[1]!r}"

    # Found here, not when the tests are collected: every process of a run does that.
    check_all(list(needed()), check, lambda item: item[0])


def test_a_message_that_is_not_the_programs_is_found() -> None:
    assert says(f"Port {GAP} on {GAP} is already in use. Stop", "Port ... on ... is already in use.")
    assert not says(f"Port {GAP} on {GAP} is in use", "Port ... on ... is already in use.")
    assert not says("first second", "second ... first") and not says("first, second", "first ... second")
    assert flat(ast.parse("f'a {b} c' + 'd %s e'", mode="eval").body) == f"a {GAP} cd {GAP} e"
    assert len(list(needed())) > 50


def test_the_index_has_every_message_of_the_pages_and_is_current() -> None:
    rows = troubleshooting_index.PATH.read_text(encoding="utf-8").splitlines()
    missing = [message for message in quoted() if not any(row.startswith(f"| `{message}` |") for row in rows)]

    assert not missing
    assert not generated_files.stale_files(troubleshooting_index.files()), "run: python -m Scripts.generate"


def test_the_index_has_messages_examples_and_symptoms_in_the_order_of_their_letters(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "# Troubleshooting: a page\n\nIntroduction.\n\n## Where, and why?\n\n"
        "**`... second\nmessage`**, **`'first' | message`** Text with **emphasis**. "
        '**"404 third", "a fifth".** More.\n\n'
        "**It is slow.** Text, and **`fourth message`**.\n\nA paragraph with **emphasis** alone.\n\n"
        "| Where | Message |\n|---|---|\n| `a key` | `sixth one`, `key` |\n\n"
        "| Key | Meaning |\n|---|---|\n| `a b` | `c d` |\n",
        encoding="utf-8",
    )

    rows = [line for line in troubleshooting_index.index(tmp_path / "page.md").splitlines() if line.startswith("| ")]

    where = f"[a page: Where, and why?]({troubleshooting_index.PAGES.name}/page.md#where-and-why)"
    texts = (
        "It is slow",
        "`a fifth`",
        "`'first' \\| message`",
        "`fourth message`",
        "`... second message`",
        "`sixth one`",
        "`404 third`",
    )
    assert [row for row in rows if where in row] == [f"| {text} | {where} |" for text in texts]
    assert len(rows) == len(texts) + 2, "and the titles of both tables"


def test_a_page_without_a_title_is_named(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("## Heading\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"page\.md does not begin with a title"):
        troubleshooting_index.index(tmp_path / "page.md")
