"""The journal: events, incidents, plans and audit entries in a hash chain, in SQLite or PostgreSQL.

In: entries to commit. Out: rows, and whether the hash chain is intact. Never here: samples, or what an entry means.
"""
