"""Active work on GPUs: tests of what they reach, and recordings of what a workload is bound by.

Comes in: a GPU that may be used, a program that runs, or a list of nodes. Goes out: verdicts with both numbers, a
recording, a class with its evidence. Never here: a change of clocks, power limits, modes or MIG; torch is loaded only
when a test runs.
"""
