"""What `rock demo` runs: an agent that knows nothing of rock, a scripted policy, a trainer process.

`agent` is an ordinary program on the openai SDK; it runs inside each sandbox. `policy` stands in for
a model: labelled scripted, seeded and sometimes wrong. `trainer` is a separate process that speaks
only the trainer API: it answers calls with the policy and takes finished groups with their rewards.
"""
