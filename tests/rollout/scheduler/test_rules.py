"""One rule of the scheduler at a time, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rock.rollout.scheduler.bias import length_bias, survival_mean
from rock.rollout.scheduler.core import Scheduler
from rock.rollout.scheduler.curriculum import BySuccess
from rock.rollout.scheduler.pace import ROOM_SECONDS, SETTLE_SECONDS, ModelPace, StartRate
from rock.rollout.scheduler.plan import (
    Cancel,
    Decision,
    Ending,
    GroupPlan,
    Reopen,
    SchedulePolicy,
    Settled,
    Start,
)

VALID, INVALID, AGAIN = Ending(kind="valid"), Ending(kind="invalid"), Ending(kind="again")


def plan(name: str, size: int = 2, extra: int = 0, tags: Sequence[str] = ()) -> GroupPlan:
    return GroupPlan(group_id=name, task_id=name, size=size, extra=extra, tags=tuple(tags))


def scheduler(*plans: GroupPlan, **bounds: object) -> Scheduler:
    made = Scheduler(SchedulePolicy(**{"concurrency": 99, **bounds}))  # pyright: ignore[reportArgumentType] - any field
    for item in plans:
        made.add(item)
    return made


def started(decisions: Sequence[Decision]) -> list[tuple[str, int]]:
    return [(d.group_id, d.index) for d in decisions if isinstance(d, Start)]


def test_the_first_n_to_count_win_and_the_rest_are_told_to_stop() -> None:
    one = scheduler(plan("g", size=2, extra=2))
    assert started(one.decide(0)) == [("g", 0), ("g", 1), ("g", 2), ("g", 3)]
    one.ended("g", 3, VALID, 1)
    one.ended("g", 0, INVALID, 2)
    assert one.decide(2) == []
    one.ended("g", 1, VALID, 3)
    assert one.decide(3) == [
        Settled("g", publish=True, chosen=(1, 3)),
        Cancel("g", 2, "redundant"),
    ]
    assert not one.finished
    one.ended("g", 2, AGAIN, 4)
    assert one.decide(4) == []
    assert one.finished


def test_a_machine_without_room_gets_fewer_at_once_and_is_tried_again_by_ones() -> None:
    refused = Ending(kind="again", after_seconds=1.0, no_room=True)
    one = scheduler(plan("g", size=6), concurrency=6)
    assert len(started(one.decide(0))) == 6
    for index in (2, 3, 4, 5):
        one.ended("g", index, refused, 0)
    assert (one.limit, started(one.decide(1))) == (2, [])
    assert one.next_time(1) == ROOM_SECONDS
    assert started(one.decide(ROOM_SECONDS)) == [("g", 2)]
    one.ended("g", 2, refused, ROOM_SECONDS)
    assert (one.limit, one.next_time(ROOM_SECONDS)) == (2, 2 * ROOM_SECONDS)
    one.ended("g", 0, VALID, 6)
    assert len(started(one.decide(6))) == 1
    for step in range(2, 6):
        one.decide(step * ROOM_SECONDS)
    assert one.limit == 6


def test_the_last_one_that_is_refused_may_still_be_tried() -> None:
    one = scheduler(plan("g", size=1))
    one.decide(0)
    one.ended("g", 0, Ending(kind="again", after_seconds=3.0, no_room=True), 0)
    assert (one.limit, one.next_time(0)) == (1, 3.0)
    assert started(one.decide(3)) == [("g", 0)]


def test_a_step_that_has_its_groups_sends_the_others_back_and_keeps_what_they_have() -> None:
    one = scheduler(plan("a", 1), plan("b"), groups_per_step=1, extra_groups=1, max_staleness=0)
    assert started(one.decide(0)) == [("a", 0), ("b", 0), ("b", 1)]
    one.ended("b", 0, VALID, 1)
    one.ended("a", 0, VALID, 2)
    assert one.decide(2)[1:] == [Cancel("b", 1, "redundant_group")]
    one.ended("b", 1, AGAIN, 3)
    assert started(one.decide(3)) == []
    assert one.held_by_trainer
    one.consumed("a")
    assert started(one.decide(4)) == [("b", 1)]


def test_a_group_that_lost_too_often_is_left_to_end() -> None:
    one = scheduler(
        plan("slow", 1), plan("a", 1), plan("b", 1),
        groups_per_step=1, extra_groups=1, max_group_cancels=1,
    )  # fmt: skip
    one.decide(0)
    one.ended("a", 0, VALID, 1)
    assert Cancel("slow", 0, "redundant_group") in one.decide(1)
    one.ended("slow", 0, AGAIN, 1)
    assert ("slow", 0) in started(one.decide(1))
    one.ended("b", 0, VALID, 2)
    assert not any(isinstance(decision, Cancel) for decision in one.decide(2))


def test_a_new_policy_stops_what_is_too_old_and_reopens_what_had_ended() -> None:
    one = scheduler(plan("g", size=3), max_staleness=1)
    one.policy_version(1)
    one.decide(0)
    one.sampled("g", 0, 1)
    one.ended("g", 1, Ending(kind="valid", version=1), 1)
    one.policy_version(2)
    assert one.decide(1) == []
    one.policy_version(3)
    assert one.decide(1) == [
        Cancel("g", 0, "stale"),
        Reopen("g", 1, "stale"),
        Start("g", 1),
    ]
    one.sampled("g", 2, 3)
    assert one.decide(1) == []


def test_a_group_that_becomes_stale_every_time_is_dropped() -> None:
    one = scheduler(plan("g", size=1), max_staleness=0, max_stale_reopens=2)
    for version in range(3):
        one.policy_version(version)
        one.decide(0)
        one.ended("g", 0, Ending(kind="valid", version=version), 0)
        one.decide(0)
        one.withdrawn("g", version + 1)
    (dropped,) = one.decide(0)
    assert isinstance(dropped, Settled)
    assert (dropped.publish, one.finished) == (False, True)


def test_an_again_waits_and_holds_no_place_meanwhile() -> None:
    one = scheduler(plan("g", size=2), concurrency=1)
    assert started(one.decide(0)) == [("g", 0)]
    one.ended("g", 0, Ending(kind="again", after_seconds=10), 1)
    assert started(one.decide(1)) == [("g", 1)]
    one.ended("g", 1, VALID, 2)
    assert (one.decide(2), one.next_time(2)) == ([], 11)
    assert started(one.decide(11)) == [("g", 0)]


def test_a_full_quota_holds_back_its_own_kind_only() -> None:
    one = scheduler(
        plan("a", 2, tags=["gpu"]), plan("b", 1, tags=["gpu"]), plan("c", 1),
        tag_concurrency={"gpu": 1},
    )  # fmt: skip
    assert started(one.decide(0)) == [("a", 0), ("c", 0)]
    one.ended("a", 0, VALID, 1)
    assert started(one.decide(1)) == [("a", 1)]


def test_concurrency_follows_the_model_down_at_once_and_up_by_one() -> None:
    pace = ModelPace(ceiling=100, target_seconds=5.0)
    pace.note(9.0, running=100, now=0)
    assert pace.limit == 70
    pace.note(9.0, running=100, now=1)
    assert pace.limit == 70
    pace.note(9.0, running=70, now=SETTLE_SECONDS)
    assert pace.limit == 49
    later = 2 * SETTLE_SECONDS
    pace.note(1.0, running=10, now=later)
    assert pace.limit == 49
    pace.note(1.0, running=49, now=later)
    assert pace.limit == 50
    for _ in range(100):
        pace.note(0.0, running=100, now=later)
    assert pace.limit == 100


def test_starts_come_in_a_burst_and_then_at_their_rate() -> None:
    rate = StartRate(2.0, burst=2)
    assert [rate.take(0), rate.take(0), rate.take(0)] == [True, True, False]
    assert rate.ready_at(0) == pytest.approx(0.5)
    assert rate.take(0.5)
    assert not rate.take(0.5)


def test_the_curriculum_prefers_what_is_solved_half_of_the_time() -> None:
    order = BySuccess()
    one = Scheduler(SchedulePolicy(concurrency=1), curriculum=order)
    kinds = ["easy", "hard", "easy", "medium", "hard", "medium", "medium"]
    for number, kind in enumerate(kinds):
        one.add(plan(f"{number}-{kind}", 1, tags=[kind]))
    rewards = {"easy": 1.0, "medium": 0.6, "hard": 0.0}
    seen: list[str] = []
    while not one.finished:
        for group_id, index in started(one.decide(0)):
            kind = group_id.partition("-")[2]
            seen.append(kind)
            one.ended(group_id, index, VALID, 0)
            one.learn(group_id, [rewards[kind]])
    assert seen == ["easy", "hard", "medium", "medium", "medium", "easy", "hard"]


def test_stopped_members_count_for_as_long_as_they_ran() -> None:
    assert survival_mean([1.0, 3.0], []) == 2.0
    assert survival_mean([], []) is None
    assert survival_mean([1.0], [4.0]) == pytest.approx(1 + 3 / 2)
    bias = length_bias([1.0, 1.0], [5.0, 5.0])
    assert (bias.kept_mean_seconds, bias.all_mean_seconds) == (1.0, pytest.approx(3.0))
    assert bias.shortened == pytest.approx(2 / 3)
