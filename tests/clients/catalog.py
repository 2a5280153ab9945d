"""The clients of the conformance kit: which program, at which version, from which registry.

A change here needs nothing else: the installer sees that what it has is older and makes it anew.
"""

from __future__ import annotations

from pathlib import Path

from rock.config import read_environment
from rock.rollout.inputs.presets import PRESETS
from rock.rollout.installing import NODE_PACKAGE, Package, lock_of, packages_of

LOCKS = Path(__file__).parent / "locks"
LIBRARIES = (
    "openai==3.57.0",
    "anthropic==2.14.0",
    "litellm==1.110.2",
    "openai-agents==0.24.0",
    "pydantic-ai-slim==2.68.0",
    "langgraph==1.2.24",
)


def _library(pinned: str) -> Package:
    name = pinned.partition("==")[0].removesuffix("-slim")
    return Package(name, pinned, lock_of(name, LOCKS))


CLIENTS = {
    client.name: client
    for client in (
        *(_library(pinned) for pinned in LIBRARIES),
        # Whole agents are in the table that `agent: {preset: NAME}` uses.
        *(packages_of(preset)[0] for preset in PRESETS.values() if preset.mounts),
        NODE_PACKAGE,
    )
}


def clients_dir() -> Path:
    """Where the clients are: `ROCK_CLIENTS_DIR`, else a directory of the user's cache."""
    return read_environment().clients_dir


def installed(client: Package) -> bool:
    """Whether this very version is there, complete."""
    return client.is_in(clients_dir())
