"""The docker provider: what it makes is hardened, owned, and gone in every way out."""

import asyncio
import io
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import docker
import pytest

from rock import process
from rock.config import inherited_environment, read_environment
from rock.errors import ConfigError, ProviderUnavailable, SandboxDied, SandboxError
from rock.sandbox.base import ExecStatus, Limits, Mount, SandboxSpec
from rock.sandbox.channel import frames
from rock.sandbox.docker import DockerProvider
from rock.sandbox.docker.engine import Container, Engine
from rock.sandbox.docker.reaper import reap
from rock.sandbox.owner import wall_seconds
from tests.needs import BUSYBOX_IMAGE, TEST_IMAGE

pytestmark = pytest.mark.docker


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[DockerProvider]:
    """A provider whose containers carry a label, and lie in a directory, of this test alone."""
    async with new_provider(tmp_path) as made:
        yield made


def new_provider(
    folder: Path, *, run_id: str | None = None, now: Callable[[], float] = wall_seconds
) -> DockerProvider:
    return DockerProvider(
        host=read_environment().docker_host,
        run_id=run_id or f"test-{uuid.uuid4().hex[:8]}",
        base=folder / "b",
        now=now,
    )


def folders_of(provider: DockerProvider) -> set[str]:
    """The directories of sandboxes that are still there; the provider's own ends with it."""
    found = provider.base.iterdir() if provider.base.exists() else ()
    return {
        path.name
        for path in found
        if path.is_dir() and not path.name.startswith(("layers-", "log-"))
    }


async def containers_of(provider: DockerProvider) -> list[Container]:
    """All containers, running or not, of one provider, as a second client of the engine sees them."""
    engine = Engine(read_environment().docker_host)
    try:
        return await engine.containers(f"rock.run={provider.run_id}")
    finally:
        await engine.close()


async def wait_until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Poll until true; a bound, not a pause."""
    deadline = asyncio.get_running_loop().time() + 20
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, f"timed out: {what}"
        await asyncio.sleep(0.02)


async def test_probe_tries_a_real_sandbox(provider: DockerProvider) -> None:
    found = await provider.probe()
    assert found.available, found
    assert "API" in found.detail
    assert await containers_of(provider) == []


async def test_probe_says_how_to_get_an_engine(tmp_path: Path) -> None:
    async with DockerProvider(host=f"unix://{tmp_path}/absent.sock") as provider:
        found = await provider.probe()
    assert not found.available
    assert "absent.sock" in found.detail
    assert found.remedy is not None
    assert "start" in found.remedy
    assert found.remedy not in found.detail  # said once


async def test_a_missing_image_names_the_command_to_get_it(provider: DockerProvider) -> None:
    with pytest.raises(ProviderUnavailable, match="docker pull rock-nowhere/absent:1"):
        await provider.create(SandboxSpec(image="rock-nowhere/absent:1"))
    assert await containers_of(provider) == []


async def test_the_engines_socket_cannot_be_mounted(provider: DockerProvider) -> None:
    mount = Mount(source=Path("/var/run/docker.sock"), target="/docker.sock")
    with pytest.raises(ConfigError, match=r"mounts\[0\]\.source.*is a socket"):
        await provider.create(SandboxSpec(image=BUSYBOX_IMAGE, mounts=(mount,)))
    assert await containers_of(provider) == []


async def test_a_mount_that_is_not_there_leaves_nothing(
    provider: DockerProvider, tmp_path: Path
) -> None:
    mount = Mount(source=tmp_path / "absent", target="/data")
    with pytest.raises(ConfigError, match="absent does not exist"):
        await provider.create(SandboxSpec(image=BUSYBOX_IMAGE, mounts=(mount,)))
    assert await containers_of(provider) == []


async def test_what_the_engine_refuses_is_told_in_its_words_and_leaves_nothing(
    provider: DockerProvider, tmp_path: Path
) -> None:
    # A directory cannot be mounted over a file: the engine finds out when it starts the container.
    mount = Mount(source=tmp_path, target="/etc/passwd")
    with pytest.raises(SandboxError, match="the engine could not start"):
        await provider.create(SandboxSpec(image=BUSYBOX_IMAGE, mounts=(mount,)))
    assert await containers_of(provider) == []
    assert folders_of(provider) == set[str]()


async def test_mounts_are_read_only_unless_asked(provider: DockerProvider, tmp_path: Path) -> None:
    for name in ("fixed", "open"):
        (tmp_path / name).mkdir(mode=0o777)
        (tmp_path / name).chmod(0o777)
    mounts = (
        Mount(source=tmp_path / "fixed", target="/fixed"),
        Mount(source=tmp_path / "open", target="/deep/open", read_only=False),
    )
    async with await provider.create(SandboxSpec(image=BUSYBOX_IMAGE, mounts=mounts)) as box:
        script = "echo a >/deep/open/a; echo b >/fixed/b"
        done = await box.exec(["sh", "-c", script], timeout_seconds=10)
    assert not done.ok
    assert b"Read-only" in done.stderr
    assert (tmp_path / "open" / "a").read_text() == "a\n"
    assert list((tmp_path / "fixed").iterdir()) == []


async def test_the_host_root_has_programs_and_no_secrets(provider: DockerProvider) -> None:
    script = (
        "id -un; ls -A /root /home /mnt /srv /opt /run 2>&1; "
        "ls /etc/shadow /etc/ssh /var/run/docker.sock /work 2>&1; "
        "touch /usr/x 2>&1; touch ~/y /tmp/z ./w && echo written; python3 -c 'print(6*7)'"
    )
    async with await provider.create(SandboxSpec()) as box:
        done = await box.exec(["sh", "-c", script], timeout_seconds=20)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "agent"
    assert "/home:" in lines
    assert lines[lines.index("/home:") + 1] == "agent"
    missing = [line for line in lines if "No such file" in line]
    assert len(missing) == 4, lines
    assert any("Read-only" in line or "Permission denied" in line for line in lines)
    assert lines[-2:] == ["written", "42"]


async def test_a_command_over_its_memory_is_told_so_and_the_sandbox_lives_on(
    provider: DockerProvider,
) -> None:
    spec = SandboxSpec(image=TEST_IMAGE, limits=Limits(memory_bytes=64 * 1024**2))
    hog = "print('began', flush=True); data = bytearray(300 * 1024**2); print(len(data))"
    async with await provider.create(spec) as box:
        done = await box.exec(["python3", "-c", hog], timeout_seconds=30)
        after = await box.exec(["true"], timeout_seconds=10)
    assert (done.status, done.stdout) == (ExecStatus.OOM_KILLED, b"began\n")
    assert after.ok


KNOCK = """
import socket
with socket.socket(socket.AF_UNIX) as conn:
    conn.connect("/rock/run/box.sock")
    conn.sendall(bytes([1, 0, 0, 0, ord("P")]))
    print(conn.recv(100))
"""


OWNER_OF_THE_SOCKET = "2147483646"


async def test_a_command_cannot_speak_to_the_helper_even_as_root(provider: DockerProvider) -> None:
    assert frames.encode(frames.FrameType.PING) == bytes([1, 0, 0, 0, ord("P")])
    async with await provider.create(SandboxSpec(image=TEST_IMAGE)) as box:
        for user in (None, "root"):
            barred = await box.exec(["python3", "-c", KNOCK], timeout_seconds=10, user=user)
            assert b"PermissionError" in barred.stderr
        heard = await box.exec(
            ["python3", "-c", KNOCK], timeout_seconds=10, user=OWNER_OF_THE_SOCKET
        )
        assert (await box.exec(["true"], timeout_seconds=10)).ok
    cut_off = (b"ConnectionReset", b"BrokenPipe")
    assert heard.stdout == b"b''\n" or any(name in heard.stderr for name in cut_off), heard


async def test_an_images_own_variables_and_user_are_the_commands(provider: DockerProvider) -> None:
    tag = f"rock-derived:{uuid.uuid4().hex[:8]}"
    lines = (f"FROM {BUSYBOX_IMAGE}", "ENV COLOUR=red PATH=/bin:/own", "USER 1234:5678")
    client = docker.DockerClient(base_url=read_environment().docker_host)
    try:
        await asyncio.to_thread(
            client.images.build, fileobj=io.BytesIO("\n".join(lines).encode()), tag=tag, rm=True
        )
        async with await provider.create(SandboxSpec(image=tag)) as box:
            script = 'echo "$COLOUR $PATH $(id -u):$(id -g)"; touch own'
            done = await box.exec(["sh", "-c", script], timeout_seconds=10)
            assert (done.stdout, done.exit_code) == (b"red /bin:/own 1234:5678\n", 0)
        client.images.remove(tag, force=True)
    finally:
        client.close()


async def test_stop_removes_container_and_directory_and_may_be_called_twice(
    provider: DockerProvider,
) -> None:
    box = await provider.create(SandboxSpec(image=BUSYBOX_IMAGE))
    assert [found.running for found in await containers_of(provider)] == [True]
    assert folders_of(provider) == {box.id}
    await asyncio.gather(box.stop(), box.stop())
    await box.stop()
    assert await containers_of(provider) == []
    assert folders_of(provider) == set[str]()
    with pytest.raises(SandboxDied):
        await box.exec(["true"], timeout_seconds=5)


async def test_stop_goes_to_its_end_although_it_is_cancelled(provider: DockerProvider) -> None:
    box = await provider.create(SandboxSpec(image=BUSYBOX_IMAGE))
    stopping = asyncio.ensure_future(box.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert await containers_of(provider) == []
    assert folders_of(provider) == set[str]()


async def test_closing_the_provider_stops_what_is_left(tmp_path: Path) -> None:
    async with new_provider(tmp_path) as provider:
        specs = [SandboxSpec(image=BUSYBOX_IMAGE), SandboxSpec()]
        await asyncio.gather(*[provider.create(spec) for spec in specs])
        assert len(await containers_of(provider)) == 2
    assert await containers_of(provider) == []
    assert folders_of(provider) == set[str]()
    await provider.close()
    with pytest.raises(SandboxError, match="closed"):
        await provider.create(SandboxSpec(image=BUSYBOX_IMAGE))


async def test_a_creation_cancelled_while_the_container_starts_leaves_nothing(
    provider: DockerProvider,
) -> None:
    creating = asyncio.ensure_future(provider.create(SandboxSpec(image=BUSYBOX_IMAGE)))

    async def is_there() -> bool:
        return bool(await containers_of(provider))

    await wait_until(is_there, "the container appears")
    assert not creating.done()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await containers_of(provider) == []
    assert folders_of(provider) == set[str]()


async def test_a_creation_cancelled_at_once_leaves_nothing(provider: DockerProvider) -> None:
    tasks = [
        asyncio.ensure_future(provider.create(SandboxSpec(image=BUSYBOX_IMAGE))) for _ in range(12)
    ]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert await containers_of(provider) == []
    assert folders_of(provider) == set[str]()


async def test_a_container_killed_behind_our_back_is_a_dead_sandbox(
    provider: DockerProvider,
) -> None:
    box = await provider.create(SandboxSpec(image=BUSYBOX_IMAGE))
    running = asyncio.ensure_future(box.exec(["sleep", "60"], timeout_seconds=60))

    async def is_running() -> bool:
        seen = await box.exec(["pidof", "sleep"], timeout_seconds=5)
        return seen.ok

    await wait_until(is_running, "the command runs")
    await provider.engine.remove(f"rock-{box.id}")
    with pytest.raises(SandboxDied):
        await asyncio.wait_for(box.exec(["true"], timeout_seconds=5), 10)
    assert (await asyncio.wait_for(running, 10)).status is ExecStatus.SANDBOX_DIED
    await box.stop()
    assert folders_of(provider) == set[str]()


async def test_a_sandbox_ends_itself_when_its_lifetime_is_over(provider: DockerProvider) -> None:
    box = await provider.create(SandboxSpec(image=BUSYBOX_IMAGE, lifetime_seconds=2))
    assert (await box.exec(["true"], timeout_seconds=5)).ok

    async def is_gone() -> bool:
        return await containers_of(provider) == []

    await wait_until(is_gone, "the container is removed by the engine")
    await box.stop()
    assert folders_of(provider) == set[str]()


OWNER = """
import asyncio, sys
from pathlib import Path
from rock.sandbox.base import SandboxSpec
from rock.sandbox.docker import DockerProvider

async def main() -> None:
    host, run_id, image, base = sys.argv[1:]
    async with DockerProvider(host=host or None, run_id=run_id, base=Path(base)) as provider:
        box = await provider.create(SandboxSpec(image=image))
        print(box.id, flush=True)
        await asyncio.sleep(600)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    sys.exit(130)
"""


async def start_owner(provider: DockerProvider) -> process.Process:
    """Another process that makes one sandbox, prints its id, and waits; labelled like ours."""
    host = read_environment().docker_host or ""
    return await process.start(
        [sys.executable, "-c", OWNER, host, provider.run_id, BUSYBOX_IMAGE, provider.base],
        env=inherited_environment(),
        stdout=process.PIPE,
    )


async def first_line(child: process.Process) -> str:
    assert child.stdout is not None
    line = (await asyncio.wait_for(child.stdout.readline(), 30)).decode().strip()
    assert line, "the process ended before it had a sandbox"
    return line


@pytest.mark.parametrize("moment", ["while it starts", "while it runs"])
async def test_ctrl_c_leaves_no_container_and_no_directory(
    provider: DockerProvider, moment: str
) -> None:
    owner = await start_owner(provider)

    async def is_there() -> bool:
        return bool(await containers_of(provider))

    try:
        if moment == "while it runs":
            await first_line(owner)
        await wait_until(is_there, "the container appears")
        owner.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(owner.wait(), 30) == 130
    finally:
        await process.stop(owner)
    assert await containers_of(provider) == []
    assert folders_of(provider) == set[str]()


async def test_reap_removes_the_sandbox_of_a_killed_owner_and_only_it(
    provider: DockerProvider,
) -> None:
    mine = await provider.create(SandboxSpec(image=BUSYBOX_IMAGE))
    owner = await start_owner(provider)
    try:
        orphan = await first_line(owner)
        early = await reap(provider.engine, base=provider.base)
        assert f"rock-{orphan}" not in early.containers
        assert await provider.engine.running(f"rock-{orphan}")
        owner.kill()
        await owner.wait()
        assert await provider.engine.running(f"rock-{orphan}")
        removed = await reap(provider.engine, base=provider.base)
    finally:
        await process.stop(owner)
    assert f"rock-{orphan}" in removed.containers
    assert f"rock-{mine.id}" not in removed.containers
    kinds = sorted(path.name.partition("-")[0] for path in removed.directories)
    assert kinds == sorted([orphan, "layers", "log"])
    assert folders_of(provider) == {mine.id}
    assert not await provider.engine.running(f"rock-{orphan}")
    assert (await mine.exec(["true"], timeout_seconds=5)).ok


async def test_a_provider_that_is_probed_removes_what_a_killed_harness_left(
    provider: DockerProvider,
) -> None:
    owner = await start_owner(provider)
    try:
        orphan = await first_line(owner)
        owner.kill()
        await owner.wait()
        assert await provider.engine.running(f"rock-{orphan}")
        assert (await provider.probe()).available
    finally:
        await process.stop(owner)
    assert await containers_of(provider) == []
    assert folders_of(provider) == set[str]()


async def test_reap_removes_an_expired_sandbox_although_its_owner_lives(
    provider: DockerProvider, tmp_path: Path
) -> None:
    living = await provider.create(SandboxSpec(image=BUSYBOX_IMAGE, lifetime_seconds=3600))
    two_hours_ago = wall_seconds() - 7200
    async with new_provider(tmp_path, now=lambda: two_hours_ago) as past:
        expired = await past.create(SandboxSpec(image=BUSYBOX_IMAGE, lifetime_seconds=3600))
        assert len(await containers_of(past)) == 1
        removed = await reap(provider.engine, base=provider.base)
        assert f"rock-{expired.id}" in removed.containers
        assert f"rock-{living.id}" not in removed.containers
        assert await containers_of(past) == []
    assert (await living.exec(["true"], timeout_seconds=5)).ok


async def test_providers_that_start_together_share_one_host_image(tmp_path: Path) -> None:
    # Processes beside this one may be making the image, too, so that one failure says little.
    used: list[int] = []
    while len(used) < 3 and 1 not in used:
        folder = tmp_path / str(len(used))
        folder.mkdir()
        used.append(await images_of_three(folder))
    assert 1 in used


async def images_of_three(tmp_path: Path) -> int:
    """How many images three providers use that start when there is none."""
    client = docker.DockerClient(base_url=read_environment().docker_host)
    providers = [new_provider(tmp_path) for _ in range(3)]
    try:
        for image in client.images.list("rock-host"):
            for tag in image.tags:
                client.images.remove(tag, force=True)
        await asyncio.gather(*[one.create(SandboxSpec()) for one in providers])
        names = [found.name for one in providers for found in await containers_of(one)]
        used = {client.containers.get(name).attrs["Image"] for name in names}
        assert len(names) == 3
        return len(used)
    finally:
        client.close()
        await asyncio.gather(*[one.close() for one in providers])


async def test_a_host_image_that_somebody_removed_is_made_again(provider: DockerProvider) -> None:
    client = docker.DockerClient(base_url=read_environment().docker_host)
    try:
        async with await provider.create(SandboxSpec()) as box:
            assert (await box.exec(["true"], timeout_seconds=10)).ok
        for image in client.images.list("rock-host"):
            for tag in image.tags:
                client.images.remove(tag, force=True)
        async with await provider.create(SandboxSpec()) as box:
            assert (await box.exec(["true"], timeout_seconds=10)).ok
    finally:
        client.close()


async def test_the_test_image_has_an_agent_that_starts_without_a_network(
    provider: DockerProvider,
) -> None:
    env = {"MSWEA_CONFIGURED": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    async with await provider.create(SandboxSpec(image=TEST_IMAGE, env=env)) as box:
        done = await box.exec(["/opt/agent/bin/mini", "--help"], timeout_seconds=50)
    assert done.ok, done
    assert b"mini" in done.stdout
