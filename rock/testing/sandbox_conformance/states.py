"""Checks: going back, keeping and pausing. A state is files; processes and shared memory end."""

from __future__ import annotations

import asyncio

from rock.errors import NotSupported, SandboxBusy, SandboxDied, SandboxError
from rock.sandbox.base import ExecStatus, Sandbox
from rock.sandbox.state import Capability, ResetReceipt
from rock.testing.sandbox_conformance.isolation import answering, connect
from rock.testing.sandbox_conformance.subject import (
    Subject,
    Suite,
    expect,
    is_alive,
    output,
    sh,
    until,
    written,
)

CHECKS = Suite()

_CHANGE = """
echo changed >given; mkdir -p deep/er; ln -s /etc/passwd link; : >deep/er/empty
rm -rf "$HOME"/* ; echo x >"$HOME"/x; echo x >/tmp/x; echo x >/dev/shm/x
"""


def _can(box: Sandbox, capability: Capability) -> bool:
    return capability in box.capabilities


async def _dirty(box: Sandbox) -> str:
    """Change every writable place and leave processes behind; the pid of one that hides."""
    await output(box, _CHANGE)
    script = "(setsid sh -c 'echo $$ >/tmp/pid; exec sleep 300' &); sleep 300"
    running = asyncio.ensure_future(sh(box, script))
    pid = await written(box, "/tmp/pid")
    assert await is_alive(box, pid)
    running.cancel()
    return pid


async def _names(box: Sandbox) -> str:
    return await output(box, 'ls -A . "$HOME" /tmp /dev/shm; cat /etc/passwd')


def _check_receipt(receipt: ResetReceipt, box: Sandbox) -> None:
    assert receipt.clean, receipt
    assert receipt.seconds > 0
    if _can(box, Capability.RESET_IN_PLACE):
        assert receipt.tier == "sweep", receipt
        assert receipt.same_network
        assert receipt.reason == ""
    else:
        assert receipt.reason, receipt


@CHECKS
async def reset_brings_back_the_files_of_the_start_and_ends_every_process(subject: Subject) -> None:
    async with await subject.create() as box:
        before = await _names(box)
        for _ in range(3):
            pid = await _dirty(box)
            assert await _names(box) != before
            _check_receipt(await box.reset(), box)
            assert await _names(box) == before
            assert not await is_alive(box, pid)
            assert (await sh(box, "echo again >again && cat again")).stdout == b"again\n"


@CHECKS
async def reset_undoes_what_root_did_to_the_system(subject: Subject) -> None:
    async with await subject.create(user="root") as box:
        before = await _names(box)
        await output(
            box,
            "echo evil::0:0::/:/bin/sh >>/etc/passwd; mv /media /media2 2>/dev/null; ln -s / /media;"
            "rm -rf /workspace; ln -s /etc /workspace; rm -rf /home; echo x >/home; chmod 700 /;"
            "mv /srv /srv2; ln -s ../../.. /srv; true",
        )
        _check_receipt(await box.reset(), box)
        assert await _names(box) == before
        assert await output(box, "stat -c %a / /workspace") == "755\n755\n"


@CHECKS
async def what_ran_when_the_reset_came_is_told_so(subject: Subject) -> None:
    async with await subject.create() as box:
        running = [
            asyncio.ensure_future(sh(box, f"echo up; echo up >{index}; sleep 300"))
            for index in range(5)
        ]
        for index in range(5):
            await written(box, str(index))
        receipt = await box.reset()
        results = await asyncio.gather(*running)
        expected = {ExecStatus.SIGNALED, ExecStatus.SANDBOX_DIED}
        assert {result.status for result in results} <= expected
        assert all(result.stdout == b"up\n" for result in results)
        if _can(box, Capability.RESET_IN_PLACE):
            assert receipt.ended >= 5, receipt


@CHECKS
async def whoever_served_the_sandbox_still_does_after_a_reset_that_says_so(
    subject: Subject,
) -> None:
    async with await subject.create() as box:
        with await box.listen() as listener:
            port = listener.getsockname()[1]
            receipt = await box.reset()
            if not receipt.same_network:
                listener.close()
                listener = await box.listen(port)
            async with answering(listener, b"pong\n"):
                assert await connect(box, "127.0.0.1", port) == b"pong\n"


@CHECKS
async def a_fork_bomb_does_not_outlive_a_reset(subject: Subject) -> None:
    async with await subject.create() as box:
        bomb = "echo up >up; f() { f | f & }; f; sleep 100"
        running = asyncio.ensure_future(sh(box, bomb))
        await written(box, "up")
        _check_receipt(await box.reset(), box)
        running.cancel()
        await asyncio.wait([running])
        assert "up" not in await output(box, "ls")


@CHECKS
async def a_snapshot_keeps_files_and_can_be_gone_back_to(subject: Subject) -> None:
    async with await subject.create() as box:
        if not _can(box, Capability.SNAPSHOT):
            await expect(NotSupported, box.snapshot())
            return
        await output(
            box, "echo one >file; mkdir d; echo kept >d/kept; ln -s d link; chmod 640 file"
        )
        first = await box.snapshot()
        await output(box, "echo two >file; rm -r d; echo new >new")
        second = await box.snapshot()
        await output(box, "rm file link new")
        for snapshot, seen in ((first, "one\nd\nfile\nlink\n"), (second, "two\nfile\nlink\nnew\n")):
            receipt = await box.restore(snapshot)
            assert receipt.clean, receipt
            assert await output(box, "cat file; ls") == seen
            assert await output(box, "stat -c %a file") == "640\n"
        await box.restore(first)
        assert await output(box, "cat link/kept") == "kept\n"
        await box.reset()
        assert await output(box, "ls") == ""
        first.release()
        await expect(SandboxError, box.restore(first))
        await box.restore(second)
        assert await output(box, "cat file") == "two\n"
        second.release()


@CHECKS
async def a_diff_tells_what_a_reset_would_undo(subject: Subject) -> None:
    async with await subject.create() as box:
        if not _can(box, Capability.SNAPSHOT):
            await expect(NotSupported, box.diff())
            return
        assert not (await box.diff()).entries
        await output(box, "echo 12345 >file; mkdir -p d/e; echo x >d/kept; ln -s /etc/passwd link")
        (await box.snapshot()).release()
        await output(box, "rm d/kept; echo 1 >file; mkfifo pipe; echo t >/tmp/t")
        changes = await box.diff()
        assert changes.complete
        seen = {change.path: (change.kind, change.size_bytes) for change in changes.entries}
        workdir = box.spec.workdir
        assert seen == {
            f"{workdir}/file": ("file", 2),
            f"{workdir}/d/kept": ("removed", 0),
            f"{workdir}/d/e": ("directory", 0),
            f"{workdir}/link": ("link", 0),
            f"{workdir}/pipe": ("other", 0),
            "/tmp/t": ("file", 2),
        }, seen
        assert not (await box.diff(max_entries=2)).complete
        await box.reset()
        assert not (await box.diff()).entries


@CHECKS
async def a_fork_starts_from_the_same_files_and_is_another_sandbox(subject: Subject) -> None:
    async with await subject.create() as box:
        if not _can(box, Capability.SNAPSHOT):
            return
        await output(box, "echo shared >shared; echo x >/tmp/x")
        others = await subject.provider.fork(box, 2)
        try:
            await output(box, "echo changed >shared")
            await output(others[0], "echo mine >shared")
            assert await output(others[1], "cat shared /tmp/x") == "shared\nx\n"
            assert await output(others[0], "cat shared") == "mine\n"
            assert await output(box, "cat shared") == "changed\n"
            await others[0].reset()
            assert await output(others[0], "cat shared") == "shared\n"
        finally:
            await asyncio.gather(*(other.stop() for other in others))


@CHECKS
async def a_snapshot_outlives_its_sandbox(subject: Subject) -> None:
    """Also one that has died: an episode goes on from its last good state."""
    box = await subject.create()
    try:
        if not _can(box, Capability.SNAPSHOT):
            return
        await output(box, "echo good >state")
        snapshot = await box.snapshot()
    finally:
        await box.stop()
    await expect(SandboxDied, box.snapshot())
    for _ in range(2):
        async with await subject.provider.create(box.spec, snapshot=snapshot) as other:
            assert await output(other, "cat state") == "good\n"
            await output(other, "echo bad >state")
            await other.restore(snapshot)
            assert await output(other, "cat state") == "good\n"
    snapshot.release()


@CHECKS
async def an_episode_goes_on_from_its_last_good_state(subject: Subject) -> None:
    box = await subject.create(lifetime_seconds=4.0)
    if not _can(box, Capability.SNAPSHOT):
        await box.stop()
        return
    await output(box, "echo good >state")
    snapshot = await box.snapshot()
    await output(box, "echo bad >state")
    same = await subject.provider.recover(box, snapshot)
    assert same is box
    assert await output(box, "cat state") == "good\n"
    dying = await sh(box, "sleep 300")  # until its lifetime is over
    assert dying.status is ExecStatus.SANDBOX_DIED
    async with await subject.provider.recover(box, snapshot) as other:
        assert other is not box
        assert await output(other, "cat state") == "good\n"
    snapshot.release()


@CHECKS
async def a_snapshot_is_not_taken_while_a_command_may_be_writing(subject: Subject) -> None:
    async with await subject.create() as box:
        if not _can(box, Capability.SNAPSHOT):
            return
        running = asyncio.ensure_future(sh(box, "echo up >up; sleep 300"))
        await written(box, "up")
        await expect(SandboxBusy, box.snapshot())
        running.cancel()
        await asyncio.wait([running])

        async def taken() -> bool:
            try:
                (await box.snapshot()).release()
            except SandboxBusy:
                return False
            return True

        await until("the command is over and a snapshot is taken", taken)


@CHECKS
async def a_snapshot_of_something_else_is_refused(subject: Subject) -> None:
    async with await subject.create() as box, await subject.create(workdir="/elsewhere") as other:
        if not _can(box, Capability.SNAPSHOT):
            return
        snapshot = await box.snapshot()
        refused = await expect(SandboxError, other.restore(snapshot))
        assert "made of" in refused.message
        assert await output(other, "pwd") == "/elsewhere\n"
        snapshot.release()


@CHECKS
async def a_paused_sandbox_stands_still_and_says_so(subject: Subject) -> None:
    async with await subject.create() as box:
        if not _can(box, Capability.PAUSE):
            await expect(NotSupported, box.pause())
            return
        script = "echo up >up; while [ ! -e enough ]; do echo x; done | tail -n 1"
        running = asyncio.ensure_future(sh(box, script))
        await written(box, "up")
        await box.pause()
        await box.pause()
        await expect(SandboxBusy, sh(box, "true"))
        await expect(SandboxBusy, box.read_file("up"))
        assert not running.done()
        await box.resume()
        await box.resume()
        await box.write_file("enough", b"")
        assert (await running).stdout == b"x\n"
        assert (await sh(box, "true")).ok


@CHECKS
async def a_paused_sandbox_can_be_reset_and_stopped(subject: Subject) -> None:
    box = await subject.create()
    try:
        if not _can(box, Capability.PAUSE):
            return
        running = asyncio.ensure_future(sh(box, "echo up >up; sleep 300"))
        await written(box, "up")
        await box.pause()
        _check_receipt(await box.reset(), box)
        assert (await running).status in (ExecStatus.SIGNALED, ExecStatus.SANDBOX_DIED)
        assert await output(box, "ls") == ""
        await box.pause()
    finally:
        await box.stop()
