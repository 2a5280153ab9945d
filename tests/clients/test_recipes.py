"""docs/agents.md, the catalogue of clients and the lock files say the same. Nothing is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from rock.rollout.inputs.presets import PRESETS, Preset
from rock.rollout.inputs.runfile import RunFile, resolve
from rock.rollout.installing import Package
from tests.clients.catalog import CLIENTS
from tests.clients.recipes import IN_IMAGES, PAGE, ROOT, clients_of, recipes


@pytest.mark.parametrize("name", recipes())
def test_recipe_is_part_of_a_run_file_and_names_what_exists(name: str) -> None:
    recipe = recipes()[name]
    run = RunFile.model_validate({"tasks": "tasks.jsonl", **recipe})
    assert "{instruction}" in run.agent.command
    assert clients_of(recipe)
    assert clients_of(recipe) <= CLIENTS.keys()
    for source in run.agent.files.values():
        assert (ROOT / source).is_file()


def test_every_client_has_a_recipe() -> None:
    assert set().union(*(clients_of(recipe) for recipe in recipes().values())) == set(CLIENTS)


@pytest.mark.parametrize("client", CLIENTS.values(), ids=lambda client: client.name)
def test_page_says_which_version_is_tested(client: Package) -> None:
    assert f"`{client.package}`" in PAGE.read_text()


@pytest.mark.parametrize(
    "client", [c for c in CLIENTS.values() if c.lock], ids=lambda client: client.name
)
def test_lock_has_the_pinned_version(client: Package) -> None:
    assert client.lock is not None
    assert client.package in client.lock.read_text().splitlines()


@pytest.mark.parametrize("preset", [p for p in PRESETS.values() if p.mounts], ids=lambda p: p.name)
def test_page_shows_what_the_preset_does(preset: Preset, tmp_path: Path) -> None:
    """`agent: {preset: NAME}` and the block of that name on the page are the same run."""
    for name in preset.mounts:
        (tmp_path / "clients" / name).mkdir(parents=True)
    given = {"tasks": "t.jsonl", "agent": {"preset": preset.name, "install": "clients"}}
    run = resolve(RunFile.model_validate(given), tmp_path / "run.yaml")
    shown = RunFile.model_validate({"tasks": "t.jsonl", **recipes()[preset.name]})
    assert run == resolve(shown, tmp_path / "run.yaml")


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda p: p.name)
def test_page_names_every_preset_and_says_how_it_ends(preset: Preset) -> None:
    streams = "yes" if preset.streams else "no"
    packages = " ".join(f"`{package}`" for package in preset.package.split())
    verified = f"no: {preset.unverified}" if preset.unverified else "yes"
    row = f"| `{preset.name}` | {packages} | {preset.speaks} | {streams} | {preset.ends} | {verified} |"
    assert row in PAGE.read_text()


@pytest.mark.parametrize(
    "preset", [p for p in PRESETS.values() if not p.mounts], ids=lambda p: p.name
)
def test_page_shows_what_a_preset_of_an_image_does(preset: Preset, tmp_path: Path) -> None:
    given = {"tasks": "t.jsonl", "agent": {"preset": preset.name, "install": "image"}}
    run = resolve(RunFile.model_validate(given), tmp_path / "run.yaml")
    shown = RunFile.model_validate({"tasks": "t.jsonl", **recipes(IN_IMAGES)[preset.name]})
    assert run == resolve(shown, tmp_path / "run.yaml")
