"""Run with Harbor's Python: reads ATIF lines with its own models, prints what they hold as JSON."""

import json
import sys

from harbor.models.trajectories import Trajectory

found = []
for line in open(sys.argv[1], encoding="utf-8"):
    document = Trajectory.model_validate_json(line)
    for chain in [document, *(document.subagent_trajectories or [])]:
        own = [step.metrics for step in chain.steps if step.metrics is not None]
        last = own[-1]
        tokens = last.prompt_token_ids + last.completion_token_ids
        mask, logprobs = [0] * len(tokens), [0.0] * len(tokens)
        for metrics in own:
            start = len(metrics.prompt_token_ids)
            end = start + len(metrics.completion_token_ids)
            mask[start:end] = [1] * (end - start)
            logprobs[start:end] = metrics.logprobs
        found.append([tokens, mask, logprobs, chain.schema_version])
print(json.dumps(found))
