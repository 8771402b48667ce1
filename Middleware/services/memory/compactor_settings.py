"""The settings file of a user's context compactor."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from Middleware.utilities.config.declarations import MOST_TOKENS, ConfigKey, setting
from Middleware.utilities.config.keys.endpoint import SETTINGS_LEVEL
from Middleware.utilities.config.workflows import load_settings
from Middleware.utilities.text_utils import estimation_level_multiplier

USER_KEY = "contextCompactorSettingsFile"

MESSAGES = "[MESSAGES_TO_SUMMARIZE]"
RECENT = "[RECENT_MESSAGES]"
EXISTING = "[EXISTING_SUMMARY]"
NEW = "[NEW_CONTENT]"

MESSAGES_PROMPT = MESSAGES
OLDEST_PROMPT = f"{EXISTING}\n\n{NEW}"
OLD_SYSTEM = (
    "You condense an earlier part of a conversation for somebody who goes on with it and cannot look it up. Keep "
    "names, facts, decisions, promises and open questions, above all what the latest messages build on. Leave out "
    "greetings and repetitions. Answer with the summary only."
)
NEUTRAL_SYSTEM = (
    "You write an even-handed record of part of a conversation: who said or did what, in the order it happened, "
    "without judging and without adding anything. Answer with the record only."
)
OLDEST_SYSTEM = (
    "You keep the running summary of the oldest part of a conversation. Work the new content into the existing "
    "summary, keep what still matters, shorten what matters less, and contradict neither. If there is no summary yet, "
    "write one. Answer with the complete updated summary only."
)


@dataclass(frozen=True)
class CompactorSettings:
    """The settings, with defaults for what the file leaves out. Prompts hold no variables.

    Attributes:
        raw: the whole file; for LLM calls it plays the part of a node.
        file: how messages name the file.
    """

    raw: Mapping[str, object] = field(default_factory=dict)
    file: str = ""
    endpoint: str = setting(
        ConfigKey("endpointName", "str", "", "Endpoint that writes the summaries.", names="endpoint")
    )
    preset_key: str = setting(ConfigKey("preset", "str", "", "Preset for writing the summaries.", names="preset"))
    preset_name_key: str = setting(ConfigKey("presetName", "str", "", "Other name of preset.", names="preset"))
    max_response_tokens: int = setting(
        ConfigKey(
            "maxResponseSizeInTokens", "int", 750, "Maximum length of a summary, in tokens.", least=1, most=MOST_TOKENS
        )
    )
    recent_tokens: int = setting(
        ConfigKey(
            "recentContextTokens",
            "int",
            20000,
            "Size of the newest section in tokens, which is never summarized.",
            least=1,
        )
    )
    old_tokens: int = setting(
        ConfigKey(
            "oldContextTokens",
            "int",
            20000,
            "Size of the section before it in tokens, which is summarized again each time.",
            least=1,
        )
    )
    lookback: int = setting(
        ConfigKey("lookbackStartTurn", "int", 5, "How many of the newest messages belong to no section.", least=0)
    )
    level: float = setting(SETTINGS_LEVEL, estimation_level_multiplier)
    old_system_prompt: str = setting(
        ConfigKey("oldSectionSystemPrompt", "str", OLD_SYSTEM, "System prompt for the summary of the old section.")
    )
    old_prompt: str = setting(
        ConfigKey(
            "oldSectionPrompt",
            "str",
            MESSAGES_PROMPT,
            f"Prompt for that summary; {MESSAGES} is the section, {RECENT} the messages after it.",
        )
    )
    neutral_system_prompt: str = setting(
        ConfigKey(
            "neutralSummarySystemPrompt",
            "str",
            NEUTRAL_SYSTEM,
            "System prompt for the record of the messages that leave the old section.",
        )
    )
    neutral_prompt: str = setting(
        ConfigKey(
            "neutralSummaryPrompt", "str", MESSAGES_PROMPT, f"Prompt for that record; {MESSAGES} is these messages."
        )
    )
    oldest_system_prompt: str = setting(
        ConfigKey(
            "oldestUpdateSystemPrompt", "str", OLDEST_SYSTEM, "System prompt for the summary of everything before."
        )
    )
    oldest_prompt: str = setting(
        ConfigKey(
            "oldestUpdatePrompt",
            "str",
            OLDEST_PROMPT,
            f"Prompt for that summary; {EXISTING} is the existing one, {NEW} the record.",
        )
    )

    follow_edits: bool = setting(
        ConfigKey(
            "followEdits",
            "bool",
            False,
            "The summaries follow the conversation: what was made of a message that is edited or deleted is shown no "
            "more, and comes back with the message.",
        )
    )

    def __post_init__(self) -> None:
        # A blank prompt would show the model nothing to summarize.
        for name, default in (
            ("old_prompt", MESSAGES_PROMPT),
            ("neutral_prompt", MESSAGES_PROMPT),
            ("oldest_prompt", OLDEST_PROMPT),
        ):
            if not getattr(self, name).strip():
                object.__setattr__(self, name, default)

    @property
    def preset(self) -> str:
        return self.preset_key or self.preset_name_key

    @property
    def recent_budget(self) -> int:
        """Estimated tokens."""
        return int(self.recent_tokens * self.level)

    @property
    def old_budget(self) -> int:
        """Estimated tokens."""
        return int(self.old_tokens * self.level)


def load_compactor_settings() -> CompactorSettings | None:
    """Return the current user's settings; None, with a warning, without them: nothing is compacted then."""
    return load_settings(CompactorSettings, USER_KEY, "The conversation is not compacted", logging.WARNING)
