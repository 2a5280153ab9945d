"""`Shell` on one execution: a shell that is told, script by script, what to source.

Nothing is looked for in the output. Each script's exit code comes on a descriptor of its own with a
number that only this call knows, and what the script wrote before that is then in our pipes already.
The shell is an interactive one without a terminal: an error or an interrupt ends the script, not the
shell. Two lines are its program for each script; the second is for a script that was broken off.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from rock.errors import CommandNotFound, SandboxDied, ShellEnded
from rock.sandbox.channel import frames
from rock.sandbox.channel.capture import Captures
from rock.sandbox.channel.execution import Executed, Execution, Sink, Tap
from rock.sandbox.channel.frames import FrameType
from rock.sandbox.channel.recorder import MAX_WHAT, Recorder, ended_by_errors
from rock.sandbox.command import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Death,
    ExecResult,
    ExecStatus,
    Shell,
    ShellResult,
)
from rock.sandbox.ending import to_the_end

KNOWN_PROGRAMS = {
    "bash": ("bash", "--norc", "--noprofile", "--noediting", "-i"),
    "sh": ("sh", "-i"),
}
_FIRST_SCRIPT = b"set +o history 2>/dev/null\nPS1=\nPS2=\nunset HISTFILE MAILCHECK\n:\n"
_START_SECONDS = 20.0
_INTERRUPT_SECONDS = 3.0
"""A shell that comes back late, on a busy machine, keeps what it has; one that never does is rare."""
_INTERRUPT_EVERY_SECONDS = 0.05
_BEFORE_KILLING_SECONDS = 0.25
_BETWEEN_BYTES = 64 * 1024
_BOUND_SECONDS = 41 * 24 * 3600.0
Starter = Callable[[tuple[str, ...], Sink], Awaitable[Execution]]
Fate = Literal["alive", "ended", "replaced"]
Reading = Callable[[Executed, float, bool], Awaitable[ExecResult]]


def _status_line(nonce: str) -> str:
    return f"{{ command printf '%s %s\\n' {nonce} $? >&7; PS1=; }} 2>/dev/null\n"


def _program_lines(nonce: str) -> bytes:
    status = _status_line(nonce)
    return (f"{{ command . /proc/self/fd/9; }} </dev/null 7>&-; {status}{status}").encode()


class _Session:
    """One process of a shell. `wake` is set when something has happened: look what it was."""

    def __init__(self, start: Starter, result_of: Reading) -> None:
        self._start = start
        self._result_of = result_of
        self._partial = b""
        self._nonce = ""
        self._limit_bytes: int | None = None
        self._tap: Tap | None = None
        self._closing = False
        self._wake = asyncio.Event()
        self._began = time.monotonic()
        self._sink = Captures(_BETWEEN_BYTES)
        self.script = self._sink
        """The output of the present script, or of the last one."""
        self.code: int | None = None
        self.over_limit = False
        self.execution: Execution | None = None
        self.ended: asyncio.Task[ExecResult] | None = None

    @property
    def has_ended(self) -> bool:
        return self.ended is None or self.ended.done()

    async def open(self, argv: tuple[str, ...]) -> None:
        """Start the shell and wait until it answers; what it says until then is nobody's."""
        execution = self.execution = await self._start(argv, self._take_status)
        execution.stdout.sink = self._keeping(0)
        execution.stderr.sink = self._keeping(1)
        self.ended = asyncio.ensure_future(self._finish(execution))
        self.ended.add_done_callback(lambda _: self._wake.set())
        await self.begin(_FIRST_SCRIPT, limit_bytes=_BETWEEN_BYTES)
        await self.wait(_START_SECONDS)
        if self.code is None:
            raise SandboxDied(f"the shell {argv[0]} does not answer")

    async def _finish(self, execution: Execution) -> ExecResult:
        try:
            executed = await execution.finish(_BOUND_SECONDS)
        finally:
            execution.close()
        # Nobody has to find out why a shell has ended that was closed.
        return await self._result_of(executed, time.monotonic() - self._began, self._closing)

    def _keeping(self, stream: int) -> Sink:
        return lambda data: self._keep(stream, data)

    def _keep(self, stream: int, data: bytes) -> None:
        capture = self._sink[stream]
        capture.add(data)
        if self._tap is not None:
            self._tap(stream, data)
        if self._limit_bytes is not None and capture.total_bytes > self._limit_bytes:
            self.over_limit = True
            self._wake.set()

    def _take_status(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            nonce, _, code = line.decode("ascii", "replace").partition(" ")
            if nonce == self._nonce and code.isdecimal():
                self._read_pipes()
                self._nonce, self._limit_bytes, self.code = "", None, int(code)
                # What comes from now on, background jobs wrote.
                self._sink = Captures(_BETWEEN_BYTES)
                self._wake.set()

    def _read_pipes(self) -> None:
        if self.execution is not None:
            self.execution.stdout.read_all_there_is()
            self.execution.stderr.read_all_there_is()

    async def begin(self, script: bytes, *, limit_bytes: int, tap: Tap | None = None) -> None:
        """Hand over a script: its output is in `script`, its exit code will be in `code`."""
        assert self.execution is not None
        self._read_pipes()
        self._sink = self.script = Captures(limit_bytes)
        self._tap = tap
        self._limit_bytes, self.over_limit, self.code = limit_bytes, False, None
        self._nonce = secrets.token_hex(8)
        self._wake.clear()
        line = _program_lines(self._nonce)
        await self.execution.send(FrameType.SCRIPT, frames.text(line) + script)

    async def wait(self, within_seconds: float) -> None:
        """Until the script or the shell has ended, or it wrote too much; or that time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                await self._wake.wait()

    async def interrupt(self) -> bool:
        """Ctrl-C, then kill what the script started. False if the shell does not come back."""
        assert self.execution is not None
        self._limit_bytes = None
        deadline = time.monotonic() + _INTERRUPT_SECONDS
        again = frames.text(_status_line(self._nonce).encode())
        patience = time.monotonic() + _BEFORE_KILLING_SECONDS
        pause = _INTERRUPT_EVERY_SECONDS
        while self.code is None and time.monotonic() < deadline and not self.has_ended:
            self._wake.clear()
            if time.monotonic() > patience:
                # A program that is deaf to Ctrl-C. The interrupt that follows at once keeps the shell
                # from going on with the script.
                await self._signal(signal.SIGKILL, shell_too=False)
            await self._signal(signal.SIGINT, shell_too=True)
            # Dash and its kin may be left broken by an interrupt that comes while they see to the last one.
            await self.wait(pause)
            if self.code is None:
                # A shell may have thrown away what it had read of its program.
                await self.execution.send(FrameType.SCRIPT, again)
                # Longer each time: on a busy machine the next interrupt would hit the answer.
                await self.wait(pause)
                pause *= 2
        if self.code is None:
            return False
        await self._signal(signal.SIGKILL, shell_too=False)
        return await self._settle()

    async def _settle(self) -> bool:
        """Whether the shell takes scripts; what it still had to say of the last one is dropped."""
        script = self.script
        await self.begin(b":\n", limit_bytes=_BETWEEN_BYTES)
        await self.wait(_INTERRUPT_SECONDS)
        self.script = script
        return self.code is not None

    async def _signal(self, number: int, *, shell_too: bool) -> None:
        assert self.execution is not None
        body = frames.u32(number) + frames.u32(int(shell_too))
        await self.execution.send(FrameType.INTERRUPT, body)

    async def close(self) -> None:
        self._closing = True
        if self.execution is not None and self.ended is not None:
            await self.execution.send(FrameType.KILL)
            await asyncio.wait([self.ended])


class ChannelShell(Shell):
    """A kept shell. `start` runs a program as a shell; `result_of` reads how its process ended.

    `recorder` writes down each script.
    """

    def __init__(self, start: Starter, result_of: Reading, recorder: Recorder) -> None:
        self._start = start
        self._result_of = result_of
        self._recorder = recorder
        self._turn = asyncio.Lock()
        self._session: _Session | None = None
        self._last_words = "it was not opened"
        self.program = ""

    async def open(self, program: str | None) -> None:
        names = [program] if program else ["bash", "sh"]
        for name in names:
            argv = KNOWN_PROGRAMS.get(name.rpartition("/")[2], (name, "-i"))
            try:
                await self._open((name, *argv[1:]))
            except CommandNotFound:
                if name == names[-1]:
                    raise
            else:
                self.program = name
                return

    async def _open(self, argv: tuple[str, ...]) -> None:
        session = _Session(self._start, self._result_of)
        try:
            await session.open(argv)
        except BaseException:  # a cancellation, too, must not leave a shell
            await to_the_end(session.close())
            raise
        self._session, self._argv = session, argv

    @property
    def alive(self) -> bool:
        return self._session is not None and not self._session.has_ended

    async def run(
        self,
        script: str | bytes,
        *,
        timeout_seconds: float,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> ShellResult:
        data = script.encode(errors="surrogateescape") if isinstance(script, str) else script
        async with self._turn:
            session = self._session
            if session is None or session.has_ended:
                raise ShellEnded(f"the shell has ended: {self._last_words}; open a new one")
            began = time.monotonic()
            shown = data[:MAX_WHAT].decode(errors="replace").strip()
            with ended_by_errors(self._recorder.action("script", shown)) as action:
                await session.begin(data + b"\n", limit_bytes=output_limit_bytes, tap=action.output)
                try:
                    await session.wait(timeout_seconds)
                except asyncio.CancelledError:
                    await to_the_end(self._stop_script(session))
                    raise
                result = await self._conclude(session, time.monotonic() - began)
                action.end(result)
                return result

    async def _conclude(self, session: _Session, elapsed_seconds: float) -> ShellResult:
        if session.code is not None:
            return _result(session, ExecStatus.EXITED, elapsed_seconds, exit_code=session.code)
        if session.has_ended:
            assert session.ended is not None
            end = await session.ended
            self._last_words = str(end.status)
            if end.status is ExecStatus.EXITED:
                self._last_words = f"exit code {end.exit_code}"
            return _result(
                session,
                end.status,
                elapsed_seconds,
                exit_code=end.exit_code,
                number=end.signal,
                death=end.death,
                shell="ended",
            )
        status = ExecStatus.OUTPUT_LIMIT if session.over_limit else ExecStatus.TIMED_OUT
        shell = await to_the_end(self._stop_script(session))
        return _result(session, status, elapsed_seconds, shell=shell)

    async def _stop_script(self, session: _Session) -> Fate:
        if await session.interrupt():
            return "alive"
        await session.close()
        await self._open(self._argv)
        return "replaced"

    async def close(self) -> None:
        session, self._session = self._session, None
        self._last_words = "it was closed"
        if session is not None:
            await to_the_end(session.close())


def _result(
    session: _Session,
    status: ExecStatus,
    elapsed_seconds: float,
    *,
    exit_code: int | None = None,
    number: int | None = None,
    death: Death | None = None,
    shell: Fate = "alive",
) -> ShellResult:
    return ShellResult(
        status=status,
        exit_code=exit_code,
        signal=number,
        duration_seconds=elapsed_seconds,
        death=death,
        shell=shell,
        **session.script.fields(),
    )
