"""The figures of a run: a pure function from final records to numbers that say how many of what.

Redundant episodes, which were stopped because others had ended, are not episodes here; what they did
to the lengths of the others is `length_bias`. An episode is *valid* when its outcome is in the denominator. Means, pass@k and intervals are over
valid episodes only, and coverage (valid / total) stands beside them.

- The interval of a mean reward is 95 %: Wilson's score interval when every reward is 0 or 1, else
  the percentile bootstrap (2,000 resamples, fixed seed). `method` says which.
- pass@k is the unbiased estimate 1 - C(n-c, k) / C(n, k), averaged over the tasks that have at
  least k valid episodes; `tasks` says how many those are.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from rock.rollout.records.outcome import OutcomeClass, Phase
from rock.rollout.records.record import Record
from rock.rollout.scheduler.bias import LengthBias, length_bias

Z_95 = 1.959963984540054
RESAMPLES = 2000


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A 95 % interval and how it was made."""

    low: float
    high: float
    method: Literal["wilson", "bootstrap"]


class PassAtK(msgspec.Struct, frozen=True, kw_only=True):
    """pass@k over the `tasks` tasks that have at least `k` valid episodes."""

    k: int
    value: float
    tasks: int


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds, over the episodes that had them."""

    p50: float
    p95: float
    episodes: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one task or of the whole run. Null is unknown."""

    name: str
    episodes: int
    valid: int
    solved: int
    mean_reward: float | None
    interval: Interval | None
    turns_mean: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_usd: float | None
    seconds_p50: float | None
    seconds_p95: float | None
    classes: dict[str, int]
    phases: dict[str, Spread] = msgspec.field(default_factory=dict[str, Spread])
    """By phase, in the order in which an attempt goes through them."""
    causes: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    """Episodes that do not count, by whose fault that is."""

    @property
    def coverage(self) -> float:
        return self.valid / self.episodes if self.episodes else 0.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run in figures."""

    tasks: list[Summary]
    total: Summary
    pass_at_k: list[PassAtK]
    infra_failed: int
    """Episodes whose last attempt ended in an infrastructure failure."""
    length_bias: LengthBias | None = None
    """What redundant episodes did to the lengths of the others; null without any."""
    sandboxes: dict[str, int] = {}
    """How many sandboxes were made for their episode (`new`), ahead (`pool`), or from a snapshot."""


def report(records: Sequence[Record]) -> Report:
    """The figures of the final records of a run, tasks in their order of appearance."""
    everything = records
    records = [r for r in records if r.outcome.cls is not OutcomeClass.REDUNDANT]
    by_task: dict[str, list[Record]] = {}
    for record in records:
        by_task.setdefault(record.task_id, []).append(record)
    return Report(
        tasks=[summarise(name, rows) for name, rows in by_task.items()],
        total=summarise("total", records),
        pass_at_k=_pass_at_ks(list(by_task.values())),
        infra_failed=sum(record.outcome.cause == "infra" for record in records),
        length_bias=_length_bias(everything),
        sandboxes=dict(Counter(r.sandbox_origin for r in everything if r.sandbox_origin)),
    )


def _length_bias(records: Sequence[Record]) -> LengthBias | None:
    stopped = [r.seconds for r in records if r.outcome.cls is OutcomeClass.REDUNDANT]
    kept = [record.seconds for record in records if record.outcome.in_denominator]
    return length_bias(kept, stopped) if stopped else None


def summarise(name: str, records: Sequence[Record]) -> Summary:
    """The figures of some records."""
    valid = [record for record in records if record.outcome.in_denominator]
    rewards = [r.outcome.reward for r in valid if r.outcome.reward is not None]
    seconds = sorted(record.seconds for record in records)
    usages = [record.usage for record in records]
    return Summary(
        name=name,
        episodes=len(records),
        valid=len(valid),
        solved=sum(record.outcome.solved for record in valid),
        mean_reward=math.fsum(rewards) / len(rewards) if rewards else None,
        interval=interval(rewards),
        turns_mean=sum(u.turns for u in usages) / len(usages) if usages else None,
        prompt_tokens=_known_sum(u.prompt_tokens for u in usages if u.turns),
        completion_tokens=_known_sum(u.completion_tokens for u in usages if u.turns),
        cost_usd=_known_cost([u.cost_usd for u in usages if u.turns]),
        seconds_p50=percentile(seconds, 0.50),
        seconds_p95=percentile(seconds, 0.95),
        classes=dict(sorted(Counter(r.outcome.cls.value for r in records).items())),
        phases=spreads([record.phase_seconds for record in records]),
        causes=dict(
            sorted(
                Counter(
                    str(r.outcome.cause) for r in records if not r.outcome.in_denominator
                ).items()
            )
        ),
    )


def spreads(durations: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """How long each phase took, of the attempts that came to it."""
    found: dict[str, Spread] = {}
    for phase in Phase:
        seconds = sorted(one[phase.value] for one in durations if phase.value in one)
        p50, p95 = percentile(seconds, 0.50), percentile(seconds, 0.95)
        if p50 is not None and p95 is not None:
            found[phase.value] = Spread(p50=p50, p95=p95, episodes=len(seconds))
    return found


def interval(rewards: Sequence[float]) -> Interval | None:
    """The 95 % interval of the mean, None without rewards."""
    if not rewards:
        return None
    if all(reward in (0.0, 1.0) for reward in rewards):
        low, high = wilson(sum(reward == 1.0 for reward in rewards), len(rewards))
        return Interval(low=low, high=high, method="wilson")
    low, high = bootstrap(rewards)
    return Interval(low=low, high=high, method="bootstrap")


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion."""
    share = successes / trials
    scale = 1 + Z_95**2 / trials
    centre = (share + Z_95**2 / (2 * trials)) / scale
    spread = Z_95 * math.sqrt(share * (1 - share) / trials + Z_95**2 / (4 * trials**2)) / scale
    return max(0.0, centre - spread), min(1.0, centre + spread)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """The percentile bootstrap's 95 % interval of the mean; the same values give the same result."""
    source = random.Random(0)
    count = len(values)
    means = sorted(math.fsum(source.choices(values, k=count)) / count for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def pass_at_k(valid: int, solved: int, k: int) -> float:
    """The chance that at least one of `k` of the `valid` episodes, drawn at random, is solved."""
    if not 0 <= solved <= valid or not 1 <= k <= valid:
        raise ValueError(
            f"expected 0 <= solved <= valid and 1 <= k <= valid: {solved=} {valid=} {k=}"
        )
    return 1.0 - math.comb(valid - solved, k) / math.comb(valid, k)


def _pass_at_ks(groups: Sequence[Sequence[Record]]) -> list[PassAtK]:
    counts = [
        (
            sum(record.outcome.in_denominator for record in rows),
            sum(record.outcome.in_denominator and record.outcome.solved for record in rows),
        )
        for rows in groups
    ]
    largest = max((valid for valid, _ in counts), default=0)
    result: list[PassAtK] = []
    k = 1
    while k <= largest:
        values = [pass_at_k(valid, solved, k) for valid, solved in counts if valid >= k]
        result.append(PassAtK(k=k, value=math.fsum(values) / len(values), tasks=len(values)))
        k *= 2
    return result


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest-rank percentile of ascending values, None without values."""
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _known_sum(values: Iterable[int | None]) -> int | None:
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) if len(known) == len(listed) else None


def _known_cost(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known and len(known) == len(values) else None
