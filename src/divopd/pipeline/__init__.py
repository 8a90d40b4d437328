"""The asynchronous system on one machine: a virtual clock (simulated.py) or real processes (live.py)."""
