"""The trainer that the pages tell people to write, as a program of its own beside a real service."""

import asyncio
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from rock import process
from rock.config import inherited_environment
from rock.testing.service import running_service
from tests.modelservice.live import admin_of, agent, eventually, new_session
from tests.modelservice.test_service_rollouts import group

ROOT = Path(__file__).parent.parent
FILE = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def write_programs(folder: Path) -> None:
    for page in ("README.md", "docs/trainer.md"):
        for name, text in FILE.findall((ROOT / page).read_text()):
            (folder / name).write_text(text)


async def test_the_pages_loop_says_that_no_service_answers_and_serves_the_one_that_comes(
    tmp_path: Path,
) -> None:
    write_programs(tmp_path)
    state = tmp_path / "state"
    async with running_service(state) as service:
        url = service.control_url
    child = await process.start(
        [sys.executable, str(tmp_path / "loop.py"), url, str(state)],
        env=inherited_environment(),
        stdout=process.PIPE,
        stderr=process.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stderr is not None
        async with asyncio.timeout(40):
            # Two clients of one program, one word from each, however many requests they try.
            for _ in range(2):
                away = (await child.stderr.readline()).decode()
                assert away.startswith(f"ModelService at {url} does not answer (ClientConnector")
            async with (
                running_service(state, control_port=urlsplit(url).port) as service,
                admin_of(service) as admin,
            ):
                await admin.publish_group(group("g", reward=0.5))
                session = await new_session(service)
                async with agent(session.base_url) as client:
                    reply = await client.chat.completions.create(
                        model="m", messages=[{"role": "user", "content": "hi"}]
                    )
                assert reply.choices[0].message.content == "Hello from the trainer."
                assert await child.stdout.readline() == b"task 0.5 1 rows\n"

                async def consumed() -> bool:
                    return service.service.group_status("g").state == "acknowledged"

                await eventually(consumed)
            assert await child.stderr.readline() == (
                f"ModelService at {url} answers again\n".encode()
            )
    finally:
        await process.stop(child)
