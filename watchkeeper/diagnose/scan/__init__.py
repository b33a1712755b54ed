"""Scan the health of a node once: facts in, a verdict for each check out.

In: readings of the node's GPUs, its system and its kernel log. Out: verdicts with their details, under the names of
DCGM's health systems. A check is one function; the limits are in packs/health_limits.csv. Never here: reading
devices, a clock, an exit code, or "healthy" without data.
"""
