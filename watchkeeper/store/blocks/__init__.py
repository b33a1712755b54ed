"""Blocks: hours of samples in one immutable file each, and their compaction.

In: columns of the head. Out: columns of past times. Never here: samples that may still change.
"""
