"""A node's own files and tools: /proc, /sys, systemd, IPMI, Redfish.

Comes in: paths and printed output. Goes out: typed facts, None where the node does not say. Never here: a limit.
"""
