"""`StatefulSandbox`: the part of the contract that is about a sandbox as a whole, not about commands.

A sandbox is a handle on a *box*: a helper's channel, its state, and a way to remove it. A reset that
cannot be done in the box puts another box behind the same handle.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rock.errors import (
    CapacityExceeded,
    NotFound,
    NotSupported,
    SandboxBusy,
    SandboxDied,
    SandboxError,
)
from rock.sandbox.base import DEFAULT_DIFF_ENTRIES, Sandbox, SandboxSpec
from rock.sandbox.box.box_state import BoxState
from rock.sandbox.box.egress import PORT, Egress
from rock.sandbox.box.variables import EnvChanges, changed
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.recorder import Recorder
from rock.sandbox.command import Death, DeathCause
from rock.sandbox.ending import to_the_end
from rock.sandbox.logbook import LogFiles
from rock.sandbox.logs import LogPage, Nowhere
from rock.sandbox.network import Network, NetworkMode, check_hosts
from rock.sandbox.spec import NetworkName
from rock.sandbox.state import Capability, Changes, ResetReceipt, ResetTier, Snapshot

log = logging.getLogger(__name__)

_LOG_SECONDS = 0.1

Diagnose = Callable[[], Awaitable[Death]]


async def nobody_knows() -> Death:
    """Why a box is gone, where its provider cannot say."""
    return Death(DeathCause.UNKNOWN, "its provider cannot say why")


@dataclass(frozen=True, slots=True)
class Enforced:
    """What a provider can and enforces for one spec, and what of the spec it does not."""

    capabilities: frozenset[Capability] = frozenset()
    missing: tuple[str, ...] = ()


NOTHING_ENFORCED = Enforced()
IN_PLACE = frozenset((Capability.RESET_IN_PLACE, Capability.SNAPSHOT))
NETWORKS = frozenset((Capability.NETWORK_ALLOWLIST, Capability.NETWORK_FULL))
PAUSABLE = frozenset((Capability.PAUSE,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """What a provider has made: how to speak to it, and how to end it and free what is its."""

    id: str
    channel: Channel
    state: BoxState
    remove: Callable[[], Awaitable[None]]
    keep_book: Callable[[StatefulSandbox], None] = lambda sandbox: None
    """Told whose it is: its provider stops that sandbox when it is closed."""
    diagnose: Diagnose = nobody_knows
    """Why it is gone, once it is."""


class Replacement(Protocol):
    """Gives a sandbox, from a pool or new, whose box takes the place of another one's."""

    async def __call__(self, sandbox: StatefulSandbox, /) -> tuple[StatefulSandbox, ResetTier]: ...


class StatefulSandbox(Sandbox):
    """A sandbox on a box that may be replaced. `replacement` says by whom."""

    def __init__(
        self,
        box: Box,
        spec: SandboxSpec,
        enforced: Enforced,
        replacement: Replacement | None,
        *,
        log: LogFiles | None,
    ) -> None:
        self.box = box
        self.id = box.id
        self.spec = spec
        self.replacement = replacement
        self.enforced = enforced
        self._stopping: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._egress: Egress | None = None
        self.born = time.monotonic()
        self.log_files = log
        self.recorder = Recorder(log or Nowhere(), "harness")
        self.env_changes: EnvChanges = {}
        """Since it was made, or reset."""

    @property
    def channel(self) -> Channel:
        return self.box.channel

    @property
    def state(self) -> BoxState:
        return self.box.state

    @abstractmethod
    async def notice_end(self) -> None:
        """The box is gone: what still waits for it only has to notice."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        found = self.enforced.capabilities
        if self.state.in_place:
            found |= IN_PLACE
        return found | PAUSABLE if self.state.pausable else found

    @property
    def not_enforced(self) -> tuple[str, ...]:
        return self.enforced.missing

    async def reset(self) -> ResetReceipt:
        self._check_not_stopped()
        with self.recorder.doing("reset", ""):
            try:
                receipt = await self.state.reset()
                await self.network_of_the_spec()
            except (SandboxBusy, CapacityExceeded):  # the box is well
                raise
            except SandboxError as exc:
                if self.replacement is None:
                    raise
                receipt = await self._be_replaced(self.replacement, exc.message)
        self.env_changes.clear()
        return receipt

    async def read_log(
        self, *, after: str = "", tail: int | None = None, wait_seconds: float = 0.0
    ) -> LogPage:
        if self.log_files is None:
            raise NotSupported("log: nothing is written down of this sandbox")
        deadline = time.monotonic() + wait_seconds
        while True:
            page = self.log_files.read(after=after, tail=tail)
            if not page.entries and not self.log_files.exists():
                raise NotFound(f"the log of sandbox {self.id} has ended with it")
            if page.entries or time.monotonic() >= deadline:
                return page
            # Other processes write to it, too: the file is where to look.
            await asyncio.sleep(_LOG_SECONDS)

    async def set_env(self, changes: Mapping[str, str | None]) -> None:
        self._check_not_stopped()
        found = changed(self.env_changes, changes)
        self.env_changes.clear()
        self.env_changes.update(found)
        self.recorder.note("env", _names_of(changes))

    async def set_network(
        self,
        network: NetworkName,
        allowed_hosts: tuple[str, ...] = (),
    ) -> None:
        self._check_not_stopped()
        if self.spec.network == "full":
            raise NotSupported("set_network: the sandbox was created with a network of its own")
        check_hosts("allowed_hosts", allowed_hosts)
        with self.recorder.doing("network", " ".join((network, *allowed_hosts))):
            await self._change_network(Network(NetworkMode(network), allowed_hosts))

    async def _change_network(self, wanted: Network) -> None:
        if self._egress is not None:
            self._egress.change(wanted)
        elif wanted.mode in (NetworkMode.ALLOWLIST, NetworkMode.FULL):
            egress = Egress(wanted)
            await egress.serve(await self.listen(PORT))
            self._egress = egress

    async def network_of_the_spec(self) -> None:
        """What the spec says may be reached; `full` is the box's own and needs nothing here."""
        if self.spec.network != "full":
            hosts = self.spec.allowed_hosts
            check_hosts("allowed_hosts", hosts)
            await self._change_network(Network(NetworkMode(self.spec.network), hosts))

    @property
    def egress(self) -> Egress | None:
        """The proxy of this sandbox, if it has one: what it allowed and refused."""
        return self._egress

    @property
    def proxy_variables(self) -> Mapping[str, str]:
        """By which programs find the way out that the network allows now, if it has one."""
        return {} if self._egress is None else self._egress.variables

    async def snapshot(self) -> Snapshot:
        self._check_not_stopped()
        with self.recorder.doing("snapshot", ""):
            return await self.state.snapshot()

    async def diff(self, *, max_entries: int = DEFAULT_DIFF_ENTRIES) -> Changes:
        self._check_not_stopped()
        return await self.state.diff(max_entries)

    async def restore(self, snapshot: Snapshot) -> ResetReceipt:
        self._check_not_stopped()
        with self.recorder.doing("restore", snapshot.id):
            return await self.state.restore(snapshot)

    async def pause(self) -> None:
        self._check_not_stopped()
        with self.recorder.doing("pause", ""):
            await self.state.pause()

    async def resume(self) -> None:
        self._check_not_stopped()
        with self.recorder.doing("resume", ""):
            await self.state.resume()

    async def stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._end())
        await to_the_end(self._join(self._stopping))

    async def detach(self) -> None:
        """Let go of a sandbox that goes on, made by another process. Ends what was started from here."""
        await self.channel.close()

    async def _join(self, stopping: asyncio.Future[None]) -> None:
        await stopping

    async def _end(self) -> None:
        if self._leaving:
            await asyncio.wait(self._leaving)
        if self._egress is not None:
            await self._egress.close()
        try:
            await _removed(self.box)
            await self.notice_end()
        finally:
            if self.log_files is not None:
                self.log_files.remove()

    async def _be_replaced(self, replacement: Replacement, reason: str) -> ResetReceipt:
        """Another box takes this one's place; this one is removed meanwhile."""
        started = time.monotonic()
        other, tier = await replacement(self)
        leaving = asyncio.ensure_future(_removed(self.box))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leave)
        self.box = other.hand_over()
        self.id = self.box.id
        self.box.keep_book(self)
        old, self._egress = self._egress, other.egress
        if old is not None:
            await old.close()
        return ResetReceipt(
            tier=tier,
            seconds=time.monotonic() - started,
            ended=0,
            same_network=False,
            reason=reason,
        )

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a box that was replaced is left to the reaper: %s", error)

    def hand_over(self) -> Box:
        """Give the box up to whoever calls; this sandbox is then a stopped one."""
        self._stopping = asyncio.ensure_future(_nothing())
        if self.log_files is not None:
            self.log_files.remove()
        return self.box

    def _check_running(self) -> None:
        self._check_not_stopped()
        self.state.check_idle()

    def _check_not_stopped(self) -> None:
        if self._stopping is not None:
            raise SandboxDied(f"sandbox {self.id} was stopped")


async def _removed(box: Box) -> None:
    try:
        await box.remove()
    finally:
        box.state.release()


def _names_of(changes: Mapping[str, str | None]) -> str:
    """Without the values: one of them may be a key."""
    words = [f"{'unset' if value is None else 'set'} {name}" for name, value in changes.items()]
    return ", ".join(words)


async def _nothing() -> None:
    """What there is to end of a sandbox whose box was handed over."""
