import random

from remote import Remote, verdict


def members(pairs):
    return {n for start, end in pairs for n in range(start, end)}


def as_intervals(numbers):
    result = []
    for n in sorted(numbers):
        if result and result[-1][1] == n:
            result[-1][1] = n + 1
        else:
            result.append([n, n + 1])
    return result


def some_pairs(rng):
    pairs = []
    for _ in range(rng.randrange(7)):
        start = rng.randrange(-20, 20)
        pairs.append([start, start + rng.randrange(0, 9)])
    return pairs


def agrees_with_sets():
    rng = random.Random(7)
    with Remote("intervals") as work:
        for _ in range(300):
            a, b = some_pairs(rng), some_pairs(rng)
            one, two = as_intervals(members(a)), as_intervals(members(b))
            assert work.call("normalise", a) == one, ("normalise", a)
            assert work.call("union", a, b) == as_intervals(members(a) | members(b)), (a, b)
            wanted = as_intervals(members(a) - members(b))
            assert work.call("subtract", one, two) == wanted, ("subtract", one, two)
            assert work.call("total", one) == len(members(a))


verdict(agrees_with_sets)
