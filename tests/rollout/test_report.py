"""The report's figures, checked by hand."""

import random

import pytest

from rock.rollout.records.outcome import Outcome, OutcomeClass, Phase, graded, outcome_of
from rock.rollout.records.record import Record, Usage
from rock.rollout.report.report import (
    bootstrap,
    interval,
    pass_at_k,
    percentile,
    report,
    wilson,
)
from rock.rollout.report.text import as_text, rows


def record(
    task: str, index: int, outcome: Outcome, *, seconds: float = 1.0, usage: Usage | None = None
) -> Record:
    return Record(
        run_id="r",
        group_id=f"r.{task}",
        episode_id=f"r.{task}.{index}",
        task_id=task,
        index=index,
        attempt=1,
        started_at="",
        ended_at="",
        seconds=seconds,
        phase_seconds={},
        outcome=outcome,
        usage=usage or Usage(turns=2, prompt_tokens=10, completion_tokens=5),
    )


def scored(reward: float) -> Outcome:
    return graded(reward, agent_class=None)


DIED = outcome_of(OutcomeClass.SANDBOX_DIED, Phase.AGENT)


def test_wilson_agrees_with_published_values() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_the_bootstrap_is_the_same_each_time_and_holds_the_mean() -> None:
    values = [0.0, 0.25, 0.5, 0.75, 1.0]
    low, high = bootstrap(values)
    assert bootstrap(values) == (low, high)
    assert 0.0 <= low < 0.5 < high <= 1.0


def test_binary_rewards_get_wilson_and_others_the_bootstrap() -> None:
    binary, graded_parts = interval([0.0, 1.0]), interval([0.0, 0.5])
    assert binary is not None
    assert graded_parts is not None
    assert (binary.method, graded_parts.method) == ("wilson", "bootstrap")
    assert interval([]) is None


@pytest.mark.parametrize(
    ("valid", "solved", "k", "value"),
    [
        (4, 0, 1, 0.0),
        (4, 1, 1, 0.25),
        (4, 1, 2, 0.5),
        (4, 2, 2, 1 - 1 / 6),
        (4, 3, 2, 1.0),
        (4, 4, 4, 1.0),
    ],
)
def test_pass_at_k_is_the_unbiased_estimate(valid: int, solved: int, k: int, value: float) -> None:
    assert pass_at_k(valid, solved, k) == pytest.approx(value)


def test_pass_at_k_refuses_more_draws_than_episodes() -> None:
    with pytest.raises(ValueError, match="k <= valid"):
        pass_at_k(2, 1, 3)


def test_percentiles_are_nearest_rank() -> None:
    ordered = [float(n) for n in range(1, 21)]
    assert (percentile(ordered, 0.5), percentile(ordered, 0.95)) == (10.0, 19.0)
    assert percentile([], 0.5) is None


def test_an_infrastructure_failure_lowers_coverage_and_nothing_else() -> None:
    figures = report(
        [
            record("a", 0, scored(1.0), seconds=1.0),
            record("a", 1, scored(0.0), seconds=2.0),
            record("a", 2, DIED, seconds=9.0),
            record("b", 0, scored(1.0), seconds=3.0),
        ]
    )
    task_a, task_b = figures.tasks
    assert (task_a.episodes, task_a.valid, task_a.solved, task_a.mean_reward) == (3, 2, 1, 0.5)
    assert task_a.coverage == pytest.approx(2 / 3)
    assert task_a.classes == {"failed": 1, "sandbox_died": 1, "solved": 1}
    assert (task_b.valid, task_b.mean_reward) == (1, 1.0)
    assert figures.total.mean_reward == pytest.approx(2 / 3)
    assert (figures.total.seconds_p50, figures.total.seconds_p95) == (2.0, 9.0)
    assert figures.infra_failed == 1


def test_pass_at_k_is_averaged_over_tasks_with_enough_valid_episodes() -> None:
    figures = report(
        [
            record("a", 0, scored(1.0)),
            record("a", 1, scored(0.0)),
            record("b", 0, scored(0.0)),
            record("b", 1, DIED),
        ]
    )
    assert [(p.k, p.value, p.tasks) for p in figures.pass_at_k] == [(1, 0.25, 2), (2, 1.0, 1)]


def test_tokens_and_cost_are_unknown_as_soon_as_one_episode_does_not_know() -> None:
    known = Usage(turns=1, prompt_tokens=7, completion_tokens=3, cost_usd=0.5)
    unknown = Usage(turns=1)
    unused = Usage()
    assert report([record("a", 0, scored(1.0), usage=known)]).total.cost_usd == 0.5
    assert report([record("a", 0, scored(1.0), usage=unused)]).total.cost_usd is None
    both = report([record("a", i, scored(1.0), usage=u) for i, u in enumerate([known, unknown])])
    assert (both.total.prompt_tokens, both.total.cost_usd) == (None, None)
    idle = report([record("a", i, scored(1.0), usage=u) for i, u in enumerate([known, unused])])
    assert (idle.total.prompt_tokens, idle.total.turns_mean) == (7, 0.5)


def test_the_table_has_a_row_per_task_and_the_total() -> None:
    figures = report([record("a", 0, scored(1.0)), record("a", 1, DIED)])
    table = rows(figures)
    assert [row[0] for row in table] == ["task", "a", "total"]
    assert table[1][2] == "1/2"
    text = as_text(figures)
    assert "valid 1 of 2 episodes (coverage 50%)" in text
    assert "sandbox_died 1" in text
    assert "pass@1 1.000 over 1 tasks" in text


def test_a_run_without_episodes_has_a_report() -> None:
    figures = report([])
    assert (figures.total.episodes, figures.total.mean_reward, figures.pass_at_k) == (0, None, [])
    assert "valid 0 of 0" in as_text(figures)


def test_the_intervals_hold_the_true_mean_as_often_as_they_say() -> None:
    """The bootstrap of 40 rewards is known to fall a little short of 95 %; Wilson keeps it."""
    source = random.Random(7)
    held = {"bootstrap": 0, "wilson": 0}
    for _ in range(100):
        parts = [source.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(40)]
        whole = [float(source.random() < 0.3) for _ in range(40)]
        for rewards, mean in ((parts, 0.4375), (whole, 0.3)):
            found = interval(rewards)
            assert found is not None
            held[found.method] += found.low <= mean <= found.high
    assert 88 <= held["bootstrap"] <= 99
    assert 90 <= held["wilson"] <= 99
