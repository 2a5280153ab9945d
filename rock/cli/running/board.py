"""What is known of a run at any moment, put together from its events: the figures of the live view.

Plain values and a clock; drawing is in `progress`. Every figure is of this harness: what earlier ones
did in the same run directory counts as done, and not for speed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rock.rollout.records.outcome import OutcomeClass, Phase
from rock.rollout.report.events import (
    AttemptDone,
    Event,
    GroupAcknowledged,
    Heard,
    PhaseEntered,
    RunStarted,
)
from rock.types import Clock

RATE_WINDOW_SECONDS = 30.0


@dataclass(slots=True)
class Running:
    """An attempt that goes on."""

    label: str
    phase: Phase
    started: float


class Board:
    """Takes every event of a run; says how far it is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock()
        self._running: dict[str, Running] = {}
        self._live_tokens: dict[str, int] = {}
        self._ended_tokens = 0
        self._samples: deque[tuple[float, int]] = deque([(self._started, 0)])
        self.total = 0
        self.done_before = 0
        self.done = 0
        self.valid = 0
        self.solved = 0
        self.taken = 0
        """Groups that the trainer has acknowledged."""
        self.queued = 0
        self.leased = 0

    def on_event(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.total, self.done_before = event.episodes, event.done
                self.done = event.done
            case PhaseEntered():
                self._phase(event)
            case Heard():
                self.queued, self.leased = event.queued, event.leased
                known = {k: v for k, v in event.completion_tokens.items() if k in self._running}
                self._live_tokens.update(known)
                self._sample()
            case AttemptDone():
                self._attempt_done(event)
            case GroupAcknowledged():
                self.taken += 1
            case _:
                pass

    def _phase(self, event: PhaseEntered) -> None:
        name = event.plan.episode_id
        if name in self._running:
            self._running[name].phase = event.phase
        else:
            label = f"{event.plan.task_id}/{event.plan.index}"
            self._running[name] = Running(label, event.phase, self._clock())

    def _attempt_done(self, event: AttemptDone) -> None:
        record = event.record
        self._running.pop(record.episode_id, None)
        heard = self._live_tokens.pop(record.episode_id, 0)
        self._ended_tokens += max(heard, record.usage.completion_tokens or 0)
        self._sample()
        if not event.final or record.outcome.cls is OutcomeClass.REDUNDANT:
            return
        self.done += 1
        self.valid += record.outcome.in_denominator
        self.solved += record.outcome.in_denominator and record.outcome.solved

    def _sample(self) -> None:
        now = self._clock()
        self._samples.append((now, self.tokens))
        while len(self._samples) > 2 and self._samples[1][0] <= now - RATE_WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def tokens(self) -> int:
        """Tokens sampled for this run since this harness runs."""
        return self._ended_tokens + sum(self._live_tokens.values())

    @property
    def tokens_per_second(self) -> float:
        """Over the last half minute."""
        since, before = self._samples[0]
        seconds = self._clock() - since
        return (self.tokens - before) / seconds if seconds > 0 else 0.0

    @property
    def elapsed_seconds(self) -> float:
        return self._clock() - self._started

    @property
    def eta_seconds(self) -> float | None:
        """Until the last episode is done, if the rest goes as what was done here; None before that."""
        done_here = self.done - self.done_before
        if done_here <= 0:
            return None
        return self.elapsed_seconds * max(0, self.total - self.done) / done_here

    @property
    def running(self) -> int:
        return len(self._running)

    def phases(self) -> dict[Phase, int]:
        """How many attempts are in each phase, in the order of phases."""
        present = [one.phase for one in self._running.values()]
        return {phase: present.count(phase) for phase in Phase if phase in present}

    def slowest(self, count: int) -> list[tuple[str, Phase, float]]:
        """The attempts that have gone on for longest: which, where they are, for how many seconds."""
        now = self._clock()
        oldest = sorted(self._running.values(), key=lambda one: one.started)[:count]
        return [(one.label, one.phase, now - one.started) for one in oldest]
