"""What sandboxes say is shown so that it steers no terminal, and can still be read."""

from rock.cli.sandbox.screen import plain


def test_control_characters_are_shown_as_what_they_are() -> None:
    assert plain("Say 42.\n") == "Say 42.\\n"
    assert plain("a\x00b\x1b[2Jc\u202ed\udc80") == "a\\x00b\\x1b[2Jc\\u202ed\\udc80"
    assert plain("größer → 42 \\n") == "größer → 42 \\n"
