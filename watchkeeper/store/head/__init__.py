"""The head: samples of the last hours, in memory, in columns.

Comes in: appended samples. Goes out: columns of a selection. Never here: a file.
"""
