"""The commands ``memory`` and ``rekey``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from Middleware.cli.addon import AddOn, Command


class Discussions(AddOn):
    def commands(self) -> Mapping[str, Command]:
        return {
            "memory": Command("list, show, search, check, export and delete stored conversations", _memory),
            "rekey": Command("move stored conversations to another API key, or decrypt them", _rekey),
        }


def _memory(words: Sequence[str]) -> int:
    from Middleware.addons.discussions.memory_command import run
    from Middleware.cli.program import program_name

    return run(words, program_name("memory"))


def _rekey(words: Sequence[str]) -> int:
    from Middleware.addons.discussions.rekey.rekey_command import run
    from Middleware.cli.program import program_name

    return run(words, program_name("rekey"))


ADDON = Discussions
