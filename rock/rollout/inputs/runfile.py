"""`run.yaml`: everything a person decides about a run, checked before anything starts.

Relative paths are relative to the run file. `load_run_file` gives a `RunFile` whose paths are
absolute.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import AfterValidator, Field, model_validator

from rock.config import Strict, kind_of, read_environment, validated
from rock.errors import ConfigError
from rock.modelservice.wire import TRAINED, ChainClass
from rock.plain import read_yaml
from rock.rollout.inputs.graders import BUILT_IN, QUEUE, AnyGrader, FunctionName, backend
from rock.rollout.inputs.infra import InfraConfig
from rock.rollout.inputs.networks import Reachable, check_run
from rock.rollout.inputs.pooling import PoolConfig
from rock.rollout.inputs.presets import PRESETS, Preset
from rock.rollout.inputs.taskfiles import AbsolutePath, Argument, Seconds, Variables, is_there
from rock.sandbox.base import Limits, Mount

Count = Annotated[int, Field(ge=1, le=100_000)]
Tokens = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]

BuildMode: TypeAlias = Literal["auto", "offline", "host", "never"]

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


class RunFile(Strict):
    """One run: tasks by episodes, an agent, a model, a place for the results."""

    tasks: Argument = Field(description="humaneval, humaneval:0-11, or a path to task files.")
    agent: AgentConfig = Field(description="The agent program.")
    episodes_per_task: Count = Field(default=1, description="Group size: episodes of each task.")
    concurrency: Count = Field(default=4, description="Episodes that run at the same time.")
    provider: Literal["auto", "docker", "local"] = Field(
        default="auto", description="Who makes sandboxes; auto takes docker where it answers."
    )
    image: Argument | None = Field(
        default=None, description="Image of tasks that name none; null is the host's programs."
    )
    build: BuildMode = Field(
        default="auto",
        description="Images that tasks bring a Dockerfile for are built by providers that can (docker): "
        "auto with the engine's network, offline with none, host with the host's; never: only their files.",
    )
    grader: AnyGrader | None = Field(default=None, description="Grader of tasks that bring none.")
    network: Reachable = Field(
        default="model",
        description="What the agent may reach: model (and none), allowlist, full; no task gets more.",
    )
    grade_network: Reachable = Field(
        default="none", description="What may be reached while the work is graded."
    )
    allowed_hosts: list[str] = Field(
        default=[], description="Hosts of allowlist: pypi.org, *.example.com, git.example.com:8443."
    )
    pool: PoolConfig | None = Field(
        default=None, description="Sandboxes made ahead; null makes each when it is needed."
    )
    model: Annotated[str, AfterValidator(backend)] = Field(
        default=QUEUE,
        description="queue (a trainer answers), litellm:NAME (a hosted model), openai:NAME, "
        "engine:NAME, replay:PATH, or a name in service.backends_file.",
    )
    api_base: str | None = Field(default=None, description="Address of the hosted model's API.")
    model_name: Annotated[str, Field(min_length=1)] = Field(
        default="policy", description="The name that {model} is filled with for the agent."
    )
    service: ServiceSection = Field(
        default=ServiceSection(), description="The run's own ModelService."
    )
    tokenizer: str | None = Field(
        default=None,
        description="Name of one of the service's tokenizers: answers whose tokens do not spell "
        "their text are untrainable.",
    )
    sampling: SamplingConfig = Field(default=SamplingConfig(), description="Sampling overrides.")
    limits: LimitsConfig = Field(default=LimitsConfig(), description="Bounds per episode.")
    infra: InfraConfig = Field(default=InfraConfig(), description="Infrastructure failures.")
    train_chains: list[ChainClass] = Field(
        default=list(TRAINED),
        description="Classes of chains whose token rows the trainer gets: main, subagent, "
        "compaction, auxiliary.",
    )
    keep_workspace_bytes: Annotated[int, Field(ge=0)] = Field(
        default=16 * 1024**2,
        description="Working directories up to this size are kept, to be graded again; 0 keeps none.",
    )
    schedule: ScheduleConfig = Field(
        default=ScheduleConfig(), description="How episodes are chosen, started and stopped."
    )
    secrets: list[str] = Field(
        default=[],
        description="Names of further environment variables whose values are never written down; "
        "those named like ..._KEY, ..._TOKEN or ..._PASSWORD never are.",
    )
    seed: int | None = Field(
        default=None, description="Gives every episode its own sampling seed, the same in each run."
    )
    out: Path | None = Field(
        default=None, description="Run directory; null is runs/NAME-TIME beside the run file."
    )
    consume_timeout_seconds: Annotated[float, Field(ge=0)] = Field(
        default=10.0,
        description="How long to wait at the end for the trainer to acknowledge the groups.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.schedule.min_valid > self.episodes_per_task:
            raise ValueError("schedule.min_valid: expected at most episodes_per_task")
        check_run(self)
        return self

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        named = self.model != QUEUE and not BUILT_IN.fullmatch(self.model)
        if named and self.service.backends_file is None:
            raise ValueError(
                "model: expected 'queue' (a trainer answers), 'litellm:NAME' (a hosted model), "
                "'openai:NAME', 'engine:NAME', 'replay:PATH', or a name in service.backends_file, "
                f"which is not given; got {self.model!r}"
            )
        return self

    def sandbox_limits(self) -> Limits:
        limits = self.limits
        return Limits(
            memory_bytes=limits.memory_bytes,
            pids=limits.pids,
            cpus=limits.cpus,
            disk_bytes=limits.disk_bytes,
        )

    def mounts(self) -> tuple[Mount, ...]:
        return tuple(
            Mount(source=mount.source, target=mount.target, read_only=mount.read_only)
            for mount in self.agent.mounts
        )


def load_run_file(path: Path, *, overrides: Mapping[str, Any] | None = None) -> RunFile:
    """The run file with absolute paths. Raises `ConfigError`, one line per wrong field.

    `overrides` are top-level fields that win over the file's.
    """
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected fields like tasks, agent, … (given: {kind_of(data)})")
    merged = {**cast("dict[str, Any]", data), **(overrides or {})}
    return resolve(validated(RunFile, merged, source=str(path)), path)


def resolve(run: RunFile, path: Path) -> RunFile:
    """`run` with its host paths made absolute and checked; `path` is where it was written.

    Raises `ConfigError` for what is not there.
    """
    base = path.resolve().parent
    agent = run.agent.model_copy(
        update={
            "files": {
                target: _existing(base / host, f"{path}: agent.files.{target}")
                for target, host in run.agent.files.items()
            },
            "mounts": [
                _found(mount, base, f"{path}: agent.mounts.{number}.source")
                for number, mount in enumerate(run.agent.mounts)
            ],
            "python": _function(run.agent.python, base, f"{path}: agent.python"),
        }
    )
    model, service = run.model, run.service
    if model.startswith("replay:"):
        recording = _existing(base / model.removeprefix("replay:"), f"{path}: model")
        model = f"replay:{recording}"
    if service.backends_file is not None:
        file = _existing(base / service.backends_file, f"{path}: service.backends_file")
        service = service.model_copy(update={"backends_file": file})
    limits = run.limits
    if agent.preset is not None:
        preset = PRESETS[agent.preset]
        agent = _expanded(agent, preset, base, f"{path}: agent")
        limits = _roomy(limits, preset)
    tasks = run.tasks
    if is_there(base / tasks):
        tasks = str((base / tasks).resolve())
    out = (base / run.out).resolve() if run.out is not None else None
    grader = run.grader and run.grader.located(base, where=f"{path}: grader")
    changes = {
        "agent": agent,
        "model": model,
        "service": service,
        "out": out,
        "tasks": tasks,
        "grader": grader,
        "limits": limits,
    }
    return run.model_copy(update=changes)


def _found(mount: MountConfig, base: Path, where: str) -> MountConfig:
    return mount.model_copy(update={"source": _existing(base / mount.source, where)})


def _function(name: str | None, base: Path, where: str) -> str | None:
    """A function in a file, by that file's full path."""
    if name is None or not (file := name.rpartition(":")[0]).endswith(".py"):
        return name
    return f"{_existing(base / file, where)}:{name.rpartition(':')[2]}"


def _expanded(agent: AgentConfig, preset: Preset, base: Path, where: str) -> AgentConfig:
    """The agent with the preset's command; its own variables and mounts come on top."""
    mounts: list[MountConfig] = []
    if agent.install != "image":
        if preset.mounted is None:
            raise ConfigError(f"{where}.install: {preset.name}: {preset.how_to_install()}")
        folder = base / agent.install if agent.install else read_environment().clients_dir
        for name, target in preset.mounts.items():
            source = folder / name
            if not is_there(source):
                raise ConfigError(
                    f"{where}.preset: {preset.name} is not in {folder}; {preset.how_to_install()}"
                )
            mounts.append(MountConfig(source=source.resolve(), target=target))
    command = preset.command_for(in_image=agent.install == "image")
    update = {"preset": None, "install": None, "command": command}
    update |= {"env": {**preset.env, **agent.env}, "mounts": [*mounts, *agent.mounts]}
    return agent.model_copy(update=update)


def _roomy(limits: LimitsConfig, preset: Preset) -> LimitsConfig:
    """Limits that the preset can live with, unless the run file says its own."""
    if preset.memory_bytes is None or "memory_bytes" in limits.model_fields_set:
        return limits
    return limits.model_copy(update={"memory_bytes": preset.memory_bytes})


def _existing(host: Path, where: str) -> Path:
    if not is_there(host):
        raise ConfigError(f"{where}: no such file or folder: {host}")
    return host.resolve()
