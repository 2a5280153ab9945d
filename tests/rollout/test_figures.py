"""The figures of runs that hypothesis makes up, against a second computation by other means."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rock.rollout.records.outcome import TABLE, Outcome, OutcomeClass, Phase, outcome_of
from rock.rollout.records.record import Record, Usage
from rock.rollout.report.overview import compare
from rock.rollout.report.report import Interval, Summary, report
from rock.rollout.report.text import as_text

Z = 1.959963984540054
REWARDS = st.sampled_from([0.0, 1.0]) | st.floats(-5, 5)
ANY_REWARDS = REWARDS | st.just(1e100)
PHASES = [phase.value for phase in Phase]


@st.composite
def outcomes(draw: st.DrawFn, rewards: st.SearchStrategy[float]) -> Outcome:
    cls = draw(st.sampled_from(OutcomeClass))
    counted = TABLE[cls].counted
    return outcome_of(cls, Phase.GRADE, reward=draw(rewards) if counted else None)


@st.composite
def records(draw: st.DrawFn, any_rewards: st.SearchStrategy[float] = ANY_REWARDS) -> list[Record]:
    rewards = draw(st.sampled_from([any_rewards, st.sampled_from([0.0, 1.0])]))
    amounts = st.none() | st.integers(0, 10**6)
    made: list[Record] = []
    for task in range(draw(st.integers(0, 4))):
        for index in range(draw(st.integers(1, 6))):
            reached = PHASES[: draw(st.integers(0, len(PHASES)))]
            made.append(
                Record(
                    run_id="r",
                    group_id=f"r.{task}",
                    episode_id=f"r.{task}.{index}",
                    task_id=f"t{task}",
                    index=index,
                    attempt=draw(st.integers(1, 3)),
                    started_at="",
                    ended_at="",
                    seconds=draw(st.floats(0, 1e6)),
                    phase_seconds={name: draw(st.floats(0, 1e5)) for name in reached},
                    outcome=draw(outcomes(rewards)),
                    usage=Usage(
                        turns=draw(st.integers(0, 3)),
                        prompt_tokens=draw(amounts),
                        completion_tokens=draw(amounts),
                        cost_usd=draw(st.none() | st.floats(0, 10)),
                    ),
                )
            )
    return draw(st.permutations(made))


def near(value: float | Fraction | None) -> object:
    return None if value is None else pytest.approx(float(value), rel=1e-9, abs=1e-9)


def smallest_reaching(values: Sequence[float], percent: int) -> float | None:
    """The smallest value that at least so many per cent of the values do not exceed."""
    for value in sorted(values):
        if 100 * sum(other <= value for other in values) >= percent * len(values):
            return value
    return None


def check_interval(found: Interval | None, rewards: Sequence[float]) -> None:
    if found is None:
        assert not rewards
        return
    mean = sum(map(Fraction, rewards)) / len(rewards)
    if set(rewards) <= {0.0, 1.0}:
        # Wilson's ends are where the distance to the mean is Z standard errors.
        assert found.method == "wilson"
        for end in (found.low, found.high):
            error = Z * math.sqrt(end * (1 - end) / len(rewards))
            assert abs(end - float(mean)) == pytest.approx(error, abs=1e-7)
    else:
        assert found.method == "bootstrap"
        slack = 1e-9 * max(map(abs, rewards))
        assert min(rewards) - slack <= found.low <= found.high <= max(rewards) + slack


def check_summary(found: Summary, rows: Sequence[Record]) -> None:
    rows = [row for row in rows if row.outcome.cls != "redundant"]
    valid = [row for row in rows if row.outcome.reward is not None]
    rewards = [row.outcome.reward for row in valid if row.outcome.reward is not None]
    assert (found.episodes, found.valid) == (len(rows), len(valid))
    assert found.solved == sum(reward >= 1 for reward in rewards)
    assert found.coverage == near(Fraction(len(valid), len(rows)) if rows else Fraction(0))
    assert found.mean_reward == near(
        sum(map(Fraction, rewards)) / len(rewards) if rewards else None
    )
    check_interval(found.interval, rewards)
    seconds = [row.seconds for row in rows]
    assert found.seconds_p50 == smallest_reaching(seconds, 50)
    assert found.seconds_p95 == smallest_reaching(seconds, 95)
    for phase in PHASES:
        spent = [row.phase_seconds[phase] for row in rows if phase in row.phase_seconds]
        assert (phase in found.phases) == bool(spent)
        if spent:
            spread = found.phases[phase]
            assert spread.episodes == len(spent)
            assert (spread.p50, spread.p95) == (
                smallest_reaching(spent, 50),
                smallest_reaching(spent, 95),
            )
    asked = [row.usage for row in rows if row.usage.turns]
    for name in ("prompt_tokens", "completion_tokens"):
        amounts = [getattr(usage, name) for usage in asked]
        assert getattr(found, name) == (None if None in amounts else sum(amounts))
    costs = [usage.cost_usd for usage in asked]
    known = [Fraction(cost) for cost in costs if cost is not None]
    assert found.cost_usd == near(sum(known) if known and len(known) == len(costs) else None)
    assert sum(found.classes.values()) == len(rows)
    assert sum(found.causes.values()) == len(rows) - len(valid)


@settings(max_examples=20, deadline=None)
@given(records())
def test_the_report_agrees_with_a_second_computation(rows: list[Record]) -> None:
    figures = report(rows)
    check_summary(figures.total, rows)
    present = {row.task_id for row in rows if row.outcome.cls != "redundant"}
    assert {task.name for task in figures.tasks} == present
    for task in figures.tasks:
        check_summary(task, [row for row in rows if row.task_id == task.name])
    assert figures.infra_failed == sum(row.outcome.cause == "infra" for row in rows)
    assert "coverage" in as_text(figures)


@settings(max_examples=60, deadline=None)
@given(records())
def test_pass_at_k_agrees_with_drawing_every_sample(rows: list[Record]) -> None:
    """Of k episodes of a task, in how many of all the ways to draw them is one solved?"""
    solved = {
        name: [
            row.outcome.reward >= 1
            for row in rows
            if row.task_id == name and row.outcome.reward is not None
        ]
        for name in {row.task_id for row in rows}
    }
    largest = max((len(each) for each in solved.values()), default=0)
    found = {item.k: item for item in report(rows).pass_at_k}
    assert sorted(found) == [k for k in (1, 2, 4, 8) if k <= largest]
    for k, item in found.items():
        shares: list[Fraction] = []
        for each in solved.values():
            draws = list(itertools.combinations(each, k))
            if draws:
                shares.append(Fraction(sum(map(any, draws)), len(draws)))
        assert item.tasks == len(shares)
        assert item.value == near(sum(shares) / len(shares))


@settings(max_examples=40, deadline=None)
@given(records(REWARDS), records(REWARDS))
def test_a_comparison_agrees_with_a_second_computation(a: list[Record], b: list[Record]) -> None:
    def means(rows: list[Record]) -> dict[str, Fraction]:
        by_task: dict[str, list[Fraction]] = {}
        for row in rows:
            if row.outcome.reward is not None:
                by_task.setdefault(row.task_id, []).append(Fraction(row.outcome.reward))
        return {name: sum(each, Fraction()) / len(each) for name, each in by_task.items()}

    mine, theirs = means(a), means(b)
    differences = [theirs[name] - mine[name] for name in mine.keys() & theirs.keys()]
    found = compare(a, b)
    assert found.compared == len(differences)
    assert found.difference == near(
        sum(differences, Fraction()) / len(differences) if differences else None
    )
    assert (found.interval is None) == (len(differences) < 2)
    if found.interval is not None:
        ends = (float(min(differences)), float(max(differences)))
        slack = 1e-9 * max(1.0, *map(abs, ends))
        assert ends[0] - slack <= found.interval.low <= found.interval.high <= ends[1] + slack
    assert found.better + found.worse <= found.compared
    assert {task.task_id for task in found.tasks} == {
        row.task_id for row in (*a, *b) if row.outcome.cls != "redundant"
    }
