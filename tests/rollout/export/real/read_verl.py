"""Run with verl's Python: makes a DataProto of a batch, works on it, prints what it holds as JSON."""

import json
import sys

import numpy as np
import torch
from verl import DataProto

archive = np.load(sys.argv[1])
tensors = {n: torch.from_numpy(archive[n]) for n in archive.files if not n.endswith(".json")}
non_tensors = {}
for name, values in json.loads(archive["non_tensors.json"]).items():
    non_tensors[name] = np.empty(len(values), dtype=object)
    non_tensors[name][:] = values
meta_info = json.loads(archive["meta_info.json"])
data = DataProto.from_dict(tensors=tensors, non_tensors=non_tensors, meta_info=meta_info)
data.check_consistency()
halves = data.chunk(2) if len(data) % 2 == 0 else [data]
data = DataProto.concat(halves)

found = []
for row in range(len(data)):
    keep = data.batch["attention_mask"][row].bool()
    tokens = data.batch["input_ids"][row][keep].tolist()
    width = data.batch["prompts"].shape[1]
    start = int(keep[:width].sum())
    own = keep[width:]
    mask = [0] * start + data.batch["response_mask"][row][own].tolist()
    logprobs = [0.0] * start + data.batch["rollout_log_probs"][row][own].tolist()
    reward = float(data.batch["rm_scores"][row].sum())
    found.append([tokens, mask, logprobs, [data.non_tensor_batch["uid"][row], reward]])
print(json.dumps(found))
