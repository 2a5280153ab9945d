"""The recipes of docs/agents.md, as the tests run them: the page is the only place where they stand.

A recipe is a `yaml` block whose info string says `recipe=NAME`: the part of a run file that is the
agent's; `image=NAME` is one whose agent only runs from an image. Its host paths are `clients/NAME`, which is where `make test-clients` installs, and
`examples/agents/…` of this repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rock.rollout.inputs.runfile import RunFile, resolve
from tests.clients.catalog import clients_dir

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "agents.md"
_BLOCK = re.compile(r"^```yaml (\w+)=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_IMAGES = "image"


def recipes(kind: str = "recipe") -> dict[str, dict[str, Any]]:
    """Name → fields of a run file, as on the page; those of one kind."""
    found = _BLOCK.findall(PAGE.read_text())
    return {name: yaml.safe_load(text) for word, name, text in found if word == kind}


def run_file(name: str, folder: Path) -> RunFile:
    """A recipe with its host paths found, as if its run file were in `folder`."""
    for link, target in (("clients", clients_dir()), ("examples", ROOT / "examples")):
        if not (folder / link).exists():
            (folder / link).symlink_to(target)
    data = {"tasks": "tasks.jsonl", **recipes()[name]}
    return resolve(RunFile.model_validate(data), folder / "run.yaml")


def clients_of(recipe: dict[str, Any]) -> set[str]:
    """Names of the clients that a recipe mounts."""
    return {
        Path(mount["source"]).name
        for mount in recipe["agent"].get("mounts", [])
        if Path(mount["source"]).parts[0] == "clients"
    }
