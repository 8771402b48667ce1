"""The paths of the files of a conversation, for users' scripts.

Each function takes a discussion id and, for the conversation of a client with an API key, the hash of that key. It
returns the path of the existing file, which may be an older one beside the folder, else the path of a new one. Nothing
is created. Raises ValueError for an id that is not usable as the name of a folder.
"""
from __future__ import annotations

from functools import partial

from Middleware.utilities.conversations.discussion_folder import DiscussionFolder


def _json_file(name: str, discussion_id: str, api_key_hash: str | None = None) -> str:
    return DiscussionFolder(discussion_id, api_key_hash).file(name)


def get_discussion_state_document_file_path(discussion_id: str, api_key_hash: str | None = None) -> str:
    return DiscussionFolder(discussion_id, api_key_hash).plain_file("state_document.md")


get_discussion_memory_file_path = partial(_json_file, "memories.json")
get_discussion_chat_summary_file_path = partial(_json_file, "chat_summary.json")
get_discussion_timestamp_file_path = partial(_json_file, "timestamps.json")
get_discussion_condensation_tracker_file_path = partial(_json_file, "condensation_tracker.json")
get_discussion_vision_responses_file_path = partial(_json_file, "vision_responses.json")
get_discussion_context_compactor_old_file_path = partial(_json_file, "context_compactor_old.json")
get_discussion_context_compactor_oldest_file_path = partial(_json_file, "context_compactor_oldest.json")
