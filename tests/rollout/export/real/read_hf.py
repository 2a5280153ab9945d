"""Run with datasets' Python: loads an export directory as a dataset, prints what it holds as JSON."""

import json
import sys

import datasets

data = datasets.load_dataset(sys.argv[1], split="train", cache_dir=sys.argv[2])
print(json.dumps([[r["token_ids"], r["mask"], r["logprobs"], r["sample_id"]] for r in data]))
