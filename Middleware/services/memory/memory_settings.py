"""The settings file of a user's memories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from Middleware.exceptions import ConfigurationError
from Middleware.utilities.config.declarations import MOST_TOKENS, ConfigKey, read_settings, setting
from Middleware.utilities.config.keys.endpoint import SETTINGS_LEVEL
from Middleware.utilities.config.keys.node import NODE
from Middleware.utilities.config.users import user_name_setting
from Middleware.utilities.config.workflows import load_settings, load_settings_file
from Middleware.utilities.text_utils import estimation_level_multiplier

USER_KEY = "discussionIdMemoryFileWorkflowSettings"
# Seconds. After the answer no client is waiting, so the limit only guards against a lock that is never released.
LONGEST_WAIT_AFTER_ANSWER = 600.0

# A limit below that would drop what the conversation still shows.
LEAST_MESSAGES_KEPT = 100

# What follows is here because the checks need it too, and must not import all that searches and writes memories.
# The ways of searching:
KEYWORD, SEMANTIC, HYBRID = "keyword", "semantic", "hybrid"
# What searchable memories are written as:
JSON_FORMAT, LINES_FORMAT = "json", "lines"
# Whether memories of other conversations with the same discussion id are shown:
SHOW, HIDE = "show", "hide"
_NEWER_KEYS = ("rememberMessages", "addDatesToTextChunk", "vectorMemoryFormat", "vectorMemoryExampleTurns")
# The markers in prompts: the memories to condense, and what a summary is made of.
BATCH = "[MemoriesToCondense]"
CURRENT_SUMMARY = "[CHAT_SUMMARY]"
LATEST_MEMORIES = "[LATEST_MEMORIES]"


@dataclass(frozen=True)
class MemorySettings:
    """The settings, with defaults for what the file leaves out. Names are "" where nothing is set.

    Attributes:
        raw: the whole file; for LLM calls of its own it plays the part of a node.
    """

    raw: Mapping[str, object] = field(default_factory=dict)
    use_vector: bool = setting(
        ConfigKey(
            "useVectorForQualityMemory",
            "bool",
            False,
            "QualityMemory writes searchable memories instead of memory files.",
        )
    )
    endpoint: str = setting(ConfigKey("endpointName", "str", "", "Endpoint that writes memories.", names="endpoint"))
    preset: str = setting(ConfigKey("preset", "str", "", "Preset for writing memories.", names="preset"))
    max_response_tokens: int = setting(
        ConfigKey(
            "maxResponseSizeInTokens", "int", 400, "Maximum length of a memory, in tokens.", least=1, most=MOST_TOKENS
        )
    )
    lookback: int = setting(
        ConfigKey(
            "lookbackStartTurn",
            "int",
            3,
            "How many of the newest messages, not counting system messages, are left alone.",
            least=0,
        )
    )
    system_prompt: str = setting(ConfigKey("systemPrompt", "str", "", "System prompt for a memory."))
    prompt: str = setting(ConfigKey("prompt", "str", "", "Prompt for a memory; [TextChunk] is the text to remember."))
    # Any value: the call that sends them checks their form.
    examples: object = setting(
        replace(
            NODE["exampleTurns"],
            default=None,
            meaning=(
                'Example messages for a memory, sent after systemPrompt: {"user": message, "assistant": answer}. '
                "Not for searchable memories, which have vectorMemoryExampleTurns."
            ),
        ),
        lambda value: value,
    )
    roles: bool = setting(
        ConfigKey(
            "addRolesToTextChunk",
            "bool",
            False,
            "Begin each message in the text of a memory with 'User:' or 'Assistant:'.",
        )
    )
    dates: bool = setting(
        ConfigKey(
            "addDatesToTextChunk",
            "bool",
            False,
            "In the text of a memory, put a line with the date before the first message of each day, and its meaning "
            "behind a word such as yesterday. Memories keep the day of their messages.",
            in_new=True,
        )
    )
    file_workflow: str = setting(
        ConfigKey(
            "fileMemoryWorkflowName",
            "str",
            "",
            "Workflow that writes memories, instead of endpoint and prompts.",
            names="workflow",
        )
    )
    chunk_tokens: int = setting(
        ConfigKey("chunkEstimatedTokenSize", "int", 1000, "How much new text, in tokens, makes a memory.", least=1)
    )
    chunk_messages: int = setting(
        ConfigKey("maxMessagesBetweenChunks", "int", 5, "How many new messages make a memory.", least=1)
    )

    vector_workflow: str = setting(
        ConfigKey("vectorMemoryWorkflowName", "str", "", "Workflow that writes searchable memories.", names="workflow")
    )
    vector_endpoint_name: str = setting(
        ConfigKey(
            "vectorMemoryEndpointName",
            "str",
            "",
            "Endpoint for searchable memories; endpointName if not given.",
            names="endpoint",
        )
    )
    vector_preset_name: str = setting(
        ConfigKey(
            "vectorMemoryPreset", "str", "", "Preset for searchable memories; preset if not given.", names="preset"
        )
    )
    vector_max_response_tokens: int = setting(
        ConfigKey(
            "vectorMemoryMaxResponseSizeInTokens",
            "int",
            1024,
            "Maximum length of an answer with searchable memories, in tokens.",
            least=1,
            most=MOST_TOKENS,
        )
    )
    vector_chunk_tokens: int = setting(
        ConfigKey(
            "vectorMemoryChunkEstimatedTokenSize",
            "int",
            1000,
            "How much new text, in tokens, makes searchable memories.",
            least=1,
        )
    )
    vector_chunk_messages: int = setting(
        ConfigKey(
            "vectorMemoryMaxMessagesBetweenChunks", "int", 5, "How many new messages make searchable memories.", least=1
        )
    )
    vector_system_prompt: str = setting(
        ConfigKey(
            "vectorMemorySystemPrompt", "str", "", "System prompt for searchable memories, instead of the built-in one."
        )
    )
    vector_prompt: str = setting(
        ConfigKey(
            "vectorMemoryPrompt",
            "str",
            "",
            "Prompt for searchable memories, instead of the built-in one; [TextChunk] is the text.",
        )
    )
    vector_format: str = setting(
        ConfigKey(
            "vectorMemoryFormat",
            "str",
            JSON_FORMAT,
            "What the model writes searchable memories as: JSON, or a fact on each line, which small models write more "
            "reliably. With lines, either is accepted.",
            choices=(JSON_FORMAT, LINES_FORMAT),
        )
    )
    vector_examples: object = setting(
        replace(
            NODE["exampleTurns"],
            name="vectorMemoryExampleTurns",
            default=None,
            meaning=(
                'Example messages for searchable memories: {"user": message, "assistant": answer}. Not given: with '
                "the built-in prompts for lines two built-in ones, else none."
            ),
        ),
        lambda value: value,
    )
    index_topics: bool = setting(
        ConfigKey("vectorMemoryIndexTopics", "bool", False, "Keyword search also covers the topics.")
    )
    level: float = setting(SETTINGS_LEVEL, estimation_level_multiplier)
    embedding_endpoint: str = setting(
        ConfigKey(
            "embeddingEndpointName",
            "str",
            "",
            "Endpoint that makes the vectors of new memories, and of messages with rememberMessages.",
            names="endpoint",
        )
    )
    backfill: int = setting(
        ConfigKey(
            "embeddingBackfillBatchSize",
            "int",
            20,
            "How many older memories get vectors with each chunk, and older messages with each answer; 0: none.",
            otherwise=0,
            least=0,
        )
    )

    use_state_document: bool = setting(
        ConfigKey("useStateDocument", "bool", False, "Keeps a document of the present state.")
    )
    state_workflow: str = setting(
        ConfigKey("stateDocumentWorkflowName", "str", "", "Workflow that writes that document.", names="workflow")
    )
    state_retention: float = setting(
        ConfigKey(
            "stateDocumentMinRetentionRatio",
            "number",
            0.5,
            "A new document shorter than this share of the old is refused; 0: never.",
            most=1,
        )
    )

    condense: bool = setting(ConfigKey("condenseMemories", "bool", False, "Joins older memories."))
    condense_count: int = setting(
        ConfigKey("memoriesBeforeCondensation", "int", 0, "How many memories are joined at a time.")
    )
    condense_buffer: int = setting(
        ConfigKey("memoryCondensationBuffer", "int", 0, "How many of the newest memories are left alone.", least=0)
    )
    condense_system_prompt: str = setting(
        ConfigKey(
            "condenseMemoriesSystemPrompt",
            "str",
            "",
            "System prompt for joining memories, instead of the built-in one.",
        )
    )
    condense_prompt: str = setting(
        ConfigKey("condenseMemoriesPrompt", "str", "", "Prompt for joining memories, instead of the built-in one.")
    )
    condense_endpoint_name: str = setting(
        ConfigKey(
            "condenseMemoriesEndpointName",
            "str",
            "",
            "Endpoint that joins memories; endpointName if not given.",
            names="endpoint",
        )
    )
    condense_preset_name: str = setting(
        ConfigKey(
            "condenseMemoriesPreset", "str", "", "Preset for joining memories; preset if not given.", names="preset"
        )
    )
    condense_response_tokens: int | None = setting(
        ConfigKey(
            "condenseMemoriesMaxResponseSizeInTokens",
            "int",
            None,
            "Maximum length of a joined memory, in tokens; if not given, maxResponseSizeInTokens, or 500 without that.",
            least=1,
        )
    )
    remember_messages: bool = setting(
        ConfigKey(
            "rememberMessages",
            "bool",
            False,
            "Keep every message of a conversation with an id, so that the node Recall finds it again.",
        )
    )
    messages_kept: int = setting(
        ConfigKey(
            "messagesKept",
            "int",
            50_000,
            "How many messages are kept for each conversation id; the oldest go first.",
            least=LEAST_MESSAGES_KEPT,
        )
    )
    time_zone: str = setting(
        ConfigKey(
            "timeZone",
            "str",
            "",
            "The time zone of days and dates, such as Europe/Berlin; empty: that of the server. "
            "none: no dates, for role-play whose world has times of its own.",
        )
    )

    lock_seconds: float | None = setting(
        ConfigKey(
            "condensationLockTimeoutSeconds",
            "number",
            None,
            "How long to wait for another request that works on the memories; 0: no limit. Not given: 30 before the "
            "answer, 600 after it.",
        )
    )

    follow_edits: bool = setting(
        ConfigKey(
            "followEdits",
            "bool",
            False,
            "Memories follow the conversation: what was made of a message that is edited or deleted is shown no more, "
            "and comes back with the message.",
        )
    )
    other_chats: str = setting(
        ConfigKey(
            "otherChats",
            "str",
            SHOW,
            "With followEdits: whether the memories of other conversations with the same discussion id are shown.",
            choices=(SHOW, HIDE),
        )
    )
    repairs_per_pass: int = setting(
        ConfigKey(
            "repairsPerPass",
            "int",
            8,
            "With followEdits: how many memories of changed messages are made at a time.",
            least=1,
        )
    )
    keep_elsewhere: int = setting(
        ConfigKey(
            "keepElsewhere",
            "int",
            500,
            "With followEdits: how many memories are kept whose messages are not in the conversation now.",
            least=0,
        )
    )

    @property
    def file_chunk_size(self) -> int:
        return int(self.chunk_tokens * self.level)

    @property
    def vector_chunk_size(self) -> int:
        return int(self.vector_chunk_tokens * self.level)

    @property
    def vector_endpoint(self) -> str:
        return self.vector_endpoint_name or self.endpoint

    @property
    def vector_preset(self) -> str:
        return self.vector_preset_name or self.preset

    @property
    def reads_streams(self) -> bool:
        """Whether answers are read as streams: files without the newer keys keep their calls as they are."""
        return reads_streams(self.raw)

    @property
    def has_built_in_vector_prompts(self) -> bool:
        """Whether searchable memories are written with built-in prompts alone."""
        return not (self.vector_workflow or self.vector_system_prompt or self.vector_prompt)

    @property
    def condense_endpoint(self) -> str:
        return self.condense_endpoint_name or self.endpoint

    @property
    def condense_preset(self) -> str:
        return self.condense_preset_name or self.preset

    @property
    def condense_max_response_tokens(self) -> int:
        """The limit for joined memories, or that of all answers if the file sets it, or 500."""
        if self.condense_response_tokens is not None:
            return self.condense_response_tokens
        # The documented default for joined memories is 500, not the 400 of the plain key.
        return self.max_response_tokens if NODE.has(self.raw, "maxResponseSizeInTokens") else 500

    @property
    def lock_timeout(self) -> float | None:
        """Seconds, those after the answer if the file does not say; None waits for ever."""
        seconds = LONGEST_WAIT_AFTER_ANSWER if self.lock_seconds is None else self.lock_seconds
        return seconds if seconds > 0 else None


def reads_streams(raw: Mapping[str, object]) -> bool:
    """Return whether a settings file has one of the keys with which ``init`` writes it."""
    return any(raw.get(key) is not None for key in _NEWER_KEYS)


def load_memory_settings() -> MemorySettings | None:
    """Return the current user's settings; None, with a logged error, without them: no memories are written then."""
    return load_settings(MemorySettings, USER_KEY, "No memories are written")


def quiet_memory_settings() -> MemorySettings:
    """Return the current user's settings for what works without them; defaults where they are missing."""
    try:
        name = user_name_setting(USER_KEY)
        content, display = load_settings_file(name) if name else ({}, "")
    except ConfigurationError:
        return MemorySettings()
    return read_settings(MemorySettings, content, display)
