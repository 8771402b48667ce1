"""The settings file of a user's memories."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from Middleware.services.settings_file import FLAG, INT, LEVEL, NAME, NUMBER, TEXT, load_settings, setting

USER_KEY = "discussionIdMemoryFileWorkflowSettings"
LONGEST_WAIT_AFTER_ANSWER = 600.0  # seconds


@dataclass(frozen=True)
class MemorySettings:
    """The settings, with defaults for what the file leaves out. Names are "" where nothing is set.

    Attributes:
        raw: the whole file; for LLM calls of its own it plays the part of a node.
    """

    raw: Mapping[str, object] = field(default_factory=dict)
    use_vector: bool = setting("useVectorForQualityMemory", FLAG, False,
                               "QualityMemory writes searchable memories instead of memory files.")
    endpoint: str = setting("endpointName", NAME, "", "Endpoint that writes memories.", names="endpoint")
    preset: str = setting("preset", NAME, "", "Preset for writing memories.", names="preset")
    max_response_tokens: int = setting("maxResponseSizeInTokens", INT, 400, "Longest memory, in tokens.", least=1)
    lookback: int = setting("lookbackStartTurn", INT, 3, "Newest messages, system messages aside, left alone.", least=0)
    system_prompt: str = setting("systemPrompt", TEXT, "", "System prompt for a memory.")
    prompt: str = setting("prompt", TEXT, "", "Prompt for a memory; [TextChunk] is the text to remember.")
    file_workflow: str = setting("fileMemoryWorkflowName", NAME, "",
                                 "Workflow that writes memories in place of endpoint and prompts.", names="workflow")
    chunk_tokens: int = setting("chunkEstimatedTokenSize", INT, 1000, "New text, in tokens, that makes a memory.",
                                least=1)
    chunk_messages: int = setting("maxMessagesBetweenChunks", INT, 5, "New messages that make a memory.", least=1)

    vector_workflow: str = setting("vectorMemoryWorkflowName", NAME, "", "Workflow that writes searchable memories.",
                                   names="workflow")
    vector_endpoint_name: str = setting("vectorMemoryEndpointName", NAME, "",
                                        "Endpoint for searchable memories; endpointName if not given.",
                                        names="endpoint")
    vector_preset_name: str = setting("vectorMemoryPreset", NAME, "",
                                      "Preset for searchable memories; preset if not given.", names="preset")
    vector_max_response_tokens: int = setting("vectorMemoryMaxResponseSizeInTokens", INT, 1024,
                                              "Longest answer with searchable memories, in tokens.", least=1)
    vector_chunk_tokens: int = setting("vectorMemoryChunkEstimatedTokenSize", INT, 1000,
                                       "New text, in tokens, that makes searchable memories.", least=1)
    vector_chunk_messages: int = setting("vectorMemoryMaxMessagesBetweenChunks", INT, 5,
                                         "New messages that make searchable memories.", least=1)
    vector_system_prompt: str = setting("vectorMemorySystemPrompt", TEXT, "",
                                        "System prompt for searchable memories, in place of the built-in.")
    vector_prompt: str = setting("vectorMemoryPrompt", TEXT, "",
                                 "Prompt for searchable memories, in place of the built-in; [TextChunk] is the text.")
    index_topics: bool = setting("vectorMemoryIndexTopics", FLAG, False, "Topics are found by keyword search, too.")
    level: float = setting("wilmerContextEstimationLevel", LEVEL, 1.0, "How far token estimates are trusted.")
    embedding_endpoint: str = setting("embeddingEndpointName", NAME, "", "Endpoint that embeds new memories.",
                                      names="endpoint")
    backfill: int = setting("embeddingBackfillBatchSize", INT, 20, "Older memories embedded per chunk; 0: none.",
                            otherwise=0, least=0)

    use_state_document: bool = setting("useStateDocument", FLAG, False, "Keep a document of the present state.")
    state_workflow: str = setting("stateDocumentWorkflowName", NAME, "", "Workflow that writes that document.",
                                  names="workflow")
    state_retention: float = setting("stateDocumentMinRetentionRatio", NUMBER, 0.5,
                                     "A new document shorter than this share of the old is refused; 0: never.", most=1)

    condense: bool = setting("condenseMemories", FLAG, False, "Join older memories.")
    condense_count: int = setting("memoriesBeforeCondensation", INT, 0, "Memories joined at a time.")
    condense_buffer: int = setting("memoryCondensationBuffer", INT, 0, "Newest memories left alone.", least=0)
    condense_system_prompt: str = setting("condenseMemoriesSystemPrompt", TEXT, "",
                                          "System prompt for joining memories, in place of the built-in.")
    condense_prompt: str = setting("condenseMemoriesPrompt", TEXT, "",
                                   "Prompt for joining memories, in place of the built-in.")
    condense_endpoint_name: str = setting("condenseMemoriesEndpointName", NAME, "",
                                          "Endpoint that joins memories; endpointName if not given.", names="endpoint")
    condense_preset_name: str = setting("condenseMemoriesPreset", NAME, "",
                                        "Preset for joining memories; preset if not given.", names="preset")
    condense_response_tokens: int | None = setting("condenseMemoriesMaxResponseSizeInTokens", INT, None,
                                                   "Longest joined memory, in tokens; if not given, "
                                                   "maxResponseSizeInTokens, and 500 without that.", least=1)
    lock_seconds: float | None = setting(
        "condensationLockTimeoutSeconds", NUMBER, None,
        "How long to wait for another request at work on the memories; 0: for ever. Not given: 30 before the answer, "
        "600 after it.")

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
    def condense_endpoint(self) -> str:
        return self.condense_endpoint_name or self.endpoint

    @property
    def condense_preset(self) -> str:
        return self.condense_preset_name or self.preset

    @property
    def condense_max_response_tokens(self) -> int:
        """The key of its own, else the plain one where the file has it, else 500."""
        if self.condense_response_tokens is not None:
            return self.condense_response_tokens
        return self.max_response_tokens if self.raw.get("maxResponseSizeInTokens") is not None else 500

    @property
    def lock_timeout(self) -> float | None:
        """Seconds, those after the answer if the file does not say; None waits for ever."""
        seconds = LONGEST_WAIT_AFTER_ANSWER if self.lock_seconds is None else self.lock_seconds
        return seconds if seconds > 0 else None


def load_memory_settings() -> MemorySettings | None:
    """The current user's; None, with an error in the log, if there are none: no memories are written then."""
    return load_settings(MemorySettings, USER_KEY, "No memories are written")
