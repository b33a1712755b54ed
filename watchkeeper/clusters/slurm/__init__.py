"""A Slurm cluster, polled: nodes, jobs and limits as slurmctld or slurmrestd report them.

Comes in: Slurm's JSON. Goes out: `model.cluster` values and series. Never here: a change to Slurm.
"""
