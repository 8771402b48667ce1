-- oldest program: 1
-- What LLMs must get back with their tool calls, for the other workers: see keepsakes.py. Worth nothing after a crash.
CREATE UNLOGGED TABLE wilmer.keepsakes (
    -- Hashes of the user and the client's key, of names and arguments of the calls, and of the user's message.
    owner    text NOT NULL,
    shape    text NOT NULL,
    question text NOT NULL,
    -- The ids of the calls.
    ids      text[] NOT NULL,
    -- JSON, encrypted for users with encryption.
    kept     bytea NOT NULL,
    at       timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX ON wilmer.keepsakes (owner, shape, at);
