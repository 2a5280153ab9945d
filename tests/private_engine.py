"""A Docker engine of a test's own, which it may kill and start again without disturbing anybody.

    async with private_engine() as engine:
        provider = DockerProvider(host=engine.host)
        ...
        await engine.kill()
        await engine.start()

It has its own directories and socket, no bridge, no firewall rules, and no images but those asked for;
`SandboxSpec(image=None)` needs none. It starts in about a second, and ends with the process that started it.
Needs root and `dockerd`. What it leaves in the way of shims, mounts and control groups goes with it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rock import process
from rock.config import inherited_environment

START_SECONDS = 60.0
STOP_SECONDS = 30.0


class PrivateEngine:
    """One engine and its directory. `live_restore`: its containers outlive it."""

    def __init__(self, folder: Path, *, live_restore: bool) -> None:
        self.host = f"unix://{folder}/s"
        self._folder = folder
        self._live_restore = live_restore
        self._process: process.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it answers. It must not run."""
        assert self._process is None
        # A test that is killed takes its engine with it.
        argv: list[str | Path] = ["setpriv", "--pdeathsig", "KILL", "dockerd"]
        argv += ["--host", self.host, "--pidfile", self._folder / "pid"]
        argv += ["--data-root", self._folder / "d", "--exec-root", self._folder / "x"]
        argv += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
        argv += ["--shutdown-timeout=5", *(["--live-restore"] if self._live_restore else [])]
        (self._folder / "pid").unlink(missing_ok=True)
        env = {**inherited_environment(), "TMPDIR": str(self._folder)}
        with (self._folder / "log").open("ab") as log:
            self._process = await process.start(argv, env=env, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not await self._answers():
            if self._process.returncode is not None or time.monotonic() > deadline:
                raise AssertionError(f"no engine: {(self._folder / 'log').read_text()[-2000:]}")
            await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """SIGKILL, as in a crash. Its containers go on until it is back, and then if it restores them."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """SIGTERM, as in an upgrade. It first ends its containers, unless it restores them."""
        await self._end(signal.SIGTERM)

    async def _end(self, signum: signal.Signals) -> None:
        ending, self._process = self._process, None
        if ending is not None and ending.returncode is None:
            ending.send_signal(signum)
            try:
                await asyncio.wait_for(ending.wait(), STOP_SECONDS)
            except TimeoutError:
                ending.kill()
                await ending.wait()
        await self._no_containerd()

    async def _no_containerd(self) -> None:
        """The engine's own containerd ends with it, a moment later; one that starts would wait for it."""
        file = self._folder / "x" / "containerd" / "containerd.pid"
        deadline = time.monotonic() + STOP_SECONDS
        while file.exists() and _runs(pid := int(file.read_text())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        file.unlink(missing_ok=True)

    async def load(self, image: str) -> None:
        """Give it an image of the engine that everybody uses."""
        script = 'docker save "$1" | docker --host "$2" load --quiet'
        argv = ["bash", "-o", "pipefail", "-c", script, "-", image, self.host]
        loading = await process.start(argv, env=inherited_environment(), stdout=process.DEVNULL)
        assert await loading.wait() == 0, image

    async def _answers(self) -> bool:
        """As a client would see it, without one: the first line of the reply to a ping."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.host.removeprefix("unix://"))
        except OSError:
            return False
        try:
            writer.write(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in await asyncio.wait_for(reader.readline(), 5)
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()

    def running(self) -> list[int]:
        """The first processes of its containers, as the kernel sees them, whatever the engine says."""
        return [pid for shim in self.shims() for pid in _children(shim) if not _is_of_runc(pid)]

    def shims(self) -> list[int]:
        """Its processes that each hold one container, or held one: an engine that is killed while it
        makes a container forgets them."""
        address = f"{self._folder}/x/containerd/containerd.sock".encode()
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"containerd-shim" in words[0] and address in words:
                    found.append(int(path.parent.name))
        return found

    def clean(self) -> None:
        """End what is left of containers, and remove its directories. It must not run."""
        for shim in self.shims():
            for pid in (*_children(shim), shim):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            for container in (self._folder / "d" / "containers").iterdir():
                for group in Path("/sys/fs/cgroup").glob(f"**/docker/{container.name}"):
                    with suppress(OSError):
                        group.rmdir()
        _unmount_all(self._folder)
        shutil.rmtree(self._folder)


def _children(pid: int) -> list[int]:
    try:
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for task in tasks for child in task.read_text().split()]
    except OSError:
        return []


def _is_of_runc(pid: int) -> bool:
    """A container that was made and never started."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"runc\0init")
    except OSError:
        return True


def _runs(pid: int) -> bool:
    """A process that is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _unmount_all(folder: Path) -> None:
    """Whatever is mounted below `folder`, the newest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4] for line in lines]
    for place in reversed([place for place in places if place.startswith(f"{folder}/")]):
        subprocess.run(["umount", "--lazy", place], check=True)


@asynccontextmanager
async def private_engine(
    *, live_restore: bool = False, images: Sequence[str] = ()
) -> AsyncGenerator[PrivateEngine]:
    """An engine that runs, with `images` of the usual one; nothing is left of it afterwards."""
    # Not pytest's directory: the paths of its sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="rock-engine-"))
    engine = PrivateEngine(folder, live_restore=live_restore)
    try:
        await engine.start()
        for image in images:
            await engine.load(image)
        yield engine
    finally:
        await engine.kill()
        await asyncio.to_thread(engine.clean)
