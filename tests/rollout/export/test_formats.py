"""Each format holds what was sampled: written, reloaded, compared token for token.

Formats that belong to other projects are also checked against their published fields here; with
those projects' own code in test_real_packages.py.
"""

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from rock.errors import ConfigError, ExportError
from rock.rollout.export import FORMATS, Reloaded, Sample, export, options_of, reload, samples
from rock.rollout.export.formats import Facts, make_format
from rock.rollout.export.formats.tensors import from_bytes
from rock.testing.made_run import MadeCall, MadeEpisode, MadeGroup, trajectory_of, write_run
from tests.rollout.export.recorded import lines_of
from tests.rollout.export.sessions import (
    answer,
    call_lists,
    dead,
    group,
    message,
    one_chain,
    solved,
)

TOKENS = [name for name in FORMATS if not name.startswith("openai")]
CHAINS_ONLY = ("atif", "openai-dpo")


def tokens(row: Sample | Reloaded) -> tuple[list[int], list[int], list[float]]:
    return row.token_ids.tolist(), row.mask.tolist(), row.logprobs.tolist()


def equal(name: str, run: Path, out: Path, **options: Any) -> list[Reloaded]:
    """Export, reload, compare; what was reloaded."""
    chosen = options_of(**options)
    export(run, out, name, chosen)
    expected, found = list(samples(run, chosen)), list(reload(out))
    assert [tokens(row) for row in found] == [tokens(sample) for sample in expected]
    for row, sample in zip(found, expected, strict=True):
        assert row.sample_id in (sample.sample_id, None)
        assert row.group_id in (sample.group.group_id, None)
        assert row.reward in (sample.reward, None)
        assert row.rewards in (sample.rewards, None)
    return found


@pytest.mark.userns
@pytest.mark.parametrize("rows", ["chain", "turn"])
@pytest.mark.parametrize("name", TOKENS)
def test_a_real_run_survives_every_format(
    recorded_run: Path, tmp_path: Path, name: str, rows: str
) -> None:
    if rows == "turn" and name in CHAINS_ONLY:
        with pytest.raises(ConfigError, match="rows=chain"):
            export(recorded_run, tmp_path / "out", name, options_of(rows=rows))
        return
    found = equal(name, recorded_run, tmp_path / "out", rows=rows, messages=True, chains="all")
    assert len(found) == 8 * (3 if rows == "chain" else 5)
    assert any(len(set(row.mask)) == 2 for row in found)


@settings(max_examples=15, deadline=None)
@given(call_lists(), call_lists())
def test_sessions_of_any_shape_survive_every_format(
    first: list[MadeCall], second: list[MadeCall]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        made = [
            MadeEpisode(solved(1 / 3), trajectory_of("a", first)),
            MadeEpisode(solved(0.0), trajectory_of("b", second)),
        ]
        write_run(run, [MadeGroup("t/ü", made)])
        for name in TOKENS:
            equal(name, run, Path(folder) / name)
            if name not in CHAINS_ONLY:
                equal(name, run, Path(folder) / f"{name}-turn", rows="turn", messages=True)


@pytest.mark.parametrize("name", [n for n in TOKENS if n != "roll"])
def test_a_missing_reward_stays_missing(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "run", [MadeGroup("t", [MadeEpisode(dead(), one_chain("s", "a"))])])
    (row,) = equal(name, tmp_path / "run", tmp_path / "out", only_in_loss=False)
    assert row.reward is None
    assert row.rewards is None


def test_roll_has_no_place_for_a_missing_reward() -> None:
    with pytest.raises(ConfigError, match="roll: its scores cannot be null"):
        make_format("roll", options_of(only_in_loss=False), Facts("r", "a"))


def test_an_unknown_format_is_named_with_the_known_ones(made_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'csv' is not one of jsonl, parquet"):
        export(made_run, tmp_path / "out", "csv")


def test_jsonl_and_parquet_hold_the_same_fields(made_run: Path, tmp_path: Path) -> None:
    lines = equal("jsonl", made_run, tmp_path / "a", messages=True, splits=3)
    rows = equal("parquet", made_run, tmp_path / "b", messages=True, splits=3)
    for line, row in zip(lines, rows, strict=True):
        assert line.other.keys() == row.other.keys()
        for name in line.other.keys() - {"spans"}:
            assert line.other[name] == row.other[name], name
        for one, two in zip(line.other["spans"], row.other["spans"], strict=True):
            assert {**two, **one} == two  # jsonl leaves null out
    assert {row.other["split"] for row in rows} == {0, 1, 2}


def test_a_newer_schema_is_refused(made_run: Path, tmp_path: Path) -> None:
    equal("jsonl", made_run, tmp_path / "out")
    (path,) = (tmp_path / "out").glob("part-*.jsonl")
    whole = path.read_bytes()
    newer = whole.replace(b'"schema":1', b'"schema":2')
    path.write_bytes(newer)
    manifest = tmp_path / "out" / "manifest.json"
    before, after = (hashlib.sha256(data).hexdigest() for data in (whole, newer))
    manifest.write_text(manifest.read_text().replace(before, after))
    with pytest.raises(ExportError, match="schema 2; this rock reads up to 1"):
        list(reload(tmp_path / "out"))


@pytest.mark.userns
def test_supervised_lines_weigh_each_answer_once(recorded_run: Path, tmp_path: Path) -> None:
    export(recorded_run, tmp_path / "out", "openai-sft", options_of(min_reward=1.0, chains="all"))
    lines: list[Any] = lines_of(tmp_path / "out" / "part-00000.jsonl")
    assert len(lines) == 4 * 3
    main = lines[0]
    assert main.keys() == {"messages", "tools"}
    said = main["messages"]
    roles = ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert [m["role"] for m in said] == roles
    assert [m.get("weight") for m in said] == [None, None, 1, None, None, 1, None, 1]
    # As sampled, not as the agent sent it back (with other white space in the arguments).
    assert said[2]["tool_calls"][0]["function"]["arguments"] == '{"command":"echo hello"}'
    assert said[3] == {
        "role": "tool",
        "content": "hello\n",
        "tool_call_id": said[2]["tool_calls"][0]["id"],
    }
    second_choice = lines[1]["messages"]
    assert [m["role"] for m in second_choice] == ["system", "user", "assistant"]


@pytest.mark.userns
def test_supervised_turn_lines_weigh_only_their_last_answer(
    recorded_run: Path, tmp_path: Path
) -> None:
    export(recorded_run, tmp_path / "out", "openai-sft", options_of(rows="turn"))
    for line in lines_of(tmp_path / "out" / "part-00000.jsonl"):
        messages: Any = line["messages"]
        weights = [m["weight"] for m in messages if m["role"] == "assistant"]
        assert weights == [0] * (len(weights) - 1) + [1]


@pytest.mark.userns
def test_preferences_part_where_the_members_did(recorded_run: Path, tmp_path: Path) -> None:
    export(recorded_run, tmp_path / "out", "openai-dpo", options_of(pairs="all"))
    lines: list[Any] = lines_of(tmp_path / "out" / "part-00000.jsonl")
    assert len(lines) == 2 * 4  # two groups, two good times two bad members
    for line in lines:
        assert line.keys() == {"input", "preferred_output", "non_preferred_output"}
        assert [m["role"] for m in line["input"]["messages"]][-1] == "tool"
        (good,), (bad,) = line["preferred_output"], line["non_preferred_output"]
        assert "echo 42" in good["tool_calls"][0]["function"]["arguments"]
        assert "echo 41" in bad["tool_calls"][0]["function"]["arguments"]
    export(recorded_run, tmp_path / "best", "openai-dpo")
    assert len(lines_of(tmp_path / "best" / "part-00000.jsonl")) == 2


def preferences(folder: Path, *members: tuple[float, list[MadeCall]], **options: Any) -> list[Any]:
    episodes = [
        MadeEpisode(solved(reward), trajectory_of(f"s{place}", calls))
        for place, (reward, calls) in enumerate(members)
    ]
    write_run(folder / "run", [MadeGroup("t", episodes)])
    export(folder / "run", folder / "out", "openai-dpo", options_of(**options))
    return [row.other for row in reload(folder / "out")]


def says(text: str, *, asked: str = "ask") -> list[MadeCall]:
    return [
        MadeCall(prompt=[1], answers=[[2]], messages=[message("user", asked)], answer=answer(text))
    ]


def test_no_pair_without_a_difference_in_an_answer(tmp_path: Path) -> None:
    assert preferences(tmp_path / "a", (1.0, says("x")), (0.0, says("x"))) == []
    assert preferences(tmp_path / "b", (1.0, says("x")), (0.0, says("y", asked="?"))) == []
    assert preferences(tmp_path / "c", (1.0, says("x")), (1.0, says("y"))) == []
    close = preferences(tmp_path / "d", (0.6, says("x")), (0.5, says("y")), min_margin=0.2)
    assert close == []
    (pair,) = preferences(tmp_path / "e", (0.0, says("x")), (1.0, says("y")))
    assert pair["preferred_output"] == [{"role": "assistant", "content": "y"}]
    assert pair["input"] == {
        "messages": [{"role": "user", "content": "ask"}],
        "tools": [
            {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
        ],
    }


def batch_of(out: Path) -> Any:
    (path,) = out.glob("part-*.npz")
    return from_bytes(path.read_bytes())


def test_verl_fields_are_padded_and_placed_as_published(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [group("t", 1.0, 0.25)])
    export(tmp_path / "run", tmp_path / "out", "verl", options_of(rows="turn", pad_token_id=99))
    batch = batch_of(tmp_path / "out")
    assert batch.tensors["prompts"].tolist()[:2] == [[99] * 5 + [7, 0], [7, 0, 5, 100, 3, 7, 1]]
    assert batch.tensors["responses"].tolist()[:2] == [[5, 100, 3], [8, 101, 3]]
    assert batch.tensors["attention_mask"].tolist()[0] == [0] * 5 + [1] * 5
    assert batch.tensors["position_ids"].tolist()[0] == [0] * 5 + [0, 1, 2, 3, 4]
    assert batch.tensors["rm_scores"].tolist()[:2] == [[0, 0, 0], [0, 0, 1]]
    assert batch.tensors["rm_scores"].tolist()[3] == [0, 0, 0.25]
    shapes = {name: tensor.shape for name, tensor in batch.tensors.items()}
    wide, long = (4, 10), (4, 3)
    assert shapes == {
        "prompts": (4, 7),
        "responses": long,
        "response_mask": long,
        "input_ids": wide,
        "attention_mask": wide,
        "position_ids": wide,
        "rollout_log_probs": long,
        "rm_scores": long,
    }
    arrays = batch.object_arrays()
    assert {array.dtype for array in arrays.values()} == {np.dtype(object)}
    assert list(arrays["uid"]) == ["g0"] * 4
    assert list(arrays["index"]) == [0, 0, 1, 1]


def test_roll_fields_are_padded_shifted_and_placed_as_published(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [group("t", 1.0, 0.25)])
    options = options_of(rows="turn", max_tokens=12, pad_token_id=99, messages=True)
    export(tmp_path / "run", tmp_path / "out", "roll", options)
    batch = batch_of(tmp_path / "out")
    first = {name: tensor[0].tolist() for name, tensor in batch.tensors.items()}
    assert first["input_ids"] == [7, 0, 5, 100, 3] + [99] * 7
    assert first["attention_mask"] == [1] * 5 + [0] * 7
    assert first["position_ids"] == [0, 1, 2, 3, 4] + [0] * 7
    assert first["response_mask"] == [False] * 2 + [True] * 3 + [False] * 7
    assert first["prompt_mask"] == [True] * 2 + [False] * 10
    assert first["scores"] == [0] * 12
    assert batch.tensors["scores"][1].tolist() == [0] * 9 + [1, 0, 0]
    (sample, *_) = samples(tmp_path / "run", options)
    assert first["infer_logprobs"] == sample.logprobs[1:].tolist() + [0] * 7
    assert batch.tensors.keys() == {
        "input_ids",
        "attention_mask",
        "position_ids",
        "response_mask",
        "prompt_mask",
        "scores",
        "infer_logprobs",
    }
    other = batch.non_tensors
    published = "env_ids group_ids tags step_scores episode_scores state_hash step trajectory_data"
    assert other.keys() >= {*published.split(), "messages", "tools", "exp_name"}
    assert other.keys() >= {"traj_group_id", "traj_id"}
    assert other["step"] == [0, 1, 0, 1]
    assert other["step_scores"] == [0, 1, 0, 0.25]
    assert other["episode_scores"] == [1, 1, 0.25, 0.25]
    # An episode's texts stand in its last row only.
    assert [value is None for value in other["messages"]] == [True, False, True, False]
    assert batch.meta_info["COLUMMNS_CONFIG"][0] == ["trajectory_data", "string"]


class PublishedTrainingSample(msgspec.Struct, array_like=True):
    """The places of prime-rl's TrainingSample as of 2026-08 (commit 559b447)."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: list[float] | None = None
    mm_kwargs: dict[str, Any] | None = None
    routed_experts: list[Any] | None = None
    mm_token_type_ids: list[int] | None = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    advantages: list[float] | None = None


class PublishedTrainingBatch(msgspec.Struct, array_like=True):
    examples: list[PublishedTrainingSample]
    step: int
    run_idx: int | None = None


@pytest.mark.parametrize("members", [2, 15, 16, 17])
def test_prime_rl_batches_decode_by_the_published_places(tmp_path: Path, members: int) -> None:
    rewards = [1.0, *[0.0] * (members - 1)]
    write_run(tmp_path / "run", [group("t", *rewards)])
    export(tmp_path / "run", tmp_path / "out", "prime-rl", options_of(advantage="group_mean"))
    data = (tmp_path / "out" / "part-00000.msgpack").read_bytes()
    batch = msgspec.msgpack.decode(data, type=PublishedTrainingBatch)
    assert len(batch.examples) == members
    expected = list(samples(tmp_path / "run"))
    for example, sample in zip(batch.examples, expected, strict=True):
        assert example.token_ids == sample.token_ids.tolist()
        assert example.mask == [bool(flag) for flag in sample.mask]
        assert example.temperatures == [0.5 if flag else 1.0 for flag in sample.mask]
        assert example.env_name == "t"
        advantage = (sample.reward or 0.0) - 1 / members
        assert example.advantages == pytest.approx([advantage * f for f in sample.mask])
    index: list[Any] = lines_of(tmp_path / "out" / "part-00000.index.jsonl")
    assert [line["reward"] for line in index] == rewards
    assert [line["sample_id"] for line in index] == [s.sample_id for s in expected]


SLIME_FIELDS = frozenset(
    [
        "group_index",
        "index",
        "rollout_id",
        "prompt",
        "tokens",
        "response",
        "response_length",
        "label",
        "reward",
        "loss_mask",
        "weight_versions",
        "rollout_log_probs",
        "remove_sample",
        "status",
        "session_id",
        "metadata",
    ]
)
"""Those of slime's Sample as of 2026-08 that a rollout without images or teachers has."""


def test_slime_lines_have_the_published_fields(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [group("a", 1.0), group("b", 0.0, 1.0)])
    export(tmp_path / "run", tmp_path / "out", "slime", options_of(messages=True))
    lines: list[Any] = lines_of(tmp_path / "out" / "part-00000.jsonl")
    for line in lines:
        assert line.keys() == SLIME_FIELDS
        assert len(line["loss_mask"]) == len(line["rollout_log_probs"]) == line["response_length"]
        assert line["status"] == "completed"
        assert line["loss_mask"][0] == 1
        assert line["weight_versions"] == ["1", "2"]
    assert [(line["group_index"], line["index"]) for line in lines] == [(0, 0), (1, 1), (1, 2)]
    assert lines[0]["prompt"][0] == {"role": "user", "content": "ask 0"}
    assert lines[0]["response"] == "answer 0"


def atif_steps(document: Any) -> Iterator[Any]:
    for chain in [document, *document.get("subagent_trajectories", [])]:
        yield from chain["steps"]


@pytest.mark.userns
def test_atif_keeps_what_it_has_no_field_for(recorded_run: Path, tmp_path: Path) -> None:
    export(recorded_run, tmp_path / "out", "atif", options_of(chains="all"))
    lines: list[Any] = lines_of(tmp_path / "out" / "part-00000.jsonl")
    assert len(lines) == 8
    first = lines[0]
    assert [s["source"] for s in first["steps"]] == ["system", "user", "agent", "agent", "agent"]
    call, also = first["steps"][2]["tool_calls"]
    assert call["arguments"] == {"command": "echo hello"}
    assert call["extra"] == {"raw_arguments": '{"command":"echo hello"}'}
    results = first["steps"][2]["observation"]["results"]
    assert [r["content"] for r in results] == ["hello\n", "there\n"]
    assert [r["source_call_id"] for r in results] == [call["tool_call_id"], also["tool_call_id"]]
    assert first["steps"][2]["reasoning_content"] == "First I look."
    assert first["extra"]["reward"] == 1.0
    assert first["extra"]["outcome"]["class"] == "solved"
    assert [
        (c["extra"]["chain_class"], c["extra"]["branch"]) for c in first["subagent_trajectories"]
    ] == [("main", "choice"), ("auxiliary", "auxiliary")]
    assert all(step.get("is_copied_context") is None for step in atif_steps(first))
