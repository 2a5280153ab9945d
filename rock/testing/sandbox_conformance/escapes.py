"""Checks: attempts to get out, or to take the machine down. `docs/isolation.md` says what stops each.

Every attempt is made as the default user and, where the provider has one, as root inside. Those that
need system calls of their own use python3 and are left out where the image has none.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from rock.errors import RockError
from rock.sandbox.base import ExecStatus, Limits, Sandbox
from rock.sandbox.state import Capability
from rock.testing.sandbox_conformance.isolation import connect, root_if_possible
from rock.testing.sandbox_conformance.subject import (
    Subject,
    Suite,
    host_folder,
    output,
    sh,
    written,
)

CHECKS = Suite()

_CALLS = r"""
import ctypes, fcntl, json, os, platform, resource, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
def call(name, x86, generic, *arguments):
    result = libc.syscall(ctypes.c_long(generic if arm else x86), *arguments)
    return name if result >= 0 else None
def python(name, work):
    try:
        work()
    except (OSError, ValueError):
        return None
    return name
zero = ctypes.create_string_buffer(4096)
here = (ctypes.c_size_t * 2)(ctypes.addressof(zero), 8)
there = (ctypes.c_size_t * 2)(0x400000, 8)
few = struct.pack("QQ", 50, 50)
tty = os.openpty()[1]
new = 0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000
tried = [
    *(call(f"unshare {flag:#x}", 272, 97, flag) for flag in new),
    call("mount", 165, 40, b"none", b"/tmp", b"tmpfs", 0, 0),
    call("umount2 /proc", 166, 39, b"/proc", 2),
    call("pivot_root", 155, 41, b"/tmp", b"/tmp"),
    call("chroot", 161, 51, b"/tmp"),
    call("setns to PID 1", 308, 268, os.open("/proc/self/ns/net", os.O_RDONLY), 0),
    call("open_tree clone", 428, 428, -100, b"/", 1),
    call("open_tree_attr clone", 467, 467, -100, b"/", 1, zero, 32),
    call("fsopen", 430, 430, b"tmpfs", 0),
    call("clone3", 435, 435, zero, 88),
    call("ptrace attach 1", 101, 117, 16, 1, 0, 0),
    call("ptrace attach the supervisor", 101, 117, 16, os.getppid(), 0, 0),
    *(call(f"prlimit of {pid}", 302, 261, pid, 7, few, 0) for pid in (1, os.getppid())),
    call("setpriority of 1", 141, 140, 0, 1, 19),
    call("sched_setaffinity of 1", 203, 122, 1, 8, few),
    call("process_vm_readv 1", 310, 270, 1, here, 1, there, 1, 0),
    call("pidfd_getfd 1", 438, 438, libc.syscall(434, 1, 0), 0, 0),
    call("kcmp", 312, 272, 1, os.getpid(), 0, 0, 0),
    call("add_key", 248, 217, b"user", b"rock", b"x", 1, -3),
    call("request_key", 249, 218, b"user", b"rock", None, -3),
    call("keyctl", 250, 219, 0, -3, 1),
    call("bpf", 321, 280, 0, zero, 64),
    call("perf_event_open", 298, 241, zero, 0, -1, -1, 0),
    call("userfaultfd", 323, 282, 0),
    call("io_uring_setup", 425, 425, 4, zero),
    call("open_by_handle_at", 304, 265, -100, zero, 0),
    call("init_module", 175, 105, zero, 4096, b""),
    call("kexec_load", 246, 104, 0, 0, 0, 0),
    call("kexec_file_load", 320, 294, -1, -1, 0, 0, 0),
    call("fanotify_init", 300, 262, 0, 0),
    call("quotactl_fd", 443, 443, 0, 0, 0, 0),
    None if arm else call("modify_ldt", 154, 0, 0, zero, 100),
    call("reboot", 169, 142, 0xfee1dead, 672274793, 0, 0),
    call("syslog", 103, 116, 3, zero, 4096),
    call("swapon", 167, 224, b"/tmp/x", 0),
    call("acct", 163, 89, b"/tmp/x"),
    call("sethostname", 170, 161, b"x", 1),
    call("settimeofday", 164, 170, zero, None),
    call("iopl", 172, 9999, 3),
    python("raw socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    python("packet socket", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)),
    python("vsock", lambda: socket.socket(40, socket.SOCK_STREAM)),
    python("kernel ciphers", lambda: socket.socket(38, socket.SOCK_SEQPACKET)),
    *(python(f"socket family {family}", lambda: socket.socket(family, kind))
      for family in range(3, 64) if family not in (socket.AF_INET6, socket.AF_NETLINK)
      for kind in (1, 2, 3, 5)),
    python("TIPC pair", lambda: socket.socketpair(30, socket.SOCK_STREAM)),
    *(python(f"line discipline {number}", lambda: fcntl.ioctl(tty, 0x5423, struct.pack("i", number)))
      for number in range(30)),
    python("be root", lambda: os.setuid(0)) if os.getuid() else None,
    python("be the host's", lambda: os.setgroups([0, 42])),
    "core dumps" if resource.getrlimit(resource.RLIMIT_CORE) != (1, 1) else None,
    python("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -5)),
    python("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))),
    python("disk device", lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(8, 0))),
    python("kill 1", lambda: os.kill(1, 9)) if os.getuid() else None,
]
print(json.dumps([name for name in tried if name]))
"""
_WRITES = r"""
import json, os
found = []
for root in ("/proc", "/sys"):
    for folder, names, files in os.walk(root):
        if folder == "/proc":
            names[:] = [name for name in names if not name.isdigit() and name not in ("self", "thread-self")]
        for name in files:
            path = os.path.join(folder, name)
            try:
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
            hidden = os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev
            os.close(fd)
            # Whoever likes may ask to be told of pressure; that tells the load and changes nothing.
            if not hidden and not path.startswith("/proc/pressure/"):
                found.append(path)
print(json.dumps(found))
"""


async def _has_python(box: Sandbox) -> bool:
    return (await sh(box, "command -v python3")).ok


async def _found(box: Sandbox, program: str, user: str | None) -> list[str]:
    """The names that a program of attempts prints: those that succeeded."""
    result = await box.exec(["python3", "-c", program], timeout_seconds=60, user=user)
    assert result.ok, result
    return json.loads(result.stdout)


async def _still_works(box: Sandbox) -> None:
    assert await output(box, "echo here") == "here\n"


@CHECKS
async def system_calls_that_leave_the_sandbox_are_refused(subject: Subject) -> None:
    async with await subject.create() as box:
        if not await _has_python(box):
            return
        for user in (None, *await root_if_possible(box)):
            found = await _found(box, _CALLS, user)
            assert found == [], (user, found)
        await _still_works(box)


@CHECKS
async def nothing_of_the_kernel_can_be_written_to(subject: Subject) -> None:
    async with await subject.create() as box:
        if not await _has_python(box):
            return
        for user in (None, *await root_if_possible(box)):
            found = await _found(box, _WRITES, user)
            assert found == [], (user, found)


@CHECKS
async def the_first_process_cannot_be_killed_stopped_or_looked_into(subject: Subject) -> None:
    async with await subject.create() as box:
        for user in (None, *await root_if_possible(box)):
            await sh(box, "kill -9 1; kill -STOP 1; kill -TERM 1; kill -INT 1", user=user)
            for name in ("environ", "maps", "mem", "root/", "cwd/", "exe", "fd/"):
                attempt = f"ls /proc/1/{name} && cat /proc/1/{name}"
                assert not (await sh(box, attempt, user=user)).ok, (user, name)
            await _still_works(box)


@CHECKS
async def the_helper_does_not_take_orders_from_inside(subject: Subject) -> None:
    """Its socket may be seen, and whoever could speak to it would start commands without bounds."""
    speak = """
import socket
s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect("/rock/run/box.sock")
s.sendall(b"\\1\\0\\0\\0P"); print(s.recv(100))
"""
    async with await subject.create() as box:
        if not await _has_python(box):
            return
        for user in (None, *await root_if_possible(box)):
            result = await box.exec(["python3", "-c", speak], timeout_seconds=20, user=user)
            assert not result.ok or result.stdout == b"b''\n", (user, result)


@CHECKS
async def nobody_takes_the_helpers_place(subject: Subject) -> None:
    """Whoever could would be told what the harness does, and would answer for every command."""
    script = (
        "rm -f /rock/run/box.sock; mv /rock/run /rock/x; mv /rock /rocks; echo x >/rock/rock-init"
    )
    async with await subject.create() as box:
        for user in (None, *await root_if_possible(box)):
            await sh(box, script, user=user)
            assert await output(box, "echo $((6 * 7))") == "42\n"


@CHECKS
async def the_metadata_address_is_not_reached(subject: Subject) -> None:
    async with await subject.create() as box:
        for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "10.0.0.1"):
            assert await connect(box, address, 80) is None, address


@CHECKS
async def a_fork_bomb_is_bounded_and_ends_with_its_command(subject: Subject) -> None:
    async with await subject.create(limits=Limits(pids=100)) as box:
        bomb = "echo up >up; f() { f | f & f; }; f"
        started = time.monotonic()
        result = await box.exec(["sh", "-c", bomb], timeout_seconds=3)
        assert result.status in (ExecStatus.TIMED_OUT, ExecStatus.EXITED, ExecStatus.SIGNALED)
        assert time.monotonic() - started < 30
        await _still_works(box)


@CHECKS
async def a_memory_bomb_ends_alone(subject: Subject) -> None:
    limits = Limits(memory_bytes=100 * 1024**2)
    async with await subject.create(limits=limits) as box, await subject.create() as other:
        watched = asyncio.ensure_future(sh(other, "echo up >up; sleep 2; echo fine"))
        await written(other, "up")
        result = await sh(box, "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done")
        assert not result.ok, result
        if Capability.MEMORY_LIMIT in box.capabilities:
            many = "for i in 1 2 3 4; do (x=$(head -c 60000000 /dev/zero | tr '\\0' x); sleep 1) & done; wait"
            await sh(box, many)
        await _still_works(box)
        assert (await watched).stdout == b"fine\n"


@CHECKS
async def descriptors_run_out_for_the_command_only(subject: Subject) -> None:
    async with await subject.create(limits=Limits(open_files=64)) as box:
        script = "i=0; while [ $i -lt 500 ]; do sleep 20 </dev/null 3</dev/null & i=$((i+1)); done; ulimit -n"
        assert (await output(box, "ulimit -n")).strip() == "64"
        running = asyncio.ensure_future(sh(box, script))
        await _still_works(box)
        running.cancel()
        await asyncio.wait([running])
        if await _has_python(box):
            greedy = "import os\nn=0\ntry:\n  while 1: os.dup(0); n+=1\nexcept OSError: print(n)"
            result = await box.exec(["python3", "-c", greedy], timeout_seconds=20)
            assert result.ok
            assert int(result.stdout) <= 64
        await _still_works(box)


_USE_UP = r"""
import array, ctypes, os, socket, time
libc, kept, found = ctypes.CDLL(None), [], [0, 0]
while len(kept) < 3000 and libc.inotify_init1(0) >= 0:
    found[0] += 1
try:
    while found[1] < 1000:
        kept += os.openpty()
        found[1] += 1
except OSError:
    pass
try:
    for _ in range(20):
        kept += socket.socketpair()
        for _ in range(4):
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 250))]
            kept[-1].sendmsg([b"x"], rights)
except OSError:
    pass
print(*found, flush=True)
time.sleep(60)
"""
_USE_SOME = r"""
import ctypes, os
os.openpty()
print(ctypes.CDLL(None).inotify_init1(0) >= 0)
"""


@CHECKS
async def watches_terminals_and_descriptors_in_flight_run_out_for_one_sandbox_only(
    subject: Subject,
) -> None:
    async with await subject.create() as box, await subject.create() as other:
        if not await _has_python(box):
            return
        async with box.stream(["python3", "-c", _USE_UP], timeout_seconds=60) as greedy:
            said = (await anext(greedy.events())).data.split()
            await other.write_file("given", b"a descriptor went there")
            assert await other.read_file("given") == b"a descriptor went there"
            (await other.listen()).close()
            if _shares_what_users_have(box):
                return
            assert int(said[1]) < 1000, said
            result = await other.exec(["python3", "-c", _USE_SOME], timeout_seconds=20)
            assert result.stdout == b"True\n", (said, result)


def _shares_what_users_have(box: Sandbox) -> bool:
    """Whether it says that the kernel counts with other sandboxes what it counts by user."""
    return any("inotify" in missing for missing in box.not_enforced)


@CHECKS
async def a_full_disk_is_the_sandboxs_own(subject: Subject) -> None:
    async with await subject.create(limits=Limits(memory_bytes=64 * 1024**2)) as box:
        if Capability.DISK_LIMIT not in box.capabilities:
            assert any("disk" in missing for missing in box.not_enforced)
            return
        result = await sh(box, "cat /dev/zero >fill")
        assert not result.ok
        await output(box, "rm fill; echo fits >small; cat small")
        async with await subject.create() as other:
            await output(other, "head -c 1000000 /dev/zero >file")


@CHECKS
async def what_is_written_is_within_disk_bytes(subject: Subject) -> None:
    room = 32 * 1024**2
    fill = "cat /dev/zero >fill; cat /dev/zero >/tmp/fill; stat -c %s fill /tmp/fill"
    async with await subject.create(limits=Limits(disk_bytes=room)) as box:
        if Capability.DISK_LIMIT not in box.capabilities:
            assert any("disk" in missing for missing in box.not_enforced)
            return
        await output(box, "echo kept >kept")
        full = await sh(box, fill)
        assert b"No space left" in full.stderr
        assert room // 2 < sum(map(int, full.stdout.split())) <= room
        await output(box, "rm fill /tmp/fill; head -c 10000000 /dev/zero >fits")
        await box.reset()
        assert (await output(box, "ls -A; head -c 10000000 /dev/zero >fits; rm fits")) == ""
        if Capability.SNAPSHOT not in box.capabilities:
            return
        await output(box, "echo base >base")
        (fork,) = await subject.provider.fork(box)
        async with fork:
            full = await sh(fork, fill)
            assert b"No space left" in full.stderr
            assert sum(map(int, full.stdout.split())) <= room
            await box.stop()
            assert await output(fork, "rm fill /tmp/fill; cat base") == "base\n"


@CHECKS
async def a_download_follows_no_link_that_is_swapped_meanwhile(subject: Subject) -> None:
    with host_folder() as folder:
        secret = folder / "secret"
        secret.write_text("of the host")
        async with await subject.create() as box:
            await output(box, "mkdir -p tree/real; echo inside >tree/real/secret; ln -s / out")
            swap = (
                f"echo up >up; ln -sfn {folder} tree/link;"
                "while :; do rm -rf tree/x; ln -s / tree/x; rm -f tree/x; mkdir tree/x; done"
            )
            running = asyncio.ensure_future(sh(box, swap))
            await written(box, "up")
            for attempt in range(10):
                target = folder / f"copy{attempt}"
                try:
                    await box.download("tree", target)
                except RockError:
                    continue  # what vanished while it was read may be an error
                _check_copy(target)
            running.cancel()
            await asyncio.wait([running])
        assert secret.read_text() == "of the host"


def _check_copy(target: Path) -> None:
    for path in target.rglob("*"):
        if path.is_symlink():
            continue
        assert path.resolve().is_relative_to(target.resolve()), path
        if path.is_file():
            assert path.read_text() == "inside\n", path
