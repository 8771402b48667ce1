"""Prompts that a server reads again with each message, because what changes stands before what stays."""
from __future__ import annotations

from collections.abc import Iterator

from Middleware.cli.check.findings import Finding
from Middleware.cli.check.lookups import Lookups
from Middleware.cli.check.node_checks import NodeView
from Middleware.utilities.config.declarations import number_from
from Middleware.utilities.config.keys.node import NODE

COUNT, BLOCK_SIZE = "lastMessagesToSendInsteadOfPrompt", "messageBlockSize"


def check_block_size(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if windows of messages would begin with the assistant every second time."""
    if BLOCK_SIZE in view.keys:
        for message, expected in odd_block_size(view.node.get(BLOCK_SIZE)):
            yield view.finding("warning", BLOCK_SIZE, message, expected=expected)


def odd_block_size(value: object) -> Iterator[tuple[str, str]]:
    """Yield message and expectation if ``value`` is an odd number of messages above 1."""
    size = number_from(value, whole=True)
    if size is not None and size > 1 and size % 2:
        yield (f"'{BLOCK_SIZE}' is {size}, which is odd, so that every second window begins with a message of the "
               "assistant", f"an even number, such as {size + 1}")


def check_relative_times(view: NodeView, lookups: Lookups) -> Iterator[Finding]:
    """Yield a finding if the time of each message that is sent changes with every call."""
    relative = "useRelativeTimestamps"
    if _messages_follow(view) and NODE.flag(view.node, relative) and NODE.flag(
            view.node, "addDiscussionIdTimestampsForLLM"):
        yield view.finding("warning", relative, "the messages say how long ago they were sent, which changes from call "
                           "to call, so that the server reads the whole conversation again",
                           expected=f"times that stay the same, without '{relative}'")


def _messages_follow(view: NodeView) -> bool:
    """Return whether the node sends the conversation after its system prompt."""
    return COUNT in view.keys and not NODE.value(view.node, "prompt")
