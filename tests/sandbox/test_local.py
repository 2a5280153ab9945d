"""The local provider: what it leaves (nothing), whom it dies with, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import pytest

from rock import process
from rock.config import inherited_environment
from rock.errors import BadUser, ConfigError, SandboxDied, SandboxError
from rock.sandbox.base import ExecStatus, Limits, Mount, SandboxSpec
from rock.sandbox.helper import helper_path
from rock.sandbox.local import LocalProvider, box_spec
from tests.sandbox.plain_helper import is_running, until, wait_until_gone

pytestmark = pytest.mark.userns

OWNER = """
import asyncio, sys
from rock.sandbox.base import SandboxSpec
from rock.sandbox.local import LocalProvider

async def main():
    async with LocalProvider() as provider:
        sandbox = await provider.create(SandboxSpec())
        script = "(setsid sleep 301.5 &); echo started"
        command = ["sh", "-c", script + "; sleep 300"]
        running = asyncio.ensure_future(sandbox.exec(command, timeout_seconds=100))
        while True:
            seen = await sandbox.exec(["sh", "-c", "cat /proc/*/comm"], timeout_seconds=10)
            if seen.stdout.split().count(b"sleep") == 2:
                break
        print("up", flush=True)
        await running

asyncio.run(main())
"""
PROBE = """
import asyncio
from rock.sandbox.local import LocalProvider

async def main():
    async with LocalProvider() as provider:
        found = await provider.probe()
        print(found.available, found.detail, found.remedy, sep="|")

asyncio.run(main())
"""


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in _children(pid):
        found += [child, *descendants(child)]
    return found


def _children(pid: int) -> list[int]:
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]


def abandoned_helpers() -> list[str]:
    """Helpers of local sandboxes whose harness is gone; each ends itself soon."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            text = path.read_text()
            if "Name:\trock-init\n" in text and "\nPPid:\t1\n" in text:
                command = path.with_name("cmdline").read_bytes().split(b"\0")
                if command[:2] == [os.fsencode(helper_path()), b"local"]:
                    found.append(path.parent.name)
    return found


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def until_childless() -> None:
    await until("no child process is left", lambda: not ours())


async def test_cycles_leave_no_process_and_no_descriptor() -> None:
    await until_childless()
    async with LocalProvider() as provider:
        await (await provider.create(SandboxSpec())).stop()
        before = descriptors()
        for _ in range(10):
            async with await provider.create(SandboxSpec()) as sandbox:
                assert (await sandbox.exec(["true"], timeout_seconds=10)).ok
        assert descriptors() == before
    assert ours() == []


async def test_closing_the_provider_stops_what_it_made() -> None:
    async with LocalProvider() as provider:
        sandboxes = [await provider.create(SandboxSpec()) for _ in range(3)]
        pids = ours()
        assert len(pids) >= 6
    assert not any(is_running(pid) for pid in pids)
    for sandbox in sandboxes:
        with pytest.raises(SandboxDied):
            await sandbox.exec(["true"], timeout_seconds=5)
    with pytest.raises(SandboxError, match="closed"):
        await provider.create(SandboxSpec())


async def test_a_creation_that_is_cancelled_leaves_nothing() -> None:
    rng = random.Random(7)
    async with LocalProvider() as provider:
        await (await provider.create(SandboxSpec())).stop()
        before = descriptors()
        cancelled = 0
        for _ in range(25):
            try:
                async with asyncio.timeout(rng.uniform(0, 0.04)):
                    sandbox = await provider.create(SandboxSpec())
            except TimeoutError:
                cancelled += 1
            else:
                await sandbox.stop()
        assert cancelled > 0
        await until_childless()
        await until("no helper is left to init", lambda: not abandoned_helpers())
        assert descriptors() == before


async def test_a_harness_that_is_killed_takes_its_sandboxes_with_it() -> None:
    owner = await process.start(
        [sys.executable, "-c", OWNER], env=inherited_environment(), stdout=process.PIPE
    )
    try:
        assert owner.stdout is not None
        assert await asyncio.wait_for(owner.stdout.readline(), 30) == b"up\n"
        pids: list[int] = []

        def complete() -> bool:  # a walk through /proc can miss what changes meanwhile
            pids[:] = descendants(owner.pid)
            started = any(_command(pid).startswith(b"sleep\x00301.5") for pid in pids)
            return started and all(is_running(pid) for pid in pids)

        await until("all of the sandbox's processes are seen alive", complete)
        os.kill(owner.pid, signal.SIGKILL)
        for pid in pids:
            await wait_until_gone(pid)
        await until("no helper is left to init", lambda: not abandoned_helpers())
    finally:
        await process.stop(owner)


async def test_a_sandbox_whose_processes_are_killed_from_outside_is_reported_dead() -> None:
    async with LocalProvider() as provider:
        sandbox = await provider.create(SandboxSpec())
        run = asyncio.ensure_future(
            sandbox.exec(["sh", "-c", "echo up; sleep 300"], timeout_seconds=60)
        )
        await until("the command runs", lambda: any(b"sleep" in _command(pid) for pid in ours()))
        for pid in _children(os.getpid()):
            os.kill(pid, signal.SIGKILL)
        result = await run
        assert (result.status, result.stdout) == (ExecStatus.SANDBOX_DIED, b"up\n")
        with pytest.raises(SandboxDied):
            await sandbox.read_file("/etc/passwd")
        await sandbox.stop()


def ours() -> list[int]:
    return descendants(os.getpid())


def _command(pid: int) -> bytes:
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize(
    ("switch_off", "remedy"),
    [
        ("echo 0 >/proc/sys/user/max_user_namespaces", "sysctl -w user.max_user_namespaces"),
        ("echo 0 >/proc/sys/user/max_pid_namespaces", "seccomp=unconfined"),
    ],
)
async def test_a_kernel_that_refuses_is_reported_with_the_step_and_a_remedy(
    switch_off: str, remedy: str
) -> None:
    script = f'{switch_off} && exec "$0" -c "$1"'
    probing = await process.start(
        ["unshare", "-Ur", "sh", "-c", script, sys.executable, PROBE],
        env=inherited_environment(),
        stdout=process.PIPE,
    )
    out, _ = await asyncio.wait_for(probing.communicate(), 40)
    available, detail, advice = out.decode().strip().split("|")
    assert available == "False"
    assert "namespace" in detail
    assert remedy in advice


async def test_it_works_for_the_root_of_a_user_namespace_too() -> None:
    probing = await process.start(
        ["unshare", "-Ur", sys.executable, "-c", PROBE],
        env=inherited_environment(),
        stdout=process.PIPE,
    )
    out, _ = await asyncio.wait_for(probing.communicate(), 40)
    assert out.startswith(b"True|")


@pytest.mark.busybox
async def test_an_unpacked_root_is_the_whole_root(tmp_path: Path) -> None:
    """An image of one static program, made here: the helper serves in it as in any other."""
    _unpack_image(tmp_path / "root")
    async with LocalProvider() as provider:
        spec = SandboxSpec(image=str(tmp_path / "root"))
        async with await provider.create(spec) as sandbox:
            result = await sandbox.exec(["/bin/busybox", "ls", "/"], timeout_seconds=10)
            names = set(result.stdout.decode().split())
            assert {"bin", "only-here", "dev", "proc", "tmp", "workspace", "home"} <= names
            assert "usr" not in names
            whoami = await sandbox.exec(["/bin/busybox", "whoami"], timeout_seconds=10)
            assert whoami.stdout == b"agent\n"
            await sandbox.write_file("/only-here/new", b"inside")
        async with await provider.create(SandboxSpec(image=spec.image, user="root")) as sandbox:
            result = await sandbox.exec(
                [
                    "/bin/busybox",
                    "sh",
                    "-c",
                    "echo changed >/only-here/file && cat /only-here/file",
                ],
                timeout_seconds=10,
            )
            assert result.stdout == b"changed\n", result.stderr
    assert (tmp_path / "root" / "only-here" / "file").read_text() == "original"
    assert not (tmp_path / "root" / "only-here" / "new").exists()
    assert not (tmp_path / "root" / "workspace").exists()


def _unpack_image(root: Path) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "busybox").write_bytes(Path(busybox).read_bytes())
    (root / "bin" / "busybox").chmod(0o755)
    (root / "only-here").mkdir()
    (root / "only-here" / "file").write_text("original")


@pytest.mark.parametrize("image", ["/", "/no/such/directory", "debian:12", "/etc/passwd"])
async def test_what_is_no_unpacked_root_is_refused(image: str) -> None:
    async with LocalProvider() as provider:
        with pytest.raises(ConfigError, match="image: got"):
            await provider.create(SandboxSpec(image=image))


async def test_memory_of_one_process_is_bounded() -> None:
    script = "x = bytearray(400_000_000)"
    async with LocalProvider() as provider:
        spec = SandboxSpec(limits=Limits(memory_bytes=200_000_000))
        async with await provider.create(spec) as sandbox:
            result = await sandbox.exec(["python3", "-c", script], timeout_seconds=30)
            assert result.exit_code == 1
            assert b"MemoryError" in result.stderr
            small = await sandbox.exec(["python3", "-c", "print(1)"], timeout_seconds=30)
            assert small.ok


async def test_files_in_a_sandbox_are_bounded_by_its_memory() -> None:
    async with LocalProvider() as provider:
        spec = SandboxSpec(limits=Limits(memory_bytes=50_000_000))
        async with await provider.create(spec) as sandbox:
            fill = ["sh", "-c", "cat /dev/zero >fill; rm fill; echo again >f; cat f"]
            result = await sandbox.exec(fill, timeout_seconds=30)
            assert result.stdout == b"again\n"
            assert b"No space left" in result.stderr


async def test_a_mount_below_a_private_directory_of_root_is_shown(tmp_path: Path) -> None:
    private = tmp_path / "private"
    (private / "tool").mkdir(parents=True)
    (private / "tool" / "run").write_text("#!/bin/sh\necho ran\n")
    (private / "tool" / "run").chmod(0o755)
    private.chmod(0o700)
    async with LocalProvider() as provider:
        spec = SandboxSpec(mounts=(Mount(source=private / "tool", target="/opt/agent"),))
        async with await provider.create(spec) as sandbox:
            result = await sandbox.exec(["/opt/agent/run"], timeout_seconds=10)
            assert result.stdout == b"ran\n"


async def test_many_sandboxes_live_side_by_side() -> None:
    async with LocalProvider() as provider:
        sandboxes = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(40)))
        results = await asyncio.gather(
            *(box.exec(["sh", "-c", "echo $$"], timeout_seconds=30) for box in sandboxes)
        )
        assert all(result.ok for result in results)
        assert len({box.id for box in sandboxes}) == 40


def test_ids_of_the_host_are_never_those_inside() -> None:
    for slot in (0, 1, 3999, 4000, 12345):
        ids = box_spec.ids_for_root(slot)
        assert ids.outside_uid >= 0x70000000
        assert ids.outside_uid + ids.count < 0x80000000


def test_an_ordinary_user_is_whoever_the_spec_asks_for() -> None:
    assert box_spec.ids_for_user(None, 500, 501).uid == 1000
    assert box_spec.ids_for_user("root", 500, 501).uid == 0
    assert box_spec.ids_for_user("7:8", 500, 501).uid == 7
    assert box_spec.ids_for_user("agent", 500, 501).outside_uid == 500
    with pytest.raises(BadUser, match="numeric"):
        box_spec.ids_for_user("postgres", 500, 501)
