"""One-shot health of a node: facts in, one verdict for each check out.

Comes in: what was read of the node's GPUs, host and kernel log. Goes out: verdicts with what was looked at, under the
names of DCGM's health systems. A check is one function; limits are packs/health_limits.csv. Never here: a
reading, a clock, an exit code, and "healthy" where nothing was seen.
"""
