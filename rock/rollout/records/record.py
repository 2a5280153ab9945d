"""The record of one attempt: what `record.json` holds and every report is computed from."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from rock.rollout.records.integrity import Integrity
from rock.rollout.records.outcome import Outcome, OutcomeClass
from rock.sandbox.base import ExecResult, Origin

SCHEMA = 1


def now() -> str:
    """UTC to the millisecond, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt of which episode. The ids are the same under retry and resume."""

    run_id: str
    group_id: str
    task_id: str
    index: int
    attempt: int

    @property
    def episode_id(self) -> str:
        return f"{self.group_id}.{self.index}"

    def labels(self) -> dict[str, str]:
        """What the trainer sees with every call, and the sandbox carries."""
        return {
            "run_id": self.run_id,
            "group_id": self.group_id,
            "episode_id": self.episode_id,
            "task_id": self.task_id,
            "index": str(self.index),
            "attempt": str(self.attempt),
        }


class CommandSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent's or the grader's command ended."""

    status: str
    exit_code: int | None
    signal: int | None
    stdout_bytes: int
    stderr_bytes: int
    seconds: float


def seen(result: ExecResult) -> CommandSeen:
    return CommandSeen(
        status=result.status.value,
        exit_code=result.exit_code,
        signal=result.signal,
        stdout_bytes=result.stdout_bytes,
        stderr_bytes=result.stderr_bytes,
        seconds=round(result.duration_seconds, 6),
    )


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What the attempt used. Null is unknown, never none."""

    turns: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    trainable_tokens: int = 0
    rows: int = 0


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one attempt except its bulk, which lies beside it in the same folder."""

    schema: int = SCHEMA
    run_id: str
    group_id: str
    episode_id: str
    task_id: str
    index: int
    attempt: int
    started_at: str
    ended_at: str
    seconds: float
    phase_seconds: dict[str, float]
    outcome: Outcome
    usage: Usage
    session_id: str | None = None
    provider: str | None = None
    sandbox_id: str | None = None
    sandbox_origin: Origin | None = None
    """`new`, `pool` (made ahead, never used), or `snapshot`: of an earlier attempt, after its setup."""
    agent: CommandSeen | None = None
    grader: CommandSeen | None = None
    untrainable: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    integrity: Integrity | None = None
    """What was done so that the reward can be believed; null where nothing was graded."""
    parts: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    """What the reward is made of, by name, where it is made of several."""
    version: int | None = None
    """The policy version of the first sampled token."""
    agent_class: OutcomeClass | None = None
    """How the agent ended, if not by itself, whatever the grade."""
    graded: bool = False
    """Whether the work was graded, or was to be."""
    grading: int = 1
    """Which grading of the attempt this is."""
    workspace: str | None = None
    """`kept`, or why the working directory was not; null where that was not tried."""


def file_name_of(grading: int) -> str:
    """Where the record of an attempt's grading lies in the attempt's folder."""
    return numbered("record.json", grading)


def numbered(name: str, grading: int) -> str:
    """The file `name` as a later grading has it: `judge.json`, `judge-2.json`, …"""
    stem, dot, suffix = name.rpartition(".")
    return name if grading == 1 else f"{stem}-{grading}{dot}{suffix}"


def encode(value: msgspec.Struct) -> bytes:
    """JSON that a person can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def decode(data: bytes) -> Record:
    """Raises `msgspec.DecodeError` for what is not a record."""
    return msgspec.json.decode(data, type=Record)
