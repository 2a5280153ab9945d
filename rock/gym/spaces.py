"""Spaces on this side: what `remote.wire.describe` says, built again, and a space of any text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rock.errors import EnvironmentFailed
from rock.gym.remote.wire import unpack

SAMPLE_CHARACTERS = 16


class AnyText(gymnasium.Space[str]):
    """Every text. Gymnasium's `Text` would need a list of all characters there are."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        length = int(self.np_random.integers(1, SAMPLE_CHARACTERS + 1))
        return "".join(map(chr, self.np_random.integers(97, 123, length).tolist()))

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText)

    __hash__ = None  # pyright: ignore[reportAssignmentType] - as every space

    def __repr__(self) -> str:
        return "AnyText()"


def build(form: Any) -> gymnasium.Space[Any]:
    """The space that was described. Raises `EnvironmentFailed` for a form that is none."""
    try:
        return _BUILDERS[form["kind"]](form)
    except (KeyError, TypeError, ValueError, AssertionError) as exc:
        raise EnvironmentFailed(f"the environment describes a space that is none: {exc}") from exc


def _discrete(form: Mapping[str, Any]) -> spaces.Discrete:
    return spaces.Discrete(
        int(form["n"]), start=int(form["start"]), dtype=np.dtype(form["dtype"]).type
    )


def _box(form: Mapping[str, Any]) -> spaces.Box:
    return spaces.Box(
        low=unpack(form["low"]), high=unpack(form["high"]), dtype=np.dtype(form["dtype"]).type
    )


def _multi_binary(form: Mapping[str, Any]) -> spaces.MultiBinary:
    sides = [int(side) for side in form["n"]]
    return spaces.MultiBinary(sides[0] if len(sides) == 1 else sides)


def _multi_discrete(form: Mapping[str, Any]) -> spaces.MultiDiscrete:
    start = unpack(form["start"])
    dtype = np.dtype(form["dtype"]).type
    return spaces.MultiDiscrete(unpack(form["nvec"]), dtype=dtype, start=start)


def _text(form: Mapping[str, Any]) -> spaces.Text:
    return spaces.Text(
        int(form["max_length"]), min_length=int(form["min_length"]), charset=str(form["charset"])
    )


def _graph(form: Mapping[str, Any]) -> spaces.Graph:
    node: Any = build(form["node"])
    edge: Any = None if form["edge"] is None else build(form["edge"])
    return spaces.Graph(node, edge)


_BUILDERS: Mapping[str, Callable[[Mapping[str, Any]], gymnasium.Space[Any]]] = {
    "AnyText": lambda _: AnyText(),
    "Discrete": _discrete,
    "Box": _box,
    "MultiBinary": _multi_binary,
    "MultiDiscrete": _multi_discrete,
    "Text": _text,
    "Tuple": lambda form: spaces.Tuple([build(one) for one in form["spaces"]]),
    "OneOf": lambda form: spaces.OneOf([build(one) for one in form["spaces"]]),
    "Dict": lambda form: spaces.Dict({key: build(one) for key, one in form["spaces"]}),
    "Sequence": lambda form: spaces.Sequence(build(form["space"]), stack=bool(form["stack"])),
    "Graph": _graph,
}
