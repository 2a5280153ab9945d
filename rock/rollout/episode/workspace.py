"""What the agent left in its working directory, kept beside its record, so that it can be graded
again without being done again; and what was printed."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from pathlib import Path

from rock.errors import SandboxDied, SandboxError
from rock.rollout.records.record import numbered
from rock.sandbox.base import ExecResult, Sandbox
from rock.sandbox.ending import to_the_end
from rock.secrets import redact, redact_text

FOLDER = "workspace"
_PART = "workspace.part"


def keep_output(folder: Path, who: str, result: ExecResult, *, grading: int = 1) -> None:
    """What the agent or a grader printed, beside the record of that grading. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("stdout", result.stdout), ("stderr", result.stderr)):
        (folder / numbered(f"{who}.{name}", grading)).write_bytes(redact(data))


async def keep_workspace(
    sandbox: Sandbox, workdir: str, folder: Path, *, max_bytes: int
) -> str | None:
    """Copy the working directory to the attempt's folder; None, or why it could not be kept.

    Secrets in it, which a model may have said, are replaced. Raises `SandboxDied`.
    """
    part, whole = folder / _PART, folder / FOLDER
    try:
        await asyncio.to_thread(_clear, folder, part, whole)
        await sandbox.download(workdir, part, max_bytes=max_bytes)
        await asyncio.to_thread(redact_tree, part)
        await asyncio.to_thread(part.rename, whole)
    except SandboxDied:
        raise
    except (SandboxError, OSError) as exc:
        return str(exc) or type(exc).__name__
    finally:
        await to_the_end(asyncio.to_thread(shutil.rmtree, part, ignore_errors=True))
    return None


def redact_tree(tree: Path) -> None:
    """Replace registered secrets in a tree's files, links and names, as `rock.secrets` does elsewhere.

    What a program has compressed or encrypted is not looked into. Raises `OSError`.
    """
    for folder, folders, files in os.walk(tree, topdown=False):
        for name in (*files, *folders):
            path = Path(folder, name)
            if path.is_symlink():
                _redact_link(path)
            elif path.is_file():
                _redact_file(path)
            if (told := redact_text(name)) != name:
                path.rename(path.with_name(told))


def _redact_link(path: Path) -> None:
    target = str(path.readlink())
    if (told := redact_text(target)) != target:
        path.unlink()
        path.symlink_to(told)


def _redact_file(path: Path) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & stat.S_IRUSR:
        path.chmod(mode | stat.S_IRUSR)
    data = path.read_bytes()
    if (told := redact(data)) is not data:
        path.chmod(mode | stat.S_IRUSR | stat.S_IWUSR)
        path.write_bytes(told)
    path.chmod(mode)


def _clear(folder: Path, *trees: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for tree in trees:
        shutil.rmtree(tree, ignore_errors=True)


def kept_workspace(folder: Path) -> Path | None:
    """The tree that an attempt kept, None if it kept none."""
    tree = folder / FOLDER
    return tree if tree.is_dir() else None
