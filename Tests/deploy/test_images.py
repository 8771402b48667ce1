"""The container images that the project names: each by a digest, so that a build or a start never takes another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from Tests.docs.pages import all_pages

ROOT = Path(__file__).resolve().parents[2]
# This project's own image, which is built.
OWN = "wilmerai"
PINNED = re.compile(r"[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}")
# A word that is the name of an image, in a command line of docker: before it there are options and their values.
_RUN = re.compile(r"^ *docker (?:run|pull) (.*)", re.MULTILINE)
_VALUED = re.compile(r"(?:-[pve]|--(?:name|user|add-host|volume|publish|env|entrypoint))[ =]\S+|--?[\w-]+(?:=\S+)?")


def images_of_files() -> list[tuple[str, str]]:
    """Each image in the Dockerfile and the Compose files, with its file."""
    files = [ROOT / "Dockerfile", *ROOT.glob("*compose*.y*ml"), *(ROOT / "deploy").rglob("*compose*.y*ml")]
    found = [
        (path.relative_to(ROOT).as_posix(), image)
        for path in files
        for image in re.findall(r"^(?:FROM|\s*image:) +\"?([^\s\"]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    return [(name, image) for name, image in found if image != OWN]


def images_of_pages() -> list[tuple[str, str]]:
    """Each image that a command line of a page starts."""
    found = [
        (name, _VALUED.sub("", words).split()[0])
        for name, page in all_pages().items()
        for words in _RUN.findall(page.source.replace("\\\n", " "))
    ]
    return [(name, image) for name, image in found if image != OWN]


IMAGES = [*images_of_files(), *images_of_pages()]


def test_they_are_found() -> None:
    assert {
        "Dockerfile",
        "compose.yaml",
        "deploy/several-workers/compose.yaml",
        "Docs/User/container.md",
        "Docs/User/metrics.md",
    } == {name for name, _ in IMAGES}


@pytest.mark.parametrize(("file", "image"), IMAGES)
def test_each_has_a_tag_and_a_digest_which_is_the_same_everywhere(file: str, image: str) -> None:
    assert PINNED.fullmatch(image)
    name = image.partition("@")[0]
    assert {other for _, other in IMAGES if other.partition("@")[0] == name} == {image}
