"""Resetting, keeping and going back to the state of one sandbox, on its helper and its layers.

Every change first ends the sandbox's processes, then puts another root in place. One change at a
time; while it goes on, and while the sandbox is paused, nothing else may be asked of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rock.errors import CapacityExceeded, NotSupported, SandboxBusy, SandboxDied, SandboxError
from rock.sandbox.box.changes import read_changes
from rock.sandbox.box.layering import Layers
from rock.sandbox.channel import frames
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.frames import FrameType
from rock.sandbox.ending import to_the_end
from rock.sandbox.state import Changes, Layer, ResetReceipt, ResetTier, Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep of all processes found, and what it could not end."""

    ended: int
    left: tuple[str, ...]


class BoxState:
    """The state of one sandbox. `layers` None means that its files cannot be put back in place."""

    def __init__(
        self,
        channel: Channel,
        made_of: str,
        layers: Layers | None,
        *,
        why_not: str = "",
        pausable: bool = True,
    ) -> None:
        self._channel = channel
        self._layers = layers
        self._why_not = why_not
        self.pausable = pausable
        self._made_of = made_of
        self._base: tuple[Layer, ...] = ()
        self._below: tuple[Layer, ...] = ()
        self._top: Layer | None = None
        self._changing = asyncio.Lock()
        self.paused = False

    @property
    def in_place(self) -> bool:
        """Whether files can be put back in this box."""
        return self._layers is not None

    @property
    def why_not(self) -> str:
        return self._why_not

    async def begin(self) -> None:
        """Before anything is written to a new sandbox."""
        if self._layers is None:
            return
        try:
            self._top = await self._layers.begin()
        except (SandboxDied, CapacityExceeded):
            raise
        except SandboxError as exc:
            await self._channel.ping()  # one that is ending has other reasons
            # Without layers the sandbox is as good as before, but for its state.
            self._why_not, self._layers = exc.message, None
            log.info("files cannot be put back in place: %s", exc.message)

    async def seal(self, snapshot: Snapshot | None = None) -> None:
        """What is in the sandbox now is what it was made of; or what `snapshot` has, on top of that."""
        if self._layers is None:
            if snapshot is not None:
                raise NotSupported(f"a sandbox of a snapshot: {self._why_not}")
            return
        made, self._top = self._top, None
        if snapshot is None:
            self._base = () if made is None else (made,)
        else:
            self._base = self._from(snapshot)
            for layer in self._base:
                layer.hold()
            if made is not None:
                made.release()
        await self._put(self._base)

    def check_idle(self) -> None:
        """Raises `SandboxBusy` while the state is changed or the sandbox is paused."""
        if self._changing.locked():
            raise SandboxBusy("the sandbox's state is being changed; ask again when that is over")
        if self.paused:
            raise SandboxBusy("the sandbox is paused; `resume` it first")

    async def reset(self) -> ResetReceipt:
        """Back to what it was made of. Raises `SandboxError` if the box cannot be used any more."""
        return await self._go_back(self._base)

    async def restore(self, snapshot: Snapshot) -> ResetReceipt:
        self._supports("restore")
        return await self._go_back(self._from(snapshot))

    async def snapshot(self) -> Snapshot:
        """The files as they are, kept. Raises `SandboxBusy` while commands run: they would go on writing."""
        layers = self._supports("snapshot")
        async with self._change():
            if (running := await self._running()) > 0:
                raise SandboxBusy(
                    f"snapshot: {running} processes run and may be writing; "
                    "ask again when they have ended, or end them first"
                )
            made: list[Snapshot] = []
            try:
                await to_the_end(self._set_aside(layers, made))
            except BaseException:  # a cancellation: it is made, and nobody gets it
                for snapshot in made:
                    snapshot.release()
                raise
            return made[0]

    async def _set_aside(self, layers: Layers, made: list[Snapshot]) -> None:
        """What was written goes below a fresh layer. Not to be left in the middle."""
        assert self._top is not None
        chain = (self._top, *self._below)
        await self._keep(layers, chain)
        self._top, _ = await layers.swap(chain)
        # The sandbox's holds of these layers go on; the snapshot has holds of its own.
        self._below = chain
        for layer in chain:
            layer.hold()
        layers.expect(self._base)
        made.append(Snapshot(secrets.token_hex(6), self._made_of, chain))

    async def diff(self, max_entries: int) -> Changes:
        """What was written since it was made. Commands may go on meanwhile."""
        layers = self._supports("diff")
        if self._changing.locked():
            raise SandboxBusy("the sandbox's state is being changed; ask again when that is over")
        async with self._changing:
            uppers: list[int] = []
            try:
                for layer in self._written():
                    uppers.append(await layers.open_upper(layer))
                return await asyncio.to_thread(read_changes, uppers, max_entries=max_entries)
            finally:
                for fd in uppers:
                    os.close(fd)

    def _written(self) -> list[Layer]:
        """The layers above what it was made of, the topmost first."""
        own = len(self._below) - len(self._base)
        below = self._below[:own] if self._below[own:] == self._base else self._below
        return [*([] if self._top is None else [self._top]), *below]

    async def pause(self) -> None:
        """Stop every process. Their deadlines go on. Safe to call twice."""
        if not self.pausable:
            raise NotSupported("pause: PID 1 of the sandbox cannot be asked")
        async with self._change(paused=None):
            if (left := await self._freeze(stop=True)) > 0:
                await self._freeze(stop=False)
                raise SandboxError(f"pause: {left} processes could not be stopped")
            self.paused = True

    async def resume(self) -> None:
        """Let every process go on. Safe to call twice."""
        async with self._change(paused=None):
            await self._freeze(stop=False)
            self.paused = False

    async def renew(self, *, lease_seconds: float = 0.0, lifetime_seconds: float = 0.0) -> None:
        """The owner is there: both counted from now; 0 leaves one as it was. Raises `SandboxDied`."""
        body = frames.u64(round(lease_seconds * 1000)) + frames.u64(round(lifetime_seconds * 1000))
        await self._channel.call(FrameType.RENEW, body, "renew the lease")

    def release(self) -> None:
        """The sandbox has ended: its layers are nobody's unless a snapshot holds them."""
        held, self._below, self._base, self._top = self._held(), (), (), None
        for layer in held:
            layer.release()

    async def _go_back(self, below: Sequence[Layer]) -> ResetReceipt:
        """Cancelled, it is done all the same: a sweep that goes on would end what comes next."""
        return await to_the_end(self._swept_and_put(below))

    async def _swept_and_put(self, below: Sequence[Layer]) -> ResetReceipt:
        layers = self._supports("reset in place")
        async with self._change(paused=None):
            started = time.monotonic()
            await layers.settle()
            swept = await self._sweep()
            self.paused = False
            if swept.left:
                raise SandboxError(f"reset: {len(swept.left)} processes could not be ended")
            found = await self._put(below)
            return ResetReceipt(
                tier=ResetTier.SWEEP,
                seconds=time.monotonic() - started,
                ended=swept.ended,
                leftovers=swept.left,
                differences=found,
            )

    async def _put(self, below: Sequence[Layer]) -> tuple[str, ...]:
        """A fresh layer above `below`; what was held before is let go. What is in it already.

        Cancelled, it is done all the same: a root that is in its place and not in our book would lose
        what is written to it.
        """
        return await to_the_end(self._put_in_place(below))

    async def _put_in_place(self, below: Sequence[Layer]) -> tuple[str, ...]:
        assert self._layers is not None
        for layer in below:
            layer.hold()
        try:
            top, found = await self._layers.swap(below)
        except BaseException:
            for layer in below:
                layer.release()
            raise
        old_top, old_below = self._top, self._below
        self._top, self._below = top, tuple(below)
        for layer in (old_top, *old_below):
            if layer is not None:
                layer.release()
        self._layers.expect(self._base)
        return found

    def _held(self) -> list[Layer]:
        top = [] if self._top is None else [self._top]
        return [*top, *self._below, *self._base]

    def _from(self, snapshot: Snapshot) -> tuple[Layer, ...]:
        if snapshot.released:
            raise SandboxError(f"snapshot {snapshot.id} was released")
        if snapshot.made_of != self._made_of:
            raise SandboxError(
                f"snapshot {snapshot.id} is of a sandbox made of something else ({snapshot.made_of}; "
                f"this one: {self._made_of})"
            )
        return snapshot.layers

    def _supports(self, what: str) -> Layers:
        if self._layers is None:
            raise NotSupported(f"{what}: {self._why_not}")
        return self._layers

    @asynccontextmanager
    async def _change(self, *, paused: bool | None = False) -> AsyncGenerator[None]:
        """One change at a time. `paused=None`: whether the sandbox is paused does not matter."""
        if self._changing.locked():
            raise SandboxBusy("the sandbox's state is being changed; ask again when that is over")
        if paused is not None and self.paused is not paused:
            raise SandboxBusy("the sandbox is paused; `resume` it first")
        async with self._changing:
            yield

    async def _sweep(self) -> Swept:
        reply, _ = await self._channel.call(FrameType.SWEEP, b"", "end every process")
        ended, offset = frames.take_u32(reply.body, 0)
        names, _ = frames.take_texts(reply.body, offset)
        return Swept(ended, tuple(name.decode(errors="replace") for name in names))

    async def _freeze(self, *, stop: bool) -> int:
        body = frames.u32(int(stop))
        reply, _ = await self._channel.call(FrameType.FREEZE, body, "pause" if stop else "resume")
        return frames.take_u32(reply.body, 0)[0]

    async def _running(self) -> int:
        """How many processes of commands there are."""
        reply, _ = await self._channel.call(FrameType.COUNT, b"", "count processes")
        return frames.take_u32(reply.body, 0)[0]

    async def _keep(self, layers: Layers, chain: Sequence[Layer]) -> None:
        for layer in chain:
            await layers.keep(layer)
