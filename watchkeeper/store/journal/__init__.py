"""The journal: events, incidents, plans and the audit, chained by hashes, in SQLite or PostgreSQL.

Comes in: entries to commit. Goes out: rows and the chain's verdict. Never here: samples, or what an entry means.
"""
