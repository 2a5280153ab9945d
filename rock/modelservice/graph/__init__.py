"""The message graph: each message stored once with its tokens, a call is a path. No I/O."""
