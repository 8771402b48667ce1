"""What is optional: each folder is one add-on, which nothing outside imports.

The program is whole without any of them. To take one away, remove its folder and its name here, and those of the
add-ons that stand on it, which its README.md names.
"""

from importlib import import_module
from pathlib import Path

from Middleware.cli.addon import use

# In the order in which the help lists their commands, and in which they are called at a start.
NAMES = (
    "init",
    "check",
    "workflow_tests",
    "talk",
    "records",
    "console",
    "observability",
    "discussions",
    "postgres",
)


def load() -> None:
    """Let the command line know the add-ons that are there."""
    # A folder that was removed may have left compiled modules behind.
    there = (name for name in NAMES if Path(__file__).with_name(name).joinpath("addon.py").is_file())
    use(*(import_module(f"{__name__}.{name}.addon").ADDON() for name in there))
