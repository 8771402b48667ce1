"""The passes that write the memories of a conversation, and the calls of LLMs and workflows in them."""
