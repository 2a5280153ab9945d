"""Whole runs: real sandboxes, a real service, an agent that really calls the model."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rock.modelservice.client.client import TrainerClient
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import turn_of
from rock.modelservice.wire import Lease
from rock.modelservice.wire.groups import Group
from rock.rollout.records.outcome import OutcomeClass, Phase
from rock.rollout.records.record import Record
from rock.rollout.records.rundir import read_records
from rock.rollout.records.trajectory import read_rows
from rock.rollout.report.events import (
    AttemptDone,
    Event,
    GroupDone,
    PhaseEntered,
    RunEnded,
    RunStarted,
)
from rock.rollout.run import RunResult, run
from rock.sandbox.docker import DockerProvider
from tests.needs import TEST_IMAGE
from tests.rollout.live import address, answering, new_provider, run_file, write_tasks

pytestmark = pytest.mark.userns


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    async with ServiceProcess(tmp_path / "service", exit_with_parent=True) as started:
        yield started


def half_right(lease: Lease) -> str:
    """Two turns; episodes with an even index are right."""
    if turn_of(lease) > 0:
        return "done"
    return "write 42" if int(lease.labels["index"]) % 2 == 0 else "write 41"


async def claim_all(service: ServiceProcess, count: int) -> list[Group]:
    groups: list[Group] = []
    async with TrainerClient(service.control_url, service.keys.trainer_key) as trainer:
        while len(groups) < count:
            claimed = await trainer.claim_rollouts("t", max_groups=8, wait_seconds=10)
            assert claimed, f"only {len(groups)} of {count} groups came"
            await trainer.ack_rollouts([item.lease_id for item in claimed])
            groups += [item.group for item in claimed]
    return groups


async def test_groups_come_out_with_rewards_and_token_rows(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "first", "second/odd name")
    events: list[Event] = []
    config = run_file(tmp_path, episodes_per_task=4, concurrency=4, consume_timeout_seconds=0)
    async with new_provider() as provider, answering(service, half_right) as policy:
        result = await run(
            config,
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
            on_event=events.append,
        )
    groups = sorted(await claim_all(service, 2), key=lambda group: group.task_id)
    assert [(g.task_id, g.size) for g in groups] == [("first", 4), ("second/odd name", 4)]
    for group in groups:
        assert [e.reward for e in group.episodes] == [1.0, 0.0, 1.0, 0.0]
        assert [e.outcome["class"] for e in group.episodes] == ["solved", "failed"] * 2
        for episode in group.episodes:
            (row,) = episode.rows
            assert len(row.token_ids) == len(row.mask) == len(row.logprobs)
            assert len([span for span in row.spans if span.kind == "sampled"]) == 2
    assert (result.exit_code, result.groups, result.published) == (0, 2, 2)
    assert (result.report.total.solved, result.report.total.valid) == (4, 8)
    assert result.report.total.turns_mean == 2.0
    assert len(policy.seen) == 16
    _check_events(events)


def _check_events(events: list[Event]) -> None:
    kinds = [type(event) for event in events]
    assert (kinds[0], kinds[-1]) == (RunStarted, RunEnded)
    assert kinds.count(GroupDone) == 2
    phases = [e.phase.value for e in events if isinstance(e, PhaseEntered) and e.plan.index == 0]
    assert phases.count("grade") == 2
    assert set(phases) == {phase.value for phase in Phase}


async def test_the_run_directory_holds_everything_about_an_episode(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "only")
    async with new_provider() as provider, answering(service, half_right):
        await run(
            run_file(tmp_path),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
        )
    folder = tmp_path / "run" / "episodes" / "only" / "0" / "attempt-1"
    assert sorted(path.name for path in folder.iterdir()) == [
        "agent.stderr",
        "agent.stdout",
        "grader.stderr",
        "grader.stdout",
        "record.json",
        "session",
        "trajectory.json",
        "workspace",
    ]
    (record,) = read_records(tmp_path / "run")
    assert record.usage.turns == 2
    assert record.usage.rows == len(read_rows(folder)) == 1
    assert record.phase_seconds.keys() == {phase.value for phase in Phase}
    assert "solved" in (tmp_path / "run" / "report.txt").read_text()


async def one(
    tmp_path: Path,
    service: ServiceProcess,
    answer: str | Callable[[Lease], str],
    **fields: object,
) -> tuple[RunResult, Record]:
    """Run one episode of one task; its final record."""
    write_tasks(tmp_path, "t")

    def script(lease: Lease) -> str:
        return answer(lease) if callable(answer) else answer

    async with new_provider() as provider, answering(service, script):
        result = await run(
            run_file(tmp_path, **fields),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
        )
    (record,) = read_records(tmp_path / "run")
    return result, record


async def test_an_agent_that_exits_nonzero_is_graded_under_its_own_class(
    tmp_path: Path, service: ServiceProcess
) -> None:
    def answer(lease: Lease) -> str:
        return "write 42" if turn_of(lease) == 0 else "exit 3"

    result, record = await one(tmp_path, service, answer)
    assert record.outcome.cls is OutcomeClass.AGENT_NONZERO_EXIT
    assert (record.outcome.reward, result.report.total.solved) == (1.0, 1)
    assert record.agent is not None
    assert record.agent.exit_code == 3


async def test_an_agent_that_hangs_is_stopped_and_graded(
    tmp_path: Path, service: ServiceProcess
) -> None:
    _, record = await one(tmp_path, service, "hang", agent={"timeout_seconds": 3})
    assert (record.outcome.cls, record.outcome.reward) == (OutcomeClass.AGENT_TIMEOUT, 0.0)


async def test_a_call_the_model_failed_is_infra_and_tried_again(
    tmp_path: Path, service: ServiceProcess
) -> None:
    def answer(lease: Lease) -> str:
        if lease.labels["attempt"] == "1":
            raise RuntimeError("the engine crashed")
        return half_right(lease)

    result, record = await one(tmp_path, service, answer)
    assert (record.attempt, record.outcome.cls) == (2, OutcomeClass.SOLVED)
    assert result.exit_code == 0
    first = tmp_path / "run" / "episodes" / "t" / "0" / "attempt-1" / "record.json"
    assert "model_failed" in first.read_text()


async def test_infra_failures_to_the_end_have_no_reward_and_fail_the_run(
    tmp_path: Path, service: ServiceProcess
) -> None:
    def answer(_lease: Lease) -> str:
        raise RuntimeError("the engine crashed")

    infra = {"max_attempts": 2, "backoff_seconds": 0.01}
    result, record = await one(tmp_path, service, answer, infra=infra)
    assert (record.attempt, record.outcome.cls) == (2, OutcomeClass.MODEL_FAILED)
    assert record.outcome.reward is None
    assert result.exit_code == 1
    assert result.failure is not None
    assert "1 of 1 episodes" in result.failure
    (group,) = await claim_all(service, 1)
    assert (group.episodes[0].reward, group.episodes[0].rows) == (None, [])


async def test_an_agent_program_that_does_not_exist_is_the_operators(
    tmp_path: Path, service: ServiceProcess
) -> None:
    _, record = await one(tmp_path, service, "done", agent={"command": ["no-such-agent"]})
    assert record.outcome.cls is OutcomeClass.AGENT_MISSING
    assert "no-such-agent" in record.outcome.detail


async def test_an_agent_that_never_asks_is_not_scored(
    tmp_path: Path, service: ServiceProcess
) -> None:
    _, record = await one(tmp_path, service, "done", agent={"command": ["true"]})
    assert (record.outcome.cls, record.outcome.reward) == (OutcomeClass.NO_MODEL_CALL, None)


async def test_a_session_at_its_limit_ends_as_a_turn_limit(
    tmp_path: Path, service: ServiceProcess
) -> None:
    _, record = await one(tmp_path, service, "go on", limits={"max_calls": 3})
    assert (record.outcome.cls, record.usage.turns) == (OutcomeClass.TURN_LIMIT, 3)


async def test_a_session_that_used_up_its_tokens_ends_as_a_token_limit(
    tmp_path: Path, service: ServiceProcess
) -> None:
    _, record = await one(tmp_path, service, "go on", limits={"max_completion_tokens": 3})
    assert record.outcome.cls is OutcomeClass.TOKEN_LIMIT
    assert "max_completion_tokens" in record.outcome.detail


async def test_the_agent_may_change_the_files_that_the_task_brought(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "t", files={"answer.txt": "7", "src/deep/a.py": "x = 1"})
    async with new_provider() as provider, answering(service, half_right):
        result = await run(
            run_file(tmp_path, grader={"command": sh_check()}),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
        )
    assert result.report.total.solved == 1


def sh_check() -> list[str]:
    script = 'cd "$0" && test "$(cat answer.txt)" = 42 && test "$(cat src/deep/a.py)" = "x = 1"'
    return ["sh", "-c", script, "{workdir}"]


async def test_sampling_is_pinned_and_every_episode_has_its_own_seed(
    tmp_path: Path, service: ServiceProcess
) -> None:
    seeds: list[dict[str, int | None]] = []
    for name in ("one", "two"):
        write_tasks(tmp_path, "t")
        config = run_file(
            tmp_path, episodes_per_task=3, seed=7, sampling={"temperature": 0.5, "max_tokens": 99}
        )
        async with new_provider() as provider, answering(service, half_right) as policy:
            await run(
                config, directory=tmp_path / name, service=address(service), provider=provider
            )
        assert {lease.request.temperature for lease in policy.seen} == {0.5}
        assert {lease.request.max_tokens for lease in policy.seen} == {99}
        seeds.append({lease.labels["index"]: lease.request.seed for lease in policy.seen})
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0].values())) == 3


async def test_no_more_episodes_run_at_once_than_the_run_file_allows(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "a", "b", "c")
    running: set[str] = set()
    most = 0

    def watch(event: Event) -> None:
        nonlocal most
        if isinstance(event, PhaseEntered):
            running.add(event.plan.episode_id)
        if isinstance(event, AttemptDone):
            running.discard(event.record.episode_id)
        most = max(most, len(running))

    async with new_provider() as provider, answering(service, half_right):
        await run(
            run_file(tmp_path, episodes_per_task=2, concurrency=2),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
            on_event=watch,
        )
    assert (most, running) == (2, set())


@pytest.mark.docker
async def test_the_same_run_works_in_docker(tmp_path: Path, service: ServiceProcess) -> None:
    write_tasks(tmp_path, "a")
    async with DockerProvider(base=tmp_path / "b") as provider, answering(service, half_right):
        result = await run(
            run_file(tmp_path, episodes_per_task=2, image=TEST_IMAGE),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
        )
    assert (result.provider, result.report.total.solved) == ("docker", 1)
    assert result.report.total.valid == 2
