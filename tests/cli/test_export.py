"""`rock export`, `rock show --tokens` and `rock diff` as a person types them."""

import json
from pathlib import Path

import pytest

from rock.rollout.export import FORMATS
from rock.testing.made_run import MadeEpisode, MadeGroup, write_run
from tests.cli.command import rock
from tests.rollout.export.sessions import group, one_chain, solved


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", [group("first", 1.0, 0.0, None), group("second", 1.0)])
    return tmp_path / "run"


async def test_export_says_what_was_written_and_what_was_not(run: Path, tmp_path: Path) -> None:
    done = await rock("export", "run", home=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert "3 samples, 30 tokens, 18 of them sampled" in done.out
    assert "left out: episode not in loss: sandbox_died (1)" in done.out
    assert (run / "exports" / "jsonl" / "part-00000.jsonl").exists()
    again = await rock("export", "run", home=tmp_path)
    assert again == done


@pytest.mark.parametrize("name", list(FORMATS))
async def test_every_format_has_a_summary_as_json(run: Path, tmp_path: Path, name: str) -> None:
    done = await rock("export", str(run), "--format", name, "--json", home=tmp_path)
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert (summary["format"], summary["samples"], summary["sampled_tokens"]) == (name, 3, 18)
    for file in summary["files"]:
        assert (run / "exports" / name / file).stat().st_size > 0


async def test_export_takes_options(run: Path, tmp_path: Path) -> None:
    argv = ["export", "run", "--out", "out", "--rows", "turn", "--chains", "main"]
    argv += ["--set", "splits=2", "--set", "only_in_loss=false", "--json"]
    done = await rock(*argv, home=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(done.out)["samples"] == 6
    lines = (tmp_path / "out" / "part-00000.jsonl").read_text().splitlines()
    assert {json.loads(line)["turn"] for line in lines} == {0, 1}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["export", "nowhere"], "nowhere: not a run directory"),
        (["export", "run", "--format", "csv"], "'csv' is not one of jsonl"),
        (["export", "run", "--set", "splits=none"], "export options: splits: "),
        (["export", "run", "--set", "splitz=2"], "export options: splitz: "),
        (["export", "run", "--set", "rows=turn"], "rows has a flag of its own: --rows"),
        (["show", "run", "--tokens"], "--tokens: name an episode, too"),
        (["show", "run", "first/9", "--tokens"], "no finished episode 'first/9'"),
        (["diff", "run", "first/0", "run", "first/7"], "no finished episode 'first/7'"),
        (["diff", "run", "first/0", "run", "first/2"], "first/2 in run has no trajectory"),
    ],
)
async def test_bad_input_is_one_clear_message(
    run: Path, tmp_path: Path, argv: list[str], message: str
) -> None:
    del run
    done = await rock(*argv, home=tmp_path)
    assert done.code in (1, 2)
    assert done.err.startswith("rock: ")
    assert message in done.err
    assert "Traceback" not in done.err


async def test_show_tokens_lists_the_spans_of_each_chain(run: Path, tmp_path: Path) -> None:
    done = await rock("show", str(run), "first/0", "--tokens", home=tmp_path)
    assert done.code == 0, done.err
    assert "chain first-0-c0/0 (main): 10 tokens, 6 sampled in 2 answers" in done.out
    assert "policy versions [1, 2], reward 1, terminated" in done.out
    assert "0:2      prompt   mask 0  user" in done.out
    assert "2:5      sampled  mask 1  assistant, version 1, mean log-prob" in done.out
    assert "5 100 3" in done.out
    as_json = await rock("show", str(run), "first/0", "--tokens", "--json", home=tmp_path)
    (sample,) = json.loads(as_json.out)["samples"]
    assert sample["token_ids"] == [7, 0, 5, 100, 3, 7, 1, 8, 101, 3]
    assert sample["mask"] == [0, 0, 1, 1, 1, 0, 0, 1, 1, 1]


async def test_show_reads_as_a_conversation(run: Path, tmp_path: Path) -> None:
    done = await rock("show", str(run), "first/1", home=tmp_path)
    assert done.code == 0, done.err
    said = ["tools: bash", "user: ask 0", "assistant: first", "user: ask 1", "assistant: answer 1"]
    places = [done.out.index(text) for text in said]
    assert places == sorted(places)
    assert done.out.count("user: ask 0") == 1
    assert "chain first-1-c0/0 (main)" in done.out


async def test_diff_names_the_first_difference_of_each_kind(run: Path, tmp_path: Path) -> None:
    done = await rock("diff", "run", "first/0", "run", "first/1", "--json", home=tmp_path)
    assert done.code == 1
    found = {(item["what"], item["where"]): item for item in json.loads(done.out)}
    assert found["outcome", ""]["left"] == "solved"
    assert (found["reward", ""]["left"], found["reward", ""]["right"]) == ("1.0", "0.0")
    assert "answer 0" in found["message", "main 3"]["left"]
    assert "answer 1" in found["message", "main 3"]["right"]
    text = await rock("diff", str(run), "first/0", str(run), "first/1", home=tmp_path)
    assert text.code == 1
    assert "  - solved\n  + failed\n" in text.out


async def test_diff_shows_long_messages_from_where_they_part(tmp_path: Path) -> None:
    long = "the same words " * 100
    episodes = [
        MadeEpisode(solved(), one_chain("s", f"{long}{end}", "done")) for end in ("left", "right")
    ]
    write_run(tmp_path / "run", [MadeGroup("t", episodes)])
    done = await rock("diff", "run", "t/0", "run", "t/1", "--json", home=tmp_path)
    (item, *_) = [item for item in json.loads(done.out) if item["what"] == "message"]
    assert item["left"].startswith("…")
    assert item["left"].endswith("the same words left")
    assert item["right"].endswith("the same words right")
    assert len(item["left"]) < 100


async def test_diff_of_the_same_is_no_difference(run: Path, tmp_path: Path) -> None:
    done = await rock("diff", str(run), "first/0", str(run), "first/0", home=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("no difference")


async def test_diff_finds_tokens_and_chains_that_the_text_does_not_show(tmp_path: Path) -> None:
    left, right, short = (one_chain("s", "a", "b") for _ in range(3))
    for row in right.rows:
        row.token_ids[0] += 1
    short.rows.clear()
    episodes = [MadeEpisode(solved(), each) for each in (left, right, short)]
    write_run(tmp_path / "run", [MadeGroup("t", episodes)])
    done = await rock("diff", "run", "t/0", "run", "t/1", "--json", home=tmp_path)
    (item,) = json.loads(done.out)
    assert (item["what"], item["where"]) == ("tokens", "main 0 (prompt, turn 0)")
    assert (item["left"], item["right"]) == ("7 of 10", "8 of 10")
    done = await rock("diff", "run", "t/0", "run", "t/2", "--json", home=tmp_path)
    (item,) = json.loads(done.out)
    assert (item["what"], item["left"], item["right"]) == ("chain", "main, 10 tokens", None)
