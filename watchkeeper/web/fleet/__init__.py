"""The fleet API: nodes, GPUs, jobs' places, fabric, topology, history and orders.

Comes in: requests. Goes out: typed answers. Never here: a decision; it asks the services.
"""
