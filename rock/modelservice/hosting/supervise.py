"""ModelService as a process of its own, for harnesses, demos and tests.

    async with ServiceProcess(state_dir) as service:
        service.agent_url, service.control_url, service.keys, service.attach_path

The listening sockets belong to this object and are lent to the process, so a restart on the same
state directory refuses no connection: it waits in the backlog. Leaving the block stops the process;
a harness that dies leaves it running, with its queue, unless `exit_with_parent` was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, cast

from rock import process
from rock.config import inherited_environment, validated
from rock.errors import RockError, ServiceUnavailable
from rock.modelservice.hosting.server import Ready, read_ready
from rock.modelservice.keys import Keys, read_keys
from rock.modelservice.planes.listening import bind, url_of
from rock.modelservice.settings import ServiceConfig

log = logging.getLogger(__name__)

LOG_FILE = "service.log"
LOG_TAIL_BYTES = 4000
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
"""Between two starts of a service that does not stay up."""
STEADY_SECONDS = 30.0
"""Up for so long, a service's next crash counts as its first."""


class ServiceProcess:
    """One service process and the sockets it listens on."""

    def __init__(
        self,
        state_dir: Path,
        *,
        settings: Mapping[str, Any] | None = None,
        backends: Sequence[str] = (),
        api_base: str | None = None,
        environment: Mapping[str, str] | None = None,
        exit_with_parent: bool = False,
        start_seconds: float = 60.0,
        stop_seconds: float = 10.0,
    ) -> None:
        """`settings` are fields of ServiceConfig; `backends` are as for `rock serve --backend`;
        `environment` is added to this process's own, for the keys of hosted models. Raises `ConfigError`.
        """
        given = {**(settings or {}), "state_dir": state_dir}
        self._config = validated(ServiceConfig, given, source="settings")
        self._settings = dict(settings or {})
        self._backends = list(backends)
        self._api_base = api_base
        self._environment = dict(environment or {})
        self._exit_with_parent = exit_with_parent
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._sockets: list[socket.socket] = []
        self._process: process.Process | None = None
        self._log_start = 0
        """Where in its log the last start began."""
        self._ready: Ready | None = None

    @property
    def state_dir(self) -> Path:
        return self._config.state_dir

    @property
    def ready(self) -> Ready:
        """Raises ServiceUnavailable before the start and after the stop."""
        if self._ready is None:
            raise ServiceUnavailable("the service process is not running")
        return self._ready

    @property
    def pid(self) -> int:
        return self.ready.pid

    @property
    def agent_url(self) -> str:
        return self.ready.agent_url

    @property
    def control_url(self) -> str:
        return self.ready.control_url

    @property
    def attach_path(self) -> Path:
        return Path(self.ready.attach_path)

    @property
    def keys(self) -> Keys:
        return read_keys(self.state_dir)

    def open_sockets(self) -> None:
        """Listen before the process is there. Idempotent; entering does it too."""
        if not self._sockets:
            self._open_sockets()

    @property
    def listens_at(self) -> tuple[str, str]:
        """(agent URL, control URL) of the open sockets, whether the process is there or not."""
        agent, control = self._sockets
        return url_of(agent), url_of(control)

    def set(self, **settings: Any) -> None:
        """Change settings; they count from the next start."""
        self._settings.update(settings)

    async def __aenter__(self) -> Self:
        try:
            self.open_sockets()
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def restart(self) -> None:
        """Start again on the same state directory and sockets, after a crash or instead of one."""
        await self._stop_process()
        await self._start()

    async def stop(self) -> None:
        """Idempotent; the process is reaped even if the caller is cancelled meanwhile."""
        try:
            await self._stop_process()
        finally:
            for lent in self._sockets:
                lent.close()
            self._sockets = []

    async def wait(self) -> int:
        """Until the process ends by itself; its exit code."""
        return 0 if self._process is None else await self._process.wait()

    def _open_sockets(self) -> None:
        config = self._config
        for host, port in (
            (config.agent_host, config.agent_port),
            (config.control_host, config.control_port),
        ):
            lent = bind(host, port)
            self._sockets.append(lent)
            lent.listen(4096)

    async def _stop_process(self) -> None:
        running, self._process, self._ready = self._process, None, None
        if running is not None:
            await process.stop(running, grace_seconds=self._stop_seconds)

    async def _start(self) -> None:
        self._prepare()
        agent, control = (lent.fileno() for lent in self._sockets)
        # -P: the code of whoever starts it, whatever lies in the current directory
        argv = [sys.executable, "-P", "-m", "rock.modelservice"]
        argv += ["--state-dir", str(self.state_dir)]
        argv += ["--agent-fd", str(agent), "--control-fd", str(control)]
        for name, value in self._settings.items():
            argv += ["--set", f"{name}={_as_argument(value)}"]
        for backend in self._backends:
            argv += ["--backend", backend]
        if self._exit_with_parent:
            argv += ["--parent-pid", str(os.getpid())]
        with (self.state_dir / LOG_FILE).open("ab") as output:
            # litellm would otherwise fetch its price list over the network at every start.
            env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", **inherited_environment()}
            env.update(self._environment)
            env.pop("ROCK_API_BASE", None)
            if self._api_base is not None:  # not among the arguments, which everybody can read
                env["ROCK_API_BASE"] = self._api_base
            self._process = await process.start(
                argv, env=env, stdout=output, stderr=output, pass_fds=(agent, control)
            )
        try:
            await self._wait_until_ready(self._process)
        except ServiceUnavailable:
            await self._stop_process()
            raise

    def _prepare(self) -> None:
        try:
            self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.state_dir / LOG_FILE).touch()
            self._log_start = (self.state_dir / LOG_FILE).stat().st_size
        except OSError as exc:
            raise ServiceUnavailable(
                f"{self.state_dir}: expected a directory that can be written: {exc.strerror}"
            ) from exc

    async def _wait_until_ready(self, started: process.Process) -> None:
        ended = asyncio.ensure_future(started.wait())
        try:
            async with asyncio.timeout(self._start_seconds):
                # One that is there already is of an earlier service, or of one that still runs.
                while (ready := read_ready(self.state_dir)) is None or ready.pid != started.pid:
                    await asyncio.wait({ended}, timeout=0.02)
                    if ended.done():
                        message = (
                            f"the service ended with code {ended.result()} before it was ready"
                        )
                        raise ServiceUnavailable(f"{message}\n{self._log_tail()}")
        except TimeoutError as exc:
            message = f"the service was not ready after {self._start_seconds} s"
            raise ServiceUnavailable(f"{message}\n{self._log_tail()}") from exc
        finally:
            ended.cancel()
        self._ready = ready

    def _log_tail(self) -> str:
        """What the last start wrote, or why it could not."""
        text = b""
        with contextlib.suppress(OSError):
            text = (self.state_dir / LOG_FILE).read_bytes()[self._log_start :][-LOG_TAIL_BYTES:]
        if text:
            return text.decode("utf-8", "replace")
        with contextlib.suppress(OSError):
            disk = os.statvfs(self.state_dir)
            if disk.f_bavail * disk.f_frsize < LOG_TAIL_BYTES:
                return f"(no log: no space left on the device of {self.state_dir})"
        return "(no log)"


async def keep_up(service: ServiceProcess) -> None:
    """Start the service again whenever its process has ended, until cancelled. One that does not stay
    up is given more and more time between two starts."""
    loop, name = asyncio.get_running_loop(), service.state_dir.name
    pause = FIRST_PAUSE_SECONDS
    while True:
        since = loop.time()
        code = await service.wait()
        if loop.time() - since > STEADY_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        log.error("ModelService in %s ended with code %s; starting it again", name, code)
        started = False
        while not started:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            try:
                await service.restart()
                started = True
            except (RockError, OSError) as exc:
                log.error("ModelService in %s could not be started: %s", name, exc)


@asynccontextmanager
async def kept_up(service: ServiceProcess) -> AsyncGenerator[ServiceProcess, None]:
    """A service that is started, and started again after every crash, until the end of the block."""
    service.set(on_journal_failure="exit")
    async with service:
        watch = asyncio.create_task(keep_up(service))
        try:
            yield service
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


def _as_argument(value: object) -> str:
    """A setting as the command line takes it: lists with commas."""
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in cast("Sequence[object]", value))
    return str(value)
