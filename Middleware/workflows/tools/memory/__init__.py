"""Writing what is remembered of a conversation: the passes over it, and the calls of LLMs and workflows in them."""
