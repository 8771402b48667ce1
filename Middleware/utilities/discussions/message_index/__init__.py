"""Every message of a discussion, word for word, so that it can be searched without any LLM."""
