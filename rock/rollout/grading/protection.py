"""What an agent must neither see nor keep changed: put away before it starts, put back afterwards.

Before the agent: hidden paths are taken out of the sandbox, the history of a repository is squashed
or removed, and every protected file is copied to the host. After the agent: what it changed, added
or deleted among the protected files is noted and undone, and read again to see that it is undone.
The copies are on the host, so the agent cannot have touched them.

Removing and listing run programs of the sandbox (`sh`, `rm`, `find`), which an agent could only have
replaced where it is root. For such images grade in a fresh sandbox.
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from rock.errors import BadUser, CommandNotFound, SandboxDied, SandboxFileError, TaskError
from rock.rollout.records.integrity import MAX_LISTED, Integrity
from rock.sandbox.base import ExecResult, ExecStatus, Sandbox
from rock.sandbox.ending import to_the_end

TOOL_SECONDS = 60.0
MAX_PROTECTED = 5_000
MAX_PROTECTED_BYTES = 256 * 1024 * 1024
_REMOVE = (
    'rm -rf -- "$@" 2>/dev/null; for p; do if [ -e "$p" ] || [ -L "$p" ]; then exit 1; fi; done'
)
_LIST = ["find", ".", "-name", ".git", "-prune", "-o", "!", "-type", "d", "-print0"]
_COMPILED = ["find", ".", "-name", "__pycache__", "-prune", "-print0"]
_REPOSITORIES = ["find", ".", "-name", ".git", "-prune", "-print0"]
_SQUASH = (
    'cd "$1" && git init -q . && git add -A . && '
    "git -c user.name=rock -c user.email=rock@localhost -c commit.gpgsign=false "
    "commit -q --allow-empty -m 'Start' --no-verify"
)


@dataclass(slots=True)
class Findings:
    """The integrity report in the making."""

    protected: int = 0
    changed: list[str] = field(default_factory=list[str])
    added: list[str] = field(default_factory=list[str])
    deleted: list[str] = field(default_factory=list[str])
    restored: bool = True
    hidden: list[str] = field(default_factory=list[str])
    git: str = "keep"
    fresh: bool = False
    collected_sha256: str | None = None

    def report(self) -> Integrity:
        return Integrity(
            protected=self.protected,
            changed=sorted(self.changed)[:MAX_LISTED],
            added=sorted(self.added)[:MAX_LISTED],
            deleted=sorted(self.deleted)[:MAX_LISTED],
            tampered=len(self.changed) + len(self.added) + len(self.deleted),
            restored=self.restored,
            hidden=self.hidden,
            git=self.git,
            fresh=self.fresh,
            collected_sha256=self.collected_sha256,
        )


def is_guarded(path: str, globs: Iterable[str]) -> bool:
    """Whether a relative path fits a glob; without a slash the glob is of the last part alone.

    `*` also stands for slashes, and a glob of a directory's contents fits at any depth.
    """
    name = PurePosixPath(path).name
    return any(
        fnmatch.fnmatchcase(path, glob) or fnmatch.fnmatchcase(path, f"*/{glob}")
        if "/" in glob
        else fnmatch.fnmatchcase(name, glob)
        for glob in globs
    )


async def remove_paths(sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Remove files and trees of whatever owner; they are gone on return. Raises `TaskError`.

    No user of a sandbox has capabilities, so root cannot remove what the agent's user owns: each
    removes what it may.
    """
    if not paths:
        return
    for user in (None, "root", None):
        try:
            result = await _tool(sandbox, ["sh", "-c", _REMOVE, "rm", *paths], user=user, cwd="/")
        except BadUser:
            continue
        if result.ok:
            return
    raise TaskError(f"cannot be removed from the sandbox: {', '.join(paths)}")


async def _tool(
    sandbox: Sandbox, argv: Sequence[str], *, user: str | None = None, cwd: str | None = None
) -> ExecResult:
    try:
        result = await sandbox.exec(argv, timeout_seconds=TOOL_SECONDS, user=user, cwd=cwd)
    except CommandNotFound as exc:
        raise TaskError(f"the image lacks a program that protection needs: {exc.message}") from exc
    if result.status is ExecStatus.SANDBOX_DIED:
        raise SandboxDied("the sandbox died while its files were put in order")
    return result


class Protection:
    """One attempt's protected and hidden files. `folder` is an empty directory on the host."""

    def __init__(self, workdir: str, globs: Sequence[str], folder: Path) -> None:
        self._workdir = workdir
        self._globs = tuple(globs)
        self._kept = folder / "kept"
        self._hidden = folder / "hidden"
        self._digests: dict[str, str] = {}
        self._put_away: dict[str, Path] = {}
        self.findings = Findings()

    async def hide(self, sandbox: Sandbox, paths: Sequence[str]) -> None:
        """Take paths out of the sandbox and keep them on the host. Raises `TaskError`."""
        self._hidden.mkdir(parents=True, exist_ok=True)
        for number, path in enumerate(paths):
            full = str(PurePosixPath(self._workdir, path))
            copy = self._hidden / str(number)
            try:
                await sandbox.download(full, copy)
            except SandboxFileError as exc:
                raise TaskError(f"hide: {path}: {exc.message}") from exc
            self._put_away[full] = copy
        await remove_paths(sandbox, list(self._put_away))
        self.findings.hidden = list(self._put_away)

    async def hide_history(
        self, sandbox: Sandbox, how: Literal["keep", "squash", "remove"]
    ) -> None:
        """Make every repository's history one commit, or take it away. Raises `TaskError`."""
        self.findings.git = how
        if how == "keep":
            return
        listed = await _tool(sandbox, _REPOSITORIES)
        found = [_text(path) for path in listed.stdout.split(b"\0") if path]
        await remove_paths(sandbox, [str(PurePosixPath(self._workdir, path)) for path in found])
        if how == "remove":
            return
        for path in found:
            where = str(PurePosixPath(self._workdir, path).parent)
            result = await _tool(sandbox, ["sh", "-c", _SQUASH, "squash", where])
            if not result.ok:
                reason = result.stderr.decode(errors="replace").strip()[-300:]
                raise TaskError(f"git: squash: {where}: {reason}")

    async def keep(self, sandbox: Sandbox) -> None:
        """Copy every protected file to the host. Raises `TaskError` where they are too many."""
        if not self._globs:
            return
        names = await self._guarded(sandbox)
        if len(names) > MAX_PROTECTED:
            raise TaskError(f"protect: {len(names)} files fit; expected at most {MAX_PROTECTED}")
        room = MAX_PROTECTED_BYTES
        for name in names:
            copy = self._kept / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            await sandbox.download(self._full(name), copy, max_bytes=max(1, room))
            if copy.is_file() and not copy.is_symlink():
                room -= copy.stat().st_size
            self._digests[name] = await asyncio.to_thread(digest_of_file, copy)
        self.findings.protected = len(names)

    async def give_back(self, sandbox: Sandbox) -> None:
        """Put what was hidden where it was."""
        for full, copy in self._put_away.items():
            await remove_paths(sandbox, [full])
            await sandbox.upload(copy, full)

    async def put_back(self, sandbox: Sandbox, *, note: bool = True) -> None:
        """Undo what the agent did to protected files. Without `note` it was noted before."""
        if not self._globs:
            return
        # Compiled modules may be forged: Python takes one that says so without a look at its source.
        compiled = (await _tool(sandbox, _COMPILED)).stdout.split(b"\0")
        await remove_paths(sandbox, [self._full(_text(path)) for path in compiled if path])
        wrong = await self._differences(sandbox, note=note)
        if wrong:
            await remove_paths(sandbox, [self._full(name) for name in wrong])
        kept = [name for name in wrong if name in self._digests]
        if kept:
            await self._clear_the_way(sandbox, kept)
            for name in kept:
                await sandbox.upload(self._kept / name, self._full(name))
        self.findings.restored = not await self._differences(sandbox, note=False)

    def undo_on_host(self, tree: Path) -> None:
        """The same for a tree that was collected from the agent's sandbox and lies on the host."""
        there = {
            str(path.relative_to(tree)): path
            for path in tree.rglob("*")
            if (path.is_symlink() or not path.is_dir()) and ".git" not in path.parts
        }
        for name, path in there.items():
            if name not in self._digests and is_guarded(name, self._globs):
                self.findings.added.append(name)
                path.unlink()
        for name, digest in self._digests.items():
            path = there.get(name)
            if path is not None and digest_of_file(path) == digest:
                continue
            (self.findings.deleted if path is None else self.findings.changed).append(name)
            _place(self._kept / name, tree, name)

    async def _guarded(self, sandbox: Sandbox) -> list[str]:
        listed = await _tool(sandbox, _LIST)
        names = [_text(path).removeprefix("./") for path in listed.stdout.split(b"\0") if path]
        return sorted(name for name in names if is_guarded(name, self._globs))

    async def _differences(self, sandbox: Sandbox, *, note: bool = True) -> list[str]:
        """Names of protected files that are not as they were."""
        present = set(await self._guarded(sandbox))
        added = sorted(present - self._digests.keys())
        deleted = sorted(self._digests.keys() - present)
        changed = [
            name
            for name in sorted(present & self._digests.keys())
            if await self._digest_in(sandbox, name) != self._digests[name]
        ]
        if note:
            self.findings.added, self.findings.deleted = added, deleted
            self.findings.changed = changed
        return [*added, *deleted, *changed]

    async def _digest_in(self, sandbox: Sandbox, name: str) -> str | None:
        copy = self._kept.with_name("compared")
        try:
            await sandbox.download(self._full(name), copy)
            return await asyncio.to_thread(digest_of_file, copy)
        except SandboxFileError:
            return None
        finally:
            await to_the_end(asyncio.to_thread(_discard, copy))

    async def _clear_the_way(self, sandbox: Sandbox, names: Sequence[str]) -> None:
        """Remove what stands where the directory of a protected file was."""
        for name in names:
            for parent in reversed(PurePosixPath(name).parents[:-1]):
                full = self._full(str(parent))
                look = 'if [ -L "$1" ] || { [ -e "$1" ] && [ ! -d "$1" ]; }; then exit 7; fi'
                if (await _tool(sandbox, ["sh", "-c", look, "look", full])).exit_code == 7:
                    await remove_paths(sandbox, [full])

    def _full(self, name: str) -> str:
        return str(PurePosixPath(self._workdir, name))


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def digest_of_file(path: Path) -> str:
    """A fingerprint of a file's kind, mode and content; a link's is of where it leads."""
    if path.is_symlink():
        return f"link {path.readlink()}"
    if not path.is_file():
        return "no file"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{path.stat().st_mode & 0o111:o} {digest}"


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _place(source: Path, tree: Path, name: str) -> None:
    """Copy a kept file into a collected tree, through directories of that tree only."""
    where = tree
    for part in PurePosixPath(name).parts[:-1]:
        where /= part
        if where.is_symlink() or (where.exists() and not where.is_dir()):
            where.unlink()
        where.mkdir(exist_ok=True)
    target = where / PurePosixPath(name).name
    _discard(target)
    shutil.copy2(source, target, follow_symlinks=False)
