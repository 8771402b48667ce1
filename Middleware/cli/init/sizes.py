"""How the tokens of a model's context window are shared out."""
from __future__ import annotations

from Middleware.cli.init.servers import Model, Server
from Middleware.utilities.prompt_extraction_utils import RESERVED_TOKENS

UNKNOWN_WINDOW = 8192
UNKNOWN_WINDOWS = {"LM Studio": 4096}
"""What a server loads a model with, unless it was told otherwise."""
SMALLEST_WINDOW = 2048
OLLAMA_WINDOW = 16384
WINDOW_FOR_TOOLS = 16384
"""Clients such as Open WebUI describe dozens of tools with each message, which takes thousands of tokens."""

INSTRUCTIONS = 250  # tokens of a workflow's own system prompt


def window_of(server: Server, model: Model) -> tuple[int, str]:
    """The window to use in tokens, and why it is so, as a sentence for the endpoint file."""
    known = model.window
    if known is None:
        return UNKNOWN_WINDOWS.get(server.kind, UNKNOWN_WINDOW), (
            "The server did not say how many tokens its context window has: maxContextTokenSize is a guess; set it to "
            "the server's own number.")
    if server.kind == "Ollama" and known > OLLAMA_WINDOW:
        return OLLAMA_WINDOW, (f"The model can take {known} tokens, but Ollama reserves memory for all of "
                               "maxContextTokenSize when it loads a model: raise it if your GPU has room, with the "
                               "same number in Main and Worker, or Ollama loads the model anew for each.")
    if known < SMALLEST_WINDOW:
        return SMALLEST_WINDOW, (f"The server said that its context window has {known} tokens, too few for these "
                                 "workflows: start it with a larger one.")
    return known, "maxContextTokenSize is what the server said of its context window."


def shares(window: int, thinks: bool = False) -> dict[str, int]:
    """Tokens for each purpose, and a few numbers that follow from them.

    ``thinks``: the model may reason before it answers, and not every server lets that be switched off. Then short
    answers have room for it, or they would be cut off before they begin.

    ``answerTokens``: the longest answer. ``roomTokens``: the messages, and what a system prompt says besides the words
    of the workflow. ``routeTokens``, ``glanceTokens``: messages for a plan, and for choosing a route. ``notesTokens``:
    that plan. The rest is memory.
    """
    answer = _between(window // 4, 256, 8000)
    memory = _between(window // 16, 150, 400)
    summary = _between(window // 10, 250, 1000)
    thoughts = _between(window // 8, 256, 2000) if thinks else 0
    return {
        "answerTokens": answer, "roomTokens": window - answer - RESERVED_TOKENS - INSTRUCTIONS,
        "notesTokens": _between(window // 10, 200, 600) + thoughts, "routeTokens": window // 2,
        "glanceTokens": _between(window // 4, 400, 2000), "routeNameTokens": 50 + thoughts,
        "taskTokens": _between(window // 4, 256, 1000) + thoughts,
        "memoryTokens": memory + thoughts, "memoryWords": memory * 6 // 10,
        "chunkTokens": _between(window // 4, 500, 3000),
        "summaryTokens": summary + thoughts, "summaryWords": summary * 6 // 10,
        "memoriesShown": 3 if window >= 8192 else 2}


def _between(value: int, least: int, most: int) -> int:
    return max(least, min(value, most))
