"""All stored conversations: what there is, what is in it, whether it is sound, and getting rid of it."""
