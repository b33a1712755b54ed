"""The write-ahead log of samples: written within a second, replayed after a restart.

In: samples that the head accepted. Out: label sets and samples. Never here: a query.
"""
