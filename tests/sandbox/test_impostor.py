"""A command that takes the place of the helper's socket: by root, or with the number of its directory."""

from __future__ import annotations

import pytest

from rock.config import read_environment
from rock.errors import SandboxDied
from rock.sandbox.base import SandboxSpec
from rock.sandbox.docker import DockerProvider
from tests.needs import TEST_IMAGE
from tests.sandbox.test_docker import OWNER_OF_THE_SOCKET

pytestmark = pytest.mark.docker

IMPOSTOR = """
import os, socket
os.rename("/rock/run/box.sock", "/rock/run/old.sock")
listener = socket.socket(socket.AF_UNIX)
listener.bind("/rock/run/box.sock")
listener.listen()
print("listens", flush=True)
while True:
    conn = listener.accept()[0]
    print(conn.recv(100) or "nothing", flush=True)
"""


async def test_whoever_takes_the_helpers_place_is_told_nothing() -> None:
    """As an agent can whose id is that of a harness that is not root: the directory is its own."""
    async with (
        DockerProvider(host=read_environment().docker_host) as provider,
        await provider.create(SandboxSpec(image=TEST_IMAGE)) as box,
        box.stream(
            ["python3", "-c", IMPOSTOR], timeout_seconds=30, user=OWNER_OF_THE_SOCKET
        ) as impostor,
    ):
        events = impostor.events()
        assert (await anext(events)).data == b"listens\n"
        with pytest.raises(SandboxDied, match="in the helper's place"):
            await box.exec(["true"], timeout_seconds=10)
        assert (await anext(events)).data == b"nothing\n"
