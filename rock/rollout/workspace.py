"""What the agent left in its working directory, kept beside its record, so that it can be graded
again without being done again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from rock.errors import SandboxDied, SandboxError
from rock.sandbox.base import Sandbox

FOLDER = "workspace"
_PART = "workspace.part"


async def keep_workspace(
    sandbox: Sandbox, workdir: str, folder: Path, *, max_bytes: int
) -> str | None:
    """Copy the working directory to the attempt's folder; None, or why it could not be kept.

    Raises `SandboxDied`.
    """
    part, whole = folder / _PART, folder / FOLDER
    try:
        await asyncio.to_thread(_clear, folder, part, whole)
        await sandbox.download(workdir, part, max_bytes=max_bytes)
        await asyncio.to_thread(part.rename, whole)
    except SandboxDied:
        raise
    except (SandboxError, OSError) as exc:
        await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
        return str(exc) or type(exc).__name__
    return None


def _clear(folder: Path, *trees: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)


def kept_workspace(folder: Path) -> Path | None:
    """The tree that an attempt kept, None if it kept none."""
    tree = folder / FOLDER
    return tree if tree.is_dir() else None
