"""The agent: what runs on a GPU node, reads its GPUs, host and kernel log, and pushes events to the hub.

Comes in: readings of `readers`, work orders of the hub. Goes out: the /metrics page, events, receipts. Never here:
anything of the hub, and no dependency beyond the three of the base install.
"""
