"""The folders and files below the config root, as checks name them."""
from __future__ import annotations

import os

from Middleware.utilities import config_utils
from Middleware.utilities.config.lookup import config_lookup


def path_of(display: str) -> str:
    """The path of a file as messages name it."""
    return os.path.join(config_utils.get_root_config_directory(), *display.split("/"))


def files_in(*parts: str) -> list[str]:
    """The names of the JSON files in a folder below the config root, without ending; none if there is no folder."""
    names = config_lookup().folder_names(config_utils.get_root_config_directory(), parts)
    return [name[:-5] for name, is_folder in names.items() if not is_folder and name.endswith(".json")]


def folders_in(*parts: str) -> list[str]:
    """The names of the folders in a folder below the config root; none if there is no such folder."""
    names = config_lookup().folder_names(config_utils.get_root_config_directory(), parts)
    return [name for name, is_folder in names.items() if is_folder]


def folder_exists(*parts: str) -> bool:
    """Whether there is such a folder below the config root; the case of its own name does not matter."""
    return parts[-1].casefold() in (name.casefold() for name in folders_in(*parts[:-1]))
