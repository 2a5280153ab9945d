"""The engine's images that sandboxes are made of: found, pulled, built or made, each once.

Many sandboxes of one image that start at the same time wait for one pull, or one build. An image is
used by its content's id, so a tag may move during a run. One that is built is named by all that goes
into it, so that it is there for every later run that needs the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from rock.errors import BuildFailed, ConfigError, ProviderUnavailable, SandboxError
from rock.sandbox import host_dirs
from rock.sandbox.base import BuildNetwork, Built
from rock.sandbox.docker import hostroot
from rock.sandbox.docker.builds import build
from rock.sandbox.docker.dockerfile import bases
from rock.sandbox.docker.engine import Engine, Image

HOST_IMAGE = "rock-host"
LOCK_SECONDS = 60.0
BUILT = "rock-built"
"""Name of built images; the tag is the key of what they are made of, and so is the label `rock.built`."""
TAIL_CHARS = 1500
"""How much of a failed build's log is in the error's message."""
LOG_CHARS = 1_000_000


class Images:
    """Images of one engine. With `pull`, one that is missing is fetched."""

    def __init__(self, engine: Engine, base: Path, *, pull: bool, pull_timeout_seconds: float):
        self._engine = engine
        self._base = base
        self._pull = pull
        self._pull_timeout_seconds = pull_timeout_seconds
        self._host_image: Image | None = None
        self._locks: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._builds: dict[str, asyncio.Task[Built]] = {}
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

    async def build(
        self,
        context: Path,
        *,
        dockerfile: str,
        timeout_seconds: float,
        network: BuildNetwork = "engine",
        tag: str | None = None,
    ) -> Built:
        """The image that the Dockerfile in the directory `context` describes, built if it is not there.

        `tag` is a further name for it. Who asks for what is being built gets the same image, or the
        same failure. Raises `BuildFailed` with the end of the log, `ProviderUnavailable` for a base
        image that is not there, `SandboxError`.
        """
        text = await asyncio.to_thread(_dockerfile, context, dockerfile)
        ids = [(await self._base_image(base, dockerfile)).id for base in bases(text)]
        key = await asyncio.to_thread(_key_of, context, dockerfile, ids)
        job = self._builds.get(key)
        if job is None:
            job = asyncio.ensure_future(
                self._build(context, dockerfile, key, network, timeout_seconds)
            )
            self._builds[key] = job
            job.add_done_callback(functools.partial(self._built, key))
        # Whoever leaves, the others go on waiting; with nobody left it ends by its time, or `close`.
        built = await asyncio.shield(job)
        if tag is not None:
            await self._engine.tag(built.reference, tag)
        return built

    def _built(self, key: str, job: asyncio.Task[Built]) -> None:
        self._builds.pop(key, None)
        if not job.cancelled():
            job.exception()  # somebody has seen it, or nobody waits any more

    async def close(self) -> None:
        """Stop what is being built."""
        for job in (jobs := list(self._builds.values())):
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    async def _base_image(self, base: str, dockerfile: str) -> Image:
        try:
            return await self.find(base)
        except ProviderUnavailable as exc:
            raise ProviderUnavailable(f"{dockerfile}: FROM {base}: {exc.message}") from exc

    async def _build(
        self,
        context: Path,
        dockerfile: str,
        key: str,
        network: BuildNetwork,
        timeout_seconds: float,
    ) -> Built:
        reference = f"{BUILT}:{key}"
        host_dirs.prepare_base(self._base)
        async with locked(self._base / f"build-{key}.lock", within_seconds=timeout_seconds):
            if (found := await self._engine.image(reference)) is not None:
                return Built(reference=reference, user=found.user)
            log = _Log()
            try:
                await build(
                    self._engine,
                    context,
                    dockerfile=dockerfile,
                    tag=reference,
                    labels={"rock.built": key},
                    network=network,
                    timeout_seconds=timeout_seconds,
                    say=log.add,
                )
            except BuildFailed as exc:
                log.add(f"\n{exc.message}\n")
                tail = log.text()[-TAIL_CHARS:].strip()
                raise BuildFailed(
                    f"{dockerfile}: the image could not be built: {exc.message}\n{tail}",
                    log=log.text(),
                ) from exc
            found = await self._engine.image(reference)
        if found is None:
            raise SandboxError(f"the engine built {reference} and does not have it")
        return Built(reference=reference, user=found.user, log=log.text())

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
        host_dirs.prepare_base(self._base)
        async with locked(self._base / "host-image.lock", within_seconds=LOCK_SECONDS):
            found = await self._engine.image(reference)
            if found is None:
                await self._engine.import_image(archive, HOST_IMAGE, tag)
                found = await self._engine.image(reference)
        if found is None:
            raise SandboxError(f"the engine imported {reference} and does not have it")
        return found


class _Log:
    """What a build says, its middle left out if it is too long."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def add(self, text: str) -> None:
        self._parts.append(text)

    def text(self) -> str:
        whole = "".join(self._parts)
        if len(whole) <= LOG_CHARS:
            return whole
        half = LOG_CHARS // 2
        return f"{whole[:half]}\n[{len(whole) - 2 * half} characters left out]\n{whole[-half:]}"


def _dockerfile(context: Path, name: str) -> str:
    try:
        return (context / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{context / name}: cannot be read: {exc}") from exc


def _key_of(context: Path, dockerfile: str, base_ids: Iterable[str]) -> str:
    """A fingerprint of all that goes into an image: names, modes and contents of files, and its bases."""
    digest = hashlib.sha256(f"{dockerfile}\0{' '.join(base_ids)}\0".encode())
    for path in sorted(context.rglob("*")):
        found = path.lstat()
        digest.update(f"\0{path.relative_to(context)}\0{found.st_mode:o}\0".encode())
        if path.is_symlink():
            digest.update(str(path.readlink()).encode())
        elif path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


@contextlib.asynccontextmanager
async def locked(path: Path, *, within_seconds: float) -> AsyncGenerator[None]:
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
