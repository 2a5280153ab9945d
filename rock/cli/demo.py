"""`rock demo`: the whole loop on this machine, with nothing but what is installed.

ModelService, the trainer and every agent are processes of their own, as in a real run. Agents are
the unmodified `rock/demo/agent.py` in sandboxes without a network; the trainer knows one URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import sysconfig
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

import rock.demo
from rock import process
from rock.cli.running.progress import TextView
from rock.cli.running.run import print_result, until_signalled
from rock.config import inherited_environment, read_environment, validated
from rock.errors import RockError
from rock.modelservice.hosting.supervise import ServiceProcess, kept_up
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.inputs.sections import AgentConfig, MountConfig
from rock.rollout.run import RunResult, ServiceAddress, run
from rock.rollout.tasks.humaneval import problems
from rock.sandbox.ending import to_the_end

T = TypeVar("T")

AGENT_PATH = "/opt/rock-demo/agent.py"
PYTHON_PATH = "/opt/rock-demo/python"
LIBRARIES_PATH = "/opt/rock-demo/libraries"


def run_demo(
    *,
    tasks: int,
    episodes: int,
    concurrency: int | None,
    seed: int,
    provider: str,
    out: Path | None,
) -> None:
    problems()  # says how to install the tasks, before anything starts
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    config = validated(
        RunFile,
        {
            "tasks": f"humaneval:0-{tasks - 1}",
            "agent": _agent(),
            "episodes_per_task": episodes,
            "concurrency": concurrency or 2 * (os.cpu_count() or 1),
            "provider": provider,
            "seed": seed,
            "out": (out or Path("runs", f"demo-{stamp}")).resolve(),
        },
        source="rock demo",
    )
    console = Console(highlight=False)
    console.print(
        f"The policy is [bold]scripted[/], not a model: it knows {tasks} published solutions and "
        f"spoils some on purpose (seed {seed}).\nIt answers through the trainer API, as a trainer "
        "would; the agents are ordinary programs that got OPENAI_BASE_URL and OPENAI_API_KEY."
    )
    with TextView(console) as view:
        result = until_signalled(_demo(config, seed, view))
    print_result(result)
    raise typer.Exit(result.exit_code)


def _agent() -> AgentConfig:
    """The demo agent, run by a copy of this Python that the sandbox sees read-only under /opt.

    Python and the libraries are shown at neutral paths: their own may lie in a home, which a
    sandbox does not see. CPython finds its library beside its executable, wherever that is.
    """
    base = Path(sys.base_prefix).resolve()
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    libraries = MountConfig(source=Path(sysconfig.get_path("purelib")), target=LIBRARIES_PATH)
    mounts = [libraries]
    env = {"PYTHONPATH": LIBRARIES_PATH, "PYTHONDONTWRITEBYTECODE": "1"}
    command = str(python)
    if not python.is_relative_to("/usr"):  # the host's own programs are there already
        mounts.append(MountConfig(source=base, target=PYTHON_PATH))
        command = f"{PYTHON_PATH}/{python.relative_to(base)}"
        env["LD_LIBRARY_PATH"] = f"{PYTHON_PATH}/lib"
    return AgentConfig(
        command=[command, AGENT_PATH, "{instruction}"],
        files={AGENT_PATH: Path(rock.demo.__file__).with_name("agent.py")},
        mounts=mounts,
        env=env,
        timeout_seconds=300.0,
    )


async def _demo(config: RunFile, seed: int, view: TextView) -> RunResult:
    assert config.out is not None
    state_dir = config.out / "service"
    async with (
        _nothing_left_unbegun(config.out, state_dir),
        kept_up(ServiceProcess(state_dir, exit_with_parent=True)) as service,
        _trainer(service, seed, view.console) as trainer,
    ):
        address = ServiceAddress(
            control_url=service.control_url,
            admin_key=service.keys.admin_key,
            attach_path=service.attach_path,
        )
        work = run(
            config,
            service=address,
            docker_host=read_environment().docker_host,
            on_event=view.on_event,
        )
        return await _while_answered(trainer, work)


def _not_there(folder: Path) -> list[Path]:
    return [one for one in (folder, *folder.parents) if not one.exists()]


@asynccontextmanager
async def _nothing_left_unbegun(directory: Path, state_dir: Path) -> AsyncGenerator[None]:
    """Stopped before its run began, a demo takes away what it has made; after a failure there is a log to read."""
    made, new_state = _not_there(directory), state_dir in _not_there(state_dir)
    try:
        yield
    except asyncio.CancelledError:
        if not (directory / "run.json").exists():
            if new_state:
                shutil.rmtree(state_dir, ignore_errors=True)
            with contextlib.suppress(OSError):  # somebody else has put something there
                for folder in made:
                    folder.rmdir()
        raise


async def _while_answered(trainer: process.Process, work: Coroutine[Any, Any, T]) -> T:
    """`work` to its end. Raises `RockError` if the trainer ends first: nobody would answer."""
    working = asyncio.ensure_future(work)
    ended = asyncio.ensure_future(trainer.wait())
    try:
        await asyncio.wait({working, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RockError(f"the demo's trainer ended with code {ended.result()} before the run")
        return working.result()
    finally:
        working.cancel()
        ended.cancel()
        await to_the_end(asyncio.wait({working, ended}))


@asynccontextmanager
async def _trainer(
    service: ServiceProcess, seed: int, console: Console
) -> AsyncGenerator[process.Process, None]:
    """The trainer process; what it prints is shown as it comes."""
    started = await process.start(
        [
            sys.executable,
            "-P",
            "-m",
            "rock.demo.trainer",
            service.control_url,
            str(seed),
            str(os.getpid()),
        ],
        env={**inherited_environment(), "ROCK_TRAINER_KEY": service.keys.trainer_key},
        stdout=process.PIPE,
    )
    lines = asyncio.ensure_future(_show_lines(started, console))
    try:
        yield started
    finally:
        await process.stop(started)
        await asyncio.gather(lines, return_exceptions=True)


async def _show_lines(started: process.Process, console: Console) -> None:
    assert started.stdout is not None
    async for line in started.stdout:
        text = line.decode(errors="replace").rstrip()
        console.print(f"[dim]trainer (scripted): {escape(text)}[/]", soft_wrap=True)
