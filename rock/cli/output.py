"""Where the command line writes when nobody can read it: the disk is full, the terminal or pipe is gone."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable
from typing import Literal, TextIO, cast


def open_streams() -> None:
    """Have descriptors 0 to 2, also when whoever started this closed them.

    Else the next files that are opened would take their numbers, and be written to by every print.
    """
    for fd in range(3):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name, fd in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w"))


def write_raw(data: bytes, *, to: Literal["stdout", "stderr"] = "stdout") -> None:
    """What a sandbox printed, byte for byte, as it comes; nothing is redacted in it."""
    text = sys.stdout if to == "stdout" else sys.stderr
    text.flush()
    try:
        number = text.fileno()
    except io.UnsupportedOperation:  # in memory: the command was called from Python
        text.buffer.write(data)
        return
    with os.fdopen(number, "wb", closefd=False) as stream:
        stream.write(data)


def unheard(stream: TextIO) -> TextIO:
    """`stream`, but what cannot be written is lost: work goes on, whoever has stopped looking at it."""
    return cast("TextIO", _Unheard(stream))


class _Unheard:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError:
            self._give_up()
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """From now on, and for what is still buffered at the end, the descriptor takes everything."""
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)

    def __getattr__(self, name: str) -> object:
        if name == "buffer":
            raise AttributeError(name)  # nobody gets past this by writing bytes
        return getattr(self._stream, name)
