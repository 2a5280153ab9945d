"""How episodes use sandboxes: networks by phase, pools, kept setups, and machines that are full."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from rock.errors import ConfigError, RockError
from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import turn_of
from rock.modelservice.wire import Lease
from rock.rollout.inputs.networks import CLOSED, Reach, Reaches, reaches_of
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.inputs.task import Task
from rock.rollout.records.outcome import OutcomeClass
from rock.rollout.records.record import Record
from rock.rollout.records.rundir import read_records
from rock.rollout.run import RunResult, resume, run
from rock.sandbox.base import Provider
from rock.sandbox.capacity import LOCAL_COST, Admission, Cost, Room
from rock.sandbox.docker import DockerProvider
from rock.sandbox.local import LocalProvider
from rock.sandbox.logs import LogEntry
from rock.sandbox.remote import RemoteProvider, door
from tests.needs import TEST_IMAGE
from tests.rollout.live import address, answering, new_provider, run_file, write_tasks

pytestmark = pytest.mark.userns

ASK = """
import os, sys, urllib.request
for name in ("no_proxy", "NO_PROXY"):
    os.environ.pop(name, None)
try:
    proxy = urllib.request.ProxyHandler({"http": "http://127.0.0.1:3128"})
    print(urllib.request.build_opener(proxy).open(sys.argv[1], timeout=20).read().decode())
except OSError as error:
    print("no")
"""
"""Prints what an address says, through the proxy if there is one, or `no`."""


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    async with ServiceProcess(tmp_path / "service", exit_with_parent=True) as started:
        yield started


@contextlib.asynccontextmanager
async def host_server() -> AsyncGenerator[int]:
    """An HTTP server of the host that says `yes`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nyes")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def done(
    config: RunFile,
    tmp_path: Path,
    service: ServiceProcess,
    provider: Provider,
    answer: object = "done",
) -> tuple[RunResult, list[Record]]:
    """The run to its end, and the final records by index."""

    def script(lease: Lease) -> object:
        return answer(lease) if callable(answer) else answer

    async with provider, answering(service, script):
        result = await run(
            config, directory=tmp_path / "run", service=address(service), provider=provider
        )
    return result, sorted(read_records(tmp_path / "run"), key=lambda record: record.index)


def children() -> set[int]:
    """Processes of this one: each local sandbox is one, and so is a service."""
    text = "".join(path.read_text() for path in Path("/proc/self/task").glob("*/children"))
    return {int(pid) for pid in text.split()}


# --- networks ---


@pytest.mark.parametrize(
    ("network", "grade_network", "fresh", "seen"),
    [
        ("allowlist", "none", False, ["yes", "yes", "no"]),
        ("allowlist", "none", True, ["yes", "yes", "no"]),
        ("model", "allowlist", False, ["no", "no", "yes"]),
    ],
)
async def test_each_phase_has_the_network_that_the_run_file_says(
    tmp_path: Path,
    service: ServiceProcess,
    network: str,
    grade_network: str,
    fresh: bool,
    seen: list[str],
) -> None:
    await _check_phases(
        tmp_path,
        service,
        new_provider(),
        seen,
        fresh,
        {"network": network, "grade_network": grade_network},
    )


@pytest.mark.docker
async def test_each_phase_has_its_network_in_docker(
    tmp_path: Path, service: ServiceProcess
) -> None:
    networks = {"network": "allowlist", "grade_network": "none", "image": TEST_IMAGE}
    provider = DockerProvider(base=tmp_path / "b")
    await _check_phases(tmp_path, service, provider, ["yes", "yes", "no"], False, networks)


async def _check_phases(
    tmp_path: Path,
    service: ServiceProcess,
    provider: Provider,
    seen: list[str],
    fresh: bool,
    networks: dict[str, str],
) -> None:
    """Setup, agent and grader ask a server of the host; `seen` is what each must have heard."""
    async with host_server() as port:
        url = f"http://127.0.0.1:{port}/"
        script = f"python3 ask.py {url} >"
        write_tasks(
            tmp_path,
            "t",
            files={"ask.py": ASK},
            setup=["sh", "-c", f"{script} setup.txt && chmod a+r *"],
        )
        expected = " ".join(seen)
        check = f'test "$(cat setup.txt agent.txt; python3 ask.py {url})" = "$(printf "%s\n" {expected})"'
        config = run_file(
            tmp_path,
            **networks,
            allowed_hosts=[f"127.0.0.1:{port}"],
            agent={"command": ["sh", "-c", f"{script} agent.txt"], "requires_model": False},
            grader={"command": ["sh", "-c", check], "cwd": "{workdir}", "fresh": fresh},
        )
        _, (record,) = await done(config, tmp_path, service, provider)
    assert record.outcome.cls is OutcomeClass.SOLVED, record.outcome


def says(**fields: object) -> RunFile:
    return RunFile.model_validate({"tasks": "t", "agent": {"command": ["true"]}, **fields})


def task(**fields: object) -> Task:
    return Task.model_validate({"task_id": "t", "instruction": "i", **fields})


def test_a_task_may_ask_for_less_than_the_run_allows() -> None:
    wide = says(network="full", grade_network="allowlist", allowed_hosts=["a.org", "b.org"])
    hosts = ("a.org", "b.org")
    assert reaches_of(wide, task()) == Reaches(agent=Reach("full"), grade=Reach("allowlist", hosts))
    asked = task(network="allowlist", grade_network="none", allowed_hosts=["c.org"])
    assert reaches_of(wide, asked).agent == Reach("allowlist", ("c.org",))
    assert reaches_of(wide, asked).grade.closed
    assert reaches_of(says(), task()) == Reaches(agent=CLOSED, grade=Reach("none"))


@pytest.mark.parametrize(
    ("allowed", "asked", "field"),
    [
        ({}, {"network": "allowlist"}, "network"),
        ({}, {"grade_network": "full"}, "grade_network"),
        ({"network": "allowlist"}, {"network": "full"}, "network"),
        ({"network": "allowlist"}, {"allowed_hosts": ["b.org"]}, "allowed_hosts"),
        ({"network": "full"}, {"network": "allowlist", "allowed_hosts": ["/"]}, "allowed_hosts"),
    ],
)
async def test_a_task_that_asks_for_more_is_refused_before_anything_starts(
    tmp_path: Path, allowed: dict[str, object], asked: dict[str, object], field: str
) -> None:
    write_tasks(tmp_path, "t", **asked)
    if allowed.get("network") == "allowlist":
        allowed = {**allowed, "allowed_hosts": ["a.org"]}
    with pytest.raises(ConfigError, match=f"tasks: t: {field}: "):
        await run(run_file(tmp_path, **allowed), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- pools ---

TRACES = r"""
found=""
note() { found="$found $1"; }
[ -z "$(ls -A /tmp /dev/shm 2>/dev/null | grep mark)" ] || note temporary
[ -z "$(ls -A . "$HOME" | grep mark)" ] || note files
grep -q mark /etc/passwd && note passwd
grep -sq mark "$HOME/.profile" && note profile
cat /proc/[0-9]*/comm 2>/dev/null | grep -qx sleep && note process
[ "$(tail -n +2 /proc/sysvipc/shm | wc -l)" = 0 ] || note shared
grep -q @mark /proc/net/unix && note sockets
python3 - <<'END' || note queue
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
queue = libc.mq_open(b"/mark", os.O_RDONLY)
sys.exit(1 if queue >= 0 else 0)
END
grep -q " /mnt/mark" /proc/self/mountinfo && note mount
echo "${found:-clean}" > answer.txt

mkdir -p mark; echo mark > "$HOME/mark"; echo mark >> "$HOME/.profile"
for place in /tmp /dev/shm /etc /usr /var /run /opt; do touch "$place/mark" 2>/dev/null; done
echo mark:x:0:0::/:/bin/sh 2>/dev/null >> /etc/passwd
setsid -f env -i sleep 4321 > /dev/null 2>&1 < /dev/null
(mkdir -p /mnt/mark; mount -t tmpfs none /mnt/mark; mount --bind / /mnt/mark) 2>/dev/null
ln -sf /proc/1/root mark/root; mkfifo mark/pipe
python3 - <<'END'
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
libc.shmget(0x4242, 4096, 0o1666)
libc.mq_open(b"/mark", os.O_CREAT | os.O_RDWR, 0o666, None)
listener = socket.socket(socket.AF_UNIX)
listener.bind("\0mark")
listener.listen()
if os.fork() == 0:
    os.setsid()
    os.execvp("sleep", ["sleep", "4321"])
END
true
"""
"""An agent that looks for what an earlier one left, says so, and leaves all that it can."""
ONLY_CLEAN = {"command": ["sh", "-c", 'test "$(cat "$0/answer.txt")" = clean', "{workdir}"]}


async def attacked(
    tmp_path: Path, service: ServiceProcess, provider: Provider, **fields: object
) -> None:
    """Six episodes of that agent, one after the other, from a pool."""
    write_tasks(tmp_path, "t")
    config = run_file(
        tmp_path,
        episodes_per_task=6,
        concurrency=1,
        pool={"ready_min": 2, "ready_max": 3},
        agent={"command": ["sh", "-c", TRACES], "requires_model": False},
        grader=ONLY_CLEAN,
        **fields,
    )
    result, records = await done(config, tmp_path, service, provider)
    folder = tmp_path / "run" / "episodes" / "t"
    said = [path.read_text() for path in folder.glob("*/attempt-1/workspace/answer.txt")]
    assert said == ["clean\n"] * 6, said
    assert result.report.total.solved == 6, [record.outcome for record in records]
    assert len({record.sandbox_id for record in records}) == 6
    origins = [record.sandbox_origin for record in records]
    assert origins.count("pool") >= 3, origins
    assert result.report.sandboxes["pool"] == origins.count("pool")
    assert "from the pool" in (tmp_path / "run" / "report.txt").read_text()


async def test_nothing_that_an_agent_leaves_reaches_the_next_sandbox_of_the_pool(
    tmp_path: Path, service: ServiceProcess
) -> None:
    before = children()
    await attacked(tmp_path, service, new_provider())
    assert children() <= before


@pytest.mark.docker
async def test_nothing_that_an_agent_leaves_reaches_the_next_container_of_the_pool(
    tmp_path: Path, service: ServiceProcess
) -> None:
    await attacked(tmp_path, service, DockerProvider(base=tmp_path / "b"), image=TEST_IMAGE)


async def test_a_pool_on_a_provider_of_the_callers_ends_with_the_run_and_leaves_it_open(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "t")
    before = children()
    async with new_provider() as provider, answering(service, lambda lease: "done"):
        await run(
            run_file(tmp_path, pool={}),
            directory=tmp_path / "run",
            service=address(service),
            provider=provider,
        )
        assert children() == before
        assert (await provider.probe()).available


# --- kept setups ---


def dies_once(before: set[int]) -> object:
    """A policy under which the sandbox of the first attempt is killed when its agent has written."""

    def answer(lease: Lease) -> str:
        if lease.labels["attempt"] == "1" and turn_of(lease) == 1:
            for pid in children() - before:
                os.kill(pid, signal.SIGKILL)
        return "write 41" if lease.labels["attempt"] == "1" else "done"

    return answer


@pytest.mark.parametrize(("retry_from", "setups"), [("setup", 1), ("start", 2)])
async def test_an_attempt_after_a_dead_sandbox_begins_where_the_task_allows_it(
    tmp_path: Path, service: ServiceProcess, retry_from: str, setups: int
) -> None:
    """The agent's own work is gone either way: it is run anew, in a session of its own."""
    host = tmp_path / "host"
    host.mkdir()
    host.chmod(0o777)
    script = "mktemp /host/ran.XXXXXX; echo made > made.txt; chmod a+r made.txt"
    write_tasks(tmp_path, "t", setup=["sh", "-c", script], retry_from=retry_from)
    mounts = [{"source": "host", "target": "/host", "read_only": False}]
    config = run_file(tmp_path, agent={"mounts": mounts})
    _, (record,) = await done(config, tmp_path, service, new_provider(), dies_once(children()))
    assert (record.attempt, record.outcome.cls) == (2, OutcomeClass.FAILED)
    folder = tmp_path / "run" / "episodes" / "t" / "0"
    assert "sandbox_died" in (folder / "attempt-1" / "record.json").read_text()
    assert len(list(host.iterdir())) == setups
    left = folder / "attempt-2" / "workspace"
    assert sorted(path.name for path in left.iterdir()) == ["made.txt"]
    assert record.sandbox_origin == ("snapshot" if retry_from == "setup" else "new")
    assert record.usage.turns == 1


# --- a full machine ---


def room_for(count: int) -> LocalProvider:
    """A provider on a machine that has room for so many sandboxes."""
    before = children()

    def measured(_cost: Cost, _disk: Path) -> list[Room]:
        free = max(0, count - len(children() - before))
        return [Room(name="beds", free=free, kept_free=0, each=1, remedy="buy some")]

    return LocalProvider(admission=Admission(LOCAL_COST, Path("/"), measured=measured))


async def test_a_full_machine_has_fewer_episodes_at_once_and_fails_none(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "t")
    infra = {"max_attempts": 1, "backoff_seconds": 0.05}
    config = run_file(tmp_path, episodes_per_task=4, concurrency=4, infra=infra)

    def answer(lease: Lease) -> str:
        return "done" if turn_of(lease) else "write 42"

    result, records = await done(config, tmp_path, service, room_for(1), answer)
    assert (result.exit_code, result.report.total.solved) == (0, 4)
    assert max(record.attempt for record in records) > 1
    refused = (tmp_path / "run").glob("episodes/t/*/attempt-1/record.json")
    assert any(
        "beds: 0 left" in path.read_text() or "no_room" in path.read_text() for path in refused
    )


async def test_a_machine_without_room_for_one_ends_the_run_which_can_be_resumed(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "t")
    infra = {"backoff_seconds": 0.05, "no_room_seconds": 0.2}
    config = run_file(tmp_path, episodes_per_task=2, infra=infra)
    result, _ = await done(config, tmp_path, service, room_for(0))
    assert result.exit_code == 1
    assert result.failure is not None
    assert "no room for one sandbox" in result.failure
    assert "buy some" in result.failure
    assert result.report.infra_failed == 0
    async with new_provider() as provider, answering(service, lambda lease: "done"):
        result = await resume(tmp_path / "run", service=address(service), provider=provider)
    assert (result.exit_code, result.report.total.valid) == (0, 2)


# --- the view from above ---


async def _visit(word: str) -> list[LogEntry]:
    """Find the sandbox whose agent waits for `word`, from outside of the run, and let it go on."""
    while True:
        for visitor in door.doors():
            async with visitor:
                # Harnesses of other tests come and go.
                with contextlib.suppress(RockError):
                    if (entries := await _let_go(visitor, word)) is not None:
                        return entries
        await asyncio.sleep(0.05)


async def _let_go(visitor: RemoteProvider, word: str) -> list[LogEntry] | None:
    for info in await visitor.list():
        guest = visitor.attach(info)
        entries = (await guest.read_log()).entries
        if any(word in one.what and one.part == "began" for one in entries):
            await guest.write_file(word, b"")
            await guest.detach()
            return list(entries)
    return None


async def test_a_run_can_be_looked_into_and_acted_on_from_outside(
    tmp_path: Path, service: ServiceProcess
) -> None:
    write_tasks(tmp_path, "seen")
    word = f"go-{os.getpid()}"
    waits = f"echo waiting; until [ -e {word} ]; do sleep 0.05; done"
    config = run_file(
        tmp_path,
        agent={"command": ["sh", "-c", waits], "requires_model": False},
        grader={"command": ["sh", "-c", f"test -e {word}"], "cwd": "{workdir}"},
    )
    visiting = asyncio.ensure_future(asyncio.wait_for(_visit(word), 40))
    _, (record,) = await done(config, tmp_path, service, new_provider())
    assert record.outcome.cls is OutcomeClass.SOLVED, record.outcome
    entries = await visiting
    assert entries[0].kind == "created"
    assert {entry.by for entry in entries} == {"harness"}
