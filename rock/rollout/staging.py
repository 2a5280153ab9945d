"""Put a task's files into a sandbox: one tree is laid out on the host and uploaded at once."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rock.rollout.task import TaskFile
from rock.sandbox.base import Sandbox
from rock.sandbox.ending import to_the_end


async def upload_files(
    sandbox: Sandbox,
    target: str,
    files: Mapping[str, TaskFile],
    *,
    folder: Path,
    writable: str | None = None,
) -> None:
    """`files` (relative path → content) under the directory `target` of the sandbox.

    `folder` is what `source` is relative to. `writable` names an empty directory beside them that
    every user may write to. Raises `OSError` for a source that cannot be read, and `SandboxError`.
    """
    stage = Path(tempfile.mkdtemp(prefix="rock-stage-"))  # at once: nobody must lose its name
    try:
        tree = stage / "tree"
        await to_the_end(asyncio.to_thread(_lay_out, tree, files, folder, writable))
        await sandbox.upload(tree, target)
    finally:
        await to_the_end(asyncio.to_thread(shutil.rmtree, stage, ignore_errors=True))


def _lay_out(tree: Path, files: Mapping[str, TaskFile], folder: Path, writable: str | None) -> None:
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
            shutil.copytree(source, path, symlinks=True)
        else:
            shutil.copy2(source, path)
    if writable is not None:
        (tree / writable).mkdir()
        (tree / writable).chmod(0o777)
