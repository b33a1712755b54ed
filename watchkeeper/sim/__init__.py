"""A fleet without GPUs: physics, jobs, faults, exporters, kernel logs and a cluster.

Comes in: a size, a seed, scenarios from packs/scenarios. Goes out: what real machines would say, over
HTTP. Never here: any import of the product above catalogue/; it must not know who is watching.
"""
