"""The head: samples of the last hours, in memory, in columns.

In: appended samples. Out: columns of a selection. Never here: a file.
"""
