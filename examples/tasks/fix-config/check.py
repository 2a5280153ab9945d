from remote import Remote, verdict

START = {"server": {"host": "localhost", "port": 8080, "tags": ["web"]}, "debug": False}


def each_load_starts_from_the_defaults():
    with Remote("settings") as work:
        changed = work.call("load", "server.port = 1\ndebug = true")
        assert changed == {**START, "server": {**START["server"], "port": 1}, "debug": True}
        assert work.call("load") == START
        assert work.call("DEFAULTS", called=False) == START


def layers_win_in_order():
    with Remote("settings") as work:
        found = work.call("load", "server.port = 1\nserver.tags = [a, b]", ["server.port = 2"])
        assert found["server"] == {"host": "localhost", "port": 2, "tags": ["a", "b"]}
        assert work.call("load", "server = off")["server"] == "off"
        assert work.call("load", "debug.level = 3")["debug"] == {"level": 3}


VALUES = {
    "-5": -5,
    "2.5": 2.5,
    "false": False,
    "true": True,
    '"a # b = c"': "a # b = c",
    "x=y": "x=y",
    "plain  # note": "plain",
    "[]": [],
    '[1, "a, b", true]': [1, "a, b", True],
    '""': "",
}


def values():
    with Remote("settings") as work:
        for text, expected in VALUES.items():
            found = work.call("parse", f"a.b = {text}")
            assert found == {"a": {"b": expected}}, (text, found)
            assert type(found["a"]["b"]) is type(expected), (text, found)


verdict(each_load_starts_from_the_defaults, layers_win_in_order, values)
