"""What the ledger says, derived from its lines in order; nothing of it is stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from rock.errors import LedgerError
from rock.rollout.records.ledger_lines import (
    SCHEMA,
    AttemptEnded,
    AttemptStarted,
    EpisodeRegraded,
    EpisodeReopened,
    Event,
    GroupConsumed,
    GroupDropped,
    GroupPlanned,
    GroupPublished,
    RunOpened,
    TaskRegraded,
)
from rock.rollout.records.outcome import RUN_AGAIN, TABLE, OutcomeClass


@dataclass(slots=True)
class EpisodeState:
    """One place in a group."""

    attempts: int = 0
    failures: int = 0
    """Attempts that ended by themselves without a final outcome (a stopped harness is not one)."""
    running: bool = False
    final_attempt: int | None = None
    grading: int = 1
    """Which grading of the final attempt stands."""
    cls: OutcomeClass | None = None
    reward: float | None = None
    version: int | None = None
    """The policy version of the final attempt's first sampled token."""
    place: int = 0
    """The final attempt's place in the order of endings in the group."""

    @property
    def status(self) -> str:
        """`pending`, `leased` or `done`."""
        if self.final_attempt is not None:
            return "done"
        return "leased" if self.running else "pending"

    @property
    def counts(self) -> bool:
        """Whether it is done with something to train on or to count."""
        return self.final_attempt is not None and self.cls is not None and TABLE[self.cls].counted


@dataclass(slots=True)
class GroupState:
    """One group: its episodes and what became of it."""

    plan: GroupPlanned
    episodes: list[EpisodeState]
    published: bool = False
    consumed: bool = False
    chosen: tuple[int, ...] | None = None
    """Of a published group: the episodes that went out."""
    dropped: str | None = None
    """Why it is not for the trainer, if it is not."""
    revision: int = -1
    """Of the last publication."""
    step: int | None = None
    endings: int = 0

    @property
    def done(self) -> int:
        """k of `size`: episodes with a final outcome, redundant ones not counted."""
        finished = sum(episode.final_attempt is not None for episode in self.episodes)
        return min(self.plan.size, finished)

    @property
    def members(self) -> tuple[int, ...]:
        """The `size` episodes that are the group: those that went out, else those that would, the
        ones that count first and in the order in which they ended."""
        if self.chosen is not None:
            return self.chosen
        order = sorted(range(len(self.episodes)), key=self._rank)
        return tuple(sorted(order[: self.plan.size]))

    def _rank(self, index: int) -> tuple[int, int]:
        episode = self.episodes[index]
        if episode.counts:
            return 0, episode.place
        if episode.cls is OutcomeClass.REDUNDANT:
            return 2, index
        return 1, index

    @property
    def complete(self) -> bool:
        """All members are there: n that count, or no episode is left to run."""
        counted = sum(episode.counts for episode in self.episodes)
        final = all(episode.final_attempt is not None for episode in self.episodes)
        return counted >= self.plan.size or final

    @property
    def settled(self) -> bool:
        return self.published or self.dropped is not None

    @property
    def status(self) -> str:
        """`pending`, `leased`, `k of n`, `complete`, `published`, `consumed` or `dropped`."""
        if self.dropped is not None:
            return "dropped"
        if self.published:
            return "consumed" if self.consumed else "published"
        if self.complete:
            return "complete"
        if self.done:
            return f"{self.done} of {self.plan.size}"
        return "leased" if any(episode.running for episode in self.episodes) else "pending"


@dataclass(slots=True)
class State:
    """Everything the ledger says, derived by `apply`."""

    run_id: str | None = None
    groups: dict[str, GroupState] = field(default_factory=dict[str, GroupState])

    def apply(self, event: Event) -> None:
        """Take one event in. Raises `LedgerError` for one that cannot follow what came before."""
        match event:
            case RunOpened():
                self._open(event)
            case GroupPlanned():
                self._refuse_if(event.group_id in self.groups, f"group {event.group_id} again")
                episodes = [EpisodeState() for _ in range(event.size + event.extra)]
                self.groups[event.group_id] = GroupState(event, episodes)
            case AttemptStarted():
                episode = self._episode(event)
                started = episode.running or episode.final_attempt is not None
                self._refuse_if(started, f"{event.group_id} #{event.index} is not pending")
                self._refuse_if(event.attempt != episode.attempts + 1, "an attempt out of order")
                episode.attempts, episode.running = event.attempt, True
            case AttemptEnded():
                self._end(event)
            case EpisodeReopened() | EpisodeRegraded():
                self._change(event)
            case _:
                self._move_group(event)

    def _open(self, event: RunOpened) -> None:
        if event.schema > SCHEMA:
            raise LedgerError(
                f"the ledger has schema {event.schema}; this rock reads up to {SCHEMA}"
            )
        self._refuse_if(self.run_id is not None, "a second run line")
        self.run_id = event.run_id

    def _end(self, event: AttemptEnded) -> None:
        group, episode = self._group(event.group_id), self._episode(event)
        current = episode.running and event.attempt == episode.attempts
        self._refuse_if(not current, f"the end of attempt {event.attempt}, which is not running")
        episode.running = False
        if event.cls not in RUN_AGAIN:
            episode.failures += not event.final
        if event.final:
            group.endings += 1
            episode.final_attempt, episode.place, episode.grading = event.attempt, group.endings, 1
            episode.cls, episode.reward, episode.version = event.cls, event.reward, event.version

    def _change(self, event: EpisodeReopened | EpisodeRegraded) -> None:
        """A finished episode of a group that is not consumed; the group has to go out again."""
        group, episode = self._group(event.group_id), self._episode(event)
        name = f"{event.group_id} #{event.index}"
        self._refuse_if(episode.final_attempt is None, f"{name} is not done")
        if isinstance(event, EpisodeReopened):
            self._refuse_if(group.consumed, f"{name} is consumed")
            episode.final_attempt, episode.cls, episode.reward = None, None, None
            episode.version, episode.failures = None, 0
        else:
            self._refuse_if(event.grading != episode.grading + 1, "a grading out of order")
            episode.grading, episode.cls, episode.reward = event.grading, event.cls, event.reward
        if not group.consumed:
            group.published, group.chosen, group.dropped = False, None, None

    def _move_group(
        self, event: GroupPublished | GroupDropped | GroupConsumed | TaskRegraded
    ) -> None:
        group = self._group(event.group_id)
        match event:
            case GroupPublished():
                group.published, group.revision = True, event.revision
                group.chosen = event.chosen
            case GroupDropped():
                group.dropped = event.reason
            case GroupConsumed():
                group.consumed, group.step = True, event.step
            case TaskRegraded():
                plan = group.plan
                group.plan = GroupPlanned(
                    group_id=plan.group_id,
                    task_id=plan.task_id,
                    size=plan.size,
                    task_digest=event.task_digest,
                    work_digest=plan.work_digest,
                    extra=plan.extra,
                    at=plan.at,
                )

    def _group(self, group_id: str) -> GroupState:
        self._refuse_if(group_id not in self.groups, f"an unknown group {group_id}")
        return self.groups[group_id]

    def _episode(
        self, event: AttemptStarted | AttemptEnded | EpisodeReopened | EpisodeRegraded
    ) -> EpisodeState:
        episodes = self._group(event.group_id).episodes
        self._refuse_if(not 0 <= event.index < len(episodes), f"episode {event.index}")
        return episodes[event.index]

    @staticmethod
    def _refuse_if(wrong: bool, what: str) -> None:
        if wrong:
            raise LedgerError(f"the ledger contradicts itself: {what}")

    def interrupted(self) -> Iterator[tuple[GroupState, int]]:
        """Attempts that started and never ended: the harness died in them."""
        for group in self.groups.values():
            for index, episode in enumerate(group.episodes):
                if episode.running:
                    yield group, index
