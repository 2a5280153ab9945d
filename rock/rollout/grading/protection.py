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
import contextlib
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from rock.errors import BadUser, SandboxFileError, TaskError
from rock.rollout.grading.clearing import OPEN, remove_paths, tool
from rock.rollout.inputs.graders import is_guarded
from rock.rollout.records.evidence import describe
from rock.rollout.records.integrity import MAX_LISTED, Integrity
from rock.sandbox.base import Sandbox
from rock.sandbox.ending import to_the_end

MAX_PROTECTED = 5_000
MAX_PROTECTED_BYTES = 256 * 1024 * 1024
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
            changed=_told(self.changed),
            added=_told(self.added),
            deleted=_told(self.deleted),
            tampered=len(self.changed) + len(self.added) + len(self.deleted),
            restored=self.restored,
            hidden=self.hidden,
            git=self.git,
            fresh=self.fresh,
            collected_sha256=self.collected_sha256,
        )


def _told(names: Iterable[str]) -> list[str]:
    """Names for a record and a terminal: file names are any bytes."""
    return [_escaped(name) for name in sorted(names)[:MAX_LISTED]]


def _escaped(name: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in name
    )


class Protection:
    """One attempt's protected and hidden files. `folder` is an empty directory on the host."""

    def __init__(self, workdir: str, globs: Sequence[str], folder: Path) -> None:
        self._workdir = workdir
        self._globs = tuple(globs)
        self._kept = folder / "kept"
        self._hidden = folder / "hidden"
        self._digests: dict[str, str] = {}
        self._put_away: dict[str, Path] = {}
        self._has_gaps: bool | None = None
        """Whether the image has folders in the working directory that nobody may read."""
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
        listed = await tool(sandbox, _REPOSITORIES)
        found = [_text(path) for path in listed.stdout.split(b"\0") if path]
        await remove_paths(sandbox, [str(PurePosixPath(self._workdir, path)) for path in found])
        if how == "remove":
            return
        for path in found:
            where = str(PurePosixPath(self._workdir, path).parent)
            result = await tool(sandbox, ["sh", "-c", _SQUASH, "squash", where])
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
        compiled = await self._listed(sandbox, _COMPILED)
        await remove_paths(sandbox, [self._full(path) for path in compiled])
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
        names = [name.removeprefix("./") for name in await self._listed(sandbox, _LIST)]
        return sorted(name for name in names if is_guarded(name, self._globs))

    async def _listed(self, sandbox: Sandbox, find: Sequence[str]) -> list[str]:
        """All that `find` finds in the working directory. Raises `TaskError` for a list with gaps that
        were not there before the agent: what is not in it could be anything."""
        result = await tool(sandbox, find)
        if not result.ok and self._has_gaps is False:
            for user in (None, "root"):
                with contextlib.suppress(BadUser):
                    argv = ["sh", "-c", OPEN, "open", self._workdir]
                    await tool(sandbox, argv, user=user, cwd="/")
            result = await tool(sandbox, find)
        if not result.ok and not (self._has_gaps is not False and result.exit_code == 1):
            raise TaskError(f"the working directory cannot be listed: find {describe(result)}")
        if self._has_gaps is None:
            self._has_gaps = not result.ok
        return [_text(path) for path in result.stdout.split(b"\0") if path]

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
                if (await tool(sandbox, ["sh", "-c", look, "look", full])).exit_code == 7:
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
