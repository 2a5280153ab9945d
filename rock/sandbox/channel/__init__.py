"""The exec channel: the protocol of the helper in every sandbox, and its client."""
