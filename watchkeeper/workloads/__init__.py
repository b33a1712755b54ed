"""Stage 8: jobs as people see them: what they hold and use, how they get on, and what holds them up.

Comes in: series of jobs, ranks and GPUs through the `Engine`, what schedulers say, hardware events, a price book. Goes
out: `model.jobs` values and replica advice. Never here: a clock, a socket, an alert of its own: what is wrong with a
job is decided by packs/rules/training.yaml and jobs.yaml and read from `ALERTS`, so that pages and incidents agree.
"""
