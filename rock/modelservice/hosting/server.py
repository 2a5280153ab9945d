"""The service's process: both planes on their listeners, and its life.

`serving` is the composition (service, built-in workers, two listeners, attach point) as an async
context manager; `run` adds what a process needs: signals, `ready.json`, an end with its parent.
How HTTP is spoken on a socket is in `listening`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from rock.errors import ConfigError, RockError, ServiceUnavailable, SessionClosed
from rock.modelservice.backends.running import running
from rock.modelservice.client.worker import Policy
from rock.modelservice.hosting.collector import Collector
from rock.modelservice.hosting.form import form
from rock.modelservice.keys import Keys, ensure_keys
from rock.modelservice.planes.agent_plane import AgentPlane
from rock.modelservice.planes.attach import AttachPoint
from rock.modelservice.planes.control_plane import ControlPlane
from rock.modelservice.planes.counted import TokenCount
from rock.modelservice.planes.listening import Adapter, Bounds, bind, listening, url_of
from rock.modelservice.service.service import ModelService
from rock.modelservice.settings import ServiceConfig
from rock.types import SessionId

log = logging.getLogger(__name__)

READY_FILE = "ready.json"
ATTACH_FILE = "attach.sock"


class Ready(Struct, kw_only=True):
    """`ready.json`: where a started service is. Keys are in their own file."""

    pid: int
    agent_url: str
    control_url: str
    attach_path: str
    form: str = ""
    """As `hosting.form` says it."""


@dataclass(frozen=True, slots=True)
class Running:
    """A service with open doors."""

    service: ModelService
    agent_url: str
    control_url: str
    attach_path: Path
    keys: Keys


@asynccontextmanager
async def serving(
    config: ServiceConfig,
    *,
    policies: Mapping[str, Policy] | None = None,
    agent_socket: socket.socket | None = None,
    control_socket: socket.socket | None = None,
) -> AsyncGenerator[Running, None]:
    """Open a service and everything it listens on; sockets given are used instead of new ones."""
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(ModelService.open(config))
        keys = ensure_keys(config.state_dir)
        count = TokenCount(service)
        agent = agent_socket or bind(config.agent_host, config.agent_port)
        stack.callback(agent.close)
        control = control_socket or bind(config.control_host, config.control_port)
        stack.callback(control.close)
        workers = await stack.enter_async_context(running(service, policies or {}))
        if config.default_backend not in ("queue", *workers):
            known = ", ".join(["queue", *workers])
            raise ConfigError(
                f"default_backend: expected one of {known}, got {config.default_backend!r}"
            )

        @asynccontextmanager
        async def lend(listener: socket.socket, session_id: str) -> AsyncGenerator[None, None]:
            try:
                session = service.session(SessionId(session_id))
                if not session.open:
                    raise SessionClosed(f"session {session_id} is closed: {session.close_reason}")
            except RockError:
                listener.close()
                raise
            plane = AgentPlane(service, count, bound=session)
            async with listening(listener, _agent_adapter(plane, config)):
                yield

        attach_path = config.state_dir / ATTACH_FILE
        point = AttachPoint(lend)
        await stack.enter_async_context(point.open(attach_path))
        control_plane = ControlPlane(
            service,
            keys,
            agent_url=(config.public_agent_url or url_of(agent)).rstrip("/"),
            attach_path=attach_path,
            backends=workers,
            detach=point.detach,
        )
        adapter = Adapter(control_plane.handle, control_plane.refusal, Bounds.of(config))
        await stack.enter_async_context(listening(control, adapter))
        adapter = _agent_adapter(AgentPlane(service, count), config)
        await stack.enter_async_context(listening(agent, adapter))
        yield Running(service, url_of(agent), url_of(control), attach_path, keys)


def _agent_adapter(plane: AgentPlane, config: ServiceConfig) -> Adapter:
    return Adapter(plane.handle, plane.refusal, Bounds.of(config))


def run(
    config: ServiceConfig,
    *,
    policies: Mapping[str, Policy] | None = None,
    agent_fd: int | None = None,
    control_fd: int | None = None,
    parent_pid: int | None = None,
    on_ready: Callable[[Ready], None] | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or, if given, the death of `parent_pid`. Blocks.

    Raises `JournalError` when the journal fails, if the settings say so (`on_journal_failure`).

    `agent_fd` and `control_fd` are listening sockets inherited from whoever owns them.
    """
    _raise_descriptor_limit()
    with Collector() as collector, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_run(collector, config, policies, agent_fd, control_fd, parent_pid, on_ready))


async def _run(
    collector: Collector,
    config: ServiceConfig,
    policies: Mapping[str, Policy] | None,
    agent_fd: int | None,
    control_fd: int | None,
    parent_pid: int | None,
    on_ready: Callable[[Ready], None] | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    ready = config.state_dir / READY_FILE
    with _watching(parent_pid, stop):
        async with serving(
            config,
            policies=policies,
            agent_socket=None if agent_fd is None else socket.socket(fileno=agent_fd),
            control_socket=None if control_fd is None else socket.socket(fileno=control_fd),
        ) as running:
            collecting = loop.create_task(collector.watch(lambda: not running.service.connections))
            try:
                told = _write_ready(ready, running)
                if on_ready is not None:
                    on_ready(told)
                log.info(
                    "serving agents on %s, control on %s, %s",
                    running.agent_url,
                    running.control_url,
                    form(),
                )
                if config.on_journal_failure == "exit":
                    running.service.on_journal_failed(stop.set)
                await stop.wait()
                if running.service.error is not None:
                    raise running.service.error
            finally:
                collecting.cancel()
                ready.unlink(missing_ok=True)


def read_ready(state_dir: Path) -> Ready | None:
    """Where the service of `state_dir` listens; None while it is not up. One that was killed leaves
    its file behind. Raises `ServiceUnavailable` for a file that cannot be read."""
    try:
        return msgspec.json.decode((state_dir / READY_FILE).read_bytes(), type=Ready)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
    except OSError as exc:
        raise ServiceUnavailable(f"{state_dir / READY_FILE} cannot be read: {exc}") from exc


def _write_ready(path: Path, running: Running) -> Ready:
    """Atomically: whoever sees the file sees all of it. Raises `ServiceUnavailable`."""
    ready = Ready(
        pid=os.getpid(),
        agent_url=running.agent_url,
        control_url=running.control_url,
        attach_path=str(running.attach_path),
        form=form(),
    )
    draft = path.with_suffix(".new")
    try:
        draft.write_bytes(msgspec.json.encode(ready))
        draft.replace(path)
    except OSError as exc:
        raise ServiceUnavailable(f"{path} cannot be written: {exc.strerror}") from exc
    return ready


@contextlib.contextmanager
def _watching(parent_pid: int | None, stop: asyncio.Event) -> Generator[None, None, None]:
    """Set `stop` when a process ends, which the kernel says through its pidfd."""
    if parent_pid is None:
        yield
        return
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        stop.set()
        yield
        return
    loop.add_reader(pidfd, stop.set)
    try:
        yield
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _raise_descriptor_limit() -> None:
    """Every waiting agent is a descriptor, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (`rock[speed]`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
