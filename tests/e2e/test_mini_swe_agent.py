"""The real proof: mini-swe-agent from PyPI, unmodified, fixes a bug in a real small library.

It runs in a Docker sandbox without a network; a scripted policy answers through the trainer API. The
repository is checked afterwards by its own tests, and the trajectory against what the agent sent.
"""

import json
from pathlib import Path
from typing import Any

import iniconfig
import msgspec
import pytest

from rock.modelservice.hosting.supervise import ServiceProcess
from rock.modelservice.policies.scripted import tool_call, turn_of
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.records.trajectory import read_trajectory
from rock.rollout.run import run
from tests.needs import TEST_IMAGE
from tests.rollout.live import address, answering

LIBRARY = Path(iniconfig.__file__).parent
RIGHT = 'raise ParseError(path, lineno, f"duplicate section {section!r}")'
WRONG = "pass"
"""The bug: a section that stands twice in a file is no error any more."""
CHECK = """
import iniconfig, pytest

def test_a_section_given_twice_is_refused():
    with pytest.raises(iniconfig.ParseError, match="duplicate section"):
        iniconfig.IniConfig("x.ini", data="[a]\\nb=1\\n[a]\\nc=2\\n")

def test_a_plain_file_is_read():
    assert iniconfig.IniConfig("x.ini", data="[a]\\nb=1\\n")["a"]["b"] == "1"
"""
RUN_CHECK = (
    "import sys, types, contextlib, re\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "class raises(contextlib.ContextDecorator):\n"
    "    def __init__(self, kind, match): self.kind, self.match = kind, match\n"
    "    def __enter__(self): return self\n"
    "    def __exit__(self, kind, exc, tb):\n"
    "        assert kind and issubclass(kind, self.kind) and re.search(self.match, str(exc))\n"
    "        return True\n"
    "sys.modules['pytest'] = types.SimpleNamespace(raises=raises)\n"
    "names = {}\n"
    "exec(open(sys.argv[2]).read(), names)\n"
    "[test() for name, test in sorted(names.items()) if name.startswith('test_')]\n"
)
SCRIPT = [
    tool_call("bash", command="git log --oneline && grep -n 'duplicate' -r iniconfig"),
    tool_call("bash", command="grep -n -B2 -A3 'if section in sections_data' iniconfig/_parse.py"),
    tool_call(
        "bash",
        command="cat > fix.py <<'END'\n"
        "text = open('iniconfig/_parse.py').read()\n"
        "old = 'if section in sections_data:\\n                pass'\n"
        f"new = 'if section in sections_data:\\n                {RIGHT}'\n"
        "assert old in text\n"
        "open('iniconfig/_parse.py', 'w').write(text.replace(old, new))\n"
        "END\npython3 fix.py && rm fix.py && git diff --stat",
    ),
    tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff"),
]


def broken_repository(folder: Path) -> None:
    """The installed iniconfig, with the bug, as a tree that the agent finds under version control."""
    package = folder / "iniconfig"
    package.mkdir(parents=True)
    for source in sorted(LIBRARY.glob("*.py")):
        text = source.read_text()
        if source.name == "_parse.py":
            assert RIGHT in text, "this iniconfig is not the one that the script knows"
            text = text.replace(RIGHT, WRONG)
        (package / source.name).write_text(text)


def run_config(folder: Path) -> RunFile:
    broken_repository(folder / "repository")
    task = {
        "task_id": "iniconfig/duplicate-section",
        "instruction": "A section that stands twice in an ini file must raise ParseError "
        "(duplicate section). Fix the library in the working directory.",
        "files": {"iniconfig": {"source": "repository/iniconfig"}},
    }
    (folder / "tasks.jsonl").write_text(json.dumps(task) + "\n")
    agent: dict[str, Any] = {
        "command": [
            "sh",
            "-c",
            "git init -q . && git -c user.name=t -c user.email=t@example.invalid add -A && "
            "git -c user.name=t -c user.email=t@example.invalid commit -qm 'import' && "
            'exec /opt/agent/bin/mini -y --exit-immediately -m openai/policy -t "$0" -o "$1"',
            "{instruction}",
            "/tmp/mini.json",
        ],
        "env": {
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_SILENT_STARTUP": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        "timeout_seconds": 120,
    }
    grader: dict[str, Any] = {
        "command": [
            "sh",
            "-c",
            'python3 -I "$0/run.py" "$1" "$0/check.py" && cat /tmp/mini.json',
            "{tests}",
            "{workdir}",
        ],
        "files": {"run.py": RUN_CHECK, "check.py": CHECK},
    }
    return RunFile.model_validate(
        {
            "tasks": str(folder / "tasks.jsonl"),
            "agent": agent,
            "grader": grader,
            "image": TEST_IMAGE,
            "provider": "docker",
            "out": folder / "run",
            "consume_timeout_seconds": 0,
        }
    )


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_mini_swe_agent_fixes_a_library_and_its_trajectory_is_what_it_sent(
    tmp_path: Path,
) -> None:
    config = run_config(tmp_path)
    async with (
        ServiceProcess(tmp_path / "state", exit_with_parent=True) as service,
        answering(service, lambda lease: SCRIPT[turn_of(lease)]) as policy,
    ):
        result = await run(config, service=address(service))

    folder = tmp_path / "run/episodes"
    attempt = next(folder.glob("*/0/attempt-1"))
    assert result.report.total.solved == 1, (attempt / "record.json").read_text()

    # The agent's own account of the conversation, printed by the grader after the tests had passed.
    own: dict[str, Any] = json.loads((attempt / "grader.stdout").read_bytes())
    assert own["info"]["exit_status"] == "Submitted"
    trajectory = read_trajectory(attempt)
    assert trajectory is not None
    assert [call.state for call in trajectory.calls] == ["delivered"] * len(SCRIPT)
    assert [call.branch for call in trajectory.calls] == [None] * len(SCRIPT)
    sent = [msgspec.json.decode(raw) for raw in trajectory.calls[-1].request.messages]
    mine = own["messages"][: len(sent)]
    assert [m["role"] for m in sent] == [m["role"] for m in mine]
    assert [m.get("content") for m in sent] == [m.get("content") for m in mine]
    assert [raw for lease in policy.seen[-1:] for raw in lease.request.messages] == (
        trajectory.calls[-1].request.messages
    )
    # One chain: every sampled token of every turn in one row, owned once.
    (row,) = trajectory.rows
    sampled = [i for c in trajectory.calls for choice in c.choices for i in choice.token_ids or []]
    assert [i for i, m in zip(row.token_ids, row.mask, strict=True) if m] == sampled
