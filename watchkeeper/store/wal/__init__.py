"""The write-ahead log of samples: written within a second, read back after a restart.

Comes in: what the head accepted. Goes out: label sets and samples. Never here: a query.
"""
