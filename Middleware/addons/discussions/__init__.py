"""The discussions of all clients, for their owner: what there is, its content, changes and removal."""
