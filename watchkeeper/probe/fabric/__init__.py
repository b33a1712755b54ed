"""Bandwidth between GPUs inside a node and between nodes, and which link is slow.

Comes in: nodes and GPUs. Goes out: measured pairs. Never here: a repair.
"""
