"""What runs beside an environment, in its own sandbox and under its own Python.

This folder is copied into the sandbox as it is: nothing here imports rock, and Python 3.8 is enough.
`wire` is used on both sides.
"""
