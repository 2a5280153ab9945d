"""What the loop benchmark puts side by side: each a server on loopback that answers chat requests.

Every target is an async context manager that yields a `Target` and stops its processes at the end.
The peers live in virtual environments of their own (`benchmarks/peers.sh`).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from compiled import running_from
from load import MakeRequest, post
from trainer import ANSWER

from rock import process
from rock.config import inherited_environment
from rock.modelservice.client.client import AdminClient
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.planes.listening import bind
from rock.modelservice.wire import SessionSpec

HERE = Path(__file__).parent
PEERS = HERE.parent / ".bench"
PATH = "/v1/chat/completions"
NONCE = b"@nonce-here@"
START_SECONDS = 90.0
TURNS = 7
TEXT = "The quick brown fox jumps over the lazy dog. " * 10

COMPLETION = json.dumps(
    {
        "id": "chatcmpl-constant",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ANSWER},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1500, "completion_tokens": 64, "total_tokens": 1564},
    }
)


@dataclass(frozen=True)
class Target:
    name: str
    port: int
    pid: int
    """Its process tree is what is measured."""
    makers: Callable[[int], Awaitable[list[MakeRequest]]]
    """Requests for so many agents."""


class Skipped(Exception):
    """This target cannot be measured here; the message says why."""


def body_of(agent: int, turn: int) -> bytes:
    """What an agent sends in a turn of a short conversation: 1 to 11 KB, 6 KB on average.

    The history, with the answers as they were given, and what is new: one message of 400 bytes.
    Each conversation has a nonce in all that its user says.
    """
    messages = [{"role": "system", "content": f"{NONCE.decode()} agent {agent}. {TEXT[:400]}"}]
    for number in range(turn + 1):
        said = f"{NONCE.decode()} turn {number}. {TEXT[:380]}"
        messages.append({"role": "user", "content": said})
        if number < turn:
            messages.append({"role": "assistant", "content": ANSWER})
    return json.dumps({"model": "policy", "messages": messages}).encode()


def maker(path: str, agent: int, key: str) -> MakeRequest:
    """Conversation after conversation of `TURNS` turns each."""
    templates = [post(path, body_of(agent, turn), key=key) for turn in range(TURNS)]

    def make(turn: int) -> bytes:
        return templates[turn % TURNS].replace(NONCE, b"%012d" % (turn // TURNS))

    return make


def one_key(path: str, key: str) -> Callable[[int], Awaitable[list[MakeRequest]]]:
    async def made(count: int) -> list[MakeRequest]:
        return [maker(path, agent, key) for agent in range(count)]

    return made


# --- nginx ---

NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 16384; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 3600;
  client_max_body_size 64m; client_body_buffer_size 512k;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {upstream}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ {location} }}
  }}
}}
"""
STATIC = "default_type application/json; return 200 '{}';"
PROXY = 'proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";'
UPSTREAM = (
    "upstream up {{ server 127.0.0.1:{port}; keepalive 1024; keepalive_requests 100000000; }}"
)


@asynccontextmanager
async def nginx(folder: Path, upstream: Target | None = None) -> AsyncGenerator[Target, None]:
    """Without `upstream` a constant answer, with it a reverse proxy."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        raise Skipped("nginx is not installed (apt-get install nginx-light)")
    name = "static" if upstream is None else "nginx"
    place, port = folder / name, free_port()
    place.mkdir()
    config = NGINX.format(
        folder=place,
        port=port,
        upstream="" if upstream is None else UPSTREAM.format(port=upstream.port),
        location=STATIC.format(COMPLETION) if upstream is None else PROXY,
    )
    (place / "nginx.conf").write_text(config)
    argv = [program, "-p", str(place), "-c", str(place / "nginx.conf")]
    async with running(argv, port, place / "log") as pid:
        yield Target(name, port, pid, one_key(PATH, "any"))


# --- rock ---


@asynccontextmanager
async def rock_service(
    folder: Path, name: str, *, upstream: Target | None = None, compiled: Path | None = None
) -> AsyncGenerator[tuple[Target, ServiceProcess], None]:
    """ModelService: with `upstream` a proxy by its `openai` backend, else the queue; as source, or as it is
    in the tree `compiled`."""
    backend = None if upstream is None else "openai:policy"
    service = ServiceProcess(
        folder / name,
        settings={"cancel_grace_seconds": 1},
        backends=[] if backend is None else [backend],
        api_base=None if upstream is None else f"http://127.0.0.1:{upstream.port}/v1",
        environment={
            "OPENAI_API_KEY": "any",
            **({} if compiled is None else running_from(compiled)),
        },
        exit_with_parent=True,
    )
    async with service, AdminClient(service.control_url, service.keys.admin_key) as admin:
        if service.ready.form.startswith("compiled") != (compiled is not None):
            raise RuntimeError(f"{name} runs {service.ready.form}")
        port = int(service.agent_url.rpartition(":")[2])

        async def made(count: int) -> list[MakeRequest]:
            spec = SessionSpec(backend=backend or "queue")
            keys = [(await admin.create_session(spec)).key for _ in range(count)]
            return [maker(PATH, agent, key) for agent, key in enumerate(keys)]

        yield Target(name, port, service.pid, made), service


@asynccontextmanager
async def trainer(service: ServiceProcess, kind: str = "short") -> AsyncGenerator[int, None]:
    """Our own trainer in its process; its pid."""
    started = await process.start(
        [sys.executable, HERE / "trainer.py", service.control_url, kind],
        env=inherited_environment(),
        stdin=process.PIPE,
    )
    try:
        assert started.stdin is not None
        started.stdin.write(f"{service.keys.trainer_key}\n".encode())
        await started.stdin.drain()
        yield started.pid
    finally:
        await process.stop(started)


# --- peers ---


@asynccontextmanager
async def litellm(folder: Path, upstream: Target) -> AsyncGenerator[Target, None]:
    program = peer("litellm", "litellm")
    place, port = folder / "litellm", free_port()
    place.mkdir()
    config = {
        "model_list": [
            {
                "model_name": "policy",
                "litellm_params": {
                    "model": "openai/policy",
                    "api_base": f"http://127.0.0.1:{upstream.port}/v1",
                    "api_key": "any",
                },
            }
        ]
    }
    (place / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    argv = [program, "--config", place / "config.yaml", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    async with running(argv, port, place / "log") as pid:
        yield Target("litellm", port, pid, one_key(PATH, "any"))


@asynccontextmanager
async def rllm(folder: Path, upstream: Target) -> AsyncGenerator[Target, None]:
    program = peer("rllm", "rllm-model-gateway")
    place, port = folder / "rllm", free_port()
    place.mkdir()
    argv = [program, "--host", "127.0.0.1", "--port", str(port), "--store", "memory"]
    argv += ["--log-level", "warning", "--worker", f"http://127.0.0.1:{upstream.port}/v1"]
    async with running(argv, port, place / "log") as pid:
        path = "/sessions/bench{}/v1/chat/completions"

        async def made(count: int) -> list[MakeRequest]:
            return [maker(path.format(agent), agent, "any") for agent in range(count)]

        yield Target("rllm", port, pid, made)


def peer(name: str, program: str) -> Path:
    path = PEERS / name / "bin" / program
    if not path.exists():
        raise Skipped(f"{path} is missing; benchmarks/peers.sh installs it")
    return path


# --- processes ---


def free_port() -> int:
    with bind("127.0.0.1", 0) as probe:
        return probe.getsockname()[1]


@asynccontextmanager
async def running(argv: Sequence[str | Path], port: int, log: Path) -> AsyncGenerator[int, None]:
    """A server's process from when it listens; raises Skipped, with its log, if it does not."""
    # No price lists or telemetry over the network: traffic stays on loopback.
    env = {**inherited_environment(), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}
    with log.open("wb") as output:
        started = await process.start(argv, env=env, stdout=output, stderr=output)
    try:
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await listens(port):
                    if started.returncode is not None:
                        raise Skipped(f"{argv[0]} ended, see {log}")
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise Skipped(f"{argv[0]} did not listen in {START_SECONDS:g} s") from None
        yield started.pid
    finally:
        await process.stop(started)


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
