"""Put a task's files into a sandbox: one tree is laid out on the host and uploaded at once.

The directories on the host name the process they belong to, so that a later one can remove those of a
process that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rock.rollout.inputs.taskfiles import TaskFile
from rock.sandbox.base import Sandbox
from rock.sandbox.ending import to_the_end
from rock.sandbox.owner import Owner, this_host

_PREFIX = "rock-stage"


@asynccontextmanager
async def stage() -> AsyncGenerator[Path, None]:
    """A directory on the host that is gone afterwards, also when the caller is cancelled."""
    # At once: nobody must lose its name.
    path = Path(tempfile.mkdtemp(prefix=_own_prefix(os.getpid())))
    try:
        yield path
    finally:
        await to_the_end(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True))


def remove_left_stages() -> None:
    """Remove what processes of this user left that were killed. Blocks."""
    ours = f"{_PREFIX}-{_digest(this_host())}-"
    for path in Path(tempfile.gettempdir()).glob(f"{ours}*"):
        pid = path.name.removeprefix(ours).partition("-")[0]
        with contextlib.suppress(OSError):
            dead = pid.isdigit() and not path.name.startswith(f"{_name_of(Owner.of(int(pid)))}-")
            if dead and path.lstat().st_uid == os.geteuid():
                shutil.rmtree(path)


def _name_of(owner: Owner) -> str:
    return f"{_PREFIX}-{_digest(owner.host)}-{owner.pid}-{_digest(owner.start)}"


@functools.lru_cache(maxsize=1)
def _own_prefix(pid: int) -> str:
    """Of this process, which is asked for several times per episode."""
    return f"{_name_of(Owner.of(pid))}-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


async def upload_files(
    sandbox: Sandbox,
    target: str,
    files: Mapping[str, TaskFile],
    *,
    folder: Path,
    writable: Sequence[str] = (),
) -> None:
    """`files` (relative path → content) under the directory `target` of the sandbox.

    `folder` is what `source` is relative to. `writable` names empty directories beside them that
    every user may write to. Raises `OSError` for a source that cannot be read, and `SandboxError`.
    """
    async with stage() as path:
        tree = path / "tree"
        await to_the_end(asyncio.to_thread(_lay_out, tree, files, folder, writable))
        await sandbox.upload(tree, target)


async def make_writable(sandbox: Sandbox, target: str) -> None:
    """The empty directory `target`, which every user may write to."""
    async with stage() as path:
        tree = path / "tree"
        tree.mkdir()
        tree.chmod(0o777)
        await sandbox.upload(tree, target)


def _lay_out(
    tree: Path, files: Mapping[str, TaskFile], folder: Path, writable: Sequence[str]
) -> None:
    tree.mkdir(mode=0o755)
    for name, file in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = file.data()
        if data is not None:
            path.write_bytes(data)
            path.chmod(file.mode)
            continue
        source = folder / (file.source or "")
        if source.is_dir():
            shutil.copytree(source, path, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(source, path)
    for name in writable:
        (tree / name).mkdir()
        (tree / name).chmod(0o777)
