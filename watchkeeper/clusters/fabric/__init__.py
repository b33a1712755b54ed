"""Sweep the InfiniBand fabric: switches, ports and links, and the changes between two sweeps.

In: infiniband-diags or UFM. Out: links with states and counters. Never here: why a link failed (diagnose).
"""
