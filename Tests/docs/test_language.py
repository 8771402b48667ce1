"""Pages, messages, docstrings and comments avoid the words that the glossary replaces: each was once found in one."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from Tests.docs.markdown import Page
from Tests.docs.pages import all_pages
from Tests.integration.launcher import PROJECT
from Tests.tables import table


def _any_of(*expressions: str) -> re.Pattern[str]:
    return re.compile(r"\b(?:" + "|".join(expressions).replace(" ", r"\s+") + r")\b", re.IGNORECASE)


ANYWHERE = (
    "besides?",
    "shall",
    "anew",
    "whoever",
    "nobody",
    "somebody",
    "meanwhile",
    "in vain",
    "signs? of life",
    "tells? the same",
    "another one for each",
    "which are others",
    "to who",
    "does as well",
    "so it looks",
    "nothing is to be",
    "(?:is|are) said by",
    "(?:is|are) to be done",
    "goes to the console",
    "on the console",
)
IN_CODE = (
    "told",
    "complains?",
    "mend(?:s|ed)?",
    "a person",
    "st(?:and|ands|ood|anding) in for",
    "(?:is|are|was|were) (?:(?-i:none)|said)",
    "(?:is|are) to be",
    r"(?<!there\s)(?:is|are|was|were) no(?! longer| more)",
)
"""Also avoided in docstrings, comments and messages; in pages, some of these are the plainest words."""
IN_NAMES = frozenset(
    "anew atlas beside besides door guest harm hurry lobby mend nobody seat shall somebody stranger told verdict "
    "whoever wishes".split()
)
"""Words that no function, class, argument or variable has in its name."""
_IN_PAGES, _IN_CODE = _any_of(*ANYWHERE), _any_of(*ANYWHERE, *IN_CODE)
# Buttons of the run console, as they are written on it, and messages of the program, which other tests compare.
_QUOTED = re.compile(r"\*\*[^*]+\*\*|\"[^\"\n]{1,80}\"")
_CODE = re.compile(r"(`+).+?\1", re.DOTALL)
_CAPITAL, _WORD = re.compile("([A-Z])"), re.compile("[a-z]+")
GLOSSARY = "Docs/Developer/glossary.md"
"""The page that names the expressions."""
ALLOWED = {
    # What swapStandIn names.
    "Middleware/addons/check/endpoint_check.py": ("the endpoints stand in for each other",),
    "Middleware/llmapis/call_queue.py": ("the endpoint that may stand in for its own",),
    # The specification gives the words of the message.
    "Middleware/llmapis/handlers/base/stream_ends.py": ("cannot be told from a whole one",),
    "Middleware/llmapis/llm_api.py": ("stands in for '%s'",),
    "Middleware/services/memory/recall.py": ("What fits best was said by",),
    "Middleware/workflows/tools/memory/following.py": (" written anew",),
    # The forms of an irregular verb.
    "Middleware/utilities/stop_words.py": ("tell told",),
    # Prompts: another word may change what models answer.
    "Middleware/services/memory/compactor_settings.py": ("for somebody who goes on",),
    "Middleware/workflows/tools/memory/condensation.py": ("stands in for all of them",),
    "Middleware/workflows/tools/memory/vector_prompts.py": (
        "what somebody who goes on",
        "that somebody would type",
        "told only Tobias",
    ),
}
"""Texts of modules that may contain such a word, with the reason above them."""


def _findings(text: str, avoided: re.Pattern[str]) -> list[str]:
    return [" ".join(text[max(0, match.start() - 40) : match.end() + 20].split()) for match in avoided.finditer(text)]


def _in_page(text: str) -> list[str]:
    return _findings(_QUOTED.sub("", _CODE.sub("", text)), _IN_PAGES)


def _texts(source: str) -> Iterator[str]:
    """The comments, docstrings and other strings of a module, as one text each; names as code are left out."""
    comments = [
        token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type == tokenize.COMMENT
    ]
    yield _CODE.sub("", "\n".join(comment.string.lstrip("# ") for comment in comments))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _CODE.sub("", node.value)


def _names(source: str) -> Iterator[str]:
    """The names that a module defines or sets."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def _avoided_names(source: str) -> list[str]:
    return sorted(
        {name for name in _names(source) if IN_NAMES & set(_WORD.findall(_CAPITAL.sub(r"_\1", name).lower()))}
    )


def _modules() -> list[Path]:
    return [
        *PROJECT.glob("*.py"),
        *(path for name in ("Middleware", "Scripts") for path in (PROJECT / name).rglob("*.py")),
    ]


@table("page", [page for name, page in all_pages().items() if name != GLOSSARY], ids=str)
def test_pages_use_plain_words(page: Page) -> None:
    assert not _in_page(page.prose), "the glossary says what to write instead"


@table("module", sorted(path.relative_to(PROJECT).as_posix() for path in _modules()))
def test_modules_use_plain_words(module: str) -> None:
    source = (PROJECT / module).read_text(encoding="utf-8")
    text = "\n|\n".join(_texts(source))  # no expression goes on in the next text
    for allowed in ALLOWED.get(module, ()):
        assert re.search(allowed, text), "the list of what is allowed names a text that is not there"
        text = text.replace(allowed, "")
    assert not _findings(text, _IN_CODE), "the glossary says what to write instead"


@table("module", sorted(path.relative_to(PROJECT).as_posix() for path in _modules()))
def test_names_use_plain_words(module: str) -> None:
    assert not _avoided_names((PROJECT / module).read_text(encoding="utf-8"))


def test_an_avoided_word_is_found_in_prose_alone() -> None:
    text = 'It is\nbeside the file. **Save beside**, "what is to be done" and `nobody` are quoted. This is to be\ndone.'
    assert len(_in_page(text)) == 2


def test_an_avoided_word_is_found_in_a_docstring_a_comment_and_a_message() -> None:
    source = '"""Nobody\nasks for ``nobody``."""\nnobody = f"{1} is no\\nnumber"  # told\n'
    found = [word for text in _texts(source) for word in _findings(text, _IN_CODE)]
    assert found == ["told", "Nobody asks for .", "is no number"]


def test_an_avoided_word_is_found_in_names() -> None:
    source = "def harm_of(beside):\n    self._told, harmless = 1, 2\n    return stranger\nclass DoorOpener: pass\n"
    assert _avoided_names(source) == ["DoorOpener", "_told", "beside", "harm_of"]
