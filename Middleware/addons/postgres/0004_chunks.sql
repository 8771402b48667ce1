-- oldest program: 1
-- What searchable memories were made of, where memories follow edits.
-- JSON: the key of the message before the chunk, and those of its messages.
ALTER TABLE wilmer.memory_hash_log ADD COLUMN sources text;
-- The id of the chunk before it.
ALTER TABLE wilmer.memory_hash_log ADD COLUMN follows text;
-- The entry in memory_hash_log.
ALTER TABLE wilmer.memories ADD COLUMN chunk bigint;
-- Of users with encryption, the key of the hashes that stand in place of the keys of messages, as a token; else empty.
-- Null: nothing is known of any chunk.
ALTER TABLE wilmer.discussions ADD COLUMN source_key text;
