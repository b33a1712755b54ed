"""Game days without a machine: simulated faults against the real pipeline, and a score.

Comes in: scenarios of the packs, hours of healthy operation. Goes out: what was detected, how fast, how
right, and what was cried for nothing. Never here: a clock, HTTP, or knowledge of a fault beyond its truth.
"""
