"""A sandbox that does not answer while a command runs: dead if it does nothing, not if it is slow."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from rock.config import read_environment
from rock.sandbox.base import SandboxSpec
from rock.sandbox.channel.pulse import Pulse, Signs
from rock.sandbox.command import DeathCause, ExecStatus
from rock.sandbox.docker import DockerProvider
from rock.sandbox.local import LocalProvider
from rock.testing.sandbox_conformance.subject import written
from tests.needs import BUSYBOX_IMAGE
from tests.sandbox.test_autopsy import docker, first_process_of

WAITS = ["sh", "-c", "echo before; echo x >up; exec sleep 300"]


class _Caller:
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def lose(self) -> None:
        self.lost.set()


class _Silent:
    """A helper that answers nothing. `signs` are what is seen of it, the last one for ever."""

    def __init__(self, *signs: Signs) -> None:
        self.signs = list(signs)
        self.asked = 0
        self.begun = asyncio.Condition()

    async def ask(self) -> None:
        async with self.begun:
            self.asked += 1
            self.begun.notify_all()
        await asyncio.Event().wait()

    def look(self) -> Signs:
        return self.signs[0] if len(self.signs) == 1 else self.signs.pop(0)

    async def was_asked(self, times: int) -> None:
        async with asyncio.timeout(20), self.begun:
            await self.begun.wait_for(lambda: self.asked >= times)


async def test_a_helper_that_says_and_does_nothing_is_given_up_after_the_bound() -> None:
    helper, caller = _Silent(("S", "1")), _Caller()
    pulse = Pulse(helper.ask, unanswered_seconds=0.4, looking=helper.look)
    began = time.monotonic()
    pulse.watch(caller)
    await asyncio.wait_for(caller.lost.wait(), 20)
    pulse.forget(caller)
    assert time.monotonic() - began >= 0.3
    assert helper.asked == 3


@pytest.mark.parametrize("signs", [("R", "1"), None], ids=["waits for its turn", "gets on"])
async def test_a_helper_that_is_slow_is_not_given_up(signs: Signs | None) -> None:
    seen = [signs] if signs else [("S", str(count)) for count in range(100)]
    helper, caller = _Silent(*seen), _Caller()
    pulse = Pulse(helper.ask, unanswered_seconds=0.04, looking=helper.look)
    pulse.watch(caller)
    await helper.was_asked(20)
    assert not caller.lost.is_set()
    helper.signs = [("T", "1")]
    await asyncio.wait_for(caller.lost.wait(), 20)
    pulse.forget(caller)


@pytest.mark.userns
async def test_a_local_sandbox_that_is_stopped_from_outside_is_noticed_long_before_the_time_out() -> (
    None
):
    async with (
        LocalProvider(unanswered_seconds=1.0) as provider,
        await provider.create(SandboxSpec()) as box,
    ):
        run = asyncio.ensure_future(box.exec(WAITS, timeout_seconds=300))
        await written(box, "up")
        pid = first_process_of(os.getpid())
        os.kill(pid, signal.SIGSTOP)
        try:
            result = await asyncio.wait_for(run, 60)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"before\n")
        assert result.death is not None
        assert result.death.cause is DeathCause.PAUSED


@pytest.mark.docker
async def test_a_container_that_is_paused_is_noticed_long_before_the_time_out() -> None:
    async with (
        DockerProvider(host=read_environment().docker_host, unanswered_seconds=1.0) as provider,
        await provider.create(SandboxSpec(image=BUSYBOX_IMAGE)) as box,
    ):
        run = asyncio.ensure_future(box.exec(WAITS, timeout_seconds=300))
        await written(box, "up")
        await docker("pause", f"rock-{box.id}")
        result = await asyncio.wait_for(run, 60)
        await docker("unpause", f"rock-{box.id}")
        assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"before\n")
        assert result.death is not None
        assert result.death.cause is DeathCause.PAUSED
