"""`rock run`: a run file to its end, or from where it stopped, with progress and the figures."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import signal
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console

from rock.cli.output import unheard
from rock.cli.running.progress import view_for
from rock.cli.serve import service_dir, wait_for_service
from rock.config import read_environment, validated
from rock.errors import ConfigError, RockError
from rock.modelservice.keys import read_keys
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.planning import Selection
from rock.rollout.records.rundir import read_info
from rock.rollout.report.text import as_text
from rock.rollout.run import EXIT_FAILED, EXIT_INTERRUPTED, RunResult, ServiceAddress, run

T = TypeVar("T")
ALL = Selection()


def run_file(
    file: Path | None,
    *,
    resumed: Path | None,
    chosen: Selection,
    changes: Mapping[str, Any],
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Exits 0 finished, 1 too many infrastructure failures, 130 interrupted."""
    source, directory = _source(file, resumed)
    out = changes.get("out")
    if directory is not None and out is not None and out != directory.absolute():
        raise ConfigError(
            f"--out: expected no other directory than that of --resume (given: {out})"
        )
    sys.stdout, sys.stderr = unheard(sys.stdout), unheard(sys.stderr)
    with view_for(Console(highlight=False), as_json=as_json) as view:
        work = run(
            source,
            directory=directory,
            chosen=chosen,
            overrides=changes,
            service=_address(state_dir) if state_dir else None,
            docker_host=read_environment().docker_host,
            on_event=view.on_event,
        )
        try:
            result = until_signalled(work)
        except typer.Exit:
            hint = f"; {_go_on(view.directory, chosen)}" if view.directory else ""
            typer.echo(f"rock: interrupted{hint}", err=True)
            raise
        except RockError as exc:
            if view.directory is None:
                raise
            # The run had begun: a full disk, a service that could not be started again.
            typer.echo(f"rock: {exc.message}", err=True)
            typer.echo(f"rock: {_go_on(view.directory, chosen)}", err=True)
            raise typer.Exit(EXIT_FAILED) from exc
    if as_json:
        print_failure(result, chosen)
    else:
        print_result(result, chosen)
    raise typer.Exit(result.exit_code)


def _source(file: Path | None, resumed: Path | None) -> tuple[Path | RunFile, Path | None]:
    """What to run, and in which directory if that is settled."""
    if file is not None:
        return file, resumed
    if resumed is None:
        raise ConfigError("expected a run file, or --resume with a run directory")
    info = read_info(resumed)
    return validated(RunFile, info.config, source=str(resumed / "run.json")), resumed


def print_result(result: RunResult, chosen: Selection = ALL) -> None:
    typer.echo(as_text(result.report))
    dropped = f", dropped: {result.dropped}" if result.dropped else ""
    typer.echo(f"groups: {result.groups}, taken by the trainer: {result.consumed}{dropped}")
    if (again := result.regraded) is not None:
        typer.echo(
            f"graded again: {again.graded}, grades changed: {again.changed}, without a kept "
            f"working directory: {again.not_kept}, failed: {again.failed}"
        )
    shown = _shown(result.directory)
    typer.echo(f"run directory: {shown}")
    if result.report.tasks:
        command = [sys.argv[0], "show", str(shown), f"{result.report.tasks[0].name}/0"]
        if shutil.which("rock") == shutil.which(sys.argv[0]):
            command[0] = "rock"
        typer.echo(f"one trajectory: {shlex.join(command)}")
    print_failure(result, chosen)


def print_failure(result: RunResult, chosen: Selection = ALL) -> None:
    if result.failure:
        typer.echo(f"rock: {result.failure}", err=True)
        typer.echo(
            f"rock: {_go_on(result.directory, chosen)} (--retry infra: also what failed)", err=True
        )


def _go_on(directory: Path, chosen: Selection) -> str:
    """How a run that stopped early is gone on with: with the same part of its work."""
    command = ["rock", "run", "--resume", str(_shown(directory))]
    for task_id in sorted(chosen.only or ()):
        command += ["--only", task_id]
    # What was to be tried again is open in the ledger; what was to be graded again is not.
    command += ["--regrade"] if chosen.regrade else []
    return f"go on with: {shlex.join(command)}"


def _shown(directory: Path) -> Path:
    """As short as it can be typed here."""
    here = Path.cwd()
    return directory.relative_to(here) if directory.is_relative_to(here) else directory


def until_signalled(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; a Ctrl-C, SIGTERM or closed terminal cancels it in order, and then exits 130."""
    with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt):
        return asyncio.run(_cancelled_by_signals(work))
    raise typer.Exit(EXIT_INTERRUPTED)


async def _cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    assert task is not None

    def stop() -> None:
        told = task.cancelling() > 0
        task.cancel()
        if told:
            return
        with contextlib.suppress(OSError):  # the terminal may be what is gone
            typer.echo("rock: stopping; what runs is ended and removed", err=True)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which is what nohup is for
        numbers.append(signal.SIGHUP)
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return await work


def _address(state_dir: Path) -> ServiceAddress:
    folder = service_dir(state_dir)
    ready = wait_for_service(folder, wait_seconds=5.0)
    return ServiceAddress(
        control_url=ready.control_url,
        admin_key=read_keys(folder).admin_key,
        attach_path=Path(ready.attach_path),
    )
