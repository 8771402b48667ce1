"""Names that the specification fixes."""

VALID_NODE_TYPES = [
    "Standard", "PythonModule", "SlowButQualityRAG", "ConversationMemory", "FullChatSummary", "RecentMemory",
    "RecentMemorySummarizerTool", "ChatSummaryMemoryGatheringTool", "GetCurrentSummaryFromFile",
    "GetCurrentMemoryFromFile", "chatSummarySummarizer", "WriteCurrentSummaryToFileAndReturnIt", "QualityMemory",
    "VectorMemorySearch", "ConversationalKeywordSearchPerformerTool", "MemoryKeywordSearchPerformerTool",
    "OfflineWikiApiFullArticle", "OfflineWikiApiBestFullArticle", "OfflineWikiApiTopNFullArticles",
    "OfflineWikiApiPartialArticle", "CustomWorkflow", "ConditionalCustomWorkflow", "WorkflowLock", "GetCustomFile",
    "SaveCustomFile", "ImageProcessor", "StaticResponse", "ArithmeticProcessor", "Conditional",
    "StringConcatenator", "JsonExtractor", "TagTextExtractor", "ContextCompactor", "GetCurrentStateDocument",
    "OfflineResearcherApiQuickSearch", "OfflineResearcherApiDeepResearch", "ConversationChunkProcessor",
    "DelimitedChunker", "WebFetch", "CurlCommand", "MCPToolCall",
]

OPENAI_CHAT = "openaichatcompletion"
OPENAI_COMPLETION = "openaicompletion"
OLLAMA_CHAT = "ollamaapichat"
OLLAMA_GENERATE = "ollamagenerate"

LEFT_BRACE_SENTINEL = "__WILMER_L_CURLY__"
RIGHT_BRACE_SENTINEL = "__WILMER_R_CURLY__"

VERSION = "0.1.0"
OLLAMA_VERSION = "0.9"  # what Ollama clients that check for features are told
