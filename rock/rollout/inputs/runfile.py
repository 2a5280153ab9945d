"""`run.yaml`: everything a person decides about a run, checked before anything starts.

Relative paths are relative to the run file. `load_run_file` gives a `RunFile` whose paths are
absolute.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, cast

from pydantic import Field, model_validator

from rock.config import Strict, kind_of, read_environment, validated
from rock.errors import ConfigError
from rock.modelservice.wire import TRAINED, ChainClass
from rock.plain import read_yaml
from rock.rollout.inputs.fields import BUILT_IN, QUEUE, Argument, BackendName, Count
from rock.rollout.inputs.graders import AnyGrader
from rock.rollout.inputs.networks import Reachable, check_run
from rock.rollout.inputs.presets import PRESETS, Preset
from rock.rollout.inputs.sections import (
    AgentConfig,
    InfraConfig,
    LimitsConfig,
    MountConfig,
    PoolConfig,
    SamplingConfig,
    ScheduleConfig,
    ServiceSection,
)
from rock.rollout.inputs.taskfiles import is_there
from rock.sandbox.base import Limits, Mount

BuildMode: TypeAlias = Literal["auto", "offline", "host", "never"]


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
    model: BackendName = Field(
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
