"""The engine's images that sandboxes are made of: found, pulled or made, each once.

Many sandboxes of one image that start at the same time wait for one pull. An image is used by its
content's id, so a tag may move during a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from rock.errors import ProviderUnavailable, SandboxError
from rock.sandbox import rundir
from rock.sandbox.docker import hostroot
from rock.sandbox.docker.engine import Engine, Image

HOST_IMAGE = "rock-host"
LOCK_SECONDS = 60.0


class Images:
    """Images of one engine. With `pull`, one that is missing is fetched."""

    def __init__(self, engine: Engine, base: Path, *, pull: bool, pull_timeout_seconds: float):
        self._engine = engine
        self._base = base
        self._pull = pull
        self._pull_timeout_seconds = pull_timeout_seconds
        self._host_image: Image | None = None
        self._locks: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.pulls = 0
        """How many pulls were asked of the engine."""

    async def find(self, reference: str | None) -> Image:
        """The image of that name; None is this machine's own programs.

        Raises `ProviderUnavailable`, naming the command to get it, and `SandboxError` of a pull.
        """
        if reference is None:
            async with self._locks[None]:
                if self._host_image is None:
                    self._host_image = await self._make_host_image()
                return self._host_image
        found = await self._engine.image(reference)
        if found is None and self._pull:
            found = await self._fetch(reference)
        if found is None:
            raise ProviderUnavailable(
                f"the engine has no image {reference}; get it with `docker pull {reference}`, or "
                "build it, or let the provider pull"
            )
        return found

    async def prefetch(self, references: Iterable[str | None]) -> None:
        """Have all of them before the first sandbox needs one. Raises what `find` raises."""
        await asyncio.gather(*(self.find(reference) for reference in set(references)))

    def forget_host_image(self) -> None:
        """Somebody has removed it: the next `find` makes it again."""
        self._host_image = None

    async def _fetch(self, reference: str) -> Image | None:
        async with self._locks[reference]:
            found = await self._engine.image(reference)  # somebody waited for the same
            if found is None:
                self.pulls += 1
                await self._engine.pull(reference, timeout_seconds=self._pull_timeout_seconds)
                found = await self._engine.image(reference)
            return found

    async def _make_host_image(self) -> Image:
        """The image of `hostroot`, named by its content, made once per machine."""
        archive = await asyncio.to_thread(hostroot.archive)
        tag = hashlib.sha256(archive).hexdigest()[:12]
        reference = f"{HOST_IMAGE}:{tag}"
        rundir.prepare_base(self._base)
        async with _locked(self._base / "host-image.lock", within_seconds=LOCK_SECONDS):
            found = await self._engine.image(reference)
            if found is None:
                await self._engine.import_image(archive, HOST_IMAGE, tag)
                found = await self._engine.image(reference)
        if found is None:
            raise SandboxError(f"the engine imported {reference} and does not have it")
        return found


@contextlib.asynccontextmanager
async def _locked(path: Path, *, within_seconds: float) -> AsyncGenerator[None]:
    """Hold a lock between processes; it goes with the process that holds it."""
    deadline = time.monotonic() + within_seconds
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SandboxError(f"{path} was locked for {within_seconds:g} s") from None
                await asyncio.sleep(0.02)
        yield
