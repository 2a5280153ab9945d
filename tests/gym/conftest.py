"""Whoever tests environments closes their provider of containers, which a process otherwise leaves to its end."""

from collections.abc import Iterator

import pytest

from rock.gym.loop import loop


@pytest.fixture(scope="session", autouse=True)
def _containers_closed() -> Iterator[None]:
    yield
    loop().run(_close("docker"))


async def _close(name: str) -> None:
    await (await loop().provider(name)).close()
