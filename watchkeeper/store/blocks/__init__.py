"""Blocks: hours of samples in one immutable file each, and their compaction.

Comes in: columns of the head. Goes out: columns of the past. Never here: samples that may still change.
"""
