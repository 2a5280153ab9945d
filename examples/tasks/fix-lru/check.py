import os

from remote import Remote, verdict

HERE = os.path.dirname(os.path.abspath(__file__))


def play(remote, cache, *steps):
    found = []
    for name, *args in steps:
        if name == "at":
            remote.call("at", *args)
        else:
            found.append(remote.call(name, *args, on=cache))
    return found


def remote():
    return Remote("driver", path=f"/workspace:{HERE}")


def uses():
    with remote() as work:
        cache = work.new("make", 2)
        play(work, cache, ("put", "a", 1), ("put", "b", 2), ("get", "a"), ("put", "c", 3))
        assert play(work, cache, ("keys",), ("get", "b")) == [["a", "c"], None]
        play(work, cache, ("put", "a", 9), ("put", "d", 4))
        assert play(work, cache, ("keys",), ("get", "a"), ("__len__",)) == [["a", "d"], 9, 2]


def ages():
    with remote() as work:
        cache = work.new("make", 3, 10)
        play(work, cache, ("put", "a", 1), ("at", 6), ("put", "b", 2), ("get", "a"), ("at", 11))
        # `a` was used last, but it is too old: it goes first, and nobody sees it any more.
        assert play(work, cache, ("keys",), ("__len__",), ("get", "a")) == [["b"], 1, None]
        play(work, cache, ("put", "c", 3), ("put", "d", 4))
        assert play(work, cache, ("keys",)) == [["b", "c", "d"]]


def expired_before_live():
    with remote() as work:
        cache = work.new("make", 2, 10)
        play(
            work, cache, ("put", "old", 1), ("at", 9), ("put", "new", 2), ("get", "old"), ("at", 12)
        )
        play(work, cache, ("put", "third", 3))
        assert play(work, cache, ("keys",)) == [["new", "third"]]


def counts():
    with remote() as work:
        cache = work.new("make", 2, 5)
        play(work, cache, ("put", "a", 0), ("get", "a"), ("get", "b"), ("at", 6), ("get", "a"))
        assert work.call("hits", on=cache, called=False) == 1
        assert work.call("misses", on=cache, called=False) == 2


verdict(uses, ages, expired_before_live, counts)
