"""The lists of components of a release: what ``release_files`` adds to what its tool writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from Middleware.common.constants import VERSION
from Scripts.generate.release_files import base_image, complete, vendored

ROOT = Path(__file__).resolve().parents[2]


def test_every_package_in_the_console_is_a_component() -> None:
    packages = json.loads((ROOT / "Middleware/addons/console/static/vendor/vendor.json").read_text("utf-8"))["packages"]
    components = {component["name"]: component for component in vendored()}
    assert {name: one["version"] for name, one in components.items()} == {
        package["name"]: package["version"] for package in packages
    }
    autocomplete = components["@codemirror/autocomplete"]
    assert autocomplete["purl"] == f"pkg:npm/%40codemirror/autocomplete@{autocomplete['version']}"
    assert autocomplete["hashes"][0]["alg"] == "SHA-512" and len(autocomplete["hashes"][0]["content"]) == 128


def test_the_base_image_is_that_of_the_dockerfile() -> None:
    image = base_image((ROOT / "Dockerfile").read_text("utf-8"))
    assert (image["type"], image["name"], image["version"]) == ("container", "python", "3.13-slim-trixie")
    assert re.fullmatch(r"pkg:docker/python@sha256:[0-9a-f]{64}\?tag=3\.13-slim-trixie", image["purl"])
    with pytest.raises(AssertionError, match="without a digest"):
        base_image("FROM python:3.13-slim-trixie\n")


def test_the_list_has_each_component_once_and_the_program_needs_them_all() -> None:
    """Two lock files may name the same package."""
    flask = {"bom-ref": "requirements-L3", "name": "flask", "purl": "pkg:pypi/flask@3.1.3", "version": "3.1.3"}
    bom: dict[str, Any] = {
        "metadata": {"component": {"bom-ref": "root-component", "name": "wilmerai"}},
        "components": [flask, {**flask, "bom-ref": "requirements-L9"}],
        "dependencies": [],
    }
    complete(bom, [{"name": "htm", "purl": "pkg:npm/htm@3.1.1", "version": "3.1.1"}])
    names = ["pkg:npm/htm@3.1.1", "pkg:pypi/flask@3.1.3"]
    assert bom["metadata"]["component"]["version"] == VERSION
    assert [component["bom-ref"] for component in bom["components"]] == names
    assert bom["dependencies"] == [{"ref": "root-component", "dependsOn": names}]
