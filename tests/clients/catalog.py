"""The clients of the conformance kit: which program, at which version, from which registry.

A change here needs nothing else: `install.py` sees that what it has is older and makes it anew.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from rock.config import read_environment
from rock.rollout.inputs.presets import NODE, PRESETS

LOCKS = Path(__file__).parent / "locks"
UV = "uv==0.13.9"
_LAYOUT = "2"
"""Changes when the same packages are to be laid out differently."""


@dataclass(frozen=True)
class Client:
    """One directory of the clients' directory, which a recipe mounts."""

    name: str
    package: str
    """The pinned package: `name==version` from PyPI, `name@version` from npm."""

    @property
    def lock(self) -> Path | None:
        """Everything that a Python client needs, pinned; None for the others."""
        path = LOCKS / f"{self.name}.txt"
        return path if path.exists() else None

    @property
    def key(self) -> str:
        """Changes with anything that would install something else."""
        lock = self.lock.read_bytes() if self.lock else b""
        return hashlib.sha256(f"{_LAYOUT} {self.package} ".encode() + lock).hexdigest()[:16]

    @property
    def version(self) -> str:
        return self.package.replace("==", "@").rpartition("@")[2]


CLIENTS = {
    client.name: client
    for client in (
        Client("openai", "openai==3.57.0"),
        Client("anthropic", "anthropic==2.14.0"),
        Client("litellm", "litellm==1.110.2"),
        Client("openai-agents", "openai-agents==0.24.0"),
        Client("pydantic-ai", "pydantic-ai-slim==2.68.0"),
        Client("langgraph", "langgraph==1.2.24"),
        # Whole agents are in the table that `agent: {preset: NAME}` uses.
        *(Client(preset.name, preset.package) for preset in PRESETS.values() if preset.mounts),
        Client("node", NODE),
    )
}
"""`node` is what the clients written for it run on."""


def clients_dir() -> Path:
    """Where the clients are: `ROCK_CLIENTS_DIR`, else a directory of the user's cache."""
    return read_environment().clients_dir


def installed(client: Client) -> bool:
    """Whether this very version is there, complete."""
    mark = clients_dir() / client.name / ".installed"
    return mark.exists() and mark.read_text() == client.key
