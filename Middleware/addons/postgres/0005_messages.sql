-- oldest program: 1
-- What was said, word for word, with the tables of a file's message index. Workers keep the index of words in memory.

-- As memory_version and index_generation: the writes, and those after which the words in memory must be forgotten.
ALTER TABLE wilmer.discussions ADD COLUMN message_version bigint NOT NULL DEFAULT 0,
                               ADD COLUMN message_generation int NOT NULL DEFAULT 0;

CREATE TABLE wilmer.messages (
    discussion   bigint NOT NULL REFERENCES wilmer.discussions ON DELETE CASCADE,
    version      bigint NOT NULL,  -- the write that has changed the row last
    id           bigint NOT NULL,
    conversation bigint NOT NULL,
    place        double precision,
    key          bytea NOT NULL,
    key2         bytea,
    role         text NOT NULL,
    speaker      text,
    text         text NOT NULL,
    words        int NOT NULL,
    said         bigint,
    said_from    int NOT NULL,
    seen         bigint NOT NULL,
    state        int NOT NULL,
    when_words   text NOT NULL,
    PRIMARY KEY (discussion, id)
);

CREATE INDEX ON wilmer.messages (discussion, key);
CREATE INDEX ON wilmer.messages (discussion, key2) WHERE key2 IS NOT NULL;
CREATE INDEX ON wilmer.messages (discussion, conversation, place);
CREATE INDEX ON wilmer.messages (discussion, version);

CREATE TABLE wilmer.message_conversations (
    discussion bigint NOT NULL REFERENCES wilmer.discussions ON DELETE CASCADE,
    id         bigint NOT NULL,
    used       bigint NOT NULL,
    tentative  boolean NOT NULL,
    PRIMARY KEY (discussion, id)
);

CREATE TABLE wilmer.message_meta (
    discussion bigint NOT NULL REFERENCES wilmer.discussions ON DELETE CASCADE,
    name       text COLLATE "C" NOT NULL,
    value      text NOT NULL,
    PRIMARY KEY (discussion, name)
);

CREATE TABLE wilmer.message_embeddings (
    discussion bigint NOT NULL REFERENCES wilmer.discussions ON DELETE CASCADE,
    message_id bigint NOT NULL,
    model      text COLLATE "C" NOT NULL,
    vector     bytea NOT NULL,  -- a token when encrypted
    PRIMARY KEY (discussion, message_id, model)
);
