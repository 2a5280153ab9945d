"""ModelService as a process: one, supervised, or a fleet of shards behind their sockets."""
