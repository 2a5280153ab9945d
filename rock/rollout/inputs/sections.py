"""The parts of a run file, one class each; `runfile` has the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rock.config import Strict
from rock.rollout.inputs.fields import (
    AbsolutePath,
    Argument,
    Count,
    FunctionName,
    Port,
    Seconds,
    Tokens,
    Variables,
)
from rock.rollout.inputs.presets import PRESETS
from rock.sandbox.pool import PoolPolicy

KINDS = ("command", "preset", "python", "solution")
"""What an agent can be."""


class MountConfig(Strict):
    """A host path that the agent sees."""

    source: Path = Field(description="Host path, relative to the run file.")
    target: AbsolutePath = Field(description="Absolute path in the sandbox.")
    read_only: bool = Field(default=True, description="Whether the sandbox may not write to it.")


class AgentConfig(Strict):
    """The agent program and what it finds in its sandbox."""

    command: list[Argument] = Field(
        default=[],
        description="Program and arguments; {instruction} {workdir} {task_id} {model} {base_url} "
        "{api_key} are filled in. No shell is involved.",
    )
    preset: str | None = Field(
        default=None, description="Instead of a command: a known agent, like mini-swe-agent."
    )
    python: FunctionName | None = Field(
        default=None,
        description="Instead of a command: an async function in the harness, as module:function "
        "or file.py:function.",
    )
    solution: str | None = Field(
        default=None, description="Instead of a command: a solution of each task, like oracle."
    )
    install: Path | Literal["image"] | None = Field(
        default=None,
        description="Where a preset is: a folder that has it, image for a program of the image, "
        "null for where `make test-clients` installs.",
    )
    env: Variables = Field(
        default={},
        description="Environment, with the same placeholders. OPENAI_BASE_URL, OPENAI_API_KEY, "
        "ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY are always there.",
    )
    timeout_seconds: Seconds = Field(default=1800.0, description="Time limit of the agent.")
    cwd: Argument = Field(default="{workdir}", description="Directory in which the agent starts.")
    files: dict[AbsolutePath, Path] = Field(
        default={}, description="Sandbox path → host file or folder, copied in before the start."
    )
    mounts: list[MountConfig] = Field(default=[], description="Host paths shown in the sandbox.")
    user: Argument | None = Field(
        default=None, description="User in the sandbox; null is the default."
    )
    no_progress_seconds: Seconds | None = Field(
        default=900.0,
        description="The agent is stopped when it neither asks the model nor uses the processor for "
        "this long; null never.",
    )
    requires_model: bool = Field(
        default=True, description="Whether an agent that never called the model is a mistake."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in KINDS if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"expected exactly one of {', '.join(KINDS)} (given: {', '.join(given) or 'none'})"
            )
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"preset: expected one of {', '.join(PRESETS)}: {self.preset!r}")
        return self


class LimitsConfig(Strict):
    """Bounds on each sandbox and each session."""

    memory_bytes: Annotated[int, Field(ge=16 * 1024**2)] | None = Field(
        default=2 * 1024**3, description="Memory of a sandbox."
    )
    pids: Annotated[int, Field(ge=8)] | None = Field(
        default=512, description="Processes and threads of a sandbox."
    )
    cpus: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Processor share of a sandbox."
    )
    disk_bytes: Annotated[int, Field(ge=16 * 1024**2)] | None = Field(
        default=None, description="All that is written in a sandbox."
    )
    max_calls: Count | None = Field(
        default=None, description="Calls to the model that one episode may make."
    )
    max_prompt_tokens: Tokens | None = Field(
        default=None, description="Prompt tokens of all calls of one episode together."
    )
    max_completion_tokens: Tokens | None = Field(
        default=None, description="The same for completion tokens."
    )
    max_wall_seconds: Seconds | None = Field(
        default=None, description="How long an episode's session may last; then the model is gone."
    )
    call_deadline_seconds: Seconds | None = Field(
        default=None, description="How long one call may wait for its answer."
    )
    provision_seconds: Seconds = Field(default=120.0, description="Time to make a sandbox.")
    setup_seconds: Seconds = Field(default=120.0, description="Time to put files in place.")
    export_seconds: Seconds = Field(
        default=120.0, description="Time to fetch what the agent did and left."
    )
    teardown_seconds: Seconds = Field(default=60.0, description="Time to remove a sandbox.")
    episode_seconds: Seconds | None = Field(
        default=None, description="From the beginning to the agent's end; cuts the bounds in it."
    )


class SamplingConfig(Strict):
    """Sampling values that override whatever the agent asks for."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        default=None, description="Sampling temperature."
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Nucleus sampling bound."
    )
    max_tokens: Count | None = Field(default=None, description="Tokens per answer.")
    stop: list[str] | None = Field(default=None, description="Texts that end an answer.")


class ScheduleConfig(Strict):
    """How many, how fast, how far ahead of the trainer, and what happens to short groups."""

    extra_members: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0, description="Episodes per group beyond its size; the first that count win."
    )
    groups_per_step: Count | None = Field(
        default=None, description="Groups that one training step takes."
    )
    extra_groups: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=0,
        description="Groups beyond those of a step that run beside them; the last are stopped and "
        "come again in a later step.",
    )
    max_staleness: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="How many policy versions older than the one that takes a sample the one may be "
        "that began it.",
    )
    buffer_groups: Count | None = Field(
        default=None, description="Groups under way or waiting for the trainer; null is no bound."
    )
    partial: Literal["partial", "drop", "refill"] = Field(
        default="partial",
        description="A group with episodes that do not count goes out with the others (partial), is "
        "dropped (drop), or has those run again first (refill).",
    )
    min_valid: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Episodes that must count for a group to go out."
    )
    max_refills: Annotated[int, Field(ge=0, le=100)] = Field(
        default=2, description="How often refill runs the same episode again."
    )
    starts_per_second: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Rate of starts; null is no bound."
    )
    start_burst: Count = Field(default=4, description="Starts at once under that rate.")
    queue_wait_seconds: Seconds | None = Field(
        default=None,
        description="Calls should not wait longer than this for the model: concurrency is lowered "
        "and raised again by it; null leaves it alone.",
    )
    task_concurrency: Count | None = Field(
        default=None, description="Episodes of one task at the same time."
    )
    tag_concurrency: dict[str, Count] = Field(
        default={}, description="Tag of tasks → episodes of those tasks at the same time."
    )
    curriculum: Literal["in_order", "by_success"] = Field(
        default="in_order",
        description="Which task is next: in_order, or by_success: of the tag whose tasks were solved "
        "closest to half of the time.",
    )
    idle_seconds: Seconds = Field(
        default=3600.0,
        description="How long to wait for a trainer that takes no group before the run gives up.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.extra_groups and self.groups_per_step is None:
            raise ValueError("extra_groups: expected groups_per_step with it")
        if self.buffer_groups is not None and self.buffer_groups < (self.groups_per_step or 1):
            raise ValueError("buffer_groups: expected at least groups_per_step, else no step fills")
        return self


class ServiceSection(Strict):
    """The ModelService that the run starts for itself."""

    agent_port: Port = Field(default=0, description="Port of the agent plane; 0 is any free one.")
    control_port: Port = Field(
        default=0,
        description="Port of the control plane, which a trainer must know; 0 is any free one, "
        "written to service/ready.json.",
    )
    tokenizers: list[str] = Field(
        default=[], description="Tokenizers that answers can be checked with: NAME=DIRECTORY."
    )
    backends_file: Path | None = Field(
        default=None, description="File that describes backends, see docs/backends.md."
    )


class InfraConfig(Strict):
    """What happens when rock, not the policy, failed."""

    max_attempts: Annotated[int, Field(ge=1, le=100)] = Field(
        default=3, description="Attempts per episode, the first one included."
    )
    backoff_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        default=1.0, description="Wait before the second attempt; doubles, with jitter, up to 60 s."
    )
    retry_from: Literal["start", "setup"] = Field(
        default="start",
        description="Where a further attempt begins: at the start, or with the files as they were after "
        "the task's setup, which then does not run again.",
    )
    no_room_seconds: Seconds = Field(
        default=600.0,
        description="How long a machine may have no room for a single sandbox before the run gives up.",
    )
    max_failed_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2,
        description="Share of episodes that may end so before the run counts as failed.",
    )


class PoolConfig(Strict):
    """Sandboxes made ahead of the episodes that will claim them, as `rock.sandbox.pool.PoolPolicy` has it.

    What waits in a pool was never used, so what an episode gets is what it would have got made for it. A
    used sandbox is not put back.
    """

    ready_min: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=2, description="So many wait for each kind of sandbox in use."
    )
    ready_max: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=8, description="While more are wanted than wait, so many are kept."
    )
    making_at_once: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=2, description="Sandboxes made ahead at the same time."
    )
    refill_seconds: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="At least so long between two beginnings."
    )
    age_seconds: Seconds = Field(default=1800.0, description="After so long one is replaced.")
    idle_seconds: Seconds = Field(
        default=300.0, description="A kind that is not wanted for so long is given up."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.ready_min > self.ready_max:
            raise ValueError("ready_min: expected at most ready_max")
        return self

    def policy(self) -> PoolPolicy:
        return PoolPolicy(**self.model_dump())
