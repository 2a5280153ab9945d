"""A container's files in layers: directories of the host, put in place from outside.

The engine's own way to a fresh container takes half a second. Here the container stays, and its root
directory is replaced: an overlay of a fresh directory above the image's own is made on the host and
put in the place of the present root (`native/layers.c`: ATTACH). That takes root on the host, an engine
whose image layers are directories (`overlay2`) that this process can see, and a disk that overlays may
write to. Where something of that is missing, `why_impossible`, `all_here` or `begin` says so, and the
provider goes on without: a reset is then another container.

The engine knows nothing of it: `docker diff`, `docker cp` and `docker commit` see the container as it
was made.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rock.errors import SandboxDied, SandboxError
from rock.sandbox.box.layering import Layers, open_directory
from rock.sandbox.channel import frames
from rock.sandbox.channel.frames import FrameType
from rock.sandbox.docker.keeper import HostLayer, Keeper, Storage
from rock.sandbox.state import Layer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRoot:
    """What a container's root is made of, as its engine says: directories of the host, topmost first."""

    pid: int
    lower: tuple[str, ...]


def why_impossible() -> str:
    """Why this process cannot replace the roots of containers, or nothing."""
    if os.geteuid() != 0:
        return "the harness is not root on the machine of the engine"
    if Path("/proc/self/uid_map").read_text().split()[2:3] != ["4294967295"]:
        return "the harness is root of a user namespace only"
    return ""


def all_here(directories: Sequence[str]) -> bool:
    """Whether this process sees all of them."""
    return all(Path(path).is_dir() for path in directories)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A root that waits for its container: `root` is a descriptor of it, mounted nowhere.

    It is complete: what the container has mounted is in it, too, at `places`, of which some are new.
    """

    below: tuple[Layer, ...]
    layer: HostLayer
    root: int
    places: tuple[str, ...]

    def discard(self) -> None:
        os.close(self.root)
        self.layer.release()


class HostLayers(Layers):
    """Layers of one container. The root of the next reset is made ahead of time."""

    def __init__(self, keeper: Keeper, root: ContainerRoot, storage: Storage | None = None) -> None:
        """Takes over one hold of `storage`, where the layers are then."""
        self._storage = storage
        self._keeper = keeper
        self._root = root
        self._process = -1
        self._namespace = -1
        self._ready: asyncio.Task[_Prepared] | None = None

    async def begin(self) -> Layer | None:
        try:
            # Open directories of a process are never another one's, whatever becomes of its number.
            self._process = os.open(f"/proc/{self._root.pid}", os.O_PATH | os.O_DIRECTORY)
            self._namespace = os.open("ns/mnt", os.O_RDONLY, dir_fd=self._process)
        except OSError as exc:
            raise SandboxDied(f"the container is gone ({exc.strerror})") from exc
        layer, _ = await self.swap(())
        return layer

    async def swap(self, below: Sequence[Layer]) -> tuple[Layer, tuple[str, ...]]:
        prepared = await self._prepared(tuple(below))
        try:
            found = tuple(name for name in prepared.layer.names() if name not in prepared.places)
            await self._attach(prepared.root)
        except BaseException:
            prepared.discard()
            raise
        os.close(prepared.root)
        return prepared.layer, found

    def expect(self, below: Sequence[Layer]) -> None:
        if self._ready is None and self._process >= 0:
            self._ready = asyncio.ensure_future(self._prepare(tuple(below)))

    async def open_upper(self, layer: Layer) -> int:
        assert isinstance(layer, HostLayer)
        return open_directory(layer.seen / "u")

    async def keep(self, layer: Layer) -> None:
        """A directory stays until it is deleted."""

    async def end(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            await asyncio.wait([ready])
            _forget(ready)
        for fd in (self._process, self._namespace):
            if fd >= 0:
                os.close(fd)
        self._process = self._namespace = -1
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.release()

    async def _prepared(self, below: tuple[Layer, ...]) -> _Prepared:
        ready, self._ready = self._ready, None
        if ready is not None:
            try:
                prepared = await asyncio.shield(ready)
            except asyncio.CancelledError:
                ready.add_done_callback(_forget)
                raise
            except SandboxError as exc:
                log.debug("a root could not be made ahead of time: %s", exc.message)
            else:
                if prepared.below == below:
                    return prepared
                prepared.discard()
        return await self._prepare(below)

    async def _prepare(self, below: tuple[Layer, ...]) -> _Prepared:
        channel = await self._keeper.open()
        layer = HostLayer(self._keeper, self._storage)
        lower = [str(other.folder / "u") for other in below if isinstance(other, HostLayer)]
        lower += self._root.lower
        body = frames.text(os.fsencode(layer.folder))
        body += frames.texts([os.fsencode(path) for path in lower])
        try:
            table = self._mount_table()
            try:
                what = "prepare a root"
                given = [self._namespace, table]
                root = await channel.open(FrameType.PREPARE, body, what, descriptors=given)
            finally:
                os.close(table)
        except BaseException:
            layer.release()
            raise
        return _Prepared(below, layer, root, layer.names())

    def _mount_table(self) -> int:
        try:
            return os.open("mountinfo", os.O_RDONLY, dir_fd=self._process)
        except OSError as exc:
            raise SandboxDied(f"the container is gone ({exc.strerror})") from exc

    async def _attach(self, root: int) -> None:
        channel = await self._keeper.open()
        given = [root, self._namespace]
        what = "change the container's root"
        await channel.call(FrameType.ATTACH, b"", what, descriptors=given)


def _forget(ready: asyncio.Task[_Prepared]) -> None:
    """What was made ahead of time and is wanted by nobody."""
    if not ready.cancelled() and ready.exception() is None:
        ready.result().discard()
