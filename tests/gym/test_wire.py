"""Values and spaces cross a sandbox's border exactly, and nothing is executed to read them."""

import enum
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given, settings
from hypothesis import strategies as st

from rock.errors import EnvironmentFailed
from rock.gym.remote.wire import describe, pack, unpack
from rock.gym.spaces import AnyText, build

NESTED: Any = {"b": spaces.Discrete(2), "a": spaces.Dict({"c": spaces.MultiBinary(1)})}
SPACES: list[gymnasium.Space[Any]] = [
    spaces.Discrete(5, start=-2),
    spaces.Discrete(3, dtype=np.int32),
    spaces.Box(-np.inf, np.inf, (2, 3), np.float32),
    spaces.Box(np.array([0, 1], np.uint8), np.array([7, 255], np.uint8), dtype=np.uint8),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.MultiDiscrete([3, 4], start=[1, -1]),
    spaces.Text(9, min_length=2, charset="abc{}"),
    spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float64)]),
    spaces.Dict(NESTED),
    spaces.Sequence(spaces.Discrete(4)),
    spaces.Graph(spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(3)),
    spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float32)]),
    AnyText(),
]


def through(form: Any) -> Any:
    return json.loads(json.dumps(form, allow_nan=False))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_and_its_values_come_back_as_they_were(space: gymnasium.Space[Any]) -> None:
    form = {"kind": "AnyText"} if isinstance(space, AnyText) else describe(space)
    again = build(through(form))
    assert again == space
    space.seed(1)
    for _ in range(5):
        value = space.sample()
        there = unpack(through(pack(value)))
        assert again.contains(there)
        assert data_equivalence(value, there, exact=True)


PLAIN = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        PLAIN,
        lambda inner: (
            st.lists(inner)
            | st.lists(inner).map(tuple)
            | st.dictionaries(st.text() | st.integers() | st.just("$a"), inner)
        ),
        max_leaves=8,
    )
)
def test_python_values_come_back_as_they_were(value: Any) -> None:
    again = unpack(through(pack(value)))
    assert again == value
    assert repr(again) == repr(value)


def test_numbers_that_json_has_not_come_back() -> None:
    for value in (np.float32(0.1), np.int8(-3), np.bool_(True), np.datetime64("2026-01-01")):
        again = unpack(through(pack(value)))
        assert (type(again), again) == (type(value), value)
    assert (
        str(unpack(through(pack([float("nan"), float("-inf"), 2**80])))) == f"[nan, -inf, {2**80}]"
    )


def test_enums_are_what_they_hold_and_objects_are_only_shown_where_that_will_do() -> None:
    class Colour(enum.IntEnum):
        RED = 3

    assert pack(Colour.RED) == 3
    for value in (object(), np.array([object()]), {1, 2}):
        with pytest.raises(TypeError, match="cannot leave"):
            pack(value)
        assert isinstance(unpack(through(pack(value, lenient=True))), str)


@pytest.mark.parametrize(
    "form",
    [
        {"$a": ["|O", [1], "AAAAAAAAAAA="]},
        {"$a": ["<f4", [3], "AAAA"]},
        {"$n": ["|V4", "AAAA"]},
        {"$x": 1},
        {"$a": ["<f4", [2**40], "AAAAAA=="]},
    ],
    ids=str,
)
def test_what_no_environment_says_is_refused(form: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        unpack(form)


def test_a_space_that_is_none_is_refused() -> None:
    for form in ({"kind": "Discrete", "n": -1, "start": 0, "dtype": "<i8"}, {"kind": "Odd"}, {}):
        with pytest.raises(EnvironmentFailed, match="describes a space"):
            build(form)
