"""Shares of several critics, and floats that a trainer keeps per token."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rock.errors import ConfigError, ExportError
from rock.rollout.export import export, options_of, reload, samples
from rock.rollout.export.float_streams import StreamLine, append, stream_path
from rock.rollout.export.formats.jsonl import packed
from rock.rollout.export.splits import split_of_group
from rock.testing.made_run import write_run
from tests.rollout.export.sessions import group


@given(st.text(max_size=20), st.integers(1, 65), st.integers(1, 9))
def test_every_split_gets_its_share_of_every_group(group_id: str, size: int, splits: int) -> None:
    found = split_of_group(group_id, size, splits)
    counts = [found.count(split) for split in range(splits)]
    assert sum(counts) == size
    assert max(counts) - min(counts) <= 1


def test_the_odd_member_goes_to_each_split_as_often() -> None:
    firsts = [split_of_group(f"g{number}", 3, 2).count(0) == 2 for number in range(1000)]
    assert 430 < sum(firsts) < 570


def test_a_split_does_not_depend_on_who_is_there(tmp_path: Path) -> None:
    options = options_of(splits=2)
    write_run(tmp_path / "all", [group("t", 1.0, 0.0, 1.0, 0.0)])
    write_run(tmp_path / "some", [group("t", None, 0.0, 1.0, None)])
    everyone = {s.index: s.split for s in samples(tmp_path / "all", options)}
    some = {s.index: s.split for s in samples(tmp_path / "some", options)}
    assert sorted(everyone.values()) == [0, 0, 1, 1]
    assert some == {index: everyone[index] for index in (1, 2)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "run", [group("t", 1.0, 0.0)])
    return tmp_path / "run"


def test_a_stream_lands_on_its_tokens_and_survives_export(run: Path, tmp_path: Path) -> None:
    append(run, "scale", [StreamLine(session_id="t-0", call_id="t-0-c1", values=[9, 9, 9])])
    append(
        run,
        "scale",
        [
            StreamLine(session_id="t-0", call_id="t-0-c0", values=[1.5]),
            StreamLine(session_id="t-0", call_id="t-0-c1", offset=1, values=[2.5, 3.5]),
            StreamLine(session_id="t-1", call_id="t-1-c0", offset=2, values=[4.5]),
        ],
    )
    nan = math.nan
    options = options_of(streams="scale")
    one, two = (list(s.streams["scale"]) for s in samples(run, options))
    assert one == pytest.approx([nan, nan, 1.5, nan, nan, nan, nan, 9, 2.5, 3.5], nan_ok=True)
    assert two == pytest.approx([nan, nan, nan, nan, 4.5, *[nan] * 5], nan_ok=True)
    for name in ("jsonl", "parquet"):
        export(run, tmp_path / name, name, options)
        back = [list(packed(row.other["streams"]["scale"])) for row in reload(tmp_path / name)]
        assert back[0] == pytest.approx(one, nan_ok=True)
        assert back[1] == pytest.approx(two, nan_ok=True)


def test_a_turn_row_gets_the_floats_of_its_own_answer_only(run: Path) -> None:
    append(run, "x", [StreamLine(session_id="t-0", call_id="t-0-c0", values=[1, 2, 3])])
    first, second, *_ = samples(run, options_of(streams="x", rows="turn"))
    assert list(first.streams["x"])[2:] == [1, 2, 3]
    assert all(map(math.isnan, second.streams["x"]))


def test_values_past_an_answer_are_refused(run: Path) -> None:
    append(run, "x", [StreamLine(session_id="t-0", call_id="t-0-c0", offset=2, values=[1, 2])])
    with pytest.raises(ExportError, match="past the 3 tokens of t-0-c0/0"):
        list(samples(run, options_of(streams="x")))


def test_unknown_unreadable_and_unsafe_streams_are_named(run: Path) -> None:
    with pytest.raises(ConfigError, match="no stream 'none'"):
        list(samples(run, options_of(streams="none")))
    with pytest.raises(ConfigError, match="not a plain name"):
        stream_path(run, "../x")
    append(run, "x", [StreamLine(session_id="t-0", call_id="c", values=[])])
    with stream_path(run, "x").open("a") as file:
        file.write("{}\n")
    with pytest.raises(ExportError, match=r"x.jsonl:2: not a stream line"):
        list(samples(run, options_of(streams="x")))
