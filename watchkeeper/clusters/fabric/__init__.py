"""The InfiniBand fabric, swept: switches, ports and links, and what changed between two sweeps.

Comes in: infiniband-diags or UFM. Goes out: links with states and counters. Never here: why a link failed (diagnose).
"""
