"""Shortening."""


def shorten(text, width, placeholder="…"):
    """`text` cut to `width` characters, the placeholder included."""
    if len(text) <= width:
        return text
    return text[: width - len(placeholder)].rstrip() + placeholder
