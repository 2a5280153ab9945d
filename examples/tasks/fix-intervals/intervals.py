"""Sets of integers as sorted, disjoint, half-open intervals: [(0, 3), (5, 6)] is {0, 1, 2, 5}."""


def normalise(pairs):
    """Any pairs as such a list: sorted, empty ones dropped, overlapping and touching ones joined."""
    result = []
    for start, end in pairs:
        if result and start < result[-1][1]:
            result[-1] = (result[-1][0], end)
        else:
            result.append((start, end))
    return result


def union(a, b):
    return normalise(a + b)


def subtract(a, b):
    """What is in `a` and not in `b`; both are normalised."""
    result = []
    for start, end in a:
        for low, high in b:
            if low < end and high > start:
                result.append((start, low))
                start = high
        result.append((start, end))
    return result


def total(pairs):
    """How many integers."""
    return sum(end - start for start, end in pairs)
