"""The architecture, the pages of add-ons and the table of what is where name modules and names that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache

from Tests.docs.markdown import Page
from Tests.docs.pages import all_pages, moved_names
from Tests.integration.launcher import PROJECT
from Tests.tables import table

PAGE = all_pages()["Docs/Developer/architecture.md"]
INDEX = all_pages()["Docs/Developer/where-to-change.md"]
FLOORS = ("addons", "cli", "api", "workflows", "services", "llmapis", "utilities", "models", "exceptions", "common")
_FILE = re.compile(r"[\w./-]+\.py|[\w.]+(?:/[\w.-]+)+/?")
_NAME = re.compile(r"[A-Z][a-z]+[A-Z]\w*|[a-z]+(?:_[a-z]+)+")
_CONSTANT = re.compile(r"[A-Z]+(?:_[A-Z]+)*")
INSIDE = [
    *(all_pages()[f"Docs/Developer/{name}.md"] for name in ("requests", "memory", "listeners", "check", "records")),
    *(all_pages()[f"Docs/Developer/{name}.md"] for name in ("console", "postgres")),
]
"""The pages that say how something works inside."""
ADD_ONS = {page.name.split("/")[2]: page for page in all_pages().values() if page.name.startswith("Middleware/addons/")}
GLOSSARY = all_pages()["Docs/Developer/glossary.md"]
EXPLAINED = [PAGE, *INSIDE, *ADD_ONS.values()]
MOST_LINES_OF_A_FUNCTION = 48
MOST_LINES_OF_AN_ADD_ON = 15
NAMES_OF_ADD_ONS = sorted(path.parent.name for path in (PROJECT / "Middleware/addons").glob("*/__init__.py"))
FILES = sorted(
    {code.text for page in (*EXPLAINED, GLOSSARY, INDEX) for code in page.codes if _FILE.fullmatch(code.text)}
)
TWINS = {
    "__init__.py": "each package has one",
    "addresses.py": "the IP addresses that count as local, and the addresses of calls",
    "addon.py": "each add-on has one, which starts read",
    "messages.py": "the two ends of one conversion, both of the spine",
    "openai_api_handler.py": "a client's dialect and a back-end's; the design documents name both",
    "store.py": "the files of the configuration, and the memories of one discussion",
}
"""The only names that several modules have, with the reason."""
ROWS = sorted({code.line for code in INDEX.codes})
NAMES = sorted({code.text for page in EXPLAINED for code in page.codes if _NAME.fullmatch(code.text)})


@cache
def sources() -> dict[str, str]:
    """The text of every module, by its path."""
    found = [
        *PROJECT.glob("*.py"),
        *(path for folder in ("Middleware", "Scripts") for path in sorted((PROJECT / folder).rglob("*.py"))),
    ]
    return {path.relative_to(PROJECT).as_posix(): path.read_text(encoding="utf-8") for path in found}


def test_a_module_has_its_name_alone() -> None:
    names = Counter(path.rpartition("/")[2] for path in sources() if path.startswith("Middleware/"))
    assert {name for name, count in names.items() if count > 1} == set(TWINS)


@table("name", FILES)
def test_rooms(name: str) -> None:
    """A path is relative to the project or to ``Middleware``; a file by its name alone is some module."""
    places = [PROJECT / name, PROJECT / "Middleware" / name]
    if "/" not in name:
        places += [PROJECT / path for path in sources() if path.endswith(f"/{name}")]
    assert any(place.exists() for place in places)


@table("name", NAMES)
def test_names(name: str) -> None:
    """A class, function, key or table stands somewhere in the program as a word; a program is a module."""
    word = re.compile(rf"\b{name}\b")
    assert f"Scripts/{name}.py" in sources() or any(word.search(text) for text in sources().values())


@table("line", ROWS)
def test_what_a_row_names_is_in_its_files(line: int) -> None:
    """A class, function or constant beside a file, and a file by its name alone, are where the reader looks first."""
    codes = [code.text for code in INDEX.codes if code.line == line]
    files = [text for text in codes if _FILE.fullmatch(text)]
    found = [path for text in files for path in (PROJECT / "Middleware" / text, PROJECT / text) if path.is_file()]
    assert all("/" in text or (PROJECT / text).is_file() for text in files), "no path from Middleware or the project"
    for name in set(codes) - moved_names():
        if found and (_NAME.fullmatch(name) or _CONSTANT.fullmatch(name)):
            assert any(re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")) for path in found), name


@table("row", [row for page in (PAGE, *INSIDE) for row in page.source.splitlines() if row.startswith("| `")])
def test_a_file_without_folder_lies_next_to_the_one_before_it(row: str) -> None:
    folder = ""
    for name in re.findall(r"`([\w./]+\.py)`", row.split("|")[1]):
        folder = name.rpartition("/")[0] or folder
        path = f"{folder}/{name.rpartition('/')[2]}".lstrip("/")
        assert any((PROJECT / root / path).exists() for root in ("", "Middleware"))


def test_the_spine_is_there_and_stays_short() -> None:
    """The page names its files and their lines; a reader of the whole spine needs an evening."""
    chapter = PAGE.source.split("## The spine\n")[1].split("\n## ")[0]
    rows = [row.split("|") for row in chapter.splitlines() if row.startswith("| `")]
    files, names = [row[1].strip(" `") for row in rows], [re.findall(r"`(\w+)`", row[2]) for row in rows]
    stated = re.match(r"\s*These (\d+) files, ([\d,]+) lines in all,", chapter)
    texts = [sources()[f"Middleware/{file}"] for file in files]
    assert stated and len(set(files)) == len(files) == int(stated[1])
    lines, most = sum(text.count("\n") for text in texts), int(stated[2].replace(",", "")) * 1.1
    assert lines <= most, "the spine has grown by more than a tenth"
    for text, row in zip(texts, names, strict=True):
        assert [name for name in row if not re.search(rf"\b{name}\b", text)] == []


@table("name", NAMES_OF_ADD_ONS)
def test_the_page_of_an_add_on_names_its_modules(name: str) -> None:
    """Its rows about modules name each module but ``addon``, without its ending, and no module that is not there."""
    page = ADD_ONS[name]
    named = {code for row in _rows(page, "Modules") for code in re.findall(r"`(\w+)`", row)}
    paths = [path for path in sources() if path.startswith(f"Middleware/addons/{name}/")]
    modules = {path.rpartition("/")[2].removesuffix(".py") for path in paths} - {"__init__", "addon"}  # each has these
    assert page.source.count("\n") <= MOST_LINES_OF_AN_ADD_ON
    assert modules - named == set()
    assert [code for code in named - modules if not any(code in sources()[path] for path in paths)] == []
    assert PAGE.source.count(f"addons/{name}/README.md)") == 1


@table("name", NAMES_OF_ADD_ONS)
def test_the_page_of_an_add_on_links_to_its_neighbours(name: str) -> None:
    """Those that it imports, and those that cannot do without it."""
    (may,), (away,) = _rows(ADD_ONS[name], "May import"), _rows(ADD_ONS[name], "To take it away")
    assert set(re.findall(r"\.\./(\w+)/README", may)) == imported_by(name)
    assert set(re.findall(r"\.\./(\w+)/README", away)) == {one for one in NAMES_OF_ADD_ONS if name in imported_by(one)}


@cache
def imported_by(name: str) -> set[str]:
    """The other add-ons that an add-on imports, also in functions and for types."""
    texts = [text for path, text in sources().items() if path.startswith(f"Middleware/addons/{name}/")]
    return {found for text in texts for found in re.findall(r"\bMiddleware\.addons\.(\w+)", text)} - {name}


def _rows(page: Page, first: str) -> list[str]:
    return [row for row in page.source.splitlines() if row.startswith(f"| {first}")]


def test_every_floor_is_named() -> None:
    table = PAGE.source.split("## The path of a request")[0]
    assert all(re.search(rf"`(?:Middleware/)?{floor}`", table) for floor in FLOORS)
    folders = {path.split("/")[1] for path in sources() if path.startswith("Middleware/") and path.count("/") > 1}
    assert folders == set(FLOORS)


def test_there_is_something_to_look_at() -> None:
    assert len(FILES) > 40 and len(NAMES) > 20 and "Middleware/cli" in FILES and "access_keys.py" in FILES


def test_functions_are_short() -> None:
    functions = [
        (path, node)
        for path, text in sources().items()
        if not path.startswith("Scripts/")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    long = [
        f"{path}: {node.name}"
        for path, node in functions
        if (node.end_lineno or 0) - node.lineno >= MOST_LINES_OF_A_FUNCTION
    ]
    assert len(functions) > 5000 and long == []
