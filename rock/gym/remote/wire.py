"""Values and spaces of environments as JSON, exactly: types, dtypes and shapes come back as they were.

Nothing is ever executed to read a value, so what a sandbox says cannot harm who listens. An object with
one key that begins with `$` stands for what JSON has not:

    $n [dtype, base64]           numpy scalar       $t [...]      tuple
    $a [dtype, shape, base64]    numpy array        $d [[k, v]]   mapping with other keys than texts
    $f "nan" | "inf" | "-inf"    float              $b base64     bytes
    $i "12…"                     large integer      $g [n, e, l]  GraphInstance
    $r "…"                       what an object without a form here looked like (in `info` only)

dtypes are numpy's array-protocol strings, such as `<f4`. Also imported in sandboxes: no rock here.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any, cast

SAFE_INTEGER = 2**53
MAX_SHOWN = 200
PLAIN_KINDS = "biufcUSmM"
"""Kinds of numpy dtypes whose bytes are their values: no objects, no records."""


def pack(value: Any, *, lenient: bool = False) -> Any:
    """`value` as what JSON can hold. Raises `TypeError` for what has no form, unless `lenient`."""
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if -SAFE_INTEGER < value < SAFE_INTEGER else {"$i": str(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"$f": str(value)}
    if type(value).__module__ == "numpy":
        return _pack_numpy(value, lenient)
    return _pack_container(value, lenient)


def _pack_container(value: Any, lenient: bool) -> Any:
    if isinstance(value, dict):
        table = cast("dict[Any, Any]", value)
        if all(type(key) is str and not key.startswith("$") for key in table):
            return {key: pack(one, lenient=lenient) for key, one in table.items()}
        return {
            "$d": [[pack(k, lenient=lenient), pack(v, lenient=lenient)] for k, v in table.items()]
        }
    if isinstance(value, (list, tuple)):
        items = [pack(one, lenient=lenient) for one in cast("list[Any]", value)]
        kind = type(cast("object", value)).__name__
        return (
            items if isinstance(value, list) else {"$g" if kind == "GraphInstance" else "$t": items}
        )
    if isinstance(value, (bytes, bytearray)):
        return {"$b": _text(bytes(value))}
    for plain in (bool, int, float, str):
        if isinstance(value, plain):  # an enum, for one
            return pack(plain(value))
    return _without_form(value, lenient)


def _pack_numpy(value: Any, lenient: bool) -> Any:
    dtype = getattr(value, "dtype", None)
    if dtype is None or dtype.kind not in PLAIN_KINDS:
        return _without_form(value, lenient)
    if type(value).__name__ == "ndarray":
        return {"$a": [dtype.str, list(value.shape), _text(value.tobytes())]}
    return {"$n": [dtype.str, _text(value.tobytes())]}


def _without_form(value: Any, lenient: bool) -> Any:
    if lenient:
        return {"$r": repr(value)[:MAX_SHOWN]}
    raise TypeError(f"a {type(value).__name__} cannot leave the environment's process")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def unpack(value: Any) -> Any:
    """What `pack` was given. Raises `ValueError` for what it never makes."""
    if isinstance(value, list):
        return [unpack(one) for one in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    table = cast("dict[str, Any]", value)
    if len(table) == 1:
        (key,) = table
        if key.startswith("$"):
            if key not in _READERS:
                raise ValueError(f"a value of kind {key!r}, which is not known here")
            return _READERS[key](table[key])
    return {key: unpack(one) for key, one in table.items()}


def _array(form: Any) -> Any:
    import numpy as np

    dtype, shape, text = form
    flat = np.frombuffer(base64.b64decode(text), dtype=_dtype(dtype))
    return flat.reshape([int(side) for side in shape]).copy()


def _scalar(form: Any) -> Any:
    import numpy as np

    dtype, text = form
    return np.frombuffer(base64.b64decode(text), dtype=_dtype(dtype))[0]


def _dtype(text: Any) -> Any:
    import numpy as np

    dtype = np.dtype(str(text))
    if dtype.kind not in PLAIN_KINDS:
        raise ValueError(f"a dtype {text!r}, which is not plain data")
    return dtype


def _graph(form: Any) -> Any:
    from gymnasium.spaces import GraphInstance

    nodes, edges, links = (unpack(one) for one in form)
    return GraphInstance(nodes, edges, links)


_READERS: dict[str, Callable[[Any], Any]] = {
    "$n": _scalar,
    "$a": _array,
    "$f": float,
    "$i": int,
    "$b": base64.b64decode,
    "$t": lambda form: tuple(unpack(one) for one in form),
    "$d": lambda form: {unpack(key): unpack(one) for key, one in form},
    "$g": _graph,
    "$r": str,
}


def describe(space: Any) -> dict[str, Any]:
    """A Gymnasium space as JSON; None, which text environments have, is any text.

    Raises `TypeError` for a kind of space that has no form here.
    """
    if space is None:
        return {"kind": "AnyText"}
    for kind in type(space).__mro__:
        if kind.__module__.startswith("gymnasium.spaces") and kind.__name__ in _DESCRIBERS:
            return {"kind": kind.__name__, **_DESCRIBERS[kind.__name__](space)}
    raise TypeError(f"a space of kind {type(space).__name__} cannot be shown outside")


def _all(spaces: Any) -> Any:
    return [describe(one) for one in spaces]


_DESCRIBERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Discrete": lambda s: {"n": int(s.n), "start": int(s.start), "dtype": s.dtype.str},
    "Box": lambda s: {"low": pack(s.low), "high": pack(s.high), "dtype": s.dtype.str},
    "MultiBinary": lambda s: {"n": [int(side) for side in s.shape]},
    "MultiDiscrete": lambda s: {
        "nvec": pack(s.nvec),
        "start": pack(getattr(s, "start", None)),
        "dtype": s.dtype.str,
    },
    "Text": lambda s: {
        "max_length": int(s.max_length),
        "min_length": int(s.min_length),
        "charset": "".join(s.character_list),
    },
    "Tuple": lambda s: {"spaces": _all(s.spaces)},
    "OneOf": lambda s: {"spaces": _all(s.spaces)},
    "Dict": lambda s: {"spaces": [[key, describe(one)] for key, one in s.spaces.items()]},
    "Sequence": lambda s: {"space": describe(s.feature_space), "stack": bool(s.stack)},
    "Graph": lambda s: {
        "node": describe(s.node_space),
        "edge": None if s.edge_space is None else describe(s.edge_space),
    },
}
