"""Poll a Slurm cluster: nodes, jobs and limits from slurmctld or slurmrestd.

In: Slurm's JSON. Out: `model.cluster` values and series. Never here: a change to Slurm.
"""
