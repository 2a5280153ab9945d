"""The ledger: the one truth about groups and episodes, as a file of lines that is only appended to.

Each line is one JSON event (`ledger_lines`), on disk (fsync) before `append` returns. What is
pending, leased, done or consumed is never stored; `State` (`ledger_state`) derives it by replaying
the events, in order. A torn last line, which a killed harness leaves, never happened and is cut;
anything else that does not parse is a `LedgerError` naming the line.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from rock.errors import LedgerError
from rock.rollout.records.durable import sync_folder, write_all
from rock.rollout.records.ledger_lines import Event
from rock.rollout.records.ledger_state import State
from rock.sandbox.ending import to_the_end
from rock.secrets import redact

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class Ledger:
    """The open file and the state it adds up to. One writer; appends are durable on return."""

    def __init__(self, path: Path, state: State, fd: int) -> None:
        self.path = path
        self.state = state
        self._fd = fd
        self._lock = asyncio.Lock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Replay `path` (made if it is not there), cut a torn last line, and go on appending."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            raise LedgerError(f"{path}: cannot be opened: {exc.strerror}") from exc
        try:
            data = path.read_bytes()
            state, good = replay(data, source=str(path))
            if good != len(data):
                os.ftruncate(fd, good)
            os.lseek(fd, 0, os.SEEK_END)
            sync_folder(path.parent)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, state, fd)

    async def append(self, *events: Event) -> None:
        """Write `events` and wait until they are on disk; a cancellation waits for that too."""
        await to_the_end(self._append(events))

    async def _append(self, events: Iterable[Event]) -> None:
        async with self._lock:
            written = list(events)
            for event in written:
                self.state.apply(event)
            data = b"".join(msgspec.json.encode(event) + b"\n" for event in written)
            await asyncio.to_thread(self._write, redact(data))

    def _write(self, data: bytes) -> None:
        end = os.lseek(self._fd, 0, os.SEEK_CUR)
        try:
            write_all(self._fd, data)
            os.fdatasync(self._fd)
        except OSError as exc:
            # Half a line with others after it could not be read again.
            os.ftruncate(self._fd, end)
            os.lseek(self._fd, end, os.SEEK_SET)
            raise LedgerError(f"{self.path}: cannot be written: {exc.strerror}") from exc

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def replay(data: bytes, *, source: str) -> tuple[State, int]:
    """The state that `data` adds up to, and how many of its bytes are whole lines."""
    state = State()
    good = data.rfind(b"\n") + 1
    for number, line in enumerate(data[:good].splitlines(), 1):
        try:
            state.apply(_DECODER.decode(line))
        except msgspec.DecodeError as exc:
            raise LedgerError(f"{source}:{number}: not a ledger line: {exc}") from exc
        except LedgerError as exc:
            raise LedgerError(f"{source}:{number}: {exc}") from exc
    if state.groups and state.run_id is None:
        raise LedgerError(f"{source}:1: expected the run line first")
    return state, good
