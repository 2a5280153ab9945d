"""A run as it goes: drawn on a terminal, as plain lines without one, or as events in JSON.

All three take the run's events. What happened is a line everywhere; how far it is, is three lines that
are drawn anew on a terminal, and one line now and then elsewhere.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rock.cli.running.board import Board
from rock.rollout.records.outcome import RUN_AGAIN, OutcomeClass
from rock.rollout.records.record import now
from rock.rollout.report.events import (
    AttemptDone,
    Event,
    GroupDone,
    GroupLeftOut,
    RunEnded,
    RunStarted,
    TrainerAwaited,
)
from rock.types import Clock

STATUS_EVERY_SECONDS = 10.0
SLOWEST = 3
REFRESH_PER_SECOND = 4.0


class View(Protocol):
    """Shows a run. Use as a context manager; pass `on_event` to the run."""

    directory: Path | None
    """Of the run, once it has begun."""

    def on_event(self, event: Event) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def view_for(console: Console, *, as_json: bool = False) -> View:
    return JsonView(console) if as_json else TextView(console)


class TextView:
    """For people. Live on a terminal, lines that can be kept in a file elsewhere."""

    def __init__(self, console: Console, *, clock: Clock = time.monotonic) -> None:
        self.console = console
        self.directory: Path | None = None
        self.board = Board(clock)
        self._clock = clock
        self._next_status = clock() + STATUS_EVERY_SECONDS
        # The screen is drawn by a thread of its own, so that times go on between events.
        self._lock = threading.Lock()
        self._live = (
            Live(
                console=console,
                get_renderable=self._drawn,
                refresh_per_second=REFRESH_PER_SECOND,
                transient=True,
            )
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.directory = event.directory
        with self._lock:
            self.board.on_event(event)
        line = line_of(event)
        if line is not None:
            self.console.print(line, soft_wrap=True)
        if self._live is None and self.board.total and self._clock() >= self._next_status:
            self._next_status = self._clock() + STATUS_EVERY_SECONDS
            self.console.print(Text("; ".join(status_lines(self.board))), soft_wrap=True)

    def _drawn(self) -> RenderableType:
        with self._lock:
            if not self.board.total:
                return Text(f"starting, {duration(self.board.elapsed_seconds)}")
            bar = Table.grid(padding=(0, 1))
            progress = ProgressBar(total=self.board.total, completed=self.board.done, width=30)
            bar.add_row("episodes", progress)
            lines = [
                Text(line, overflow="ellipsis", no_wrap=True) for line in status_lines(self.board)
            ]
            return Group(bar, *lines)


class JsonView:
    """For programs: one JSON object per line, as documented in docs/rollout.md."""

    def __init__(self, console: Console) -> None:
        self.directory: Path | None = None
        self._file = console.file
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._ended:
            self._write({"event": "run_stopped", "at": now()})

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.directory = event.directory
        self._ended = self._ended or isinstance(event, RunEnded)
        self._write({"event": name_of(type(event)), "at": now(), **fields_of(event)})

    def _write(self, line: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more; the run goes on
            self._file.write(msgspec.json.encode(line).decode() + "\n")
            self._file.flush()


def name_of(kind: type[Event]) -> str:
    """`AttemptDone` is `attempt_done`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def fields_of(event: Event) -> dict[str, object]:
    plain = msgspec.to_builtins(event, enc_hook=_path_as_text)
    assert isinstance(plain, dict)
    return plain  # pyright: ignore[reportUnknownVariableType] - names to plain values


def _path_as_text(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"no JSON for {type(value).__name__}")


def _waits_for(event: RunStarted) -> str:
    if event.trainer_url is None:
        return ""
    keys = event.directory / "service" / "keys.json"
    what = (
        "a trainer is to answer"
        if event.asks_model
        else "no agent asks a model; a trainer may take the groups"
    )
    at = f"\n{what} at {event.trainer_url}"
    return escape(at + (f" (its key is in {keys})" if keys.is_file() else ""))


def line_of(event: Event) -> str | None:
    """What happened, in rich's markup; None for what is only counted."""
    match event:
        case RunStarted():
            gone_on = f", {event.done} done before" if event.done else ""
            return (
                f"{event.groups} tasks, {event.episodes} episodes{gone_on}, "
                f"sandboxes by [bold]{event.provider}[/], into {escape(str(event.directory))}"
                + _waits_for(event)
            )
        case AttemptDone():
            return _attempt_line(event)
        case GroupDone():
            rewards = " ".join("-" if r is None else f"{r:g}" for r in event.rewards)
            return f"{escape(event.task_id)}: rewards {rewards}"
        case GroupLeftOut():
            return f"[yellow]{escape(f'{event.task_id}: dropped: {event.reason}')}[/]"
        case TrainerAwaited():
            groups = f"{event.groups} group{'s' if event.groups > 1 else ''}"
            return (
                f"waiting up to {event.seconds:g} s for a trainer to acknowledge {groups} "
                "(consume_timeout_seconds)"
            )
        case _:
            return None


def _attempt_line(event: AttemptDone) -> str | None:
    outcome = event.record.outcome
    if outcome.gradable or outcome.cls is OutcomeClass.REDUNDANT:
        return None
    where = f"{event.record.task_id}/{event.record.index}"
    detail = f": {outcome.detail}" if outcome.detail else ""
    again = "" if event.final else f"; {_next_attempt(outcome.cls)}"
    return f"[yellow]{escape(f'{where}: {outcome.cls}{detail}{again}')}[/]"


def _next_attempt(cls: OutcomeClass) -> str:
    if cls in RUN_AGAIN:
        return "it is run again when the run is resumed"
    return "another attempt follows"


def status_lines(board: Board) -> list[str]:
    """How far the run is: how much is done, what is going on, and what has gone on for longest."""
    share = f" ({board.done / board.total:.0%})" if board.total else ""
    eta = "unknown" if board.eta_seconds is None else duration(board.eta_seconds)
    solved = f", {board.solved} solved of {board.valid} valid"
    first = (
        f"{board.done} of {board.total} done{share}{solved}, "
        f"{duration(board.elapsed_seconds)} gone, ETA {eta}"
    )
    phases = ", ".join(f"{phase} {count}" for phase, count in board.phases().items())
    second = (
        f"running {board.running}{f' ({phases})' if phases else ''}, "
        f"{board.tokens_per_second:.0f} tokens/s, calls waiting {board.queued}, "
        f"being answered {board.leased}, groups taken {board.taken}"
    )
    slowest = ", ".join(
        f"{label} {phase} {duration(seconds)}" for label, phase, seconds in board.slowest(SLOWEST)
    )
    return [first, second, f"slowest now: {slowest or '-'}"]


def duration(seconds: float) -> str:
    """`0:07`, `12:03`, `1:02:45`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
