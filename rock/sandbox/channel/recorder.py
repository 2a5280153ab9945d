"""Writes down what is done to a sandbox, as it is done.

A command that is over at once has one entry, with the beginning and the end of its output. One that lasts
has an entry when it began, and one for what it wrote in each quarter of a second in which it wrote: at most
8 KiB of each stream, so that a program that floods its output costs next to nothing.

Secrets are replaced here (`rock.secrets`), before anything reaches a file or a wire. Around a gap some bytes
more than are written down are looked at, so that a secret is not cut in two by it.
"""

from __future__ import annotations

import asyncio
import secrets as random
import shlex
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rock import secrets
from rock.errors import RockError
from rock.sandbox.channel.capture import Capture
from rock.sandbox.command import ExecResult
from rock.sandbox.logs import DONE, ActionKind, LogEntry, Part, Sink

KEPT_BYTES = 8 * 1024
"""Of each stream in one entry."""
WINDOW_SECONDS = 0.25
MAX_WHAT = 500
_MARGIN_BYTES = 512
"""No secret is longer, as far as cutting goes."""


def _wall_seconds() -> float:
    return datetime.now(UTC).timestamp()


class Recorder:
    """What one process does to one sandbox. `by` says who that is."""

    def __init__(self, sink: Sink, by: str) -> None:
        self.sink = sink
        self.by = by

    def command(self, kind: ActionKind, argv: Sequence[bytes], *, user: str | None) -> Action:
        """A command that is about to start; whoever starts it calls `end`."""
        words = shlex.join(word[:MAX_WHAT].decode(errors="replace") for word in argv[:MAX_WHAT])
        return Action(self, kind, f"({user}) {words}" if user else words)

    def action(self, kind: ActionKind, what: str) -> Action:
        return Action(self, kind, what)

    @contextmanager
    def doing(self, kind: ActionKind, what: str) -> Generator[Action]:
        """An action that lasts as long as the block."""
        with ended_by_errors(Action(self, kind, what)) as action:
            yield action
            action.end()

    def note(self, kind: ActionKind, what: str) -> None:
        """Something that takes no time."""
        Action(self, kind, what).end()


@contextmanager
def ended_by_errors(action: Action) -> Generator[Action]:
    """What the block raises is how `action` ended."""
    try:
        yield action
    except RockError as exc:
        action.end(exc.code)
        raise
    except BaseException as exc:  # a cancellation, for one: said, and passed on
        action.end("cancelled" if isinstance(exc, asyncio.CancelledError) else "failed")
        raise


class Action:
    """One action. `output` takes what it writes; `end` is safe to call twice."""

    def __init__(self, recorder: Recorder, kind: ActionKind, what: str) -> None:
        self.id = random.token_hex(4)
        self.size_bytes = 0
        """Of a file, once that is known."""
        self._recorder = recorder
        self._kind: ActionKind = kind
        self._what = secrets.redact_text(what[: MAX_WHAT + _MARGIN_BYTES])[:MAX_WHAT]
        self._started = time.monotonic()
        self._began = self._ended = False
        self._windows = (_Window(), _Window())
        self._timer: asyncio.TimerHandle | None = None
        self._arm()

    def begin(self) -> None:
        """Say now that it runs, not only if it lasts."""
        if not self._began and not self._ended:
            self._began = True
            self._add("began", what=self._what)

    def output(self, stream: int, data: bytes) -> None:
        """`data` was written to stdout (0) or stderr (1)."""
        if self._ended:
            return
        self._windows[stream].add(data)
        self._arm()

    def end(self, how: str | ExecResult = DONE) -> None:
        """It is over: with that result, or that status."""
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        result = how if isinstance(how, ExecResult) else None
        out, err = self._windows
        self._add(
            "ended",
            what=self._what,
            status=str(how if result is None else result.status),
            exit_code=None if result is None else result.exit_code,
            signal=None if result is None else result.signal,
            seconds=time.monotonic() - self._started,
            stdout_bytes=self.size_bytes or out.total_bytes,
            stderr_bytes=err.total_bytes,
            **self._written(last=True),
        )

    def _arm(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(WINDOW_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.begin()
        written = self._written()
        if written["stdout"] or written["stderr"]:
            self._add("output", **written)
        if any(window.waits for window in self._windows):
            self._arm()

    def _written(self, *, last: bool = False) -> dict[str, Any]:
        (stdout, missing), (stderr, more) = (window.take(last=last) for window in self._windows)
        return {"stdout": stdout, "stderr": stderr, "left_out_bytes": missing + more}

    def _add(self, part: Part, **fields: Any) -> None:
        entry = LogEntry(
            at=_wall_seconds(),
            action=self.id,
            kind=self._kind,
            part=part,
            by=self._recorder.by,
            **fields,
        )
        self._recorder.sink.add(entry)


class _Window:
    """What one stream wrote since the last entry."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._capture: Capture | None = None
        self._held = b""
        """The beginning of a line, which is written down with its rest, or when nothing follows."""

    @property
    def waits(self) -> bool:
        return self._capture is not None or bool(self._held)

    def add(self, data: bytes) -> None:
        self.total_bytes += len(data)
        if self._capture is None:
            self._capture = Capture(KEPT_BYTES + 2 * _MARGIN_BYTES)
            self._capture.add(self._held)
            self._held = b""
        self._capture.add(data)

    def take(self, *, last: bool) -> tuple[bytes, int]:
        """What is to be written down now, redacted, and how many bytes are left out of it."""
        capture, self._capture = self._capture, None
        if capture is None:
            data, self._held = self._held, b""
            return secrets.redact(data), 0
        kept, gap = capture.kept, capture.gap
        if not last:
            line = kept.rfind(b"\n") + 1
            end = max(line, len(kept) - _MARGIN_BYTES)
            kept, self._held = kept[:end], kept[end:]
        if gap is None:
            return secrets.redact(kept), 0
        left_out = capture.total_bytes - len(kept) - len(self._held) + 2 * _MARGIN_BYTES
        head, tail = secrets.redact(kept[:gap]), secrets.redact(kept[gap:])
        return head[:-_MARGIN_BYTES] + tail[_MARGIN_BYTES:], left_out
