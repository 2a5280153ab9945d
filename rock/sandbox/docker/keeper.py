"""The helper on the host side, one for all containers of a provider, and the directory that it looks after.

What is in there: layers, which are directories, and storages, which are file systems of a bounded size
that only the helper's mount namespace has. All of it goes with the helper.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from pathlib import Path

from rock import process
from rock.errors import SandboxDied, SandboxError
from rock.sandbox import host_dirs
from rock.sandbox.channel import frames
from rock.sandbox.channel.channel import Channel
from rock.sandbox.channel.connect import connect_by_control
from rock.sandbox.channel.frames import FrameType
from rock.sandbox.ending import to_the_end
from rock.sandbox.helper import helper_path
from rock.sandbox.owner import Owner
from rock.sandbox.state import Held

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
