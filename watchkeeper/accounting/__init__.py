"""Stage 9: who used what, what was wasted, and what it cost.

Comes in: recorded hours of GPUs through the `Engine`, tables of jobs, a price book. Goes out: `usage.Table`, cost
reports and statements, and the ledger, the one file that this stage keeps. Never here: a clock, a socket, a guess: what
nobody could say has a line of its own, and the parts of every report sum to its total.
"""
