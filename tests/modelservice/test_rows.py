"""Token rows: who goes on in whose row, and that every sampled token has exactly one owner."""

from __future__ import annotations

from rock.modelservice.graph import tokens
from rock.modelservice.graph.rows import CallTokens, Sample, build_rows, kept_of, new_after
from rock.types import CallId


def sample(*ids: int) -> Sample:
    return Sample(tokens.pack_ids(ids), tokens.pack_logprobs([-1.0] * len(ids)))


def call(
    name: str,
    prompt: list[int],
    *samples: Sample,
    parent: CallTokens | None = None,
    choice: int = 0,
) -> CallTokens:
    return CallTokens(CallId(name), 1, samples, tokens.pack_ids(prompt), parent, choice)


def kept_call(
    name: str, prompt: list[int], *samples: Sample, parent: CallTokens, kept: int
) -> CallTokens:
    """A call whose prompt begins with the first `kept` tokens of its parent's sequence."""
    packed = tokens.pack_ids(prompt)
    return CallTokens(CallId(name), 1, samples, packed, parent, 0, kept=kept)


def test_a_call_that_goes_on_extends_its_parents_row() -> None:
    first = call("a", [1, 2], sample(10, 11))
    second = call("b", [3], sample(12), parent=first)
    (row,) = build_rows([first, second])
    assert row.token_ids == [1, 2, 10, 11, 3, 12]
    assert row.mask == [0, 0, 1, 1, 0, 1]
    assert row.logprobs == [0.0, 0.0, -1.0, -1.0, 0.0, -1.0]
    assert [(span.kind, span.start, span.end, span.call_id) for span in row.spans] == [
        ("prompt", 0, 2, "a"),
        ("sampled", 2, 4, "a"),
        ("prompt", 4, 5, "b"),
        ("sampled", 5, 6, "b"),
    ]
    assert [span.policy_version for span in row.spans] == [None, 1, None, 1]


def test_a_second_child_masks_what_the_first_one_owns() -> None:
    first = call("a", [1], sample(10))
    rows = build_rows(
        [first, call("b", [2], sample(11), parent=first), call("c", [3], sample(12), parent=first)]
    )
    assert [row.token_ids for row in rows] == [[1, 10, 2, 11], [1, 10, 3, 12]]
    assert [row.mask for row in rows] == [[0, 1, 0, 1], [0, 0, 0, 1]]


def test_each_of_n_choices_has_its_row_and_can_go_on() -> None:
    first = call("a", [1], sample(10), sample(20))
    second = call("b", [2], sample(30), sample(40), parent=first, choice=1)
    rows = build_rows([first, second])
    assert [row.chain for row in rows] == ["a/0", "a/1", "b/1"]
    assert [row.token_ids for row in rows] == [[1, 10], [1, 20, 2, 30], [1, 20, 2, 40]]
    assert [row.mask for row in rows] == [[0, 1], [0, 1, 0, 1], [0, 0, 0, 1]]


def test_a_call_that_adds_nothing_to_the_prompt_still_extends() -> None:
    first = call("a", [1], sample(10))
    (row,) = build_rows([first, call("b", [], sample(11), parent=first)])
    assert (row.token_ids, row.mask) == ([1, 10, 11], [0, 1, 1])
    assert [span.kind for span in row.spans] == ["prompt", "sampled", "sampled"]


def test_the_new_part_of_a_prompt_is_what_follows_the_parents_sequence() -> None:
    first = call("a", [1, 2], sample(10))
    second = call("b", [3], sample(11), parent=first)
    assert second.prompt_ids() == tokens.pack_ids([1, 2, 10, 3])
    prompt = tokens.pack_ids([1, 2, 10, 3, 11, 4, 5])
    assert new_after(prompt, second, 0) == tokens.pack_ids([4, 5])
    assert new_after(tokens.pack_ids([1, 2, 99, 3, 11, 4]), second, 0) is None
    assert new_after(tokens.pack_ids([1, 2]), second, 0) is None


def test_a_prompt_may_keep_only_the_beginning_of_its_parents_sequence() -> None:
    """At any depth, and cut anywhere: in an answer, in a prompt, in the parent's parent's."""
    first = call("a", [1, 2], sample(10, 11))
    second = call("b", [3, 4], sample(12), parent=first)  # 1 2 10 11 3 4 12
    whole = [1, 2, 10, 11, 3, 4, 12]
    for kept in range(len(whole)):
        forked = kept_call("c", [8, 9], sample(13), parent=second, kept=kept)
        prompt = [*whole[:kept], 8, 9]
        assert forked.prompt_ids() == tokens.pack_ids(prompt)
        assert forked.prompt_count == len(prompt)
        assert kept_of(tokens.pack_ids(prompt), second, 0) == kept
        after = call("d", [5], sample(14), parent=forked)
        assert after.sequence_ids(0) == tokens.pack_ids([*prompt, 13, 5, 14])
        linear, row = build_rows([first, second, forked, after])
        assert linear.token_ids == whole
        assert row.token_ids == [*prompt, 13, 5, 14]
        assert row.mask == [0] * len(prompt) + [1, 0, 1]
        assert [span.start for span in row.spans] == [0, *(s.end for s in row.spans[:-1])]
        assert row.spans[-1].end == len(row.token_ids)


def test_no_calls_make_no_rows() -> None:
    assert build_rows([]) == []
