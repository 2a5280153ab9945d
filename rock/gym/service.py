"""One environment as a service: a process in a sandbox that answers on its stdout what stdin asks.

When the process dies, or its sandbox, another one is brought to the last good state: the episode's seed
and its actions are played again, and every answer must be what it was. Then the step that was cut off
is taken. If the answers differ, or the environment dies again and again, `EnvironmentLost` says so, and
a reset begins anew. Every wait is bounded; an environment that does not answer is ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import msgspec

from rock.errors import EnvironmentFailed, EnvironmentLost, SandboxDied, SandboxError
from rock.gym.definition import Definition
from rock.gym.history import History, digest
from rock.gym.place import place_of
from rock.gym.remote.wire import pack, unpack
from rock.sandbox.base import Process, Provider, Sandbox

log = logging.getLogger(__name__)

SERVER_FOLDER = "/tmp/rock-environment"
SERVER_PACKAGE = "environment_server"
REMOTE = Path(__file__).parent / "remote"
MAX_LINE_BYTES = 64 * 1024 * 1024
MAX_UNASKED = 4
"""Lines that nobody asked for, until the process is ended."""
STOP_SECONDS = 5.0
KEPT_STDERR_BYTES = 4000
ENVIRONMENT = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",  # else sets and their order differ between processes
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "SDL_VIDEODRIVER": "dummy",
}


class _Refusal(msgspec.Struct, frozen=True):
    type: str
    message: str


class _Reply(msgspec.Struct, frozen=True):
    id: int = 0
    ok: msgspec.Raw = msgspec.Raw(b"null")
    info: msgspec.Raw = msgspec.Raw(b"{}")
    error: _Refusal | None = None


class Gone(Exception):
    """The process ended, or its sandbox did, before it answered."""


class Answer:
    """What came back: `ok` and `info` unpacked, or the environment's exception; `said` is what the
    state's digest is of. Raises `EnvironmentFailed` for what is neither."""

    def __init__(self, reply: _Reply) -> None:
        self.error = reply.error
        # What an exception says may differ from process to process; its class may not.
        self.said = bytes(reply.ok) if reply.error is None else reply.error.type.encode()
        if reply.error is not None:
            return
        try:
            self.ok: Any = unpack(json.loads(self.said))
            self.info: Any = unpack(json.loads(bytes(reply.info)))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as exc:
            raise EnvironmentFailed(f"the environment's answer is no answer: {exc}") from exc

    def checked(self) -> Answer:
        """Itself. Raises `EnvironmentFailed` with what the environment raised."""
        if self.error is not None:
            raise EnvironmentFailed(f"{self.error.type}: {self.error.message}")
        return self


class _Line:
    """Lines of one process's stdout, and the end of its stderr."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._parts: list[bytes] = []
        self._size = 0
        self._stderr = b""
        self._reason = ""
        self._asked = 0
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        try:
            async for output in self.process.events():
                if output.stream == "stderr":
                    self._stderr = (self._stderr + output.data)[-KEPT_STDERR_BYTES:]
                    continue
                self._take(output.data)
                if self._size > MAX_LINE_BYTES or self._lines.qsize() > MAX_UNASKED:
                    self._reason = "it said too much"
                    break
        finally:
            self._lines.put_nowait(None)

    def _take(self, data: bytes) -> None:
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._lines.put_nowait(b"".join([*self._parts, part]))
            self._parts.clear()
            self._size = 0
        self._parts.append(rest)
        self._size += len(rest)

    async def ask(self, request: bytes) -> Answer:
        """Raises `Gone`, and `EnvironmentFailed` for what is no answer."""
        self._asked += 1
        await self.process.write(b'{"id": %d, ' % self._asked + request[1:] + b"\n")
        line = await self._lines.get()
        if line is None:
            raise Gone(await self._why())
        try:
            reply = msgspec.json.decode(line, type=_Reply)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise EnvironmentFailed(f"the environment's answer is no answer: {exc}") from exc
        if reply.id != self._asked:
            self._reason = "it spoke without being asked"
            raise Gone(await self._why())
        return Answer(reply)

    async def _why(self) -> str:
        result = await self.process.kill()
        how = {"exited": f"exit code {result.exit_code}", "signaled": f"signal {result.signal}"}
        said = self._stderr.decode(errors="replace").strip()
        return ": ".join(
            part for part in (self._reason, how.get(result.status, result.status), said) if part
        )

    async def end(self) -> None:
        await self.process.kill()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


class Service:
    """An environment that outlives its process. `open` first; `close` is idempotent.

    One request at a time. `restored` counts how often it was brought back.
    """

    def __init__(
        self,
        definition: Definition,
        provider: Callable[[], Coroutine[Any, Any, Provider]],
        *,
        render_mode: str | None = None,
    ) -> None:
        self.definition = definition
        self.restored = 0
        self.history = History()
        self._place = place_of(definition, SERVER_FOLDER, f"{SERVER_PACKAGE}.server")
        self._provider = provider
        self._render_mode = render_mode
        self._sandbox: Sandbox | None = None
        self._line: _Line | None = None

    @property
    def pid(self) -> int | None:
        """The environment's process, as it is numbered in its sandbox."""
        return None if self._line is None else self._line.process.pid

    @property
    def sandbox(self) -> Sandbox | None:
        return self._sandbox

    async def open(self) -> dict[str, Any]:
        """Start it; what it says of itself. Raises `EnvironmentFailed`, `SandboxError`, `ConfigError`."""
        try:
            return await self._start()
        except Gone as exc:
            await self.close()
            raise EnvironmentFailed(f"{self.definition.source} does not start: {exc}") from exc
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> dict[str, Any]:
        """A new process, in a new sandbox if there is none that lives. Raises `Gone`."""
        definition = self.definition
        try:
            async with asyncio.timeout(definition.start_seconds):
                sandbox = await self._living_sandbox()
                self._line = _Line(await self._spawn(sandbox))
                request = {
                    "make": definition.kind,
                    "name": definition.name,
                    "modules": definition.modules,
                    "arguments": pack(definition.arguments),
                    "render_mode": self._render_mode,
                }
                about = await self._line.ask(json.dumps(request).encode())
                said: object = about.checked().ok
                if not isinstance(said, dict):
                    raise EnvironmentFailed(f"{definition.source} does not say what it is")
                return cast("dict[str, Any]", said)
        except TimeoutError as exc:
            raise EnvironmentFailed(
                f"{definition.source} did not start within {definition.start_seconds:g} s"
            ) from exc

    async def _living_sandbox(self) -> Sandbox:
        if self._line is not None:
            line, self._line = self._line, None
            await line.end()
        if self._sandbox is not None:
            try:
                if (await self._sandbox.exec(["true"], timeout_seconds=STOP_SECONDS)).ok:
                    return self._sandbox
            except SandboxError as exc:
                log.info("%s: its sandbox is gone, too: %s", self.definition.source, exc.message)
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.stop()
        provider = await self._provider()
        self._sandbox = await provider.create(self._place.spec)
        await self._sandbox.upload(REMOTE, f"{SERVER_FOLDER}/{SERVER_PACKAGE}")
        return self._sandbox

    async def _spawn(self, sandbox: Sandbox) -> Process:
        return await sandbox.spawn(
            self._place.argv,
            env=ENVIRONMENT,
            stdin=None,
            streamed=True,
            output_limit_bytes=KEPT_STDERR_BYTES,
        )

    async def reset(self, seed: int, options: Any) -> Answer:
        """Begin an episode. Raises `EnvironmentFailed`."""
        self.history.forget()
        request = _line_of({"do": "reset", "seed": seed, "options": pack(options)})
        answer = await self._through(request)
        self.history.begin(request, answer.checked().said)
        if not isinstance(answer.info, dict):
            raise EnvironmentFailed("the environment's answer to a reset is no such answer")
        return answer

    async def step(self, action: Any) -> Answer:
        """Take a step; after a crash, in the state that was brought back. Raises `EnvironmentFailed`."""
        if self.history.began is None:
            raise EnvironmentFailed("step: there is no episode; call reset first")
        try:
            request = _line_of({"do": "step", "action": pack(action)})
        except TypeError as exc:
            raise EnvironmentFailed(f"action: {exc}") from exc
        answer = await self._through(request)
        # Also where it raised: it may have changed something.
        self.history.add(request, answer.said)
        return _checked_step(answer.checked())

    async def render(self) -> Any:
        return (await self._through(_line_of({"do": "render"}))).checked().ok

    async def replay(self, history: History) -> Answer:
        """Be where `history` ends. Raises `EnvironmentLost` when it does not come out the same."""
        answer = await self._replay(history)
        self.history = history.copy()
        return answer

    async def _through(self, request: bytes) -> Answer:
        """Ask; as long as the process dies of it, bring it back and ask again, a few times."""
        tries = self.definition.restores + 1
        last = ""
        for number in range(tries):
            try:
                if self._line is None or number:
                    await self._bring_back()
                return await self._ask(request)
            except (Gone, SandboxDied) as exc:
                last = str(exc)
                log.warning("%s died: %s", self.definition.source, last)
                await self._drop()
        self.history.forget()
        raise EnvironmentLost(f"{self.definition.source} died {tries} times in a row: {last}")

    async def _bring_back(self) -> None:
        """Another process, in the state that the history tells of."""
        await self._start()
        self.restored += 1
        if self.history.began is not None:
            try:
                await self._replay(self.history)
            except EnvironmentLost:
                self.history.forget()
                raise

    async def _replay(self, history: History) -> Answer:
        answer = await self._ask(history.reset)
        same = digest(answer.said) == history.began
        for number, step in enumerate(history.steps, 1):
            if not same:
                raise self._differs(number - 1)
            answer = await self._ask(step.action)
            same = digest(answer.said) == step.said
        if not same:
            raise self._differs(len(history.steps))
        return answer

    def _differs(self, number: int) -> EnvironmentLost:
        where = f"step {number}" if number else "the reset"
        return EnvironmentLost(
            f"{self.definition.source} died, and its state cannot be brought back: played again with "
            f"the same seed and actions, {where} came out differently. Reset it."
        )

    async def _ask(self, request: bytes) -> Answer:
        assert self._line is not None
        seconds = self.definition.step_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._line.ask(request)
        except TimeoutError as exc:
            # What hangs would hang again; only a reset, with another process, helps.
            await self._drop()
            self.history.forget()
            raise EnvironmentLost(
                f"{self.definition.source} did not answer within {seconds:g} s and was ended"
            ) from exc
        except asyncio.CancelledError:
            await self._drop()  # its answer would be taken for that of the next request
            raise

    async def _drop(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.end()

    async def close(self) -> None:
        """End it and its sandbox."""
        await self._drop()
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.stop()
        self.history.forget()


def _checked_step(answer: Answer) -> Answer:
    """A step's answer. Whoever owns the process may have said anything."""
    match answer.ok:
        case [_, float() | int(), bool(), bool()] if isinstance(answer.info, dict):
            return answer
        case _:
            raise EnvironmentFailed("the environment's answer to a step is no such answer")


def _line_of(request: dict[str, Any]) -> bytes:
    return json.dumps(request, allow_nan=False).encode()
