"""Run directories without a run: for tests and benchmarks of what reads them.

`write_run` writes given trajectories as a finished run; `make_run` invents them: seeded, exact in
every token, and of any size. The rows come from the same code as a real session's.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Raw

from rock.modelservice.graph import stored, tokens
from rock.modelservice.graph.rows import CallTokens, Sample, build_rows, new_after
from rock.modelservice.wire import (
    AssistantMessage,
    CanonicalRequest,
    ChainClass,
    Choice,
    ToolCall,
    ToolFunction,
    Trajectory,
    TrajectoryCall,
    Usage,
)
from rock.rollout.records.ledger_lines import (
    AttemptEnded,
    AttemptStarted,
    Event,
    GroupPlanned,
    RunOpened,
)
from rock.rollout.records.outcome import Outcome, OutcomeClass, Phase, graded, outcome_of
from rock.rollout.records.record import Record, encode
from rock.rollout.records.rundir import RunInfo, file_name
from rock.rollout.records.trajectory import FILE_NAME, usage_of
from rock.types import CallId

TOOLS = [
    Raw(b'{"type":"function","function":{"name":"bash","parameters":{"type":"object"}}}'),
]


@dataclass(frozen=True, slots=True)
class MadeCall:
    """One call to put into a session. `parent` is an earlier call's number and choice."""

    prompt: Sequence[int]
    """The whole prompt's ids."""
    answers: Sequence[Sequence[int]]
    messages: Sequence[Raw]
    answer: AssistantMessage
    parent: tuple[int, int] | None = None
    branch: str | None = None
    chain_class: ChainClass = "main"
    version: int = 1


@dataclass(frozen=True, slots=True)
class MadeEpisode:
    """One place of a group. Without a trajectory it ended before it had one."""

    outcome: Outcome
    trajectory: Trajectory | None


@dataclass(frozen=True, slots=True)
class MadeGroup:
    """A task with its episodes; None is one that is not finished."""

    task_id: str
    episodes: Sequence[MadeEpisode | None] = field(default_factory=list[MadeEpisode | None])


def trajectory_of(session_id: str, calls: Iterable[MadeCall]) -> Trajectory:
    """What ModelService would export of a session with these calls."""
    made: list[CallTokens] = []
    shown: list[TrajectoryCall] = []
    for number, call in enumerate(calls):
        call_id = CallId(f"{session_id}-c{number}")
        packed = [_sampled(ids) for ids in call.answers]
        parent, choice = (
            (None, 0) if call.parent is None else (made[call.parent[0]], call.parent[1])
        )
        prompt = tokens.pack_ids(call.prompt)
        new = None if parent is None else new_after(prompt, parent, choice)
        made.append(
            CallTokens(
                call_id=call_id,
                policy_version=call.version,
                samples=tuple(packed),
                prompt=prompt if new is None else new,
                parent=None if new is None else parent,
                parent_choice=choice,
                chain_class=call.chain_class,
                branch=call.branch,
            )
        )
        shown.append(_shown(call, made[-1], parent))
    return Trajectory(session_id=session_id, labels={}, calls=shown, rows=build_rows(made))


def _sampled(ids: Sequence[int]) -> Sample:
    logprobs = [-(1 + token % 13) / 16 for token in ids]
    return Sample(tokens.pack_ids(ids), tokens.pack_logprobs(logprobs))


def _shown(call: MadeCall, made: CallTokens, parent: CallTokens | None) -> TrajectoryCall:
    sampled = sum(len(ids) for ids in call.answers)
    return TrajectoryCall(
        call_id=made.call_id,
        state="delivered",
        request=CanonicalRequest(
            model="made", messages=list(call.messages), tools=TOOLS, temperature=0.5
        ),
        choices=[
            Choice(
                message=call.answer,
                finish_reason="tool_calls" if call.answer.tool_calls else "stop",
                token_ids=tokens.unpack_ids(sample.ids),
                logprobs=tokens.unpack_logprobs(sample.logprobs),
            )
            for sample in made.samples
        ],
        parent=None if parent is None else parent.call_id,
        branch=call.branch,
        chain_class=call.chain_class,
        policy_version=call.version,
        usage=Usage(prompt_tokens=len(call.prompt), completion_tokens=sampled),
    )


def write_run(path: Path, groups: Iterable[MadeGroup], *, run_id: str = "run-made") -> None:
    """Write the groups as a run directory; groups are taken one at a time."""
    path.mkdir(parents=True)
    info = RunInfo(
        schema=1,
        run_id=run_id,
        created_at="2026-01-01T00:00:00.000+00:00",
        rock_version="0",
        python_version="3",
        system="made",
        config={"agent": {"command": ["made-agent"]}},
    )
    (path / "run.json").write_bytes(encode(info))
    with (path / "ledger.jsonl").open("wb") as ledger:
        ledger.write(msgspec.json.encode(RunOpened(run_id=run_id)) + b"\n")
        for number, group in enumerate(groups):
            for event in _write_group(path, run_id, f"g{number}", group):
                ledger.write(msgspec.json.encode(event) + b"\n")


def _write_group(path: Path, run_id: str, group_id: str, group: MadeGroup) -> Iterator[Event]:
    yield GroupPlanned(
        group_id=group_id,
        task_id=group.task_id,
        size=len(group.episodes),
        task_digest="made",
    )
    for index, episode in enumerate(group.episodes):
        if episode is None:
            continue
        record = _record(run_id, group_id, group.task_id, index, episode)
        folder = path / "episodes" / file_name(group.task_id) / str(index) / "attempt-1"
        folder.mkdir(parents=True)
        (folder / "record.json").write_bytes(encode(record))
        if episode.trajectory is not None:
            (folder / FILE_NAME).write_bytes(stored.encode(episode.trajectory))
        yield AttemptStarted(group_id=group_id, index=index, attempt=1)
        yield AttemptEnded(
            group_id=group_id,
            index=index,
            attempt=1,
            cls=episode.outcome.cls,
            final=True,
            reward=episode.outcome.reward,
        )


def _record(run_id: str, group_id: str, task_id: str, index: int, episode: MadeEpisode) -> Record:
    trajectory = episode.trajectory or Trajectory(session_id="", labels={}, calls=[], rows=[])
    return Record(
        run_id=run_id,
        group_id=group_id,
        episode_id=f"{group_id}.{index}",
        task_id=task_id,
        index=index,
        attempt=1,
        started_at="",
        ended_at="",
        seconds=1.0,
        phase_seconds={},
        outcome=episode.outcome,
        usage=usage_of(trajectory),
        session_id=trajectory.session_id,
    )


def make_run(
    path: Path,
    *,
    tasks: int,
    episodes: int,
    turns: int,
    tokens_per_message: int = 100,
    seed: int = 0,
) -> None:
    """A finished run of tool-using episodes: every second one solved, one in sixteen a failure of
    the infrastructure."""
    source = random.Random(seed)

    def group(number: int) -> MadeGroup:
        return MadeGroup(
            f"task-{number}",
            [
                _episode(source, f"s{number}-{index}", turns, tokens_per_message)
                for index in range(episodes)
            ],
        )

    write_run(path, (group(number) for number in range(tasks)))


def _episode(source: random.Random, session_id: str, turns: int, length: int) -> MadeEpisode:
    if source.random() < 1 / 16:
        return MadeEpisode(outcome_of(OutcomeClass.SANDBOX_DIED, Phase.AGENT), None)
    reward = float(source.random() < 0.5)
    return MadeEpisode(
        graded(reward, agent_class=None), trajectory_of(session_id, _talk(source, turns, length))
    )


def _talk(source: random.Random, turns: int, length: int) -> Iterator[MadeCall]:
    """A conversation with one tool call per turn, echoed by a client that drops reasoning."""
    ids: list[int] = []
    messages: list[Raw] = [Raw(b'{"role":"user","content":"solve it"}')]
    for turn in range(turns):
        ids = ids + source.choices(range(32_000), k=length)
        sampled = source.choices(range(32_000), k=length)
        call_id = f"call_{source.getrandbits(64):x}"
        answer = AssistantMessage(
            reasoning_content=f"thought {turn}",
            tool_calls=[
                ToolCall(
                    id=call_id,
                    function=ToolFunction(name="bash", arguments=f'{{"command": "step {turn}"}}'),
                )
            ],
        )
        yield MadeCall(
            prompt=ids,
            answers=[sampled],
            messages=list(messages),
            answer=answer,
            parent=None if turn == 0 else (turn - 1, 0),
            version=1 + turn // 20,
        )
        ids = ids + sampled
        messages += [
            Raw(
                msgspec.json.encode(
                    {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [
                            {
                                "id": call_id,
                                "type": "function",
                                "function": {
                                    "name": "bash",
                                    "arguments": f'{{"command":"step {turn}"}}',
                                },
                            }
                        ],
                    }
                )
            ),
            Raw(
                msgspec.json.encode(
                    {"role": "tool", "tool_call_id": call_id, "content": f"output {turn}"}
                )
            ),
        ]
