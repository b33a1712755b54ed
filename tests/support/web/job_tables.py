"""Finished jobs as a table."""

from __future__ import annotations

# Eight jobs of 8 GPUs that all come at once, an hour each: a fleet of 32 GPUs takes two rounds.
LINES = "".join(f"j{at},8,1000,1000,4600\n" for at in range(8))
JOBS = f"id,gpus,submitted,started,ended\n{LINES}"
