"""The files of other projects that the console's pages use are those that were published."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from Scripts.generate import vendor_console

STATIC = vendor_console.VENDOR.parent


def test_each_file_is_the_published_one() -> None:
    assert list(vendor_console.problems()) == []


def test_a_changed_a_missing_and_a_strange_file_are_named(tmp_path: Path) -> None:
    vendor = tmp_path / "vendor"
    shutil.copytree(vendor_console.VENDOR, vendor)
    first, second = [
        vendor / package["name"] / path
        for package in vendor_console.packages(vendor)[:1]
        for path in list(package["files"])[:2]
    ]
    first.write_bytes(first.read_bytes().replace(b"\n", b"\r\n"))
    second.unlink()
    (vendor / "more.js").write_text("", encoding="utf-8")
    found = "\n".join(vendor_console.problems(vendor))
    assert "is not the file that was published" in found
    assert "is missing" in found
    assert "more.js belongs to no package" in found


def test_the_import_map_names_files_that_are_there() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="importmap"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found
    addresses = json.loads(found[1])["imports"].values()
    assert addresses
    for address in addresses:
        assert (STATIC / address.removeprefix("./static/{version}/")).is_file(), address
