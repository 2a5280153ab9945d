"""Checks: the walls. What is inside stays inside, and what is outside is not to be seen."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from rock.errors import BadUser, ConfigError, SandboxDied
from rock.sandbox.base import Mount, Sandbox
from rock.sandbox.command import DeathCause
from rock.testing.sandbox_conformance.subject import (
    Subject,
    Suite,
    expect,
    host_folder,
    output,
    sh,
    until,
    written,
)

CHECKS = Suite()

_CONNECT = """
if command -v python3 >/dev/null; then
  exec python3 -c 'import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
s.sendall(b"ping\\n")
print(s.makefile().readline(), end="")' "$1" "$2"
elif command -v bash >/dev/null; then
  exec bash -c 'exec 3<>"/dev/tcp/$0/$1" && echo ping >&3 && head -n 1 <&3' "$1" "$2"
else
  echo ping | nc -w 5 "$1" "$2" | grep .
fi
"""


async def connect(box: Sandbox, host: str, port: int) -> bytes | None:
    """Say ping to a port from inside; the answer, or None if there is no connection."""
    argv = ["sh", "-c", _CONNECT, "sh", host, str(port)]
    result = await box.exec(argv, timeout_seconds=20)
    return result.stdout if result.ok else None


@asynccontextmanager
async def answering(listener: socket.socket, answer: bytes) -> AsyncGenerator[None]:
    """Serve `answer` to everybody who says something."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readline()
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, sock=listener)
    try:
        yield
    finally:
        server.close()


@CHECKS
async def a_listener_of_the_host_is_reachable_inside(subject: Subject) -> None:
    async with await subject.create() as box:
        listener = await box.listen()
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        async with answering(listener, b"model\n"):
            assert await connect(box, "127.0.0.1", port) == b"model\n"


@CHECKS
async def a_listener_takes_the_port_it_was_told(subject: Subject) -> None:
    async with await subject.create() as box, await subject.create() as other:
        listeners = [await each.listen(8080) for each in (box, other)]
        assert [listener.getsockname()[1] for listener in listeners] == [8080, 8080]
        async with answering(listeners[0], b"one\n"), answering(listeners[1], b"two\n"):
            assert await connect(box, "127.0.0.1", 8080) == b"one\n"
            assert await connect(other, "127.0.0.1", 8080) == b"two\n"


@CHECKS
async def nothing_else_is_reachable(subject: Subject) -> None:
    with socket.create_server(("0.0.0.0", 0)) as host_server:
        port = host_server.getsockname()[1]
        async with await subject.create() as box:
            listener = await box.listen()
            async with answering(listener, b"up\n"):
                assert await connect(box, "127.0.0.1", listener.getsockname()[1]) == b"up\n"
            for address in ("127.0.0.1", "192.0.2.1", "169.254.169.254", *_host_addresses()):
                assert await connect(box, address, port) is None, address
            routes = await output(box, "cat /proc/net/route")
            assert len(routes.splitlines()) == 1, routes


@CHECKS
async def a_sandbox_cannot_reach_another(subject: Subject) -> None:
    marker = f"rock-{secrets.token_hex(8)}"
    async with await subject.create() as box, await subject.create() as other:
        listener = await box.listen()
        run = asyncio.ensure_future(sh(box, f"echo x >up; exec sleep 300 # {marker}"))
        await written(box, "up")
        await box.write_file(f"/tmp/{marker}", b"x")
        async with answering(listener, b"mine\n"):
            port = listener.getsockname()[1]
            assert await connect(box, "127.0.0.1", port) == b"mine\n"
            assert await connect(other, "127.0.0.1", port) is None
        assert not (await sh(other, f"cat /tmp/{marker}")).ok
        seen = await output(box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "sleep 300" in seen
        unseen = await output(other, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert "sleep 300" not in unseen
        run.cancel()


@CHECKS
async def a_command_has_no_capabilities_and_can_gain_none(subject: Subject) -> None:
    async with await subject.create() as box:
        for user in (None, *await root_if_possible(box)):
            lines = (await output(box, "cat /proc/self/status", user=user)).splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
                assert int(status[kind], 16) == 0, (user, kind, status[kind])
            assert status["NoNewPrivs"] == "1"
            assert status["Seccomp"] == "2"


@CHECKS
async def the_default_user_is_not_root(subject: Subject) -> None:
    async with await subject.create() as box:
        assert int(await output(box, "id -u")) != 0
        assert not (await sh(box, "cat /etc/shadow")).ok
        assert not (await sh(box, "ls -A /root | grep .")).ok


@CHECKS
async def root_inside_can_do_nothing_to_the_host(subject: Subject) -> None:
    attempts = (
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /proc",
        "umount /proc",
        "chroot / true",
        "mknod /tmp/disk b 8 0",
        "echo 1 >/proc/sys/kernel/sysrq",
        "echo c >/proc/sysrq-trigger",
        "echo 1 >/proc/sys/vm/drop_caches",
        "cat /proc/kcore",
        "cat /proc/1/environ",
        "ls /proc/1/root/",
        "echo x >/proc/1/oom_score_adj",
        "chown 12345 /tmp",
    )
    async with await subject.create() as box:
        for user in (None, *await root_if_possible(box)):
            for attempt in attempts:
                result = await sh(box, attempt, user=user)
                assert not result.ok, (user, attempt, result)


@CHECKS
async def files_of_the_host_are_not_there(subject: Subject) -> None:
    with host_folder() as folder:
        secret = folder / "secret"
        secret.write_text("of the host")
        places = (str(secret), "/run/docker.sock", "/var/run/docker.sock", "/etc/ssh")
        async with await subject.create() as box:
            for user in (None, *await root_if_possible(box)):
                for place in places:
                    assert not await _names_in(box, place, user=user), (user, place)
                for place in (Path.home(), Path.cwd()):
                    shown = await _names_in(box, str(place), user=user)
                    own = {path.name for path in place.iterdir()} - _NAMES_IN_ANY_HOME
                    assert shown.isdisjoint(own), (user, place)


_NAMES_IN_ANY_HOME = {".bash_logout", ".bashrc", ".cache", ".config", ".profile"}


async def _names_in(box: Sandbox, place: str, *, user: str | None) -> set[str]:
    script = 'ls -A -- "$0" 2>/dev/null || true'
    shown = await box.exec(["sh", "-c", script, place], timeout_seconds=10, user=user)
    return set(shown.stdout.decode(errors="replace").splitlines())


@CHECKS
async def a_mount_is_shown_where_it_was_asked_for(subject: Subject) -> None:
    with host_folder() as folder:
        folder.chmod(0o755)
        (folder / "file").write_text("given")
        mounts = (
            Mount(source=folder, target="/given/tree"),
            Mount(source=folder / "file", target="/given/one"),
        )
        async with await subject.create(mounts=mounts) as box:
            assert await output(box, "cat /given/tree/file /given/one") == "givengiven"
            for user in (None, *await root_if_possible(box)):
                for attempt in ("echo x >/given/tree/new", "echo x >/given/one", "rm /given/one"):
                    assert not (await sh(box, attempt, user=user)).ok, (user, attempt)
        assert [path.name for path in folder.iterdir()] == ["file"]
        assert (folder / "file").read_text() == "given"


@CHECKS
async def bad_mounts_are_refused_by_field(subject: Subject) -> None:
    with host_folder() as folder:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "engine.sock"))
        bad = {
            "source": Mount(source=folder / "missing", target="/x"),
            "target": Mount(source=folder, target="relative"),
            "belongs": Mount(source=folder, target="/proc/x"),
            "socket": Mount(source=folder / "engine.sock", target="/x.sock"),
        }
        with contextlib.closing(listener):
            for word, mount in bad.items():
                error = await expect(ConfigError, subject.create(mounts=(mount,)))
                assert "mounts[0]" in error.message, error
                assert word in error.message, error


@CHECKS
async def a_sandbox_ends_itself_at_the_end_of_its_lifetime(subject: Subject) -> None:
    async with await subject.create(lifetime_seconds=3.0) as box:
        run = asyncio.ensure_future(sh(box, "echo up; exec sleep 300"))
        result = await run
        assert (result.status.value, result.stdout) == ("sandbox_died", b"up\n")
        assert result.death is not None
        assert result.death.cause is DeathCause.LIFETIME
        error = await expect(SandboxDied, sh(box, "echo ghost"))
        assert error.cause == DeathCause.LIFETIME


@CHECKS
async def stop_ends_every_process(subject: Subject) -> None:
    """Seen from the host: a sandbox's processes are ordinary ones in its process table."""
    seconds = f"{secrets.randbelow(10**6) + 10**6}.25"
    box = await subject.create()
    run = asyncio.ensure_future(sh(box, f"(setsid sleep {seconds} &); echo x >up; sleep 300"))
    try:
        await written(box, "up")

        async def running() -> bool:
            return _host_runs(seconds)

        await until("the process is visible on the host", running)
    finally:
        await box.stop()
    assert not _host_runs(seconds)
    await run


def _host_runs(argument: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"\0{argument}\0".encode() in path.read_bytes():
                return True
    return False


def _host_addresses() -> list[str]:
    """Addresses of this host other than loopback, as far as its name resolves to them."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return []
    return sorted({str(entry[4][0]) for entry in found} - {"127.0.0.1", "127.0.1.1"})


async def root_if_possible(box: Sandbox) -> list[str]:
    """Root too, where the provider can switch users (an ordinary user's namespace has one id)."""
    try:
        await box.exec(["true"], user="0", timeout_seconds=10)
    except BadUser:
        return []
    return ["0"]
