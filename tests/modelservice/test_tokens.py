"""Packing and checking of token ids and log-probabilities."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rock.modelservice.graph import tokens

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1)


@given(IDS)
def test_packed_ids_come_back_the_same(ids: list[int]) -> None:
    packed = tokens.pack_ids(ids)
    assert (len(packed), tokens.count(packed)) == (4 * len(ids), len(ids))
    assert tokens.unpack_ids(packed) == ids


@given(st.lists(st.floats(-1e6, 0.0, width=32)))
def test_packed_logprobs_come_back_the_same(logprobs: list[float]) -> None:
    assert tokens.unpack_logprobs(tokens.pack_logprobs(logprobs)) == logprobs


def test_a_good_sample_has_nothing_against_it() -> None:
    ids, logprobs = [1, 2**31 - 1], [0.0, -20.5]
    packed = tokens.pack_ids(ids), tokens.pack_logprobs(logprobs)
    assert tokens.pack_sample(ids, logprobs) == packed
    assert tokens.pack_prompt([0, 7]) == (tokens.pack_ids([0, 7]), None)


@pytest.mark.parametrize(
    ("ids", "logprobs", "reason"),
    [
        (None, [-1.0], "no token_ids"),
        ([1], None, "no logprobs"),
        ([], [], "empty token_ids"),
        ([1, 2], [-1.0], "2 token_ids but 1 logprobs"),
        ([-1], [-1.0], "token_ids outside"),
        ([2**31], [-1.0], "token_ids outside"),
        ([1, 2], [-1.0, math.nan], "not finite"),
        ([1], [-math.inf], "not finite"),
        ([1, 2], [math.inf, -math.inf], "not finite"),
        ([1], [-1e300], "not finite"),
        ([1], [-2e30], "not finite"),
        ([1], [0.01], "above 0"),
        ([1, 2], [-1.0, 5e-324], "above 0"),
        ([1, 2], [-1.0, 1e-45], "above 0"),
        ([1], [1e300], "above 0"),
    ],
)
def test_a_sample_that_is_not_exactly_right_gets_its_reason(
    ids: list[int] | None, logprobs: list[float] | None, reason: str
) -> None:
    assert reason in tokens.pack_sample(ids, logprobs)


@given(st.lists(st.floats(), min_size=1))
def test_a_sample_is_packed_just_if_each_logprob_is_one(logprobs: list[float]) -> None:
    right = all(-1e30 <= one <= 0 for one in logprobs)
    assert isinstance(tokens.pack_sample([1] * len(logprobs), logprobs), tuple) == right


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (None, "no prompt_token_ids"),
        ([], "empty"),
        ([1, -5], "prompt_token_ids outside"),
        ([2**31], "prompt_token_ids outside"),
    ],
)
def test_a_prompt_that_is_not_exactly_right_gets_its_reason(
    ids: list[int] | None, reason: str
) -> None:
    packed, why = tokens.pack_prompt(ids)
    assert packed is None
    assert reason in (why or "")


@pytest.mark.parametrize("ids", [[2**31], [-(2**31) - 1], [1.5], [None], ["7"]])
def test_what_is_no_int32_is_not_packed(ids: list[Any]) -> None:
    with pytest.raises(OverflowError):
        tokens.pack_ids(ids)
