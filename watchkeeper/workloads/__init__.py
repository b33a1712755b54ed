"""Stage 8: analyse jobs: their GPUs and use, their progress, and what they are blocked on.

In: series of jobs, ranks and GPUs through the `Engine`, workloads of schedulers, hardware events, a price book. Out:
`model.jobs` values and replica advice. Never here: a clock, a socket, or an alert: packs/rules/training.yaml and
jobs.yaml decide what is wrong with a job, and this stage reads `ALERTS`, so that pages and incidents agree.
"""
