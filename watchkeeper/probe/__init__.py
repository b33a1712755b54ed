"""Active tests of GPUs, and recordings that show what bounds a workload.

In: a GPU that may be used, a running program, or a list of nodes. Out: verdicts with the measured and the expected
value, a recording, a class with evidence. Never here: a change of clocks, power limits, modes or MIG; torch is imported
only when a test runs.
"""
