"""Where links and inline code of pages lead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

from Tests.docs.markdown import Link, Page

MAX_IMAGE_BYTES = 300_000
ROOTS = ("README.md", "Docs/README.md")
# The last is a page of the forge, which shows the repository's files two levels below its own address.
_ELSEWHERE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:|//|\.\./\.\./security/advisories/new$")
_IMAGE = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp")
_PROJECT_PATH = re.compile(r"(?:\./)?(?:Public/(?:Configs|Schemas|Scripts)|Docs|Middleware|Scripts|Tests)/[\w./-]+")
# What users and init write: it does not come with the program.
_MADE_LATER = re.compile(r"(?:^|/)(?:me|my|mine|my-[\w-]+|_current-user)(?:[./]|$)")


class Links:
    """Judges the links of pages. ``project``: the folder that page names are relative to."""

    def __init__(self, pages: Mapping[str, Page], project: Path) -> None:
        self._pages, self._project = pages, project

    def dead(self, page: Page) -> list[str]:
        """What is wrong with each link that leads nowhere."""
        found = ((link, self._problem(page, link)) for link in page.links)
        return [f"{page.name}:{link.line}: {problem}" for link, problem in found if problem]

    def orphans(self) -> list[str]:
        """Pages below Docs that nobody gets to from the first pages."""
        seen: set[str] = set()
        waiting = [name for name in ROOTS if name in self._pages]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += [
                    self._target(self._pages[name], link)[0]
                    for link in self._pages[name].links
                    if self._target(self._pages[name], link)[0] in self._pages
                ]
        return sorted(name for name in self._pages if name.startswith("Docs/") and name not in seen)

    def _target(self, page: Page, link: Link) -> tuple[str, str]:
        """The file that a link leads to, relative to the project, and the place in it; the file is empty if outside."""
        if _ELSEWHERE.match(link.target):
            return "", ""
        name, _, anchor = link.target.partition("#")
        if not name:
            return page.name, anchor
        path = (self._project / page.name).parent / unquote(name)
        try:
            return path.resolve().relative_to(self._project.resolve()).as_posix(), anchor
        except ValueError:
            return f"../{name}", anchor

    def _problem(self, page: Page, link: Link) -> str:
        name, anchor = self._target(page, link)
        if not name:
            return "a picture from elsewhere; keep it in Docs/images" if link.is_image else ""
        path = self._project / name
        if name.startswith("../"):
            return f"'{link.target}' leads out of the project"
        if not path.exists() or not _same_case(path, self._project):
            return f"'{link.target}' leads to {name}, which does not exist"
        if path.suffix.lower() in _IMAGE and path.stat().st_size > MAX_IMAGE_BYTES:
            return f"{name} has {path.stat().st_size} bytes; {MAX_IMAGE_BYTES} are the most"
        if anchor and name in self._pages and anchor not in self._pages[name].anchors:
            near = ", ".join(sorted(self._pages[name].anchors))
            return f"'{link.target}': {name} has no heading '{anchor}'; it has: {near}"
        return ""

    def missing_files(self, page: Page) -> Iterator[str]:
        """Paths of the project in inline code that do not exist."""
        for code in page.codes:
            if _PROJECT_PATH.fullmatch(code.text) and "..." not in code.text and not _MADE_LATER.search(code.text):
                path = self._project / code.text
                places = [path, *path.parent.glob(f"{path.name}.*")]  # the ending may be left out
                if not any(place.exists() and _same_case(place, self._project) for place in places):
                    yield f"{page.name}:{code.line}: there is no {code.text}"


def _same_case(path: Path, project: Path) -> bool:
    """Whether the path is spelled like the file: some systems do not care, others do."""
    path, project = path.resolve(), project.resolve()
    while path not in (project, path.parent):
        if path.name not in (entry.name for entry in path.parent.iterdir()):
            return False
        path = path.parent
    return True
