"""What the schedule does to real runs: who wins, who is stopped, what comes again, what is dropped."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rock.errors import ConfigError
from rock.modelservice.client.client import AdminClient, TrainerClient
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import turn_of
from rock.modelservice.wire import Lease
from rock.modelservice.wire.groups import ClaimedGroup
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.planning import Selection
from rock.rollout.records.ledger import replay
from rock.rollout.records.ledger_state import State
from rock.rollout.records.outcome import OutcomeClass, Phase
from rock.rollout.records.record import Record, decode
from rock.rollout.records.rundir import read_records
from rock.rollout.report.events import Event, PhaseEntered
from rock.rollout.run import RunResult, run
from tests.rollout.live import (
    GRADER,
    address,
    answering,
    new_provider,
    run_file,
    wait_until,
    write_tasks,
)

pytestmark = [pytest.mark.userns, pytest.mark.timeout(120)]


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    async with ServiceProcess(tmp_path / "service", exit_with_parent=True) as started:
        yield started


def right(lease: Lease) -> str:
    return "done" if turn_of(lease) else "write 42"


async def go(folder: Path, service: ServiceProcess, config: RunFile, **options: Any) -> RunResult:
    async with new_provider() as provider:
        return await run(
            config,
            directory=folder / "run",
            service=address(service),
            provider=provider,
            **options,
        )


def state_of(folder: Path) -> State:
    ledger = folder / "run" / "ledger.jsonl"
    return replay(ledger.read_bytes() if ledger.exists() else b"", source="ledger")[0]


def record_of(folder: Path, task: str, index: int, attempt: int = 1) -> Record:
    path = folder / "run" / "episodes" / task / str(index) / f"attempt-{attempt}"
    return decode((path / "record.json").read_bytes())


async def claimed(service: ServiceProcess, **options: Any) -> list[ClaimedGroup]:
    async with TrainerClient(service.control_url, service.keys.trainer_key) as trainer:
        return await trainer.claim_rollouts("t", max_groups=8, wait_seconds=5, **options)


async def test_the_first_members_to_end_are_the_group_and_the_others_are_stopped(
    tmp_path: Path, service: ServiceProcess
) -> None:
    """Members 0 and 2 never get an answer; 1 and 3 win."""
    write_tasks(tmp_path, "t")
    never = asyncio.Event()

    async def answer(lease: Lease) -> str:
        if lease.labels["index"] in "02":
            await never.wait()
        return right(lease)

    config = run_file(tmp_path, episodes_per_task=2, concurrency=4, schedule={"extra_members": 2})
    async with answering(service, answer):
        result = await go(tmp_path, service, config)
    (lease,) = await claimed(service)
    assert [episode.index for episode in lease.group.episodes] == [1, 3]
    assert (lease.group.size, result.exit_code, result.report.total.episodes) == (2, 0, 2)
    stopped = [record_of(tmp_path, "t", index) for index in (0, 2)]
    assert {record.outcome.cls for record in stopped} == {OutcomeClass.REDUNDANT}
    async with AdminClient(service.control_url, service.keys.admin_key) as admin:
        for record in stopped:
            assert record.session_id is not None
            assert (await admin.session(record.session_id)).state == "closed"
    assert result.report.length_bias is not None
    assert (result.report.length_bias.kept, result.report.length_bias.stopped) == (2, 2)
    again = await go(tmp_path, service, config)
    assert again.report == result.report


async def test_a_group_that_became_too_old_is_run_again_before_anybody_gets_it(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "t")
    config = run_file(
        tmp_path,
        episodes_per_task=2,
        concurrency=2,
        schedule={"max_staleness": 0},
        consume_timeout_seconds=60,
    )
    async with (
        TrainerClient(service.control_url, service.keys.trainer_key) as trainer,
        answering(service, right) as policy,
    ):
        await trainer.policy(version=1)
        running = asyncio.ensure_future(go(tmp_path, service, config))
        await wait_until(lambda: any(g.published for g in state_of(tmp_path).groups.values()))
        policy.policy_version = 2
        await trainer.policy(version=2)
        (lease,) = await trainer.claim_rollouts("t", wait_seconds=40)
        assert (lease.group.revision, lease.group.oldest_version) == (1, 2)
        await trainer.ack_rollouts([lease.lease_id], step=17)
        result = await running
    assert (result.consumed, result.report.total.solved) == (1, 2)
    (group,) = state_of(tmp_path).groups.values()
    assert (group.step, [episode.attempts for episode in group.episodes]) == (17, [2, 2])


async def test_refill_runs_members_again_that_do_not_count(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "t")

    def answer(lease: Lease) -> str:
        if lease.labels["index"] == "0" and lease.labels["attempt"] == "1":
            raise RuntimeError("the engine crashed")
        return right(lease)

    config = run_file(
        tmp_path,
        episodes_per_task=2,
        concurrency=2,
        schedule={"partial": "refill"},
        infra={"max_attempts": 1, "max_failed_fraction": 0.5},
    )
    async with answering(service, answer):
        result = await go(tmp_path, service, config)
    assert (result.exit_code, result.report.total.solved) == (0, 2)
    assert record_of(tmp_path, "t", 0).outcome.cls is OutcomeClass.MODEL_FAILED


async def test_a_short_group_is_dropped_and_comes_back_with_retry(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "bad", "good")
    broken = True

    def answer(lease: Lease) -> str:
        if broken and lease.labels["task_id"] == "bad" and lease.labels["index"] == "0":
            raise RuntimeError("the engine crashed")
        return right(lease)

    config = run_file(
        tmp_path,
        episodes_per_task=2,
        schedule={"partial": "drop"},
        infra={"max_attempts": 1, "max_failed_fraction": 1.0},
    )
    async with answering(service, answer) as policy:
        first = await go(tmp_path, service, config)
        assert (first.dropped, first.published) == (1, 1)
        assert [item.group.task_id for item in await claimed(service)] == ["good"]
        broken, calls = False, len(policy.seen)
        second = await go(tmp_path, service, config, chosen=Selection(retry_infra=True))
        assert (second.dropped, second.published, second.report.total.solved) == (0, 2, 4)
        assert [item.group.task_id for item in await claimed(service)] == ["bad"]
        assert {(x.labels["task_id"], x.labels["index"]) for x in policy.seen[calls:]} == {
            ("bad", "0")
        }


async def test_only_the_named_task_is_run_and_the_rest_stays_to_be_done(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "a", "b")
    config = run_file(tmp_path)
    async with answering(service, right):
        with pytest.raises(ConfigError, match="no task 'x'"):
            await go(tmp_path, service, config, chosen=Selection(only=frozenset({"x"})))
        await go(tmp_path, service, config, chosen=Selection(only=frozenset({"b"})))
        assert [group.status for group in state_of(tmp_path).groups.values()] == [
            "pending",
            "published",
        ]
        await go(tmp_path, service, config)
    assert {group.status for group in state_of(tmp_path).groups.values()} == {"published"}


async def test_a_wrong_grader_is_put_right_without_running_an_agent_again(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "a", "b")
    wrong = {"command": ["sh", "-c", 'test "$(cat "$0/answer.txt")" = 41', "{workdir}"]}
    async with answering(service, right) as policy:
        before = await go(tmp_path, service, run_file(tmp_path, grader=wrong))
        calls = len(policy.seen)
        assert before.report.total.solved == 0
        after = await go(tmp_path, service, run_file(tmp_path), chosen=Selection(regrade=True))
        assert len(policy.seen) == calls
    assert (after.report.total.solved, after.report.total.mean_reward) == (2, 1.0)
    assert after.regraded is not None
    assert (after.regraded.graded, after.regraded.changed) == (2, 2)
    groups = {item.group.task_id: item.group for item in await claimed(service)}
    assert [(g.revision, g.episodes[0].reward) for g in groups.values()] == [(1, 1.0)] * 2
    graders = [
        json.loads((tmp_path / "run" / name).read_text())["config"]["grader"]["command"]
        for name in ("run-1.json", "run.json")
    ]
    assert graders == [wrong["command"], GRADER["command"]]
    attempt = tmp_path / "run/episodes/a/0/attempt-1"
    assert {"record.json", "record-2.json", "grader.stdout", "grader-2.stdout"} <= {
        path.name for path in attempt.iterdir()
    }
    assert [
        json.loads((attempt / name).read_text())["outcome"]["class"]
        for name in ("record.json", "record-2.json")
    ] == ["failed", "solved"]
    assert [record.grading for record in read_records(tmp_path / "run")] == [2, 2]


@pytest.mark.parametrize(
    ("word", "cls"), [("hang", OutcomeClass.NO_PROGRESS), ("spin 4", OutcomeClass.SOLVED)]
)
async def test_an_agent_is_stuck_if_it_neither_asks_nor_computes(
    tmp_path: Path, service: ServiceProcess, word: str, cls: OutcomeClass
) -> None:
    write_tasks(tmp_path, "t")

    def answer(lease: Lease) -> str:
        return ("write 42", word, "done")[turn_of(lease)]

    config = run_file(tmp_path, agent={"no_progress_seconds": 1.5, "timeout_seconds": 30})
    async with answering(service, answer):
        result = await go(tmp_path, service, config)
    (record,) = read_records(tmp_path / "run")
    assert (record.outcome.cls, record.outcome.reward) == (cls, 1.0)
    assert result.exit_code == 0


async def test_no_group_is_begun_while_the_trainer_has_not_taken_the_ones_before(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "a", "b", "c")
    begun: set[str] = set()

    def watch(event: Event) -> None:
        if isinstance(event, PhaseEntered) and event.phase is Phase.PROVISION:
            begun.add(event.plan.task_id)

    config = run_file(
        tmp_path, schedule={"buffer_groups": 1}, concurrency=3, consume_timeout_seconds=30
    )
    async with (
        TrainerClient(service.control_url, service.keys.trainer_key) as trainer,
        answering(service, right),
    ):
        running = asyncio.ensure_future(go(tmp_path, service, config, on_event=watch))
        for number in range(3):
            (lease,) = await trainer.claim_rollouts("t", wait_seconds=30)
            assert len(begun) == number + 1
            await trainer.ack_rollouts([lease.lease_id], step=number)
        result = await running
    assert (result.consumed, result.failure) == (3, None)


async def test_a_trainer_that_takes_nothing_ends_the_run_in_time(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "a", "b")
    config = run_file(tmp_path, schedule={"buffer_groups": 1, "idle_seconds": 0.5})
    async with answering(service, right):
        result = await go(tmp_path, service, config)
        assert result.exit_code == 1
        assert result.failure is not None
        assert "the trainer has taken no group for 0.5 s" in result.failure
        for lease in await claimed(service):
            async with TrainerClient(service.control_url, service.keys.trainer_key) as trainer:
                await trainer.ack_rollouts([lease.lease_id])
        again = await go(tmp_path, service, config)
    assert (again.exit_code, again.report.total.solved) == (0, 2)


async def test_an_episode_that_was_slow_to_begin_has_less_time_for_its_agent(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "t")
    config = run_file(tmp_path, limits={"episode_seconds": 3.0})
    async with answering(service, lambda lease: "write 42" if not turn_of(lease) else "hang"):
        await go(tmp_path, service, config)
    (record,) = read_records(tmp_path / "run")
    assert (record.outcome.cls, record.outcome.reward) == (OutcomeClass.AGENT_TIMEOUT, 1.0)
    assert record.agent is not None
    assert record.agent.seconds < 3.0
