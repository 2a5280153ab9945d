"""One attempt of an episode, from an empty sandbox to a durable record."""
