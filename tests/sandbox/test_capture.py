"""What is kept of a long stream: both ends, exactly, whatever the pieces it came in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rock.sandbox.channel.capture import Capture


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(min_value=0, max_value=60))
def test_the_beginning_and_the_end_are_kept_and_the_rest_is_counted(
    pieces: list[bytes], limit: int
) -> None:
    capture = Capture(limit)
    for piece in pieces:
        capture.add(piece)
    whole = b"".join(pieces)
    assert capture.total_bytes == len(whole)
    if len(whole) <= limit:
        assert (capture.kept, capture.gap, capture.is_over) == (whole, None, False)
        return
    tail = limit // 2
    head = limit - tail
    assert capture.kept == whole[:head] + whole[len(whole) - tail :]
    assert (capture.gap, capture.is_over) == (head, True)


def test_a_stream_of_any_length_is_held_in_bounded_memory() -> None:
    capture = Capture(1000)
    for number in range(3000):
        capture.add(b"%04d" % number * 256)
    assert capture.kept.endswith(b"2999")
    held = vars(capture)
    sizes = [len(value) for value in held.values() if isinstance(value, bytearray)]
    assert len(sizes) == 2
    assert sum(sizes) < 1000 + 2 * 64 * 1024
