"""The pages avoid words that the glossary replaces: each expression here was once found in a page."""

from __future__ import annotations

import re

from Tests.docs.markdown import Page
from Tests.docs.pages import all_pages
from Tests.tables import table

_AVOIDED = re.compile(
    r"\b(?:"
    + "|".join(
        (
            "besides?",
            "shall",
            "anew",
            "whoever",
            "nobody",
            "somebody",
            "meanwhile",
            "in vain",
            "tells? the same",
            "another one for each",
            "which are others",
            "to who",
            "(?:is|are) said by",
            "(?:is|are) to be done",
            "goes to the console",
            "on the console",
        )
    ).replace(" ", r"\s+")
    + r")\b",
    re.IGNORECASE,
)
# Buttons of the run console, as they are written on it, and messages of the program, which other tests compare.
_QUOTED = re.compile(r"\*\*[^*]+\*\*|\"[^\"\n]{1,80}\"")
GLOSSARY = "Docs/Developer/glossary.md"
"""The page that names the expressions."""


def _findings(text: str) -> list[str]:
    plain = _QUOTED.sub("", re.sub(r"(`+).+?\1", "", text, flags=re.DOTALL))
    return [
        " ".join(plain[max(0, match.start() - 40) : match.end() + 20].split()) for match in _AVOIDED.finditer(plain)
    ]


@table("page", [page for name, page in all_pages().items() if name != GLOSSARY], ids=str)
def test_pages_use_plain_words(page: Page) -> None:
    assert not _findings(page.prose), "the glossary says what to write instead"


def test_an_avoided_word_is_found_in_prose_alone() -> None:
    text = 'It is\nbeside the file. **Save beside**, "what is to be done" and `nobody` are quoted. This is to be\ndone.'
    assert len(_findings(text)) == 2
