"""The agent: runs on a GPU node, reads its GPUs, host and kernel log, and pushes events to the hub.

In: readings of `readers`, work orders of the hub. Out: the /metrics page, events, receipts. Never here: code of the
hub, or a dependency beyond the three of the base install.
"""
