"""What schedulers, fabric managers and inventories say about the fleet.

Comes in: the Kubernetes API, Slurm, InfiniBand sweeps, inventory files. Goes out: nodes, workloads, links and series
in the shape of `model.cluster`. Never here: a change to a cluster (remediate).
"""
