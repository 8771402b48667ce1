"""The command ``init``, and the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from Middleware.cli.addon import AddOn, Command
from Middleware.cli.launch import Launch
from Middleware.common import instance_global_variables as instance


class Init(AddOn):
    def commands(self) -> Mapping[str, Command]:
        return {"init": Command("connect an LLM server, and write a user for it", _init)}

    def check(self, launch: Launch) -> None:
        from Middleware.addons.init import demo

        if demo.is_first_start(launch.arguments):
            from Middleware.addons.init.init_command import offer

            offer()

    def prepare(self, launch: Launch) -> None:
        if launch.bound is None:
            return
        from Middleware.addons.init import demo

        if demo.is_wanted(launch.arguments):
            demo.start_backend()
            launch.hints += demo.instructions(launch.url, instance.ACCESS_KEYS is not None)
        else:
            launch.hints += demo.elsewhere()


def _init(words: Sequence[str]) -> int:
    from Middleware.addons.init.init_command import main

    return main(words)


ADDON = Init
