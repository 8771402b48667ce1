"""How many seconds tests wait on a busy machine. A bound costs nothing where what it waits for happens."""

# For what has to happen: a load of forty made a server take 35 s for its start.
PATIENCE = 60.0
# After this time a client gives up by itself: what ends only with its client comes too late for ``PATIENCE``.
CLIENT_PATIENCE = 150.0
# For what servers do at once instead of waiting for a client's bytes: Eventlet would wait a minute for them, the others
# two.
BEFORE_BYTES = 40.0
