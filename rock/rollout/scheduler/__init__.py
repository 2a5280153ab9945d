"""Which attempt starts next, which is stopped, and when a group is done. Rules without I/O.

Read `plan` (what goes in and comes out), then `core`; `pool`, `pace` and `bias` are its parts.
`simulate` drives the same `Scheduler` object on a clock of its own.
"""
