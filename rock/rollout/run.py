"""One call for a whole run: open the run directory, start what is needed, run, report.

    result = await run(Path("run.yaml"))

What a run starts ends with it, in every way out: its sandboxes, their provider, and ModelService,
which is a process of its own on the run directory's `service/` folder. The same call on a directory
that holds an unfinished run goes on with it; on a finished one it only reports.

A run that is given a `ServiceAddress` uses that service and leaves it running. The trainer then
needs to know one address, however many runs there are.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from rock.config import secret_values, validated
from rock.errors import ConfigError, LedgerError, ProviderUnavailable, TaskError
from rock.modelservice.backends.config import read_backends
from rock.modelservice.client.shards import AdminShards
from rock.modelservice.hosting.supervise import ServiceProcess, kept_up
from rock.rollout.building import refuse_unbuilt
from rock.rollout.episode.episode import Tools
from rock.rollout.inputs.fields import BUILT_IN, QUEUE
from rock.rollout.inputs.functions import load_function
from rock.rollout.inputs.leaks import refuse_leaks
from rock.rollout.inputs.networks import refuse_wide
from rock.rollout.inputs.runfile import RunFile, load_run_file
from rock.rollout.inputs.task import LoadedTask
from rock.rollout.planning import Selection
from rock.rollout.records.durable import write_atomically
from rock.rollout.records.record import encode
from rock.rollout.records.rundir import RunDir, read_info, read_records
from rock.rollout.regrade import Regraded, Regrader
from rock.rollout.report.events import OnEvent, RunEnded, RunStarted, ignore
from rock.rollout.report.report import Report, report
from rock.rollout.report.text import as_text
from rock.rollout.runner import Runner
from rock.rollout.scheduler.pool import Curriculum
from rock.rollout.staging import remove_left_stages
from rock.rollout.tasks import load_tasks
from rock.sandbox.base import Provider
from rock.sandbox.doctor import choose_provider, providers
from rock.sandbox.pool import PooledProvider
from rock.sandbox.remote import door
from rock.secrets import MARK, credentials_in, register

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
"""For the command line: what a run that was cancelled ends with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAddress:
    """A ModelService that is already there, on this machine."""

    control_url: str
    admin_key: str
    attach_path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What became of a run. `failure` says why it gave up, None if every episode has an outcome."""

    directory: Path
    run_id: str
    provider: str
    report: Report
    groups: int
    published: int
    consumed: int
    dropped: int = 0
    regraded: Regraded | None = None
    """Of a run that only graded again."""
    failure: str | None

    @property
    def exit_code(self) -> int:
        return EXIT_FINISHED if self.failure is None else EXIT_FAILED


async def run(
    source: Path | RunFile,
    *,
    directory: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    service: ServiceAddress | None = None,
    provider: Provider | None = None,
    docker_host: str | None = None,
    chosen: Selection | None = None,
    curriculum: Curriculum | None = None,
    on_event: OnEvent = ignore,
) -> RunResult:
    """Run a run file to its end, or from where an earlier harness stopped in `directory`.

    `overrides` are top-level fields that win over the file's. A `provider` given here stays the
    caller's; otherwise one is made, on the engine at `docker_host`. `chosen` is the part of the
    work to do; a `curriculum` given here is used in place of the run file's. Raises `ConfigError`, `LedgerError`, `ProviderUnavailable` and `ModelServiceError` for
    what stops the whole run; what goes wrong in an episode is in its outcome. Cancelling it stops
    everything and leaves the directory resumable.
    """
    config, text = _read(source, overrides)
    _refuse_redacted(config)
    where = directory or config.out or _new_directory(source)
    tasks = load_tasks(config.tasks, base=Path.cwd())
    _refuse_ungraded(config, tasks)
    refuse_wide(config, tasks)
    register(*secret_values([*config.secrets, *_described(config, tasks)]))
    register(*credentials_in(config.api_base or ""))
    refuse_leaks(config, tasks)
    await asyncio.to_thread(_refuse_missing_functions, config, tasks)
    chosen = chosen or Selection()
    chosen.check(where, {item.task_id for item in tasks})
    may_change = frozenset({"grader"}) if chosen.regrade else frozenset[str]()
    await asyncio.to_thread(remove_left_stages)
    async with AsyncExitStack() as whole:
        maker = await _provider(whole, config, provider, docker_host)
        refuse_unbuilt(tasks, maker, config.build)
        with RunDir.open(where.resolve(), config, source=text, may_change=may_change) as opened:
            async with AsyncExitStack() as stack:
                if config.pool is not None:
                    maker = await stack.enter_async_context(
                        PooledProvider(maker, config.pool.policy(), owns_inner=False)
                    )
                await stack.enter_async_context(door.opened(maker))
                address = service or await stack.enter_async_context(
                    _service(opened.path, config, _models(config, tasks))
                )
                register(address.admin_key)
                admin = await stack.enter_async_context(
                    AdminShards(address.control_url, address.admin_key)
                )
                tools = Tools(
                    run=config,
                    provider=maker,
                    admin=admin,
                    attach_path=address.attach_path,
                    backend=config.model,
                    on_event=on_event,
                )
                runner = Runner(tasks, opened, tools, chosen=chosen, order=curriculum)
                await runner.plan()
                trainer = address.control_url if config.model == QUEUE else None
                asks = config.agent.solution is None
                on_event(_started(opened, runner, maker, trainer_url=trainer, asks_model=asks))
                regraded = None
                if chosen.regrade:
                    regraded = await Regrader(tasks, opened, tools).run(runner.planned)
                failure = await runner.run()
            result = await asyncio.to_thread(_finish, opened, maker.name, failure, regraded)
    on_event(RunEnded(report=result.report, failure=failure))
    return result


async def resume(directory: Path, **options: Any) -> RunResult:
    """Go on with the run in `directory`, with the settings it was started with."""
    info = await asyncio.to_thread(read_info, directory)
    config = validated(RunFile, info.config, source=f"the run in {directory}")
    return await run(config, directory=directory, **options)


def _read(source: Path | RunFile, overrides: Mapping[str, Any] | None) -> tuple[RunFile, bytes]:
    if isinstance(source, Path):
        return load_run_file(source, overrides=overrides), source.read_bytes()
    if overrides:
        source = validated(
            RunFile, {**source.model_dump(mode="json"), **overrides}, source="the run file"
        )
    return source, source.model_dump_json(indent=2).encode()  # JSON is YAML, too


def _refuse_redacted(config: RunFile) -> None:
    """A run directory keeps its settings without secrets: what is missing must be given again."""
    if MARK in (config.api_base or ""):
        raise ConfigError(
            "api_base: the run directory keeps it without its password or key; give it again "
            "(--api-base), or give the run file"
        )


def _new_directory(source: Path | RunFile) -> Path:
    if not isinstance(source, Path):
        raise ConfigError("out: a run that does not come from a file needs a run directory")
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", source.stem)
    return source.resolve().parent / "runs" / f"{name}-{stamp}"


def _refuse_ungraded(config: RunFile, tasks: list[LoadedTask]) -> None:
    for item in tasks:
        if item.task.grader is None and config.grader is None:
            raise ConfigError(
                f"tasks: {item.task_id!r} has no grader (expected one in the task or in the run file)"
            )


def _refuse_missing_functions(config: RunFile, tasks: list[LoadedTask]) -> None:
    """Raises `ConfigError` for functions of graders and agents that are not there, before anything runs."""
    named = [("agent.python", config.agent.python, Path.cwd())]
    graders = [("grader", config.grader, Path.cwd())]
    graders += [(f"tasks: {item.task_id}: grader", item.task.grader, item.folder) for item in tasks]
    for where, grader, folder in graders:
        if grader is not None:
            functions = grader.functions().items()
            named += [(f"{where}.{field}", name, folder) for field, name in functions]
    for where, name, folder in dict.fromkeys(named):
        try:
            if name is not None:
                load_function(name, folder)
        except TaskError as exc:
            raise ConfigError(f"{where}: {exc.message}") from exc


def _described(config: RunFile, tasks: list[LoadedTask]) -> list[str]:
    """The variables that hold the keys of described backends.

    Raises `ConfigError` for a file that describes none, and for a model that it does not describe.
    """
    file = config.service.backends_file
    if file is None:
        return []
    backends = read_backends(file)
    for name in sorted(_asked(config, tasks)):
        if name != QUEUE and not BUILT_IN.fullmatch(name) and name not in backends:
            raise ConfigError(
                f"model: {file} describes no backend {name!r} (expected one of {', '.join(backends)})"
            )
    return [backend.api_key_env for backend in backends.values() if backend.api_key_env]


def _asked(config: RunFile, tasks: list[LoadedTask]) -> set[str]:
    """Every model that is asked: the agents' and the judges'."""
    names = {config.model}
    for grader in (config.grader, *(item.task.grader for item in tasks)):
        if grader is not None:
            names |= grader.models()
    return names


def _models(config: RunFile, tasks: list[LoadedTask]) -> list[str]:
    """Every backend that the run's ModelService must start without a description."""
    return sorted(filter(BUILT_IN.fullmatch, _asked(config, tasks)))


async def _provider(
    stack: AsyncExitStack, config: RunFile, given: Provider | None, docker_host: str | None
) -> Provider:
    """The provider to use; one made here is closed with `stack`."""
    if given is not None:
        return given
    if config.provider == "auto":
        return await stack.enter_async_context(await choose_provider(docker_host))
    for candidate in providers(docker_host):
        if candidate.name != config.provider:
            await candidate.close()
            continue
        await stack.enter_async_context(candidate)
        found = await candidate.probe()
        if not found.available:
            remedy = f"; {found.remedy}" if found.remedy else ""
            raise ProviderUnavailable(f"provider: {config.provider}: {found.detail}{remedy}")
        return candidate
    raise ConfigError(f"provider: there is no provider {config.provider!r}")


@asynccontextmanager
async def _service(
    directory: Path, config: RunFile, backends: Sequence[str]
) -> AsyncGenerator[ServiceAddress, None]:
    """ModelService for this run alone. One that crashes is started again on the same journal and
    sockets. It ends with the harness, also when that is killed, and the next one starts it again."""
    given = config.service.model_dump(exclude_defaults=True)
    settings = {
        name: ",".join(cast("list[str]", value)) if isinstance(value, list) else value
        for name, value in given.items()
    }
    process = ServiceProcess(
        directory / "service",
        settings=settings,
        backends=backends,
        api_base=config.api_base,
        exit_with_parent=True,
    )
    async with kept_up(process):
        yield ServiceAddress(
            control_url=process.control_url,
            admin_key=process.keys.admin_key,
            attach_path=process.attach_path,
        )


def _started(
    opened: RunDir,
    runner: Runner,
    provider: Provider,
    *,
    trainer_url: str | None,
    asks_model: bool,
) -> RunStarted:
    groups = runner.planned
    return RunStarted(
        run_id=opened.run_id,
        directory=opened.path,
        provider=provider.name,
        groups=len(groups),
        episodes=sum(group.plan.size for group in groups),
        done=sum(group.done for group in groups),
        trainer_url=trainer_url,
        asks_model=asks_model,
    )


def _finish(
    opened: RunDir, provider: str, failure: str | None, regraded: Regraded | None
) -> RunResult:
    figures = report(read_records(opened.path))
    try:
        write_atomically(opened.path / "report.json", encode(figures))
        write_atomically(opened.path / "report.txt", as_text(figures).encode())
    except OSError as exc:
        raise LedgerError(f"{opened.path}: the report cannot be written: {exc.strerror}") from exc
    state = opened.ledger.state
    return RunResult(
        directory=opened.path,
        run_id=opened.run_id,
        provider=provider,
        report=figures,
        groups=len(state.groups),
        published=sum(group.published for group in state.groups.values()),
        consumed=sum(group.consumed for group in state.groups.values()),
        dropped=sum(group.dropped is not None for group in state.groups.values()),
        regraded=regraded,
        failure=failure,
    )
