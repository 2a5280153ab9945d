"""The thing under test, and the few tools that checks share."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from rock.errors import CommandRefused, RockError, SandboxFileError
from rock.sandbox.base import ExecResult, Provider, Sandbox, SandboxSpec

Error = TypeVar("Error", bound=RockError)
COMMAND_SECONDS = 30.0
WAIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A provider and the spec that its sandboxes are made from."""

    provider: Provider
    spec: SandboxSpec = field(default_factory=SandboxSpec)

    async def create(self, **changes: Any) -> Sandbox:
        return await self.provider.create(replace(self.spec, **changes))


Check: TypeAlias = Callable[[Subject], Awaitable[None]]


class Suite(list[Check]):
    """Collects the checks of one module; its instance is used as a decorator."""

    def __call__(self, check: Check) -> Check:
        self.append(check)
        return check


async def sh(box: Sandbox, script: str, **options: Any) -> ExecResult:
    """Run a shell script with a generous bound."""
    return await box.exec(["sh", "-c", script], timeout_seconds=COMMAND_SECONDS, **options)


async def output(box: Sandbox, script: str, **options: Any) -> str:
    """The output of a script that must succeed."""
    result = await sh(box, script, **options)
    assert result.ok, (script, result)
    return result.stdout.decode()


async def until(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition. Fails, naming it, when it does not come true in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not await condition():
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS} seconds for: {what}"
        await asyncio.sleep(0.02)


async def written(box: Sandbox, path: str) -> str:
    """The first line of a file that a running command is about to write."""
    text = ""

    async def complete() -> bool:
        nonlocal text
        try:
            text = (await box.read_file(path)).decode()
        except (SandboxFileError, CommandRefused):  # no room for a process: a bomb goes off
            return False
        return text.endswith("\n")

    await until(f"{path} is written", complete)
    return text.strip()


async def is_alive(box: Sandbox, pid: str) -> bool:
    """Whether `pid` runs in the sandbox. A zombie does not; `kill -0` would say that it does."""
    result = await sh(box, f"cat /proc/{pid}/status")
    if not result.ok:
        return False
    states = [line for line in result.stdout.decode().splitlines() if line.startswith("State:")]
    assert len(states) == 1, result
    return states[0].split()[1] not in "ZX"


async def expect(kind: type[Error], attempt: Coroutine[Any, Any, object]) -> Error:
    """The error of class `kind` that `attempt` must raise, with a message that says something."""
    try:
        result = await attempt
    except kind as exc:
        caught = exc
    else:
        raise AssertionError(f"expected {kind.__name__}, got {result!r}")
    assert len(caught.message) > 10, caught
    return caught


@contextmanager
def host_folder() -> Generator[Path]:
    """A directory of the host, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rock-conformance-") as name:
        yield Path(name)
