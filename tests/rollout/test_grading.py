"""Grading in a real sandbox: every way to read a reward, and agents that try to forge one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rock.rollout.grading import Grade, grade
from rock.rollout.inputs.graders import Grader
from rock.rollout.inputs.taskfiles import TaskFile
from rock.rollout.records.outcome import OutcomeClass
from rock.rollout.tasks import humaneval
from rock.sandbox.base import Sandbox, SandboxSpec
from tests.rollout.live import new_provider

pytestmark = pytest.mark.userns

WORKDIR = "/workspace"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with new_provider() as provider, await provider.create(SandboxSpec()) as made:
        yield made


async def run_grader(sandbox: Sandbox, **fields: object) -> Grade:
    grader = Grader.model_validate({"timeout_seconds": 20, **fields})
    return await grade(sandbox, grader, workdir=WORKDIR, folder=Path("/"))


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


@pytest.mark.parametrize(("script", "reward"), [("exit 0", 1.0), ("exit 1", 0.0), ("exit 3", 0.0)])
async def test_an_exit_code_is_a_reward(sandbox: Sandbox, script: str, reward: float) -> None:
    result = await run_grader(sandbox, command=sh(script))
    assert (result.reward, result.cls) == (reward, None)


@pytest.mark.parametrize(
    ("text", "reward"),
    [("0.25", 0.25), ("1\n", 1.0), ('{"reward": -2, "tests": 5}', -2.0)],
)
async def test_a_reward_file_holds_a_number_or_an_object(
    sandbox: Sandbox, text: str, reward: float
) -> None:
    script = 'printf %s "$1" > "$0"; exit 1'
    result = await run_grader(sandbox, command=[*sh(script), "{reward_file}", text], reward="file")
    assert result.reward == reward


@pytest.mark.parametrize("text", ["", "nan", "1e999", "true", "[1]", '{"score": 1}', '"1"', "NaN"])
async def test_a_reward_file_without_a_usable_number_is_no_reward(
    sandbox: Sandbox, text: str
) -> None:
    script = 'printf %s "$1" > "$0"'
    result = await run_grader(sandbox, command=[*sh(script), "{reward_file}", text], reward="file")
    assert (result.reward, result.cls) == (None, OutcomeClass.GRADER_BROKEN)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ["no-such-grader"]},
        {"command": sh("no-such-program")},
        {"command": sh("exit 126")},
        {"command": ["true"], "cwd": "/no/such/folder"},
        {"command": ["true"], "reward": "file"},
        {"command": sh('read n; echo "$n error the data set is gone"'), "reward": "verdict"},
        {"command": sh('read n; echo "$n many"'), "reward": "verdict"},
    ],
)
async def test_a_broken_grader_is_the_tasks_fault_and_no_reward(
    sandbox: Sandbox, fields: dict[str, object]
) -> None:
    result = await run_grader(sandbox, **fields)
    assert (result.reward, result.cls) == (None, OutcomeClass.GRADER_BROKEN)
    assert result.detail


async def test_a_grader_at_its_time_limit_gives_no_reward_unless_told(sandbox: Sandbox) -> None:
    command = ["sleep", "60"]
    plain = await run_grader(sandbox, command=command, timeout_seconds=0.3)
    told = await run_grader(sandbox, command=command, timeout_seconds=0.3, timeout_reward=0.0)
    assert (plain.reward, plain.cls) == (None, OutcomeClass.GRADER_TIMEOUT)
    assert (told.reward, told.cls) == (0.0, None)


async def test_tests_come_in_late_under_a_name_that_is_new_each_time(sandbox: Sandbox) -> None:
    command = sh("pwd; cat t.txt; test -x deep/run.sh")
    files = {"t.txt": "secret", "deep/run.sh": TaskFile(text="", mode=0o755)}
    seen: set[bytes] = set()
    for _ in range(2):
        result = await run_grader(sandbox, command=command, files=files)
        assert result.reward == 1.0
        assert result.result is not None
        folder, _, rest = result.result.stdout.partition(b"\n")
        assert rest == b"secret"
        seen.add(folder)
    assert len(seen) == 2


async def test_a_verdict_counts_only_with_the_nonce(sandbox: Sandbox) -> None:
    forged = await run_grader(sandbox, command=sh("echo 1.0; echo NONCE 1.0"), reward="verdict")
    silent = await run_grader(sandbox, command=["true"], reward="verdict")
    honest = await run_grader(
        sandbox, command=sh('read n; cat; echo "$n 0.5"'), reward="verdict", stdin="data\n"
    )
    assert (forged.reward, silent.reward, honest.reward) == (0.0, 0.0, 0.5)
    assert "no verdict" in silent.detail
    assert honest.result is not None
    assert honest.result.stdout.startswith(b"data")


PROBLEM = humaneval.problems()[2]
"""`truncate_number`: its tests compare floats."""

ORACLE = humaneval.oracle(PROBLEM)

CHEATS = {
    "ends the process": "import sys\nsys.exit(0)",
    "ends the process hard": "import os\nos._exit(0)",
    "ends the process when called": "import os\ndef truncate_number(n): os._exit(0)",
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "returns what equals everything": (
        "class Any(float):\n"
        "    def __eq__(self, other): return True\n"
        "    def __sub__(self, other): return 0.0\n"
        "    def __abs__(self): return 0.0\n"
        "    def __lt__(self, other): return True\n"
        "    def __repr__(self): return '0.5'\n"
        "def truncate_number(n): return Any()"
    ),
    "prints a verdict everywhere": (
        "import os\n"
        "for fd in range(64):\n"
        "    try: os.write(fd, b'1.0\\nNONCE 1.0\\n')\n"
        "    except OSError: pass"
    ),
    "patches what the tests use": (
        "import builtins\n"
        "builtins.abs = lambda value: 0\n"
        "builtins.AssertionError = type('E', (Exception,), {})\n"
        "def truncate_number(n): return None"
    ),
    "never ends": "def truncate_number(n):\n    while True: pass",
    "returns a bomb": "def truncate_number(n):\n    x = 1\n    for _ in range(9999): x = [x]\n    return x",
    "is not Python": "def truncate_number(n: return n",
    "is empty": "",
}


def impatient(grader: Grader) -> Grader:
    """The same, with a checker that waits two seconds for the solution instead of ten."""
    checker = grader.files["checker.py"]
    assert checker.text is not None
    before, limit, after = checker.text.partition("LIMIT_SECONDS = 10.0")
    assert limit
    quick = checker.model_copy(update={"text": f"{before}LIMIT_SECONDS = 2.0{after}"})
    return grader.model_copy(update={"files": {**grader.files, "checker.py": quick}})


async def grade_solution(
    sandbox: Sandbox, source: str, *, patient: bool = True, **extra: bytes
) -> Grade:
    await sandbox.write_file(f"{WORKDIR}/solution.py", source.encode())
    for name, data in extra.items():
        await sandbox.write_file(f"{WORKDIR}/{name}.py", data)
    (loaded,) = humaneval.load("2")
    assert isinstance(loaded.task.grader, Grader)
    grader = loaded.task.grader if patient else impatient(loaded.task.grader)
    return await grade(sandbox, grader, workdir=WORKDIR, folder=loaded.folder)


async def test_the_published_solution_scores(sandbox: Sandbox) -> None:
    assert (await grade_solution(sandbox, ORACLE)).reward == 1.0


@pytest.mark.parametrize("cheat", CHEATS)
async def test_a_solution_that_cheats_scores_nothing(sandbox: Sandbox, cheat: str) -> None:
    result = await grade_solution(sandbox, CHEATS[cheat], patient=cheat != "never ends")
    assert (result.reward, result.cls) == (0.0, None), result.detail


SPY = """
import os, re
parent, report = os.getppid(), open("found", "w")
try:
    with open(f"/proc/{parent}/maps") as maps, open(f"/proc/{parent}/mem", "rb") as memory:
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if " rw" in line and "[v" not in line:
                memory.seek(low)
                report.write(repr(re.findall(rb"[0-9a-f]{32}", memory.read(high - low))))
except PermissionError:
    report.write("denied")
report.close()
"""


async def test_a_solution_cannot_read_the_graders_memory(sandbox: Sandbox) -> None:
    result = await grade_solution(sandbox, SPY + ORACLE)
    assert result.reward == 1.0, result.detail
    assert await sandbox.read_file(f"{WORKDIR}/found") == b"denied"


async def test_modules_that_the_agent_left_are_not_imported_by_the_grader(
    sandbox: Sandbox,
) -> None:
    trap = b"import os\nos.write(1, b'trapped')\nos._exit(0)\n"
    names = ("sitecustomize", "usercustomize", "conftest", "json", "ast", "ctypes", "selectors")
    traps = dict.fromkeys(names, trap)
    wrong = "def truncate_number(n): return 7.0"
    for source, reward in ((ORACLE, 1.0), (wrong, 0.0)):
        result = await grade_solution(sandbox, source, **traps)
        assert result.reward == reward, result.detail
        assert result.result is not None
        assert b"trapped" not in result.result.stdout


async def test_a_solution_that_is_a_pipe_or_a_directory_scores_nothing(sandbox: Sandbox) -> None:
    (loaded,) = humaneval.load("2")
    assert isinstance(loaded.task.grader, Grader)
    for command in ("mkdir solution.py", "rmdir solution.py; ln -s /dev/zero solution.py"):
        await sandbox.exec(sh(command), timeout_seconds=10)
        result = await grade(sandbox, loaded.task.grader, workdir=WORKDIR, folder=loaded.folder)
        assert result.reward == 0.0
