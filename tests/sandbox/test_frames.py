"""The codec of the helper's protocol: any cut, any bytes, and nothing believed that cannot be."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rock.sandbox.channel import frames
from rock.sandbox.channel.frames import (
    Decoder,
    EndKind,
    ExecRequest,
    Frame,
    FrameType,
    ProtocolError,
)

KINDS = st.sampled_from(list(FrameType))
BODIES = st.binary(max_size=200)


@given(st.lists(st.tuples(KINDS, BODIES), max_size=8), st.data())
def test_frames_survive_any_cut(sent: list[tuple[FrameType, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frames.encode(kind, body) for kind, body in sent)
    decoder, got = Decoder(), list[Frame]()
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += decoder.feed(stream[:size])
        stream = stream[size:]
    assert [(frame.type, frame.body) for frame in got] == sent


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(struct.pack("<IB", 0, ord("P")), id="empty"),
        pytest.param(struct.pack("<IB", frames.MAX_FRAME_BYTES + 1, ord("P")), id="too big"),
        pytest.param(struct.pack("<IB", 1, 0), id="unknown type"),
    ],
)
def test_a_frame_that_cannot_be_is_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder().feed(raw))


def test_a_frame_over_the_bound_is_not_sent() -> None:
    with pytest.raises(ValueError, match="the bound is"):
        frames.encode(FrameType.EXEC, bytes(frames.MAX_FRAME_BYTES))


@given(st.binary(max_size=60))
def test_replies_of_any_bytes_parse_or_are_refused(raw: bytes) -> None:
    for parse in (frames.parse_result, frames.parse_refusal):
        with contextlib.suppress(ProtocolError):
            assert parse(raw) == parse(bytes(raw))


@given(st.binary(max_size=40), st.integers(0, 50))
def test_a_text_never_reaches_beyond_its_body(raw: bytes, offset: int) -> None:
    try:
        value, end = frames.take_text(raw, offset)
    except ProtocolError:
        return
    assert raw[end - len(value) : end] == value
    assert end <= len(raw)


def test_a_result_tells_unknown_from_none() -> None:
    raw = struct.pack("<BIQIB", 2, 9, 1_500_000_000, frames.UNKNOWN, 1)
    ended = frames.parse_result(raw)
    assert (ended.kind, ended.value, ended.duration_seconds) == (EndKind.SIGNALED, 9, 1.5)
    assert (ended.oom_kills, ended.leftovers) == (None, True)
    assert frames.parse_result(struct.pack("<BIQIB", 1, 0, 1, 0, 0)).oom_kills == 0


@pytest.mark.parametrize("field", ["argv", "env", "cwd", "user"])
def test_a_nul_byte_is_refused_before_it_cuts_a_text(field: str) -> None:
    values = {"argv": [b"a"], "env": {b"A": b"b"}, "cwd": b"/", "user": b"", "timeout_ms": 1}
    broken = {"argv": [b"a", b"b\0c"], "env": {b"A": b"b\0c"}, "cwd": b"/\0", "user": b"\0"}
    ExecRequest(**values).encode()  # pyright: ignore[reportArgumentType] - one table for all fields
    with pytest.raises(ValueError, match="NUL"):
        ExecRequest(**{**values, field: broken[field]}).encode()  # pyright: ignore[reportArgumentType] - one table for all fields
