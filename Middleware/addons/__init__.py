"""What is optional: each folder is one add-on, which nothing outside imports.

The program is whole without any of them. To take one away, remove its folder and its name here.
"""

from importlib import import_module
from pathlib import Path

from Middleware.cli.addon import use

# In the order in which the help lists their commands, and in which a start asks them.
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
    there = (name for name in NAMES if Path(__file__).with_name(name).is_dir())
    use(*(import_module(f"{__name__}.{name}.addon").ADDON() for name in there))
