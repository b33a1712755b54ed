"""Stage 2: storage. Samples in memory and on disk; events, incidents, actions and audit entries in the journal.

In: samples, events, changes. Out: columns of samples, rows of the journal. Never here: PromQL. Only the journal
contains SQL.
"""
