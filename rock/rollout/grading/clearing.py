"""Run the sandbox's own tools over what an agent left, and remove files whatever was done to them.

Nobody in a sandbox has capabilities: root cannot remove what the agent's user owns, and neither can
look into a folder that its owner closed. So each user does what it may, and modes are taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rock.errors import BadUser, CommandNotFound, TaskError
from rock.rollout.records.evidence import of_a_living_box
from rock.sandbox.base import ExecResult, Sandbox

TOOL_SECONDS = 60.0
MAX_ARGUMENT_BYTES = 96 * 1024
"""Of the paths in one command; the kernel takes 128 KiB."""
_REMOVE = (
    'rm -rf -- "$@" 2>/dev/null; for p; do if [ -e "$p" ] || [ -L "$p" ]; then exit 1; fi; done'
)
OPEN = (
    'open() { case "$1" in /|.) return;; esac; open "$(dirname -- "$1")"; chmod u+rwx -- "$1"; }; '
    'for p; do open "$(dirname -- "$p")"; chmod -R u+rwX -- "$p"; done 2>/dev/null; true; '
)
"""Give the owner back what keeps these paths, and the directories above them, from being removed."""


async def remove_paths(sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Remove files and trees of whatever owner; they are gone on return. Raises `TaskError`."""
    for some in _portions(paths):
        await _remove(sandbox, some)


async def _remove(sandbox: Sandbox, paths: Sequence[str]) -> None:
    for script in (_REMOVE, OPEN + _REMOVE):
        for user in (None, "root", None):
            try:
                result = await tool(sandbox, ["sh", "-c", script, "rm", *paths], user=user, cwd="/")
            except BadUser:
                continue
            if result.ok:
                return
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    raise TaskError(f"cannot be removed from the sandbox: {', '.join(paths[:3])}{more}")


def _portions(paths: Sequence[str]) -> Iterator[list[str]]:
    """`paths` in lists that fit on a command line each."""
    portion: list[str] = []
    size = 0
    for path in paths:
        needed = len(path.encode("utf-8", "surrogateescape")) + 16
        if portion and size + needed > MAX_ARGUMENT_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(path)
        size += needed
    if portion:
        yield portion


async def tool(
    sandbox: Sandbox, argv: Sequence[str], *, user: str | None = None, cwd: str | None = None
) -> ExecResult:
    """One command of the sandbox's own, to its end. Raises `TaskError`, `BadUser`, and what the box raises."""
    try:
        result = await sandbox.exec(argv, timeout_seconds=TOOL_SECONDS, user=user, cwd=cwd)
    except CommandNotFound as exc:
        raise TaskError(f"the image lacks a program that protection needs: {exc.message}") from exc
    return of_a_living_box(result, "while its files were put in order")
