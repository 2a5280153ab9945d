"""Sandboxes: isolated places to run commands. Read `base` for the contract."""
