"""The neutral stream: each sampled token once, in one order, with what a trainer asks about it."""

import json
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from msgspec import Raw

from rock.errors import ConfigError
from rock.modelservice.wire import Span, Trajectory
from rock.rollout.export import FORMATS, ExportOptions, Sample, export, options_of, reload, samples
from rock.rollout.export.sample import Ending, ending_of
from rock.rollout.export.stream import samples_of_episode
from rock.rollout.records.outcome import TABLE, OutcomeClass, Phase, outcome_of
from rock.testing.made_run import MadeCall, MadeEpisode, MadeGroup, trajectory_of, write_run
from tests.rollout.export.sessions import (
    answer,
    call_lists,
    dead,
    group,
    message,
    one_chain,
    solved,
)


def owned(sample: Sample) -> list[tuple[str, int, list[int]]]:
    return [
        (*answer.node, sample.token_ids[answer.start : answer.end].tolist())
        for answer in sample.answers
    ]


@settings(max_examples=60, deadline=None)
@given(call_lists(), call_lists())
def test_every_sampled_token_is_owned_once_whatever_the_rows(
    first: list[MadeCall], second: list[MadeCall]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sessions = {"a": first, "b": second}
        episodes = [MadeEpisode(solved(), trajectory_of(k, calls)) for k, calls in sessions.items()]
        write_run(Path(folder) / "run", [MadeGroup("t", episodes)])
        expected = Counter(
            (f"{name}-c{number}", choice, tuple(ids))
            for name, calls in sessions.items()
            for number, call in enumerate(calls)
            for choice, ids in enumerate(call.answers)
        )
        prompts = {
            f"{name}-c{number}": list(call.prompt)
            for name, calls in sessions.items()
            for number, call in enumerate(calls)
        }
        for rows in ("chain", "turn"):
            left_out = Counter[str]()
            found = list(samples(Path(folder) / "run", options_of(rows=rows), left_out=left_out))
            nodes = [node for sample in found for node in owned(sample)]
            assert Counter((a, b, tuple(ids)) for a, b, ids in nodes) == expected
            assert not left_out
            for sample in found:
                assert sum(sample.mask) == sum(len(ids) for _, _, ids in owned(sample))
                for span in sample.owned:
                    assert sample.token_ids[: span.start].tolist() == prompts[span.call_id]


def test_the_order_is_task_index_chain_turn_and_ids_are_unique(made_run: Path) -> None:
    found = list(samples(made_run, options_of(rows="turn")))
    order = [(s.group.ordinal, s.index, s.turn) for s in found]
    assert order == sorted(order)
    assert len({s.sample_id for s in found}) == len(found) == 5 * len(list(samples(made_run)))


def test_a_turn_row_holds_what_the_engine_saw_and_owns_one_answer(made_run: Path) -> None:
    (whole, *_) = samples(made_run)
    turns = [s for s in samples(made_run, options_of(rows="turn")) if s.chain == whole.chain]
    assert [s.turn for s in turns] == list(range(whole.turns))
    for turn, span in zip(turns, whole.owned, strict=True):
        assert turn.token_ids == whole.token_ids[: span.end]
        assert turn.mask.tolist() == [0] * span.start + [1] * (span.end - span.start)
        assert turn.logprobs[span.start :] == whole.logprobs[span.start : span.end]
        assert not any(turn.logprobs[: span.start])


def test_spans_name_messages_tool_calls_and_versions(made_run: Path) -> None:
    (whole, *_) = samples(made_run)
    first, said, result, *_ = whole.spans
    assert (first.kind, first.roles, first.first_message) == ("prompt", ("user",), 0)
    assert (said.kind, said.roles, said.policy_version) == ("sampled", ("assistant",), 1)
    assert (result.kind, result.roles, result.first_message) == ("prompt", ("tool",), 2)
    assert result.tool_call_ids == said.tool_call_ids
    assert len(result.tool_call_ids) == 1
    assert [span.turn for span in whole.spans] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [s.start for s in whole.spans] == [0, *[s.end for s in whole.spans][:-1]]


@pytest.mark.parametrize(
    ("placement", "rows", "expected"),
    [
        ("last_token", "chain", [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5]]),
        ("per_turn", "chain", [[0, 0, 0, 0, 0.5, 0, 0, 0, 0, 0.5]]),
        ("every_sampled", "chain", [[0, 0, 0.5, 0.5, 0.5, 0, 0, 0.5, 0.5, 0.5]]),
        ("last_token", "turn", [[0] * 5, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5]]),
        ("per_turn", "turn", [[0, 0, 0, 0, 0.5], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5]]),
    ],
)
def test_the_reward_stands_where_it_is_asked_for(
    tmp_path: Path, placement: str, rows: str, expected: list[list[float]]
) -> None:
    write_run(tmp_path / "run", [group("t", 0.5)])
    found = samples(tmp_path / "run", options_of(placement=placement, rows=rows))
    assert [list(s.rewards or ()) for s in found] == expected


def test_what_is_not_in_loss_is_left_out_and_counted_or_has_no_reward(tmp_path: Path) -> None:
    died = MadeEpisode(dead(), one_chain("s", "half"))
    write_run(tmp_path / "run", [MadeGroup("t", [died, MadeEpisode(dead(), None)])])
    left_out = Counter[str]()
    assert list(samples(tmp_path / "run", left_out=left_out)) == []
    assert left_out == {"episode not in loss: sandbox_died": 2}
    left_out.clear()
    (sample,) = samples(tmp_path / "run", options_of(only_in_loss=False), left_out=left_out)
    assert (sample.reward, sample.rewards, sample.ending) == (None, None, Ending.ABORTED)
    assert left_out == {"episode without a trajectory": 1}


def test_missing_members_are_named_with_the_reason(tmp_path: Path) -> None:
    made = group("t", 1.0, None, 0.0)
    untold = MadeEpisode(solved(), trajectory_of("u", []))
    write_run(tmp_path / "run", [MadeGroup("t", [*made.episodes, untold, None])])
    found = list(samples(tmp_path / "run", options_of(partial_groups=True)))
    assert {s.index for s in found} == {0, 2}
    assert {(m.index, m.missing) for m in found[0].group.missing} == {
        (1, "not in loss: sandbox_died"),
        (3, "no token rows"),
        (4, "not finished"),
    }
    assert found[0].group.mean_reward == pytest.approx(2 / 3)


def test_a_group_that_is_not_complete_waits(tmp_path: Path) -> None:
    done = group("done", 1.0)
    write_run(tmp_path / "run", [MadeGroup("t", [done.episodes[0], None]), done])
    assert [s.task_id for s in samples(tmp_path / "run")] == ["done"]


def test_chain_classes_can_be_chosen(tmp_path: Path) -> None:
    main = MadeCall(prompt=[1], answers=[[2]], messages=[], answer=answer("x"))
    side = MadeCall(
        prompt=[5], answers=[[6]], messages=[], answer=answer("x"), chain_class="auxiliary"
    )
    episode = MadeEpisode(solved(), trajectory_of("s", [main, side]))
    write_run(tmp_path / "run", [MadeGroup("t", [episode])])
    left_out = Counter[str]()
    found = list(samples(tmp_path / "run", left_out=left_out))
    assert [s.chain_class for s in found] == ["main"]
    assert left_out == {"chain class auxiliary": 1}
    found = list(samples(tmp_path / "run", options_of(chains="auxiliary")))
    assert [s.chain_class for s in found] == ["auxiliary"]
    found = list(samples(tmp_path / "run", options_of(chains="all")))
    assert [s.chain_class for s in found] == ["main", "auxiliary"]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"max_staleness": 1}, 1),
        ({"max_staleness": 0}, 0),
        ({"min_staleness": 2}, 0),
        ({"max_staleness": 1, "at_version": 9}, 0),
        ({"min_staleness": 8, "max_staleness": 8, "at_version": 9}, 1),
    ],
)
def test_staleness_is_counted_from_the_first_sampled_version(
    tmp_path: Path, options: dict[str, int], kept: int
) -> None:
    write_run(tmp_path / "run", [group("t", 1.0)])
    assert len(list(samples(tmp_path / "run", options_of(**options)))) == kept


def test_longer_sequences_are_left_out_and_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [group("t", 1.0)])
    left_out = Counter[str]()
    options = options_of(rows="turn", max_tokens=9)
    assert [s.turn for s in samples(tmp_path / "run", options, left_out=left_out)] == [0]
    assert left_out == {"longer than max_tokens": 1}


def test_an_answer_that_two_versions_sampled_is_one_answer(tmp_path: Path) -> None:
    trajectory = one_chain("s", "a", "b")
    (row,) = trajectory.rows
    whole = row.spans.pop()
    for start, end, version in ((whole.start, whole.start + 1, 2), (whole.start + 1, whole.end, 3)):
        row.spans.append(
            Span(
                start=start,
                end=end,
                kind="sampled",
                call_id=whole.call_id,
                policy_version=version,
            )
        )
    write_run(tmp_path / "run", [MadeGroup("t", [MadeEpisode(solved(), trajectory)])])
    left_out = Counter[str]()
    (chain,) = samples(tmp_path / "run", options_of(placement="per_turn"), left_out=left_out)
    assert not left_out
    assert (chain.turns, chain.versions) == (2, [1, 2, 3])
    assert [(answer.start, answer.end) for answer in chain.answers] == [(2, 5), (7, 10)]
    assert list(chain.rewards or ()) == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    first, second = samples(tmp_path / "run", options_of(rows="turn"))
    assert (first.versions, second.versions) == ([1], [2, 3])
    assert second.mask.tolist() == [0] * 7 + [1] * 3
    for name in ("jsonl", "atif", "verl", "slime"):
        export(tmp_path / "run", tmp_path / name, name)
        (back,) = reload(tmp_path / name)
        assert (back.token_ids, back.mask, back.logprobs) == (
            chain.token_ids,
            chain.mask,
            chain.logprobs,
        )


def told_apart() -> Trajectory:
    """A chain of two answers whose worker said which tokens are what: the second prompt's tokens are the
    end of the first answer and a message; the first answer is text and two calls, sampled by two
    versions."""
    said = answer("text", tool=True)
    calls = [msgspec.structs.replace(call) for call in said.tool_calls or ()]
    calls.append(msgspec.structs.replace(calls[0], id="second"))
    said.tool_calls = calls
    history = [message("system", "s"), message("user", "u")]
    first = MadeCall(
        prompt=[1, 2, 3], answers=[[10, 11, 12, 13, 14]], messages=history, answer=said
    )
    result = Raw(b'{"role":"tool","tool_call_id":"id-text","content":"r"}')
    second = MadeCall(
        prompt=[1, 2, 3, 10, 11, 12, 13, 14, 4, 5, 6, 7],
        answers=[[20]],
        messages=[*history, message("assistant", "echo"), result],
        answer=answer("done"),
        parent=(0, 0),
    )
    trajectory = trajectory_of("s", [first, second])
    (row,) = trajectory.rows
    one, two = (call.call_id for call in trajectory.calls)
    row.spans = [
        Span(start=0, end=1, kind="prompt", call_id=one, message=0),
        Span(start=1, end=2, kind="prompt", call_id=one, message=1),
        Span(start=2, end=3, kind="prompt", call_id=one, message=2),
        Span(start=3, end=4, kind="sampled", call_id=one, message=2, part="content"),
        Span(start=4, end=5, kind="sampled", call_id=one, part="tool_call", tool_calls=[0]),
        Span(
            start=5,
            end=7,
            kind="sampled",
            call_id=one,
            part="tool_call",
            tool_calls=[1],
            policy_version=2,
        ),
        Span(start=7, end=8, kind="sampled", call_id=one, part="markup", policy_version=2),
        Span(start=8, end=9, kind="prompt", call_id=two, message=2),
        Span(start=9, end=11, kind="prompt", call_id=two),
        Span(start=11, end=12, kind="prompt", call_id=two, message=4),
        Span(start=12, end=13, kind="sampled", call_id=two),
    ]
    return trajectory


def test_spans_of_single_messages_and_calls_are_exported(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, [MadeGroup("t", [MadeEpisode(solved(), told_apart())])])
    left_out = Counter[str]()
    (whole,) = samples(run, options_of(placement="per_turn"), left_out=left_out)
    assert not left_out
    assert [(s.turn, s.first_message, s.roles, s.part, s.tool_call_ids) for s in whole.spans] == [
        (0, 0, ("system",), None, ()),
        (0, 1, ("user",), None, ()),
        (0, 2, ("assistant",), None, ()),
        (0, 2, ("assistant",), "content", ()),
        (0, 2, ("assistant",), "tool_call", ("id-text",)),
        (0, 2, ("assistant",), "tool_call", ("second",)),
        (0, 2, ("assistant",), "markup", ()),
        (1, 2, ("assistant",), None, ()),
        (1, 3, ("tool",), None, ("id-text",)),
        (1, 4, ("assistant",), None, ()),
        (1, 4, ("assistant",), None, ()),
    ]
    # However it is cut, an answer is one answer.
    assert (whole.turns, [(a.start, a.end) for a in whole.answers]) == (2, [(3, 8), (12, 13)])
    assert whole.answers[0].versions == [(2, None), (3, 2)]
    assert list(whole.rewards or ()) == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    first, second = samples(run, options_of(rows="turn"))
    assert (first.mask.count(1), second.mask.count(1)) == (5, 1)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_with_room_for_it_says_what_the_spans_are(tmp_path: Path, name: str) -> None:
    run, out = tmp_path / "run", tmp_path / name
    write_run(run, [MadeGroup("t", [MadeEpisode(solved(), told_apart())])])
    export(run, out, name)
    if name.startswith("openai"):
        return
    written = {
        "verl": lambda: next(iter(reload(out))).other["extra_info"]["spans"],
        "roll": lambda: json.loads(next(iter(reload(out))).other["trajectory_data"])["spans"],
        "slime": lambda: next(iter(reload(out))).other["metadata"]["spans"],
        "atif": lambda: next(iter(reload(out))).other["extra"]["spans"],
        "prime-rl": lambda: json.loads(next(out.glob("*.index.jsonl")).read_text())["spans"],
    }
    spans = written.get(name, lambda: next(iter(reload(out))).other["spans"])()
    assert [span.get("part") for span in spans].count("tool_call") == 2
    assert [span["end"] for span in spans] == [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13]


def test_untrainable_calls_are_counted(tmp_path: Path) -> None:
    trajectory = one_chain("s", "fine")
    trajectory.untrainable["no logprobs"] = 3
    write_run(tmp_path / "run", [MadeGroup("t", [MadeEpisode(solved(), trajectory)])])
    left_out = Counter[str]()
    assert len(list(samples(tmp_path / "run", left_out=left_out))) == 1
    assert left_out == {"untrainable: no logprobs": 3}


@pytest.mark.parametrize("cls", list(OutcomeClass))
def test_every_outcome_says_whether_it_was_cut(cls: OutcomeClass) -> None:
    counts = TABLE[cls].counted
    outcome = outcome_of(cls, Phase.AGENT, reward=0.0 if counts else None)
    assert (ending_of(outcome) is Ending.ABORTED) is not counts
    cut = cls in ("agent_timeout", "agent_output_limit") or cls.endswith("_limit")
    assert (ending_of(outcome) is Ending.TRUNCATED) is cut


def test_one_episode_is_found_by_its_place(made_run: Path) -> None:
    expected = next(samples(made_run))
    found = samples_of_episode(made_run, expected.task_id, expected.index)
    assert found is not None
    assert [s.sample_id for s in found] == [expected.sample_id]
    assert len(found[0].conversation) == 5
    assert samples_of_episode(made_run, "no such task", 0) is None


def test_wrong_options_are_named() -> None:
    with pytest.raises(ConfigError, match=r"rows: .*'chain' or 'turn'.*given: 'words'"):
        options_of(rows="words")
    with pytest.raises(ConfigError, match="min_staleness 3 is above max_staleness 1"):
        options_of(min_staleness=3, max_staleness=1)
    assert options_of(streams="a,b") == ExportOptions(streams=("a", "b"))


def test_each_turn_has_the_sampling_parameters_of_its_own_call(tmp_path: Path) -> None:
    trajectory = one_chain("s", "one", "two", "three")
    for number, call in enumerate(trajectory.calls):
        call.request.seed, call.request.max_tokens = number, 100 + number
        call.request.temperature, call.request.top_p = number / 2, 1 - number / 4
    write_run(tmp_path / "run", [MadeGroup("t", [MadeEpisode(solved(), trajectory)])])
    (whole,) = samples(tmp_path / "run")
    turns = [sample.sampling for sample in samples(tmp_path / "run", options_of(rows="turn"))]
    assert turns == [
        {"temperature": 0.0, "top_p": 1.0, "max_tokens": 100, "seed": 0},
        {"temperature": 0.5, "top_p": 0.75, "max_tokens": 101, "seed": 1},
        {"temperature": 1.0, "top_p": 0.5, "max_tokens": 102, "seed": 2},
    ]
    assert whole.sampling == turns[-1]
