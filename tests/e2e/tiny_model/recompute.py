"""Log-probabilities of exported rows, computed anew: one forward pass per row and policy version.

    python -m tests.e2e.tiny_model.recompute TRAJECTORY TOKENIZER

Prints one JSON line per row: what each version gives for every token, null for the first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rock.modelservice.graph.stored import decode
from rock.modelservice.render import load
from tests.e2e.tiny_model.llama import forward, make_weights, torch


def main() -> None:
    trajectory = decode(Path(sys.argv[1]).read_bytes())
    vocabulary = load(Path(sys.argv[2])).tokenizer.get_vocab_size()
    weights = {version: make_weights(version, vocabulary) for version in (1, 2)}
    for row in trajectory.rows:
        found: dict[int, list[float | None]] = {}
        for version, made in weights.items():
            following = forward(made, row.token_ids, [])
            picked = following[torch.arange(len(row.token_ids) - 1), row.token_ids[1:]]
            found[version] = [None, *picked.tolist()]
        print(json.dumps({"chain": row.chain, "logprobs": found}))  # noqa: T201 - its output


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode():
        main()
