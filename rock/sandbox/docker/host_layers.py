"""A container's files in layers: directories of the host, put in place from outside.

The engine's own way to a fresh container takes half a second. Here the container stays, and its root
directory is replaced: an overlay of a fresh directory above the image's own is made on the host and
put in the place of the present root (`native/layers.c`: ATTACH). That takes root on the host, an engine
whose image layers are directories (`overlay2`) that this process can see, and a disk that overlays may
write to. Where something of that is missing, `open_keeper` or `begin` says what, and the provider goes on
without: a reset is then another container.

The engine knows nothing of it: `docker diff`, `docker cp` and `docker commit` see the container as it
was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rock import process
from rock.errors import SandboxDied, SandboxError
from rock.sandbox import host_dirs
from rock.sandbox.box.layering import Layers, open_directory
from rock.sandbox.channel import frames
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.connect import connect_by_control
from rock.sandbox.channel.frames import FrameType
from rock.sandbox.ending import to_the_end
from rock.sandbox.helper import helper_path
from rock.sandbox.owner import Owner
from rock.sandbox.state import Held, Layer

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
REMOVED_AT_ONCE = 100
KEEPER_NICENESS = -10
"""A reset waits for it; it has a millisecond's work to do."""
_MAKE_FILE_SYSTEM = (
    *("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode"),
    *("-E", "lazy_itable_init=1,nodiscard"),
)
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


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


class HostLayer(Held):
    """A directory of the host with what was written (`u`), perhaps in a bounded storage."""

    def __init__(self, keeper: Keeper, storage: Storage | None) -> None:
        super().__init__(self._drop)
        self._keeper = keeper
        self._storage = storage
        if storage is not None:
            storage.hold()
        place = keeper.folder if storage is None else storage.folder
        self.folder = place / keeper.new_number()
        """As the keeper sees it; `seen` as this process does."""
        self.seen = self.folder if storage is None else storage.seen / self.folder.name
        self.seen.mkdir(mode=0o700)

    def names(self) -> tuple[str, ...]:
        """What is at the top of it; a removed entry of a lower layer counts too."""
        return tuple(sorted(path.name for path in (self.seen / "u").iterdir()))

    def _drop(self) -> None:
        self._keeper.trash(self.seen)
        if self._storage is not None:
            self._storage.release()


class Storage(Held):
    """A file system of a bounded size, in a file, for the layers of one sandbox (`native/storage.c`)."""

    def __init__(self, keeper: Keeper, folder: Path, keeper_pid: int) -> None:
        super().__init__(self._drop)
        self._keeper = keeper
        self.folder = folder
        # Mounted in the keeper's namespace alone, which is looked into from here.
        self.seen = Path(f"/proc/{keeper_pid}/root{folder}")

    def _drop(self) -> None:
        self._keeper.unstore(self.folder)


class Keeper:
    """The helper on the host side, one for all containers of a provider, and its directory of layers."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._folder: Path | None = None
        self._numbers = itertools.count(1)
        self._process: process.Process | None = None
        self._control: socket.socket | None = None
        self._opening = asyncio.Lock()
        self._trash: list[Path] = []
        self._emptying: asyncio.Task[None] | None = None
        self._dropping: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self) -> Channel:
        """The channel to the helper, started at first use. Raises `SandboxError`."""
        async with self._opening:
            if self._closed:
                raise SandboxDied("this provider is closed")
            if self._control is None:
                await self._start()
            assert self._control is not None
            return Channel(connect_by_control(self._control))

    async def _start(self) -> None:
        if self._folder is None:
            name = f"layers-{os.getpid()}-{id(self):x}"
            self._folder = host_dirs.make(self._base, name, Owner.current())
        near, far = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            self._process = await process.start(
                [helper_path(), "keep", "--control-fd", str(far.fileno())],
                env={},
                stdout=process.DEVNULL,
                stderr=process.DEVNULL,
                pass_fds=(far.fileno(),),
            )
        except BaseException:
            near.close()
            raise
        finally:
            far.close()
        with contextlib.suppress(OSError):  # gone, or not allowed to be before others
            os.setpriority(os.PRIO_PROCESS, self._process.pid, KEEPER_NICENESS)
        self._control = near

    @property
    def folder(self) -> Path:
        """Of its layers, once it is open."""
        assert self._folder is not None
        return self._folder

    def new_number(self) -> str:
        """A name for a directory that no other has."""
        return f"{next(self._numbers)}"

    async def store(self, size_bytes: int) -> Storage:
        """A new storage, held once. Raises `SandboxError` where this machine makes none."""
        channel = await self.open()
        assert self._process is not None
        folder = self.folder / self.new_number()
        image = folder.with_name(f"{folder.name}.img")
        try:
            folder.mkdir(mode=0o700)
            with image.open("xb") as file:
                file.truncate(size_bytes)
            making = await process.start(
                [*_MAKE_FILE_SYSTEM, image],
                env={"PATH": _PATH},
                stdout=process.DEVNULL,
                stderr=process.DEVNULL,
            )
            if await making.wait() != 0:
                raise SandboxError(f"mkfs.ext4 makes no file system of {size_bytes} bytes")
            body = frames.text(os.fsencode(image)) + frames.text(os.fsencode(folder))
            await channel.call(FrameType.STORE, body, "make a bounded storage")
        except OSError as exc:
            raise SandboxError(f"a bounded storage cannot be made: {exc}") from exc
        finally:
            image.unlink(missing_ok=True)
        return Storage(self, folder, self._process.pid)

    def unstore(self, folder: Path) -> None:
        """Drop a storage, off the caller's path. What still uses it keeps it."""
        if not self._closed:
            task = asyncio.ensure_future(self._unstore(folder))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _unstore(self, folder: Path) -> None:
        try:
            channel = await self.open()
            await channel.call(
                FrameType.UNSTORE, frames.text(os.fsencode(folder)), "drop a storage"
            )
            os.rmdir(folder)  # noqa: PTH106 (a path object in a coroutine is refused, too)
        except (SandboxError, OSError) as exc:
            log.debug("a storage goes with its keeper only: %s", exc)

    def trash(self, folder: Path) -> None:
        """Delete a layer, off the caller's path."""
        if self._closed:
            return  # the whole directory goes
        self._trash.append(folder)
        if self._emptying is None or self._emptying.done():
            self._emptying = asyncio.ensure_future(self._empty())

    async def _empty(self) -> None:
        """By another process: deleting thousands of files in a thread would hold up the event loop."""
        while self._trash:
            folders, self._trash = self._trash[:REMOVED_AT_ONCE], self._trash[REMOVED_AT_ONCE:]
            try:
                removing = await process.start(
                    ["nice", "rm", "-rf", "--", *folders],
                    env={"PATH": _PATH},
                    stderr=process.DEVNULL,
                )
            except OSError as exc:
                log.warning("layers are deleted later: %s", exc.strerror)
                self._trash += folders
                return
            await removing.wait()

    async def close(self) -> None:
        """End the helper and delete every layer. Safe to call twice."""
        self._closed = True
        await to_the_end(self._close())

    async def _close(self) -> None:
        if self._dropping:
            await asyncio.wait(self._dropping)
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            await process.stop(self._process, grace_seconds=STOP_SECONDS)
        if self._emptying is not None:
            self._trash.clear()
            await asyncio.wait([self._emptying])
        if self._folder is not None:
            await asyncio.to_thread(host_dirs.remove, self._folder)


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
