"""Writes the files of a release: the wheel, a list of the components of the wheel and one of the container image, and
the hashes of these files. The lists are in the format CycloneDX. Nothing of it is tracked. It needs the packages of
``requirements-release.txt``::

    python -m Scripts.generate.release_files [FOLDER]       # without FOLDER: dist
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from Middleware.cli.standard_streams import run_command
from Middleware.common.constants import VERSION
from Scripts.generate.generated_files import ROOT
from Scripts.generate.vendor_console import VENDOR

NAME = f"wilmerai-{VERSION}"
BUILD = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
LIST = [
    sys.executable,
    "-m",
    "cyclonedx_py",
    "requirements",
    "--pyproject",
    "pyproject.toml",
    "--output-reproducible",
    "--spec-version",
    "1.6",
    "-",
]
IMAGE_LOCKS = ("requirements.lock", "requirements-database.lock")

Component = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status of the first program that fails, else 0."""
    folder = ROOT / next(iter(sys.argv[1:] if argv is None else argv), "dist")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run([*BUILD, "--wheel-dir", str(folder), "."], cwd=ROOT, check=True)
        boms = {f"{NAME}.cdx.json": listed(IMAGE_LOCKS[:1]), f"{NAME}-image.cdx.json": listed(IMAGE_LOCKS)}
    except subprocess.CalledProcessError as error:
        return error.returncode
    base = base_image((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    complete(boms[f"{NAME}.cdx.json"], vendored())
    complete(boms[f"{NAME}-image.cdx.json"], [base, *vendored()])
    for name, bom in boms.items():
        (folder / name).write_text(json.dumps(bom, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    files = sorted(path for path in folder.glob(f"{NAME}*") if path.is_file())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")
    return 0


def listed(locks: Iterable[str]) -> dict[str, Any]:
    """The list of the packages in lock files, as the tool writes it. Raises CalledProcessError."""
    text = "".join((ROOT / lock).read_text(encoding="utf-8") for lock in locks)
    done = subprocess.run(LIST, cwd=ROOT, check=True, input=text, stdout=subprocess.PIPE, encoding="utf-8")
    bom: dict[str, Any] = json.loads(done.stdout)
    return bom


def complete(bom: dict[str, Any], more: Iterable[Component]) -> None:
    """Add the program's version, which the tool does not find, and components that no lock file names; each once."""
    root = bom["metadata"]["component"]
    root.update(version=VERSION, purl=f"pkg:pypi/wilmerai@{VERSION}")
    components = {component["purl"]: component for component in [*more, *reversed(bom["components"])]}
    bom["components"] = [{**components[purl], "bom-ref": purl} for purl in sorted(components)]
    bom["dependencies"] = [{"ref": root["bom-ref"], "dependsOn": sorted(components)}]


def vendored() -> list[Component]:
    """The packages of npm that the run console has in it."""
    packages = json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))["packages"]
    return [_of_npm(package) for package in packages]


def _of_npm(package: Mapping[str, str]) -> Component:
    algorithm, _, digest = package["integrity"].partition("-")
    return {
        "type": "library",
        "name": package["name"],
        "version": package["version"],
        "purl": f"pkg:npm/{package['name'].replace('@', '%40')}@{package['version']}",
        "licenses": [{"license": {"id": package["license"]}}],
        "hashes": [{"alg": algorithm.replace("sha", "SHA-"), "content": base64.b64decode(digest).hex()}],
    }


def base_image(dockerfile: str) -> Component:
    """The image that the Dockerfile begins with."""
    found = re.search(r"^FROM (\S+):(\S+)@(sha256:(\w+))$", dockerfile, re.MULTILINE)
    assert found is not None, "the Dockerfile names its base image without a digest"
    name, tag, digest, content = found.groups()
    return {
        "type": "container",
        "name": name,
        "version": tag,
        "purl": f"pkg:docker/{name}@{digest}?tag={tag}",
        "hashes": [{"alg": "SHA-256", "content": content}],
    }


if __name__ == "__main__":
    sys.exit(run_command(main))
