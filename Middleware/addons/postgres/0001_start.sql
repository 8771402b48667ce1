-- oldest program: 1
CREATE SCHEMA wilmer;

CREATE TABLE wilmer.schema_version (
    version        int PRIMARY KEY,
    applied_at     timestamptz NOT NULL DEFAULT now(),
    oldest_program int NOT NULL
);

-- What is stored of conversations. The names are compared byte by byte, as those of files are.
CREATE TABLE wilmer.discussions (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space            text COLLATE "C" NOT NULL,
    key_hash         text COLLATE "C" NOT NULL,  -- '' without a key
    discussion_id    text COLLATE "C" NOT NULL,
    memory_version   bigint NOT NULL DEFAULT 0,
    index_generation int NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL DEFAULT now(),
    UNIQUE (space, key_hash, discussion_id)
);

CREATE TABLE wilmer.documents (
    discussion bigint NOT NULL REFERENCES wilmer.discussions ON DELETE CASCADE,
    name       text COLLATE "C" NOT NULL,
    content    bytea NOT NULL,
    version    bigint NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (discussion, name)
);

CREATE TABLE wilmer.memories (
    discussion    bigint NOT NULL REFERENCES wilmer.discussions ON DELETE CASCADE,
    id            bigint NOT NULL,
    memory_text   text NOT NULL,
    date_added    text NOT NULL,
    metadata_json text,
    with_topics   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (discussion, id)
);

CREATE TABLE wilmer.memory_embeddings (
    discussion bigint NOT NULL,
    memory_id  bigint NOT NULL,
    model      text NOT NULL,
    dim        int NOT NULL,
    vector     bytea NOT NULL,  -- a token when encrypted
    PRIMARY KEY (discussion, memory_id, model),
    FOREIGN KEY (discussion) REFERENCES wilmer.discussions ON DELETE CASCADE
);

CREATE TABLE wilmer.memory_hash_log (
    discussion   bigint NOT NULL REFERENCES wilmer.discussions ON DELETE CASCADE,
    id           bigint NOT NULL,
    message_hash text NOT NULL,
    timestamp    text NOT NULL,
    place        text,
    PRIMARY KEY (discussion, id)
);

CREATE TABLE wilmer.chunk_failures (
    discussion bigint NOT NULL REFERENCES wilmer.discussions ON DELETE CASCADE,
    place      text NOT NULL,
    count      int NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (discussion, place)
);

-- WorkflowLock nodes.
CREATE TABLE wilmer.workflow_locks (
    user_name   text COLLATE "C" NOT NULL,
    lock_id     text COLLATE "C" NOT NULL,
    session_id  text NOT NULL,
    workflow_id text NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (user_name, lock_id)
);

CREATE TABLE wilmer.sessions (
    session_id text PRIMARY KEY,
    last_seen  timestamptz NOT NULL
);

-- What is worth nothing after a crash of the database, and so costs no disk flush. These tables stay small, and their
-- rows come and go with each request: they are vacuumed by number, not by share.
CREATE UNLOGGED TABLE wilmer.workers (
    number      int PRIMARY KEY,
    instance_id text NOT NULL,
    host        text NOT NULL,
    pid         int NOT NULL,
    version     text NOT NULL,
    config_hash text NOT NULL,
    started_at  timestamptz NOT NULL,
    last_seen   timestamptz NOT NULL,
    draining    boolean NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE UNLOGGED TABLE wilmer.gate (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker int NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE UNLOGGED TABLE wilmer.idempotency (
    key_hash      bytea PRIMARY KEY,
    request_id    text NOT NULL,
    worker        int NOT NULL,
    registered_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE UNLOGGED TABLE wilmer.cancellations (
    request_id text NOT NULL,
    reason     text NOT NULL,
    -- Whose request may be cancelled, each name percent-encoded, with commas between them; NULL: anybody's.
    users      text,
    at         timestamptz NOT NULL DEFAULT now()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The numbers of the workers that are alive: each holds the lock of its number, in the class 0x57494C4D.
CREATE FUNCTION wilmer.live_workers() RETURNS SETOF int LANGUAGE sql VOLATILE AS $$
    SELECT objid::int FROM pg_locks
    WHERE locktype = 'advisory' AND classid = 1464421453 AND objsubid = 2 AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;

-- Binds an idempotency key to a request and returns the other one that had it, unless that has certainly ended.
CREATE FUNCTION wilmer.register_idempotency(new_key bytea, new_request text, new_worker int) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    earlier wilmer.idempotency;
BEGIN
    -- One after the other: of several that come at once, each displaces the one before it.
    PERFORM pg_advisory_xact_lock(('x' || encode(substr(new_key, 1, 8), 'hex'))::bit(64)::bigint);
    SELECT * INTO earlier FROM wilmer.idempotency WHERE key_hash = new_key;
    INSERT INTO wilmer.idempotency VALUES (new_key, new_request, new_worker, now())
    ON CONFLICT (key_hash) DO UPDATE
        SET request_id = new_request, worker = new_worker, registered_at = now();
    IF earlier.request_id = new_request OR earlier.registered_at < now() - interval '900 seconds'
       AND earlier.worker NOT IN (SELECT wilmer.live_workers()) THEN
        RETURN NULL;
    END IF;
    RETURN earlier.request_id;
END $$;

-- The gate. A ticket is a place in the queue of all workers, and later a slot; the oldest tickets have the slots. All
-- changes hold one lock, so that tickets are numbered in the order in which they become visible.

-- Takes a ticket and returns it with the number of those before it; without waits, only if it has a slot at once.
CREATE FUNCTION wilmer.enter_gate(own_worker int, slots int, waits boolean, OUT ticket bigint, OUT before bigint)
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1464421454, 0);
    SELECT count(*) INTO before FROM wilmer.gate;
    IF waits OR before < slots THEN
        INSERT INTO wilmer.gate (worker) VALUES (own_worker) RETURNING id INTO ticket;
    END IF;
END $$;

-- Takes tickets anew, in order, for a worker that may have lost its own, and returns them.
CREATE FUNCTION wilmer.enter_gate_again(own_worker int, former_worker int, former_tickets bigint[], wanted int)
RETURNS SETOF bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1464421454, 0);
    -- Under this number there may be tickets of a worker that had it before.
    DELETE FROM wilmer.gate WHERE worker = own_worker OR worker = former_worker AND id = ANY(former_tickets);
    RETURN QUERY INSERT INTO wilmer.gate (worker) SELECT own_worker FROM generate_series(1, wanted) RETURNING id;
    PERFORM pg_notify('wilmer', 'gate');
END $$;

-- Gives a ticket back, and tells those who wait.
CREATE FUNCTION wilmer.leave_gate(own_worker int, own_ticket bigint, slots int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1464421454, 0);
    DELETE FROM wilmer.gate WHERE id = own_ticket AND worker = own_worker;
    IF (SELECT count(*) FROM wilmer.gate) >= slots THEN
        PERFORM pg_notify('wilmer', 'gate');
    END IF;
END $$;

-- Returns the tickets of a worker that are still there, with the number of those before each. With clean, the tickets
-- of workers that are dead are removed first.
CREATE FUNCTION wilmer.look_at_gate(own_worker int, own_tickets bigint[], clean boolean)
RETURNS TABLE (ticket bigint, before bigint) LANGUAGE plpgsql AS $$
BEGIN
    IF clean THEN
        DELETE FROM wilmer.gate WHERE worker <> own_worker AND worker NOT IN (SELECT wilmer.live_workers());
    END IF;
    RETURN QUERY SELECT mine.id, (SELECT count(*) FROM wilmer.gate AS other WHERE other.id < mine.id)
        FROM wilmer.gate AS mine WHERE mine.worker = own_worker AND mine.id = ANY(own_tickets);
END $$;
