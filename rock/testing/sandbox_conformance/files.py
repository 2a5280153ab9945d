"""Checks: files in and out. Bytes and modes survive; nothing escapes, in either direction."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rock.errors import SandboxError, SandboxFileError, UnsafeArchive
from rock.testing.sandbox_conformance.subject import Subject, Suite, expect, host_folder, output, sh

CHECKS = Suite()

_ODD_NAMES = ("with space", "new\nline", "ünïcode", "-dash", "*", "'quote\"", ".hidden", "a\\b")


@CHECKS
async def a_file_comes_back_as_it_was_written(subject: Subject) -> None:
    async with await subject.create() as box:
        for data in (b"", b"text\n", bytes(range(256)), os.urandom(3_000_000)):
            await box.write_file("data", data)
            assert await box.read_file("data") == data
        assert await output(box, "wc -c <data") == "3000000\n"


@CHECKS
async def a_written_file_has_its_mode_and_belongs_to_the_user(subject: Subject) -> None:
    async with await subject.create() as box:
        await box.write_file("deep/er/run.sh", b"#!/bin/sh\necho ran\n", mode=0o750)
        assert await output(box, "./deep/er/run.sh && stat -c %a deep/er/run.sh") == "ran\n750\n"
        await output(box, "echo more >>deep/er/run.sh && touch deep/er/new && rm -r deep")


@CHECKS
async def a_write_replaces_a_file_at_once(subject: Subject) -> None:
    async with await subject.create() as box:
        await box.write_file("f", b"old and longer")
        await output(box, "ln f hard")
        await box.write_file("f", b"new")
        assert await output(box, "cat f; echo; cat hard; ls -A | wc -l") == (
            "new\nold and longer" + "2\n"
        )


@CHECKS
async def a_write_does_not_follow_a_link_in_its_place(subject: Subject) -> None:
    async with await subject.create() as box:
        await output(box, "echo keep >target && ln -s target link")
        await box.write_file("link", b"mine")
        assert await output(box, "cat target; cat link") == "keep\nmine"


@CHECKS
async def unreadable_paths_are_typed_errors(subject: Subject) -> None:
    async with await subject.create() as box:
        await output(box, "mkdir dir && mkfifo pipe && ln -s loop loop && ln -s /no/where gone")
        for path in ("missing", "dir", "pipe", "loop", "gone", "missing/deeper", "/dev/zero"):
            await expect(SandboxFileError, box.read_file(path))


@CHECKS
async def unwritable_paths_are_typed_errors(subject: Subject) -> None:
    async with await subject.create() as box:
        await output(box, "mkdir dir && echo x >file")
        for path in ("dir", "file/below", "/proc/nothing", ".."):
            await expect(SandboxFileError, box.write_file(path, b"x"))
        assert await output(box, "ls -A") == "dir\nfile\n"


@CHECKS
async def a_file_over_the_bound_is_refused(subject: Subject) -> None:
    async with await subject.create() as box:
        await box.write_file("big", b"x" * 1001)
        await expect(SandboxFileError, box.read_file("big", max_bytes=1000))
        assert len(await box.read_file("big", max_bytes=1001)) == 1001
        await output(box, "truncate -s 1G huge 2>/dev/null || head -c 70000000 /dev/zero >huge")
        await expect(SandboxFileError, box.read_file("huge"))


@CHECKS
async def links_resolve_inside_the_sandbox(subject: Subject) -> None:
    with host_folder() as folder:
        secret = folder / "secret"
        secret.write_text("of the host")
        async with await subject.create() as box:
            await output(box, f"ln -s {secret} direct; ln -s {'../' * 12}{secret} up")
            for path in ("direct", "up", str(secret)):
                await expect(SandboxFileError, box.read_file(path))
            await box.write_file("direct", b"from inside")
            await box.upload(secret, "/tmp/rock-check/up")
        assert secret.read_text() == "of the host"


@CHECKS
async def a_tree_survives_the_way_in_and_out(subject: Subject) -> None:
    with host_folder() as folder:
        source = folder / "tree"
        _make_tree(source)
        async with await subject.create() as box:
            await box.upload(source, "copy")
            assert await output(box, "./copy/bin/tool") == "tool\n"
            await output(box, "echo mine >copy/bin/new && rm copy/bin/new")
            await box.download("copy", folder / "back")
        assert _described(folder / "back") == _described(source)


@CHECKS
async def a_single_file_goes_in_and_out(subject: Subject) -> None:
    with host_folder() as folder:
        (folder / "one").write_bytes(b"\0one\xff")
        (folder / "one").chmod(0o640)
        async with await subject.create() as box:
            await box.upload(folder / "one", "deep/one")
            await box.download("deep/one", folder / "back")
        assert _described(folder / "back") == _described(folder / "one")


@CHECKS
async def an_upload_replaces_links_and_never_follows_them(subject: Subject) -> None:
    with host_folder() as folder:
        _make_tree(folder / "tree")
        async with await subject.create() as box:
            plant = (
                "mkdir -p victim copy && echo keep >victim/a && ln -s ../victim copy/bin "
                "&& ln -s ../victim/a copy/private && ln copy/private copy/link"
            )
            await output(box, plant)
            await box.upload(folder / "tree", "copy")
            await box.upload(folder / "tree", "copy")
            assert await output(box, "ls -A victim; cat victim/a; ./copy/bin/tool") == (
                "a\nkeep\ntool\n"
            )
            await box.download("copy", folder / "back")
        assert _described(folder / "back") == _described(folder / "tree")


@CHECKS
async def a_download_recreates_links_and_never_follows_them(subject: Subject) -> None:
    with host_folder() as folder:
        (folder / "secret").write_text("of the host")
        async with await subject.create() as box:
            await output(
                box,
                f"mkdir tree && cd tree && ln -s {folder} out && ln -s {folder}/secret file "
                "&& mkfifo pipe && echo x >real",
            )
            await box.download("tree", folder / "got")
        assert (folder / "got" / "out").is_symlink()
        assert (folder / "got" / "file").is_symlink()
        assert sorted(path.name for path in (folder / "got").iterdir()) == ["file", "out", "real"]
        assert (folder / "secret").read_text() == "of the host"


@CHECKS
async def a_tree_over_a_cap_is_refused_and_leaves_nothing(subject: Subject) -> None:
    with host_folder() as folder:
        async with await subject.create() as box:
            await output(box, "mkdir -p t/d && head -c 300000 /dev/zero >t/d/f && touch t/1 t/2")
            target = folder / "got"
            await expect(UnsafeArchive, box.download("t", target, max_bytes=299_999))
            assert not target.exists()
            await expect(UnsafeArchive, box.download("t", target, max_entries=4))
            assert not target.exists()
            await box.download("t", target, max_bytes=300_000, max_entries=5)
            assert (target / "d" / "f").stat().st_size == 300_000


@CHECKS
async def a_download_never_touches_what_is_there(subject: Subject) -> None:
    with host_folder() as folder:
        (folder / "mine").write_text("mine")
        async with await subject.create() as box:
            await output(box, "echo theirs >f")
            await expect(SandboxFileError, box.download("f", folder / "mine"))
            await expect(SandboxFileError, box.download("missing", folder / "other"))
            assert not (folder / "other").exists()
        assert (folder / "mine").read_text() == "mine"


@CHECKS
async def an_upload_that_cannot_be_is_a_typed_error(subject: Subject) -> None:
    with host_folder() as folder:
        _make_tree(folder / "tree")
        async with await subject.create() as box:
            await output(box, "echo x >file")
            await expect(SandboxFileError, box.upload(folder / "missing", "copy"))
            await expect(SandboxFileError, box.upload(folder / "tree", "file/below"))
            await expect(SandboxError, box.upload(folder / "tree", "/proc/self/copy"))
            assert (await sh(box, "cat file")).stdout == b"x\n"


_LONG = "x" * 255
_DEEP = "d" * 200


@CHECKS
async def what_no_ordinary_tree_has_comes_out_or_is_left_out(subject: Subject) -> None:
    with host_folder() as folder:
        async with await subject.create() as box:
            script = (
                "mkdir t && cd t && mkfifo pipe && ln -s loop loop && : >$1 && ln -s ../../../etc up"
                "&& truncate -s 40M hole && echo end >>hole && ln hole hard && mkdir closed"
                "&& echo x >closed/f && chmod 0 closed && printf x >\"$(printf '\\377\\033')\""
            )
            made = await box.exec(["sh", "-c", script, "sh", _LONG], timeout_seconds=20)
            assert made.ok, made
            await box.download("t", folder / "got")
        names = {os.fsencode(path.name) for path in (folder / "got").iterdir()}
        assert names == {b"loop", _LONG.encode(), b"up", b"hole", b"hard", b"closed", b"\xff\x1b"}
        hole = (folder / "got" / "hole").stat()
        assert (hole.st_size, hole.st_blocks * 512 < 10**6) == (40 * 1024**2 + 4, True)
        assert (folder / "got" / "hard").read_bytes()[-5:] == b"\0end\n"


@CHECKS
async def a_tree_deeper_than_a_path_can_be_is_a_typed_error(subject: Subject) -> None:
    with host_folder() as folder:
        async with await subject.create() as box:
            script = "mkdir t; cd t; for i in $(seq 30); do mkdir $1 && cd -P $1 || exit 1; done"
            made = await box.exec(["sh", "-c", script, "sh", _DEEP], timeout_seconds=20)
            assert made.ok, made
            error = await expect(SandboxFileError, box.download("t", folder / "got"))
            assert len(error.message) < 500
            assert list(folder.iterdir()) == []
            assert await output(box, "echo fine") == "fine\n"


def _make_tree(root: Path) -> None:
    (root / "bin").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o700)
    (root / "bin" / "tool").write_text("#!/bin/sh\necho tool\n")
    (root / "bin" / "tool").chmod(0o755)
    (root / "private").write_bytes(bytes(range(256)))
    (root / "private").chmod(0o600)
    (root / "read-only").mkdir()
    (root / "read-only" / "file").write_text("x")
    (root / "read-only" / "file").chmod(0o444)
    (root / "link").symlink_to("bin/tool")
    (root / "dangling").symlink_to("/no/such/place")
    for name in _ODD_NAMES:
        (root / name).write_text(name)
    (root / os.fsdecode(b"not utf-8 \xff")).write_text("raw")
    (root / "big").write_bytes(os.urandom(1_500_000))


def _described(path: Path) -> dict[str, tuple[str, int, bytes]]:
    """Everything a copy must keep: kind, mode and content of every entry."""
    found: dict[str, tuple[str, int, bytes]] = {}
    for entry in [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]:
        info = entry.lstat()
        mode = stat.S_IMODE(info.st_mode)
        name = str(entry.relative_to(path))
        if stat.S_ISLNK(info.st_mode):
            found[name] = ("link", 0, os.fsencode(entry.readlink()))
        elif stat.S_ISDIR(info.st_mode):
            found[name] = ("dir", mode, b"")
        else:
            found[name] = ("file", mode, entry.read_bytes())
    return found
