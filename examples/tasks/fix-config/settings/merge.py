"""Merging."""


def merge(base, over):
    """`over` laid over `base`: tables are merged, everything else is replaced. Neither is changed."""
    for key, value in over.items():
        if isinstance(value, dict):
            base[key] = merge(base.get(key, {}), value)
        else:
            base[key] = value
    return base
