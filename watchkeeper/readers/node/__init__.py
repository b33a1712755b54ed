"""Parsers for a node's own files and tools: /proc, /sys, systemd, IPMI, Redfish.

In: paths and command output. Out: typed values, None if unknown. Never here: a threshold.
"""
