"""What others take for the same as our sandboxes: docker's own ways, by its command and by docker-py, and
SWE-ReX, a server in the container that is spoken to by HTTP.

Each is run in a container of `rock-test` (Debian, Python) on the usual engine. SWE-ReX comes from
`benchmarks/peers.sh swerex`; without it, its figures are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import secrets
import tarfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import docker

from rock import process
from rock.config import inherited_environment, read_environment

Work = Callable[[], Awaitable[object]]
IMAGE = "rock-test:latest"
SWEREX = Path(__file__).resolve().parent.parent / ".bench" / "swerex"
START_SECONDS = 60.0

DRIVER = """
import asyncio, json, logging, sys, time
from swerex.runtime.remote import RemoteRuntime
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.abstract import ReadFileRequest, WriteFileRequest

async def main(url, port, token):
    runtime = RemoteRuntime(host=url, port=int(port), auth_token=token)
    logging.disable(logging.CRITICAL)
    await runtime.wait_until_alive(timeout=60)
    await runtime.create_session(CreateBashSessionRequest())

    async def execute():
        assert (await runtime.execute(Command(command=["true"]))).exit_code == 0

    async def session():
        done = await runtime.run_in_session(BashAction(command="echo $((1 + 1))", timeout=10))
        assert done.output.strip() == "2", done

    async def files():
        await runtime.write_file(WriteFileRequest(path="/tmp/file", content="x" * 1024))
        assert len((await runtime.read_file(ReadFileRequest(path="/tmp/file"))).content) == 1024

    print("ready", flush=True)
    for line in sys.stdin:
        work = {"execute": execute, "session": session, "files": files}[line.strip()]
        started = time.perf_counter()
        await work()
        print(time.perf_counter() - started, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@contextlib.asynccontextmanager
async def peers() -> AsyncGenerator[dict[str, Work]]:
    """The operations by name. Each does the thing once; a SWE-ReX one gives the seconds it took itself."""
    name = f"rock-peer-{secrets.token_hex(4)}"
    await _docker("run", "-d", "--network", "none", "--name", name, IMAGE, "sleep", "3600")
    client: Any = docker.APIClient(
        base_url=read_environment().docker_host or "unix:///var/run/docker.sock"
    )
    try:
        works: dict[str, Work] = {
            "docker exec": lambda: _docker("exec", name, "true"),
            "docker-py exec": lambda: asyncio.to_thread(_exec, client, name),
            "docker-py put_archive and get_archive, 1 KB": lambda: asyncio.to_thread(
                _archives, client, name
            ),
            "docker run --rm": lambda: _docker("run", "--rm", "--network", "none", IMAGE, "true"),
            "docker restart": lambda: _docker("restart", "--time", "0", name),
        }
        async with contextlib.AsyncExitStack() as stack:
            if (SWEREX / "bin" / "python").exists():
                works.update(await stack.enter_async_context(_swerex()))
            yield works
    finally:
        client.close()
        await _docker("rm", "-f", name)


async def _docker(*arguments: str) -> None:
    started = await process.start(
        ["docker", *arguments],
        env=inherited_environment(),
        stdout=process.DEVNULL,
        stderr=process.DEVNULL,
    )
    assert await started.wait() == 0, arguments


def _exec(client: Any, name: str) -> None:
    made = client.exec_create(name, ["true"])
    client.exec_start(made["Id"])
    assert client.exec_inspect(made["Id"])["ExitCode"] == 0


def _archives(client: Any, name: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("file")
        info.size = 1024
        tar.addfile(info, io.BytesIO(b"x" * 1024))
    client.put_archive(name, "/tmp", out.getvalue())
    chunks, _ = client.get_archive(name, "/tmp/file")
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        found = tar.extractfile("file")
        assert found is not None
        assert len(found.read()) == 1024


@contextlib.asynccontextmanager
async def _swerex() -> AsyncGenerator[dict[str, Work]]:
    """Its server in a container on the host's network, and its client in a process of its own."""
    name, token = f"rock-peer-{secrets.token_hex(4)}", secrets.token_hex(8)
    port = str(20000 + secrets.randbelow(10000))
    (site,) = (SWEREX / "lib").glob("python*/site-packages")
    server = ["python3", "-m", "swerex.server", "--host", "127.0.0.1", "--port", port]
    options = ["--network", "host", "-v", f"{site}:/site:ro", "-e", "PYTHONPATH=/site"]
    await _docker("run", "-d", "--name", name, *options, IMAGE, *server, "--auth-token", token)
    try:
        driver = await process.start(
            [SWEREX / "bin" / "python", "-c", DRIVER, "http://127.0.0.1", port, token],
            env=inherited_environment(),
            stdin=process.PIPE,
            stdout=process.PIPE,
            stderr=process.DEVNULL,
        )
        try:
            assert (await _line(driver)).strip() == b"ready"
            yield {
                "SWE-ReX command": lambda: _ask(driver, b"execute"),
                "SWE-ReX command in a session": lambda: _ask(driver, b"session"),
                "SWE-ReX write and read, 1 KB": lambda: _ask(driver, b"files"),
            }
        finally:
            await process.stop(driver)
    finally:
        await _docker("rm", "-f", name)


async def _line(driver: process.Process) -> bytes:
    assert driver.stdout is not None
    return await asyncio.wait_for(driver.stdout.readline(), START_SECONDS)


async def _ask(driver: process.Process, what: bytes) -> float:
    assert driver.stdin is not None
    driver.stdin.write(what + b"\n")
    return float(await _line(driver))
