"""What operators see: metrics, logs, traces. Ids and counts, never a prompt or a key."""
