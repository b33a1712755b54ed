"""Stage 10: when the fleet is full, what would help, and what it would look like otherwise.

Comes in: demand by the hour, jobs as they were, nodes as they are. Goes out: forecasts with intervals and their error,
fragmentation, replays. Never here: an action; advice is data for others.
"""
