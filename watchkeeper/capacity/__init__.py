"""Stage 10: when the fleet is full, what would help, and how a different fleet would perform.

In: demand series, recorded jobs, nodes. Out: forecasts with intervals and errors, fragmentation, rightsizing advice,
what-if replays. Never here: an action; advice is data for other systems.
"""
