"""The stored conversations: list, overview, export, check and removal."""
