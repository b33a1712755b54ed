"""Stage 9: usage by owner, waste, and cost.

In: recorded GPU-hours from the `Engine`, tables of jobs, a price book. Out: `usage.UsageTable`, cost reports and
statements, and the ledger, the only files that this stage writes. Never here: a clock, a socket, or a guess. Unknown
hours have a separate line, and the lines of every report add up to its total.
"""
