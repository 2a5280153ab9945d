"""`rock agents`: the presets as a table, one in full, and what is refused. Nothing is installed."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from rock.rollout.inputs.presets import PRESETS
from rock.rollout.inputs.runfile import RunFile
from rock.rollout.installing import packages_of
from tests.cli.command import rock


async def test_list_has_every_preset_and_says_what_is_here_and_what_was_tried(
    tmp_path: Path,
) -> None:
    (own,) = packages_of(PRESETS["aider"])
    (tmp_path / "aider").mkdir()
    (tmp_path / "aider" / ".installed").write_text(own.key)
    done = await rock("agents", "list", "--into", str(tmp_path), home=tmp_path)
    assert done.code == 0, done.err
    rows = {line.split()[0]: line for line in done.out.splitlines()[1:]}
    assert rows.keys() == PRESETS.keys()
    assert rows["aider"].split()[-2:] == ["installed", "yes"]
    assert rows["codex"].split()[-2:] == ["no", "yes"]
    assert "image only  no: npm has no such package" in rows["iflow-cli"]
    listed = await rock("agents", "list", "--into", str(tmp_path), "--json", home=tmp_path)
    told = {row["name"]: row for row in json.loads(listed.out)}
    assert (told["aider"]["installed"], told["openhands"]["installed"]) == (True, None)
    assert told["iflow-cli"]["unverified"]


async def test_show_prints_the_part_of_a_run_file_that_a_preset_stands_for(tmp_path: Path) -> None:
    done = await rock("agents", "show", "qwen-code", "--into", str(tmp_path), home=tmp_path)
    assert done.code == 0, done.err
    head, _, text = done.out.partition("stands for\n")
    assert "ends       with an answer that calls no tool" in head
    assert "rock agents install qwen-code --image IMAGE" in head
    run = RunFile.model_validate({"tasks": "t", **yaml.safe_load(text)})
    assert run.agent.command == PRESETS["qwen-code"].command_for(in_image=False)
    assert [str(mount.source) for mount in run.agent.mounts] == [
        str(tmp_path / "qwen-code"),
        str(tmp_path / "node"),
    ]
    assert run.limits.memory_bytes == PRESETS["qwen-code"].memory_bytes


async def test_what_cannot_be_installed_is_refused_with_the_way_that_there_is(
    tmp_path: Path,
) -> None:
    unknown = await rock("agents", "install", "aidr", home=tmp_path)
    assert (unknown.code, unknown.out) == (2, "")
    assert "there is no preset 'aidr' (expected one of mini-swe-agent" in unknown.err
    image_only = await rock("agents", "install", "openhands", home=tmp_path)
    assert image_only.code == 2
    assert "rock agents install openhands --image IMAGE" in image_only.err
    nameless = await rock(
        *("agents", "install", "openhands", "--image", "a@sha256:1"), home=tmp_path
    )
    assert nameless.code == 2
    assert "--tag: expected a name" in nameless.err
