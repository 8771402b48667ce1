"""The commands ``try`` and ``chat``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from Middleware.cli.addon import AddOn, Command


class Talk(AddOn):
    def commands(self) -> Mapping[str, Command]:
        return {
            "try": Command("send one request to a model and print the answer; --trace shows what happens", _try),
            "chat": Command("talk to a model in this terminal", _chat),
        }


def _try(words: Sequence[str]) -> int:
    from Middleware.addons.talk.talk_command import try_main

    return try_main(words)


def _chat(words: Sequence[str]) -> int:
    from Middleware.addons.talk.talk_command import chat_main

    return chat_main(words)


ADDON = Talk
