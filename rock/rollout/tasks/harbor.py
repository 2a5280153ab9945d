"""Harbor task directories (the PyPI package harbor, task.toml up to schema 1.4).

    task.toml  instruction.md  environment/  tests/test.sh  solution/solve.sh

The tests come to `/tests` and leave their reward in `/logs/verifier/reward.json` or `reward.txt`; the
solution comes to `/solution`; both only when it is their turn. The image is the one that `docker_image`
names, or what the Dockerfile of `environment/` builds; who works in it is its own user. Where no image is
built, a Dockerfile that only copies files is read instead: the working directory and those files.
Sandboxes have the run's network, whatever the file allows. What cannot be carried out (several steps, other
operating systems, several containers, host variables in the sandbox) is refused.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rock.config import kind_of, validated
from rock.errors import ConfigError
from rock.plain import read_text
from rock.rollout.inputs.graders import GUARDED
from rock.rollout.inputs.task import LoadedTask, Task, check_sources
from rock.sandbox.base import IMAGE_USER
from rock.sandbox.docker.dockerfile import instructions

CONFIG = "task.toml"
ENVIRONMENT = "environment"
TESTS_AT = "/tests"
SOLUTION_AT = "/solution"
LOGS_AT = "/logs"
REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
DEFAULT_WORKDIR = "/app"
SOLUTIONS = {"oracle": "solve", "wrong": "wrong"}
"""By our name; `wrong.sh` is no part of Harbor's format, which lets it lie there."""
_PLACING = {"FROM", "WORKDIR", "COPY", "ADD", "LABEL", "MAINTAINER", "ARG", "CMD", "ENTRYPOINT"}
_HOST_VARIABLE = re.compile(r"\$\{[A-Za-z_]")


class _Section(BaseModel):
    """Fields that nothing follows from here are let pass: the format has many and grows."""

    model_config = ConfigDict(extra="allow", frozen=True)


class _Environment(_Section):
    docker_image: str | None = None
    build_timeout_sec: float = 600.0
    os: str = "linux"
    workdir: str | None = None
    env: dict[str, str] = Field(default={})


class _Agent(_Section):
    timeout_sec: float | None = None
    user: str | int | None = None


class _Verifier(_Section):
    timeout_sec: float = 600.0
    env: dict[str, str] = Field(default={})
    user: str | int | None = None
    environment_mode: str | None = None
    environment: dict[str, Any] | None = None


class _Solution(_Section):
    env: dict[str, str] = Field(default={})


class _Package(_Section):
    name: str | None = None


class _Config(_Section):
    environment: _Environment = _Environment()
    agent: _Agent = _Agent()
    verifier: _Verifier = _Verifier()
    solution: _Solution = _Solution()
    task: _Package = _Package()
    metadata: dict[str, Any] = Field(default={})
    steps: list[Any] | None = None


def is_task(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def load(folder: Path) -> LoadedTask:
    """The task in a directory. Raises `ConfigError` naming the file and field."""
    source = str(folder / CONFIG)
    try:
        data = tomllib.loads(read_text(folder / CONFIG))
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{source}: not TOML: {exc}") from exc
    config = validated(_Config, data, source=source)
    _refuse(config, folder, source)
    task = validated(Task, _task(config, folder), source=source)
    return check_sources(LoadedTask(task, folder.resolve()), source=source)


def _refuse(config: _Config, folder: Path, source: str) -> None:
    if config.steps:
        raise ConfigError(f"{source}: steps: tasks of several steps cannot be run")
    if config.environment.os.lower() != "linux":
        raise ConfigError(f"{source}: environment.os: expected linux: {config.environment.os!r}")
    for compose in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / ENVIRONMENT / compose).is_file():
            raise ConfigError(
                f"{folder}: {ENVIRONMENT}/{compose}: tasks of several containers cannot be run"
            )
    for needed in ("instruction.md", "tests/test.sh"):
        if not (folder / needed).is_file():
            raise ConfigError(f"{folder}: {needed}: no such file")
    for name, section in (
        ("environment", config.environment),
        ("verifier", config.verifier),
        ("solution", config.solution),
    ):
        for key, value in section.env.items():
            if _HOST_VARIABLE.search(value):
                raise ConfigError(
                    f"{source}: {name}.env.{key}: a variable of the host would reach the sandbox "
                    f"(given: {kind_of(value)}); for a model that grades, use a judge"
                )


def _task(config: _Config, folder: Path) -> dict[str, Any]:
    found = _read_dockerfile(folder / ENVIRONMENT)
    environment = config.environment
    workdir = environment.workdir or (found and found.workdir) or DEFAULT_WORKDIR
    env = environment.env
    own_image = environment.docker_image is not None or found is not None
    task: dict[str, Any] = {
        "task_id": config.task.name or folder.resolve().name,
        "instruction": read_text(folder / "instruction.md"),
        "workdir": workdir,
        "image": environment.docker_image,
        "env": env,
        "user": _user(config.agent.user) or (IMAGE_USER if own_image else None),
        "grader": _grader(config, env, folder),
        "metadata": {"format": "harbor", **config.metadata},
    }
    if environment.docker_image is None and found is not None:
        task["build"] = {
            "context": ENVIRONMENT,
            "timeout_seconds": environment.build_timeout_sec,
            "otherwise": _placed(found.copied, workdir, folder),
            "only_files": found.only_files,
        }
    if config.agent.timeout_sec is not None:
        task["timeouts"] = {"agent_seconds": config.agent.timeout_sec}
    scripts = {name: f"{script}.sh" for name, script in SOLUTIONS.items()}
    task["solutions"] = {
        name: _solution(config, env, folder, script)
        for name, script in scripts.items()
        if (folder / "solution" / script).is_file()
    }
    return task


def _grader(config: _Config, env: Mapping[str, str], folder: Path) -> dict[str, Any]:
    verifier = config.verifier
    separate = verifier.environment_mode == "separate" or verifier.environment is not None
    # Its output goes beside the reward, as Harbor has it; the exit code says nothing there.
    script = f'chmod +x {TESTS_AT}/test.sh; "{TESTS_AT}/test.sh"; true'
    return {
        "command": ["sh", "-c", script],
        "files": _children(folder, "tests"),
        "tests_at": TESTS_AT,
        "stale": [LOGS_AT, f"{LOGS_AT}/verifier"],
        "reward": "file",
        "reward_files": list(REWARDS),
        "cwd": "{workdir}",
        "env": {**env, **verifier.env},
        "user": _user(verifier.user),
        "timeout_seconds": verifier.timeout_sec,
        "fresh": separate,
        "protect": list(GUARDED),
    }


def _solution(config: _Config, env: Mapping[str, str], folder: Path, script: str) -> dict[str, Any]:
    path = f"{SOLUTION_AT}/{script}"
    script = f'chmod +x "{path}"; exec "{path}"'
    return {
        "command": ["sh", "-c", script],
        "at": SOLUTION_AT,
        "files": _children(folder, "solution"),
        "env": {"DEBIAN_FRONTEND": "noninteractive", **env, **config.solution.env},
        "user": _user(config.agent.user),
    }


def _children(folder: Path, name: str) -> dict[str, Any]:
    """All that lies in a subdirectory, as files of a task."""
    return {
        item.name: {"source": f"{name}/{item.name}"} for item in sorted((folder / name).iterdir())
    }


def _user(user: str | int | None) -> str | None:
    return None if user is None else str(user)


@dataclass(frozen=True, slots=True)
class _Dockerfile:
    """What can be known of an image without building it."""

    workdir: str | None
    copied: Mapping[str, str]
    """Place in the image → path in `environment/`."""
    only_files: bool
    """Whether it does nothing but place files."""


def _read_dockerfile(folder: Path) -> _Dockerfile | None:
    path = folder / "Dockerfile"
    if not path.is_file():
        return None
    workdir: str | None = None
    copied: dict[str, str] = {}
    words: set[str] = set()
    for word, rest in instructions(read_text(path)):
        words.add(word)
        if word == "FROM":  # what the stages before it have is not in the image
            workdir, copied = None, {}
        elif word == "WORKDIR":
            workdir = str(PurePosixPath(workdir or "/", rest))
        elif word in ("COPY", "ADD"):
            for source, target in _copies(rest, workdir or "/"):
                if (folder / source).exists():
                    copied[target] = source
    return _Dockerfile(workdir, copied, only_files=words <= _PLACING)


def _copies(rest: str, workdir: str) -> list[tuple[str, str]]:
    """What one COPY line copies. Copies out of other stages are none of files that are here."""
    try:
        words = json.loads(rest) if rest.lstrip().startswith("[") else shlex.split(rest)
    except ValueError:
        return []
    flags = [word for word in words if word.startswith("--")]
    plain = [word for word in words if not word.startswith("--")]
    if any(flag.startswith("--from") for flag in flags) or len(plain) < 2:
        return []
    *sources, target = plain
    into = target.endswith("/") or target in (".", "./") or len(sources) > 1
    place = PurePosixPath(workdir, target)
    return [
        (source, str(place / PurePosixPath(source).name if into and source != "." else place))
        for source in sources
    ]


def _placed(files: Mapping[str, str], workdir: str, folder: Path) -> dict[str, Any]:
    """Copied files as files of the task, where they are in its working directory."""
    placed: dict[str, Any] = {}
    for target, source in files.items():
        path = PurePosixPath(target)
        if not path.is_relative_to(workdir):
            continue
        name = str(path.relative_to(workdir))
        if name != ".":
            placed[name] = {"source": str(PurePosixPath("environment", source))}
            continue
        for child, file in _children(folder, f"environment/{source}").items():
            if child != "Dockerfile":
                placed[child] = {"source": str(PurePosixPath(file["source"]))}
    return placed
