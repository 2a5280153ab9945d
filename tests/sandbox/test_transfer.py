"""What a hostile sandbox may send as a file tree, and what of it reaches the host's disk."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from rock.errors import SandboxDied, SandboxError, SandboxFileError, UnsafeArchive
from rock.sandbox.channel import frames, transfer
from rock.sandbox.channel.frames import FrameType

DIR, FILE, LINK, DATA, DONE = (
    FrameType.DIR,
    FrameType.FILE,
    FrameType.LINK,
    FrameType.DATA,
    FrameType.DONE,
)


def entry(kind: FrameType, path: bytes, *, mode: int = 0o755, to: bytes = b"") -> bytes:
    rest = frames.text(to) if kind is LINK else frames.u32(mode)
    return frames.encode(kind, frames.text(path) + rest)


def receive(sent: Sequence[bytes], target: Path) -> None:
    """Download what a helper that sends exactly `sent` sends."""
    near, far = socket.socketpair()

    def play() -> None:
        with far:
            far.sendall(b"".join(sent))
            far.shutdown(socket.SHUT_WR)
            while far.recv(4096):
                continue

    player = threading.Thread(target=play)
    player.start()
    try:
        with near:
            transfer.get_tree(
                near, b"/source", target, max_bytes=1000, max_entries=10, refuse=_refuse
            )
    finally:
        player.join()


def _refuse(body: bytes) -> Exception:
    return SandboxFileError(frames.parse_refusal(body).text)


ROOT = entry(DIR, b"")
HOSTILE = {
    "a parent": [ROOT, entry(FILE, b"..")],
    "above": [ROOT, entry(FILE, b"../out")],
    "absolute": [ROOT, entry(FILE, b"/tmp/out")],
    "dots in the middle": [ROOT, entry(DIR, b"a"), entry(FILE, b"a/../../out")],
    "through a link": [ROOT, entry(LINK, b"l", to=b"/tmp"), entry(FILE, b"l/out")],
    "through a link to here": [ROOT, entry(LINK, b"l", to=b"."), entry(FILE, b"l/out")],
    "over a link": [ROOT, entry(LINK, b"l", to=b"/tmp/out"), entry(FILE, b"l")],
    "a second root": [ROOT, entry(FILE, b"")],
    "a missing parent": [ROOT, entry(FILE, b"a/b")],
    "a root that is a link": [entry(LINK, b"", to=b"/tmp"), entry(FILE, b"out")],
    "too many": [ROOT, *(entry(FILE, b"%d" % number) for number in range(10))],
    "too much": [ROOT, entry(FILE, b"f"), frames.encode(DATA, bytes(1001))],
    "data for nothing": [ROOT, frames.encode(DATA, b"x")],
    "a strange frame": [ROOT, frames.encode(FrameType.PONG, frames.text(b"x"))],
    "a cut frame": [ROOT, entry(FILE, b"f")[:-2]],
    "a cut entry": [ROOT, frames.encode(FILE, frames.text(b"f"))],
    "no end": [ROOT, entry(FILE, b"f")],
    "a NUL in a name": [ROOT, frames.encode(FILE, frames.u32(3) + b"a\0b" + frames.u32(0))],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tree_is_refused_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    with pytest.raises(SandboxError) as caught:
        receive(HOSTILE[name], tmp_path / "got")
    assert isinstance(caught.value, (UnsafeArchive, SandboxFileError, SandboxDied))
    assert list(tmp_path.iterdir()) == []


def test_modes_come_out_without_special_bits_and_removable(tmp_path: Path) -> None:
    sent = [entry(DIR, b"", mode=0o2000), entry(FILE, b"f", mode=0o6755), frames.encode(DONE)]
    receive(sent, tmp_path / "got")
    assert oct((tmp_path / "got").stat().st_mode & 0o7777) == "0o700"
    assert oct((tmp_path / "got" / "f").stat().st_mode & 0o7777) == "0o755"


def test_the_helpers_refusal_is_raised(tmp_path: Path) -> None:
    body = bytes((6,)) + frames.u32(2) + frames.text(b"gone")
    with pytest.raises(SandboxFileError, match="gone"):
        receive([frames.encode(FrameType.ERROR, body)], tmp_path / "got")
