"""Server-sent events: frames out, events in."""

import pytest

from rock.modelservice.dialects import sse
from rock.modelservice.dialects.sse import Decoder, Event

STREAM = (
    b": comment\n"
    b"event: ping\ndata: {}\n\n"
    b"data: one\ndata: two\n\n"
    b"data: caf\xc3\xa9\r\n\r\n"
    b"id: 7\rdata:bare\r\r"
    b"data: [DONE]\n\n"
)
EVENTS = [
    Event("{}", "ping"),
    Event("one\ntwo"),
    Event("café"),
    Event("bare"),
    Event("[DONE]"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_whole_however_the_stream_is_cut(size: int) -> None:
    decoder = Decoder()
    events = [
        event
        for start in range(0, len(STREAM), size)
        for event in decoder.feed(STREAM[start : start + size])
    ]
    assert events == EVENTS


@pytest.mark.parametrize("data", ["x", "two\nlines", "ends\n", "", "a\rb\r\nc"])
def test_what_is_encoded_decodes_to_one_event(data: str) -> None:
    frame = sse.encode(data.encode(), event="note")
    expected = data.replace("\r\n", "\n").replace("\r", "\n")
    assert Decoder().feed(frame) == [Event(expected, "note")]


def test_an_unfinished_event_is_not_given() -> None:
    decoder = Decoder()
    assert decoder.feed(b"data: half") == []
    assert decoder.feed(b"\n") == []
    assert decoder.feed(b"\n") == [Event("half")]
