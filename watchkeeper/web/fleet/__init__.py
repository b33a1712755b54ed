"""The fleet API: nodes, GPUs, holders, jobs, fabric, topology, event history, drills and work orders.

In: HTTP requests. Out: typed responses. Never here: decisions; the services of the hub make them.
"""
