"""What each node type is for, in one line, and the groups in which Docs/User/nodes.md lists the types."""
from __future__ import annotations

from collections.abc import Mapping

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Answers": {
        "Standard": "Ask an LLM: send the conversation, or a prompt of your own.",
        "StaticResponse": "A fixed text, with variables filled in.",
    },
    "Other workflows": {
        "CustomWorkflow": "Run another workflow and go on with its result.",
        "ConditionalCustomWorkflow": "Choose the workflow to run by a value: a router.",
        "ConversationChunkProcessor": "Run a workflow once for each stretch of new messages.",
        "WorkflowLock": "Keep what follows from running twice at the same time.",
    },
    "Texts and decisions": {
        "StringConcatenator": "Join texts.",
        "TagTextExtractor": "Take the text between `<tag>` and `</tag>` out of an answer.",
        "JsonExtractor": "Take one field out of a JSON object.",
        "DelimitedChunker": "Keep the first or last pieces of a text.",
        "Conditional": "Judge a comparison: `TRUE` or `FALSE`.",
        "ArithmeticProcessor": "Calculate with two numbers.",
    },
    "Files and scripts": {
        "GetCustomFile": "Read a text file.",
        "SaveCustomFile": "Write, extend or tidy a text file.",
        "PythonModule": "Run a Python function of yours.",
    },
    "Pictures": {
        "ImageProcessor": "Let a vision model describe the conversation's images.",
    },
    "The world outside": {
        "WebFetch": "Ask for a web page or an HTTP API.",
        "CurlCommand": "The same with the program curl and all its options.",
        "MCPToolCall": "Call a tool of an MCP server.",
        "OfflineWikiApiPartialArticle": "Introductions of encyclopedia articles.",
        "OfflineWikiApiBestFullArticle": "The one encyclopedia article that fits best.",
        "OfflineWikiApiTopNFullArticles": "Several whole encyclopedia articles.",
        "OfflineWikiApiFullArticle": "Old form of OfflineWikiApiBestFullArticle.",
        "OfflineResearcherApiQuickSearch": "An answer from the books of an offline researcher, within minutes.",
        "OfflineResearcherApiDeepResearch": "The same, searched for longer.",
    },
    "Memory: write": {
        "QualityMemory": "Write the memories that are due.",
        "chatSummarySummarizer": "Fold new memories into the summary.",
        "WriteCurrentSummaryToFileAndReturnIt": "Make a text of your own the summary.",
        "ContextCompactor": "Squeeze the old part of a long conversation into two summaries.",
        "SlowButQualityRAG": "Put one prompt to every block of a long text.",
    },
    "Memory: read": {
        "RecentMemorySummarizerTool": "The newest memories.",
        "GetCurrentMemoryFromFile": "All memories.",
        "GetCurrentSummaryFromFile": "The summary.",
        "GetCurrentStateDocument": "The page that says how things stand now.",
        "VectorMemorySearch": "Searchable memories that fit a question.",
        "MemoryKeywordSearchPerformerTool": "Older memories that hold certain words.",
        "ConversationalKeywordSearchPerformerTool": "Parts of the conversation that hold certain words.",
        "ChatSummaryMemoryGatheringTool": "Memories that are not in the summary yet.",
    },
    "Memory: read and write in one, the old way": {
        "RecentMemory": "Write what is due, then give what a workflow makes of the memories.",
        "ConversationMemory": "What a workflow makes of the memories, without writing any.",
        "FullChatSummary": "Bring the summary up to date with a workflow, and give it.",
    },
}
"""Title of a group -> its types, the usual ones first -> what one would use them for."""
