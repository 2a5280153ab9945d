"""docs/agents.md, the catalogue of clients and the lock files say the same. Nothing is installed."""

from __future__ import annotations

import pytest

from rock.rollout.runfile import RunFile
from tests.clients.catalog import CLIENTS, Client
from tests.clients.recipes import PAGE, ROOT, clients_of, recipes


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
def test_page_says_which_version_is_tested(client: Client) -> None:
    assert f"`{client.package}`" in PAGE.read_text()


@pytest.mark.parametrize(
    "client", [c for c in CLIENTS.values() if c.lock], ids=lambda client: client.name
)
def test_lock_has_the_pinned_version(client: Client) -> None:
    assert client.lock is not None
    assert client.package in client.lock.read_text().splitlines()
