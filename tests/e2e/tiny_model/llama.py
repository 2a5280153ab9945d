"""A small decoder of the Llama family in plain torch, with weights made up from a number.

Rotary positions, grouped-query attention, RMS norms and a gated feed-forward; large enough for
log-probabilities that depend on the whole history, small enough for one processor.
"""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")

LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 2, 4, 2, 16
WIDTH, HIDDEN = HEADS * HEAD_SIZE, 160

Weights = dict[str, Any]
Cache = list[tuple[Any, Any]]
"""Per layer: keys and values of every position so far."""


def make_weights(version: int, vocabulary: int) -> Weights:
    """The weights of a policy version; the same in every process."""
    generator = torch.Generator().manual_seed(1000 + version)

    def matrix(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    weights: Weights = {"embedding": torch.randn(vocabulary, WIDTH, generator=generator)}
    for layer in range(LAYERS):
        weights |= {
            f"{layer}.query": matrix(HEADS * HEAD_SIZE, WIDTH),
            f"{layer}.key": matrix(KV_HEADS * HEAD_SIZE, WIDTH),
            f"{layer}.value": matrix(KV_HEADS * HEAD_SIZE, WIDTH),
            f"{layer}.out": matrix(WIDTH, HEADS * HEAD_SIZE),
            f"{layer}.gate": matrix(HIDDEN, WIDTH),
            f"{layer}.up": matrix(HIDDEN, WIDTH),
            f"{layer}.down": matrix(WIDTH, HIDDEN),
        }
    weights["logits"] = matrix(vocabulary, WIDTH) * 3
    return weights


def forward(weights: Weights, ids: list[int], cache: Cache) -> Any:
    """Log-probabilities of what follows each of `ids`, which come after what is in the cache."""
    start = cache[0][0].shape[1] if cache else 0
    x = weights["embedding"][torch.tensor(ids)]
    for layer in range(LAYERS):
        part = {name: weights[f"{layer}.{name}"] for name in _PARTS}
        x = x + _attention(part, _norm(x), start, cache, layer)
        y = _norm(x)
        gated = torch.nn.functional.silu(y @ part["gate"].T) * (y @ part["up"].T)
        x = x + gated @ part["down"].T
    return torch.log_softmax(_norm(x) @ weights["logits"].T, dim=-1)


_PARTS = ("query", "key", "value", "out", "gate", "up", "down")


def _attention(part: Weights, x: Any, start: int, cache: Cache, layer: int) -> Any:
    count = x.shape[0]

    def heads(name: str, number: int) -> Any:
        return (x @ part[name].T).view(count, number, HEAD_SIZE).transpose(0, 1)

    query = _rotated(heads("query", HEADS), start)
    key, value = _rotated(heads("key", KV_HEADS), start), heads("value", KV_HEADS)
    if layer < len(cache):
        key = torch.cat([cache[layer][0], key], dim=1)
        value = torch.cat([cache[layer][1], value], dim=1)
        cache[layer] = (key, value)
    else:
        cache.append((key, value))
    shared = HEADS // KV_HEADS
    key, value = key.repeat_interleave(shared, dim=0), value.repeat_interleave(shared, dim=0)
    places = torch.arange(start, start + count)[:, None]
    seen = torch.arange(key.shape[1])[None, :] <= places
    scores = (query @ key.transpose(1, 2)) * HEAD_SIZE**-0.5
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
    return (weights @ value).transpose(0, 1).reshape(count, -1) @ part["out"].T


def _rotated(x: Any, start: int) -> Any:
    half = HEAD_SIZE // 2
    rates = 10000.0 ** (-torch.arange(half) / half)
    angles = torch.arange(start, start + x.shape[1])[:, None] * rates[None, :]
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def _norm(x: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6)
