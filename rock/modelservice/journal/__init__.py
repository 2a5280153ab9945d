"""The append-only log that alone decides calls: written before a reply, read back at the start."""
