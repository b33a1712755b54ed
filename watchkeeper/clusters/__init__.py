"""Read schedulers, InfiniBand fabrics and inventory files.

In: the Kubernetes API, Slurm, InfiniBand sweeps, inventory files. Out: nodes, workloads, links and series in the types
of `model.cluster`. Never here: a change to a cluster (remediate).
"""
