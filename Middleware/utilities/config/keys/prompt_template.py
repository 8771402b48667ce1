"""The keys of a prompt template."""
from __future__ import annotations

from Middleware.utilities.config.declarations import ConfigKey, KeyTable

_TURNS = (("system", "the system prompt"), ("user", "a message of the user"),
          ("assistant", "a message of the assistant"), ("systemMes", "a system message inside the conversation"),
          ("tool", "the result of a tool"))


def turn_key(role: str, end: str) -> str:
    """Return the key of the text before (``Prefix``) or after (``Suffix``) a message, also for undeclared roles."""
    return f"promptTemplate{role.capitalize()}{end}"


PROMPT_TEMPLATE_KEYS: tuple[ConfigKey, ...] = (
    *(ConfigKey(turn_key(role, end), "str", "", f"The text {place} {turn}.")
      for role, turn in _TURNS for end, place in (("Prefix", "before"), ("Suffix", "after"))),
    ConfigKey("promptTemplateEndToken", "str", "",
              "The text after the assistant's prefix, where the model should begin its turn."),
    ConfigKey("promptTemplateGenSeparator", "str", "", "Accepted without effect.", inert=True),
)
PROMPT_TEMPLATE = KeyTable(PROMPT_TEMPLATE_KEYS)
