from remote import Remote, verdict

CASES = [
    (("Hello World",), {}, "hello-world"),
    (("a  &  b",), {}, "a-b"),
    (("Crème brûlée",), {}, "creme-brulee"),
    (("--x--",), {}, "x"),
    (("Ünïcödé 42!",), {"separator": "_"}, "unicode_42"),
    (("one two three",), {"max_length": 9}, "one-two"),
    (("one two three",), {"max_length": 7}, "one-two"),
    (("extraordinary",), {"max_length": 5}, "extra"),
    (("a.b",), {"separator": "."}, "a.b"),
    (("!!!",), {}, ""),
    (("a*b+c",), {"separator": "+"}, "a+b+c"),
]


def slugs():
    with Remote("textkit") as textkit:
        for args, kwargs, expected in CASES:
            found = textkit.call("slugify", *args, **kwargs)
            assert found == expected, f"slugify{args}{kwargs}: {found!r}, expected {expected!r}"


def shorten_still_works():
    with Remote("textkit") as textkit:
        assert textkit.call("shorten", "a long text", 7) == "a long…"


verdict(slugs, shorten_still_works)
