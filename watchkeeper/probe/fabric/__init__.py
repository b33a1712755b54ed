"""Fabric test: bandwidth between GPUs inside a node and between nodes, and which link is slow.

In: nodes and GPUs. Out: measured pairs and verdicts. Never here: a repair.
"""
