"""The console's own scripts and styles stay small, and fit together without a build."""

from __future__ import annotations

import re
from pathlib import Path

from Middleware.addons.console import static_files

STATIC = Path(static_files.__file__).parent / "static"
VENDOR = STATIC / "vendor"

# The goal is 120 KB of scripts. The limit is what was reached, and may only become smaller; 4 KB of it came with the
# proof that the server gives before it is sent a token, 2 KB with the guard around pages that fail, and 2 KB with the
# messages that are remembered.
SCRIPT_BYTES = 238_200
STYLE_BYTES = 30 * 1024
LINES = 300

IMPORT = re.compile(r'^import (?:\{ ([^}]*) \} from )?"(\.[^"]*)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:default )?(?:async )?(?:function\*?|const|class|let) (\w+)", re.MULTILINE)


def own(suffix: str) -> dict[Path, str]:
    """Return the texts of the console's own files."""
    return {
        path: path.read_text(encoding="utf-8")
        for path in sorted(STATIC.rglob(f"*{suffix}"))
        if VENDOR not in path.parents
    }


def size(files: dict[Path, str]) -> int:
    return sum(len(text.encode("utf-8")) for text in files.values())


def test_scripts_and_styles_keep_to_their_limits() -> None:
    assert size(own(".js")) <= SCRIPT_BYTES
    assert size(own(".css")) <= STYLE_BYTES
    assert not [path.name for path, text in own(".js").items() if text.count("\n") >= LINES]


def test_each_import_names_an_export() -> None:
    scripts = own(".js")
    missing = []
    for path, text in scripts.items():
        for names, address in IMPORT.findall(text):
            target = (path.parent / address).resolve()
            if target not in scripts:
                missing.append(f"{path.name}: {address}")
                continue
            # html.js passes names of the vendored packages on.
            offered = set(EXPORT.findall(scripts[target])) | set(
                re.findall(r"\w+", " ".join(re.findall(r"^export \{([^}]*)\}", scripts[target], re.MULTILINE)))
            )
            missing += [
                f"{path.name}: {name} of {address}"
                for name in (one.split(" as ")[0] for one in names.split(", ") if one)
                if name not in offered
            ]
    assert missing == []


def test_each_export_is_used_elsewhere() -> None:
    scripts = own(".js")
    unused = [
        f"{path.name}: {name}"
        for path, text in scripts.items()
        for name in EXPORT.findall(text)
        # A page's module is named in routes.js.
        if f"export default function {name}(" not in text
        and not any(re.search(rf"\b{name}\b", other) for place, other in scripts.items() if place != path)
    ]
    assert unused == []


def test_each_page_of_the_routes_is_a_module() -> None:
    pages = re.findall(r'page: "([^"]*)"', (STATIC / "routes.js").read_text(encoding="utf-8"))
    assert pages
    assert [page for page in pages if not (STATIC / "pages" / f"{page}.js").is_file()] == []


def test_each_class_of_the_styles_is_used() -> None:
    scripts = "\n".join(own(".js").values()) + (STATIC / "index.html").read_text(encoding="utf-8")
    styles = re.sub(r"/\*.*?\*/|\"[^\"]*\"", "", "\n".join(own(".css").values()), flags=re.DOTALL)
    classes = set(re.findall(r"\.([a-zA-Z][\w-]*)", styles))
    # Classes that are put together from data, and those of the vendored editor.
    made = re.compile(r"cm-.*|k-workflow|first-token")
    unused = [
        one
        for one in sorted(classes)
        if not made.fullmatch(one) and not re.search(rf"(?<![\w-]){one}(?![\w-])", scripts)
    ]
    assert unused == []
