"""The time that ``check`` takes for a large configuration: the shipped one, copied until it has 3,000 files.

    python benchmarks/check_tree.py [FILES]

Each copy has its own users, endpoints and workflows. Prints the files, the CPU seconds of ``check`` as a process of its
own, and the findings, which must be none. The aim is below 3 s CPU for 3,000 files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "Public" / "Configs"
FILES = 3000
# What a user file names by the name of a folder or file of its own.
FOLDER_KEYS = {"endpointConfigsSubDirectory": "Endpoints", "workflowConfigsSubDirectoryOverride": "Workflows"}


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    with tempfile.TemporaryDirectory() as folder:
        configs = Path(folder) / "Public" / "Configs"
        shutil.copytree(CONFIGS, configs)
        users = [file for file in sorted(CONFIGS.glob("Users/*.json")) if file.name != "_current-user.json"]
        number = 0
        while count(configs) < wanted:
            number += 1
            copy_user(configs, users[number % len(users)], number)
        before = os.times()
        ended = subprocess.run(
            [sys.executable, str(ROOT / "server.py"), "check", "--json", "--PublicDirectory", str(configs.parent)],
            capture_output=True,
            text=True,
            check=False,
        )
        after = os.times()
        told = json.loads(ended.stdout)
        cpu = after.children_user - before.children_user + after.children_system - before.children_system
        print(
            f"{told['files']} files, {len(told['users'])} users: {cpu:.2f} s CPU, {told['seconds']:.2f} s in the "
            f"check, {told['errors']} errors, {told['warnings']} warnings, {told['notes']} notes"
        )


def count(configs: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(configs))


def copy_user(configs: Path, file: Path, number: int) -> None:
    """Copy a user with the folders of its own."""
    user = json.loads(file.read_text(encoding="utf-8"))
    for key, collection in FOLDER_KEYS.items():
        name = user.get(key) or (file.stem if collection == "Workflows" else "")
        if name and (CONFIGS / collection / name).is_dir():
            user[key] = f"copy{number}/{name}"
            shutil.copytree(CONFIGS / collection / name, configs / collection / user[key], ignore=tests)
    (configs / "Users" / f"copy{number}.json").write_text(json.dumps(user, indent=2), encoding="utf-8")


def tests(_folder: str, names: list[str]) -> list[str]:
    # A file with tests names its user.
    return [name for name in names if name.endswith(".test.json")]


if __name__ == "__main__":
    main()
