"""The names of the documents with memories, and of the keys in their tracker."""

from __future__ import annotations

MEMORIES_FILE = "memories.json"
ELSEWHERE_FILE = "memories_elsewhere.json"
SUMMARY_FILE = "chat_summary.json"
SUMMARY_VERSIONS_FILE = "summary_versions.json"
TRACKER_FILE = "condensation_tracker.json"
ANCHORS_FILE = "memory_anchors.json"
STATE_FILE = "state_document.md"
STATE_VERSIONS_FILE = "state_versions.json"
FOLLOW_FILE = "follow.json"
CONDENSED_UP_TO = "lastCondensationHash"
SUMMARIZED = "summarizedMemories"
