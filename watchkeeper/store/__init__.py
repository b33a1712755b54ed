"""Stage 2: what is kept. Samples in memory and on disk; events, incidents, actions and audit in the journal.

Comes in: samples, events, changes. Goes out: columns of samples, rows of the journal. Never here: PromQL,
or a second place that writes SQL.
"""
