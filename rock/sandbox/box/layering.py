"""A sandbox's files in layers, as its own helper keeps them: each a tmpfs in its mount namespace.

`Layers` is what a provider offers (`host_layers` has the other one); `box_state` says when a layer is
made and dropped. The helper's side is `native/layers.c`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from rock.errors import SandboxError
from rock.sandbox.channel import frames
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.frames import FrameType
from rock.sandbox.state import Held, Layer

log = logging.getLogger(__name__)


class Layers(ABC):
    """The files of one sandbox: an empty layer on top of others, all on top of what it was made of."""

    @abstractmethod
    async def begin(self) -> Layer | None:
        """Called once, before anything is written. A layer to hold what is, or None if it needs none."""

    @abstractmethod
    async def swap(self, below: Sequence[Layer]) -> tuple[Layer, tuple[str, ...]]:
        """A new root with an empty layer above `below` (the topmost first), and what is in it already.

        The caller holds the new layer. No process but the helper may run. Raises `SandboxError`; the
        present root is then still in its place.
        """

    def expect(self, below: Sequence[Layer]) -> None:  # noqa: B027 (making ready is optional)
        """The next swap is likely to be above `below`: make ready, off the caller's path."""

    async def settle(self) -> None:  # noqa: B027 (not every kind has anything to wait for)
        """What is being freed by processes of the sandbox may be cut off from now on."""

    @abstractmethod
    async def open_upper(self, layer: Layer) -> int:
        """A descriptor of the directory with what was written in `layer`; the caller closes it.

        Raises `SandboxError`.
        """

    @abstractmethod
    async def keep(self, layer: Layer) -> None:
        """See that `layer` outlives the sandbox, for as long as somebody holds it."""

    @abstractmethod
    async def end(self) -> None:
        """The sandbox has ended, or is about to: ask nothing more of it. Safe to call twice."""


class LocalLayer(Held):
    """A layer in the namespace of the sandbox that wrote it, and in those that have taken it in.

    `tree` is a mount of it in nobody's namespace, which keeps it alive and can be taken in once; who
    takes it in gives another one.
    """

    def __init__(self, home: LocalLayers, number: int) -> None:
        super().__init__(self._drop)
        self.home = home
        self.number = number
        self.tree = -1
        self.taking = asyncio.Lock()

    def _drop(self) -> None:
        self.take_tree()
        self.home.drop(self.number)

    def keep_tree(self, tree: int) -> None:
        """In place of the one that it has, if it has one."""
        self.take_tree()
        self.tree = tree
        self.home.kept.add(self)

    def take_tree(self) -> None:
        self.home.kept.discard(self)
        if self.tree >= 0:
            os.close(self.tree)
            self.tree = -1


class LocalLayers(Layers):
    """Layers of a local sandbox. `kept` are those of its provider that have a `tree`."""

    def __init__(self, channel: Channel, kept: set[LocalLayer]) -> None:
        self._channel = channel
        self.kept = kept
        self._last_number = 0
        self._adopted: dict[LocalLayer, int] = {}
        self._dropping: set[asyncio.Task[None]] = set()
        self._ended = False

    async def begin(self) -> Layer | None:
        return None

    async def swap(self, below: Sequence[Layer]) -> tuple[Layer, tuple[str, ...]]:
        numbers = [await self._number(layer) for layer in below]
        layer = LocalLayer(self, self._next_number())
        body = b"".join(map(frames.u32, (layer.number, len(numbers), *numbers)))
        reply, _ = await self._channel.call(FrameType.SWAP, body, "change the root")
        return layer, differences(reply.body)

    async def settle(self) -> None:
        if self._dropping:
            await asyncio.wait(self._dropping)

    async def open_upper(self, layer: Layer) -> int:
        assert isinstance(layer, LocalLayer)
        await self.keep(layer)
        return open_directory("u", dir_fd=layer.tree)

    async def keep(self, layer: Layer) -> None:
        assert isinstance(layer, LocalLayer)
        if layer.tree < 0:
            layer.keep_tree(await self._tree(layer.number))

    async def end(self) -> None:
        self._ended = True
        for task in self._dropping:
            task.cancel()
        if self._dropping:
            await asyncio.wait(self._dropping)

    def drop(self, number: int) -> None:
        """Free a layer, off the caller's path."""
        if not self._ended:
            task = asyncio.ensure_future(self._drop(number))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _drop(self, number: int) -> None:
        try:
            await self._channel.call(FrameType.DROP, frames.u32(number), "drop a layer")
        except SandboxError as exc:
            log.debug("a layer was not dropped: %s", exc.message)

    async def _tree(self, number: int) -> int:
        return await self._channel.open(FrameType.TREE, frames.u32(number), "keep a layer")

    async def _number(self, layer: Layer) -> int:
        """The number by which this sandbox knows a layer; another's is taken in first."""
        assert isinstance(layer, LocalLayer)
        if layer.home is self:
            return layer.number
        async with layer.taking:
            if layer not in self._adopted:
                self._adopted[layer] = await self._adopt(layer)
        return self._adopted[layer]

    async def _adopt(self, layer: LocalLayer) -> int:
        number = self._next_number()
        body = frames.u32(number)
        given = [layer.tree]
        await self._channel.call(FrameType.ADOPT, body, "take in a layer", descriptors=given)
        layer.take_tree()
        layer.keep_tree(await self._tree(number))
        return number

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number


def open_directory(path: str | Path, *, dir_fd: int | None = None) -> int:
    """Raises `SandboxError`."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as exc:
        raise SandboxError(f"a layer cannot be read: {exc.strerror}") from exc


def differences(body: bytes) -> tuple[str, ...]:
    """The names in the reply to a swap."""
    names, _ = frames.take_texts(body, 0)
    return tuple(os.fsdecode(name) for name in names)
