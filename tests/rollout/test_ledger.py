"""The ledger: states derived by replay, a torn tail, contradictions, and a writer that is killed."""

import asyncio
import resource
import signal
import sys
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import LedgerError
from rock.rollout.records.ledger import Ledger, replay
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
)
from rock.rollout.records.ledger_state import State
from rock.rollout.records.outcome import OutcomeClass

OPENED = RunOpened(run_id="r")
GROUP = GroupPlanned(group_id="g", task_id="t", size=2, task_digest="d")


def started(index: int, attempt: int = 1) -> AttemptStarted:
    return AttemptStarted(group_id="g", index=index, attempt=attempt)


def ended(
    index: int,
    attempt: int = 1,
    *,
    cls: OutcomeClass = OutcomeClass.SOLVED,
    final: bool = True,
    reward: float | None = 1.0,
) -> AttemptEnded:
    return AttemptEnded(
        group_id="g", index=index, attempt=attempt, cls=cls, final=final, reward=reward
    )


def failed(index: int, attempt: int, cls: OutcomeClass) -> AttemptEnded:
    return ended(index, attempt, cls=cls, final=False, reward=None)


def reopened(index: int) -> EpisodeReopened:
    return EpisodeReopened(group_id="g", index=index, reason="retry")


def regraded(index: int, grading: int) -> EpisodeRegraded:
    return EpisodeRegraded(
        group_id="g", index=index, grading=grading, cls=OutcomeClass.FAILED, reward=0.0
    )


def test_a_reopened_or_regraded_episode_takes_its_group_back() -> None:
    state = State()
    for event in (OPENED, GROUP, started(0), ended(0), started(1), ended(1)):
        state.apply(event)
    group = state.groups["g"]
    state.apply(GroupPublished(group_id="g", revision=0, chosen=(0, 1)))
    state.apply(regraded(1, 2))
    assert (group.status, group.revision, group.episodes[1].reward) == ("complete", 0, 0.0)
    state.apply(GroupPublished(group_id="g", revision=1, chosen=(0, 1)))
    state.apply(reopened(0))
    assert (group.status, group.episodes[0].failures) == ("1 of 2", 0)
    state.apply(started(0, 2))
    state.apply(ended(0, 2))
    state.apply(GroupDropped(group_id="g", reason="too short"))
    assert (group.status, group.dropped) == ("dropped", "too short")


def test_the_members_of_a_group_are_those_that_count_and_ended_first() -> None:
    state = State()
    state.apply(OPENED)
    state.apply(GroupPlanned(group_id="g", task_id="t", size=2, task_digest="d", extra=2))
    group = state.groups["g"]
    for index in range(4):
        state.apply(started(index))
    state.apply(ended(3))
    state.apply(ended(0, cls=OutcomeClass.GRADER_BROKEN, reward=None))
    assert (group.complete, group.members) == (False, (0, 3))
    state.apply(ended(2))
    state.apply(ended(1, cls=OutcomeClass.REDUNDANT, reward=None))
    assert (group.complete, group.members, group.status) == (True, (2, 3), "complete")


async def test_a_group_goes_from_pending_to_consumed(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.jsonl")
    await ledger.append(OPENED, GROUP)
    steps: list[tuple[Event, str]] = [
        (started(0), "leased"),
        (ended(0), "1 of 2"),
        (started(1), "1 of 2"),
        (ended(1), "complete"),
        (GroupPublished(group_id="g"), "published"),
        (GroupConsumed(group_id="g"), "consumed"),
    ]
    assert ledger.state.groups["g"].status == "pending"
    for event, status in steps:
        await ledger.append(event)
        assert ledger.state.groups["g"].status == status
        replayed, _ = replay(ledger.path.read_bytes(), source="ledger")
        assert replayed == ledger.state
    ledger.close()


async def test_attempts_that_failed_by_themselves_are_counted_and_interrupted_ones_are_not(
    tmp_path: Path,
) -> None:
    ledger = Ledger.open(tmp_path / "ledger.jsonl")
    await ledger.append(OPENED, GROUP, started(0), failed(0, 1, OutcomeClass.SANDBOX_DIED))
    await ledger.append(started(0, 2), failed(0, 2, OutcomeClass.INTERRUPTED))
    await ledger.append(started(0, 3), failed(0, 3, OutcomeClass.CANCELLED))
    episode = ledger.state.groups["g"].episodes[0]
    assert (episode.attempts, episode.failures, episode.status) == (3, 1, "pending")
    ledger.close()


async def test_a_torn_last_line_never_happened(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open(path)
    await ledger.append(OPENED, GROUP, started(0))
    ledger.close()
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines(keepends=True)[-1])):
        path.write_bytes(whole[:-cut])
        again = Ledger.open(path)
        assert again.state.groups["g"].episodes[0].attempts == 0
        await again.append(started(0))
        again.close()
        assert path.read_bytes() == whole


def test_a_broken_line_in_the_middle_is_named() -> None:
    with pytest.raises(LedgerError, match="book:2: not a ledger line"):
        replay(b'{"event":"run","run_id":"r"}\nnonsense\n{"event":"run"}\n', source="book")


def test_a_newer_ledger_is_refused() -> None:
    with pytest.raises(LedgerError, match=f"schema {SCHEMA + 1}"):
        State().apply(RunOpened(run_id="r", schema=SCHEMA + 1))


@pytest.mark.parametrize(
    "events",
    [
        [OPENED, OPENED],
        [GROUP, GROUP],
        [started(0)],
        [GROUP, started(2)],
        [GROUP, started(0), started(0, 2)],
        [GROUP, started(0, 2)],
        [GROUP, ended(0)],
        [GROUP, started(0), ended(0, 2)],
        [GROUP, started(0), ended(0), started(0, 2)],
        [GroupPublished(group_id="g")],
        [GROUP, started(0), reopened(0)],
        [GROUP, started(0), ended(0), regraded(0, 3)],
        [GROUP, started(0), ended(0), GroupConsumed(group_id="g"), reopened(0)],
    ],
)
def test_events_that_contradict_each_other_are_refused(events: list[Event]) -> None:
    state = State()
    for event in events[:-1]:
        state.apply(event)
    with pytest.raises(LedgerError, match="contradicts itself"):
        state.apply(events[-1])


async def test_an_append_is_finished_before_its_cancellation_goes_on(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.jsonl")
    await ledger.append(OPENED, GROUP)
    appending = asyncio.ensure_future(ledger.append(started(0)))
    await asyncio.sleep(0)
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending
    state, _ = replay(ledger.path.read_bytes(), source="ledger")
    assert state.groups["g"].episodes[0].running
    ledger.close()


async def test_half_a_line_that_did_not_fit_is_not_left_before_the_next(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.jsonl")
    await ledger.append(OPENED, GROUP)
    before = ledger.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, hard))
    try:
        with pytest.raises(LedgerError, match="cannot be written: File too large"):
            await ledger.append(started(0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ledger.path.read_bytes() == before
    await ledger.append(started(1))
    assert ledger.path.read_bytes().count(b"\n") == before.count(b"\n") + 1
    replay(ledger.path.read_bytes(), source="ledger")
    ledger.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from rock.rollout.records.ledger import Ledger
from rock.rollout.records.ledger_lines import AttemptEnded, AttemptStarted, GroupPlanned, RunOpened
from rock.rollout.records.outcome import OutcomeClass

async def main():
    ledger = Ledger.open(Path(sys.argv[1]))
    await ledger.append(RunOpened(run_id="r"))
    for number in range(100_000):
        group = f"g{number}"
        await ledger.append(GroupPlanned(group_id=group, task_id="t", size=1, task_digest="d"))
        await ledger.append(AttemptStarted(group_id=group, index=0, attempt=1))
        await ledger.append(AttemptEnded(
            group_id=group, index=0, attempt=1, cls=OutcomeClass.FAILED, final=True, reward=0.0))
        print(number, flush=True)

asyncio.run(main())
"""


async def test_what_a_killed_writer_reported_is_there_and_the_rest_is_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    writer = await process.start(
        [sys.executable, "-c", WRITER, str(path)],
        env=inherited_environment(),
        stdout=process.PIPE,
    )
    try:
        assert writer.stdout is not None
        reported = -1
        while reported < 25:
            line = await asyncio.wait_for(writer.stdout.readline(), 30)
            assert line, "the writer ended by itself"
            reported = int(line)
        writer.send_signal(signal.SIGKILL)
        assert await asyncio.wait_for(writer.wait(), 30) == -signal.SIGKILL
        rest = await writer.stdout.read()
    finally:
        await process.stop(writer)
    reported = int(rest.split()[-1]) if rest.split() else reported
    ledger = Ledger.open(path)
    done = [group for group in ledger.state.groups.values() if group.complete]
    assert len(done) >= reported + 1
    assert len(ledger.state.groups) - len(done) <= 1
    await ledger.append(GroupPlanned(group_id="after", task_id="t", size=1, task_digest="d"))
    ledger.close()
    again, _ = replay(path.read_bytes(), source="ledger")
    assert "after" in again.groups
