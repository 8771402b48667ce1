"""Names that the specification fixes."""

from __future__ import annotations

OPENAI_CHAT = "openaichatcompletion"
OPENAI_COMPLETION = "openaicompletion"
OLLAMA_CHAT = "ollamaapichat"
OLLAMA_GENERATE = "ollamagenerate"
EMBEDDINGS = "embeddings"
OPENAI_RESPONSES = "openairesponses"
ANTHROPIC_MESSAGES = "anthropicmessages"
KOBOLD_GENERATE = "koboldgenerate"
# They have neither roles nor tool calls.
COMPLETION_APIS = frozenset((OPENAI_COMPLETION, OLLAMA_GENERATE, KOBOLD_GENERATE))

LEFT_BRACE_SENTINEL = "__WILMER_L_CURLY__"
RIGHT_BRACE_SENTINEL = "__WILMER_R_CURLY__"

VERSION = "0.2.0"
# The version that is reported to Ollama clients that check for features.
OLLAMA_VERSION = "0.9"

# For users' scripts. The program itself asks workflows/handlers/registry.py; a test compares the two.
VALID_NODE_TYPES = [
    "ArithmeticProcessor",
    "ChatSummaryMemoryGatheringTool",
    "chatSummarySummarizer",
    "Conditional",
    "ConditionalCustomWorkflow",
    "ContextCompactor",
    "ConversationalKeywordSearchPerformerTool",
    "ConversationChunkProcessor",
    "ConversationMemory",
    "CurlCommand",
    "CustomWorkflow",
    "DelimitedChunker",
    "FullChatSummary",
    "GetCurrentMemoryFromFile",
    "GetCurrentStateDocument",
    "GetCurrentSummaryFromFile",
    "GetCustomFile",
    "ImageProcessor",
    "JsonExtractor",
    "MCPToolCall",
    "MemoryKeywordSearchPerformerTool",
    "OfflineResearcherApiDeepResearch",
    "OfflineResearcherApiQuickSearch",
    "OfflineWikiApiBestFullArticle",
    "OfflineWikiApiFullArticle",
    "OfflineWikiApiPartialArticle",
    "OfflineWikiApiTopNFullArticles",
    "PythonModule",
    "QualityMemory",
    "Recall",
    "RecentMemory",
    "RecentMemorySummarizerTool",
    "SaveCustomFile",
    "SlowButQualityRAG",
    "Standard",
    "StaticResponse",
    "StringConcatenator",
    "TagTextExtractor",
    "VectorMemorySearch",
    "WebFetch",
    "WorkflowLock",
    "WriteCurrentSummaryToFileAndReturnIt",
]

# In the environment of a process that another one has started with others: it reads its sockets from its standard
# input.
CHILD_VARIABLE = "WILMER_WORKER_PROCESS"
