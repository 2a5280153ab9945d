"""A run as it goes, on a terminal as one live line and lines of what happened, else as lines."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rock.rollout.events import (
    AttemptDone,
    EpisodeGraded,
    Event,
    GroupAcknowledged,
    GroupDone,
    GroupLeftOut,
    PhaseEntered,
    RunEnded,
    RunStarted,
)
from rock.rollout.outcome import OutcomeClass


class ProgressView:
    """Draws run events. Use as a context manager; pass `on_event` to the run."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._phases: dict[str, str] = {}
        self._acknowledged = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("episodes", total=None, state="starting")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def on_event(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._bar.update(self._task, total=event.episodes, completed=event.done)
                gone_on = f", {event.done} done before" if event.done else ""
                self.console.print(
                    f"{event.groups} tasks, {event.episodes} episodes{gone_on}, "
                    f"sandboxes by [bold]{event.provider}[/], into {escape(str(event.directory))}",
                    soft_wrap=True,
                )
            case PhaseEntered():
                self._phases[event.plan.episode_id] = event.phase
            case AttemptDone():
                self._attempt_done(event)
            case GroupDone():
                rewards = " ".join("-" if r is None else f"{r:g}" for r in event.rewards)
                self.console.print(f"{escape(event.task_id)}: rewards {rewards}", soft_wrap=True)
            case GroupLeftOut():
                self.console.print(
                    f"[yellow]{escape(f'{event.task_id}: dropped: {event.reason}')}[/]",
                    soft_wrap=True,
                )
            case GroupAcknowledged():
                self._acknowledged += 1
            case EpisodeGraded() | RunEnded():
                pass
        self._bar.update(self._task, state=self._state())

    def _attempt_done(self, event: AttemptDone) -> None:
        self._phases.pop(event.record.episode_id, None)
        outcome = event.record.outcome
        if event.final and outcome.cls is not OutcomeClass.REDUNDANT:
            self._bar.advance(self._task)
        if not outcome.gradable and outcome.cls is not OutcomeClass.REDUNDANT:
            where = f"{event.record.task_id}/{event.record.index}"
            detail = f": {outcome.detail}" if outcome.detail else ""
            again = "" if event.final else f"; {_next_attempt(outcome.cls)}"
            self.console.print(
                f"[yellow]{escape(f'{where}: {outcome.cls}{detail}{again}')}[/]",
                soft_wrap=True,
            )

    def _state(self) -> str:
        counts: dict[str, int] = {}
        for phase in self._phases.values():
            counts[phase] = counts.get(phase, 0) + 1
        phases = " ".join(f"{phase}:{count}" for phase, count in sorted(counts.items()))
        return f"{phases} taken by trainer:{self._acknowledged}"


def _next_attempt(cls: OutcomeClass) -> str:
    if cls in (OutcomeClass.CANCELLED, OutcomeClass.INTERRUPTED):
        return "it is run again when the run is resumed"
    return "another attempt follows"
